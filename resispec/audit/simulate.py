"""Do the verdicts that `verify` draws follow `outcomes`, and the tokens that come out the target's law?

Enumeration and estimation judge the law that a verifier says it draws from. Decoding calls `verify`, which
may draw from another one: a bonus token at another temperature, one random number used twice, state that is
kept from one call to the next. So small trees are drafted, verified and counted, many times, on several
scenes by turns, with one generator, as a decoder would.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from resispec.audit.chi_square import ChiSquare, chi_square
from resispec.core import Tree, Verdict
from resispec.distributions import draw_one
from resispec.trees import Topology
from resispec.verifiers.base import Draws, Verifier


@dataclass(frozen=True)
class Scene:
    """A topology and the laws of its tokens.

    target_rows, draft_rows: (R, V) float32, the law of the token after a token t is row t % R: bigram models
    with R = V, one law for all nodes with R = 1. classes: (V,) int64, tokens of one class are counted
    together; from 0 to the number of classes less 1.
    """

    topology: Topology
    target_rows: Tensor
    draft_rows: Tensor
    classes: Tensor


def simulate(
    verifier: Verifier, scenes: Sequence[Scene], draws: Draws, num_steps: int, generator: Generator
) -> dict[str, ChiSquare]:
    """Draft and verify `num_steps` trees of every scene, by turns, and compare counts with laws.

    Returns, for scene i of the list, on the CPU:
    "siblings i": drafted siblings against the laws that they were drawn from;
    "verdicts i": the stopping node and the final token against `outcomes`;
    "tokens i": the first D tokens, fresh ones where a step gave fewer, against the target;
    "turns i": whether a verdict depends on the one before it in the same scene, which it must not.
    """
    records = [_Record(verifier, scene, draws) for scene in scenes]
    for _ in range(num_steps):
        for record in records:
            record.step(generator)
    beside = Generator().manual_seed(0)  # the verifier's stream of random numbers is left alone
    return {
        f"{name} {place}": found
        for place, record in enumerate(records)
        for name, found in record.results(beside).items()
    }


class _Record:
    """The steps of one scene."""

    def __init__(self, verifier: Verifier, scene: Scene, draws: Draws) -> None:
        self._verifier, self._scene, self._draws = verifier, scene, draws
        self._num_classes = int(scene.classes.max()) + 1
        # (V, K): the sum over a class is a product with this.
        self._member = torch.nn.functional.one_hot(scene.classes, self._num_classes).double()
        self._trees: list[Tensor] = []
        self._verdicts: list[Verdict] = []

    def step(self, generator: Generator) -> None:
        """Draft a tree and verify it."""
        scene = self._scene
        tokens = torch.zeros(scene.topology.num_nodes, dtype=torch.int64)
        for parents, children in scene.topology.families_by_level:
            probs = scene.draft_rows[tokens[parents] % len(scene.draft_rows)]
            tokens[children] = self._draws.draw(probs, children.shape[1], generator)
        verdict = self._verifier.verify(*self._given(tokens), generator)
        self._trees.append(tokens)
        self._verdicts.append(verdict)

    def results(self, beside: Generator) -> dict[str, ChiSquare]:
        """What the counts say."""
        laws, cells = self._verdict_laws(), self._verdict_cells()
        share = torch.rand(len(cells), generator=beside, dtype=torch.float64)
        chance = laws.gather(1, cells[:, None])[:, 0]
        below = laws.cumsum(1).gather(1, cells[:, None])[:, 0] - chance
        uniform = below + share * chance - 0.5  # uniform on (-1/2, 1/2) where the verdicts follow their laws
        turns = 12 * float((uniform[1:] * uniform[:-1]).sum()) / math.sqrt(len(cells) - 1)
        return {
            "siblings": self._siblings(),
            "verdicts": chi_square(laws, cells),
            "tokens": self._tokens(beside),
            "turns": ChiSquare(turns**2, 1, len(cells) - 1),
        }

    def _given(self, tokens: Tensor) -> tuple[Tree, Tensor, Tensor]:
        """What a verifier is given of a tree."""
        scene = self._scene
        rows = tokens % len(scene.target_rows)
        tree = Tree(scene.topology, tokens, self._draws)
        return tree, scene.target_rows[rows], scene.draft_rows[rows]

    def _verdict_cells(self) -> Tensor:
        """(n,): a node and a class of tokens for every verdict."""
        nodes = torch.tensor([(0, *verdict.path)[-1] for verdict in self._verdicts])
        final = torch.tensor([verdict.tokens[-1] for verdict in self._verdicts])
        return nodes * self._num_classes + self._scene.classes[final]

    def _verdict_laws(self) -> Tensor:
        """(n, N x K): the chances of these cells under `outcomes`."""
        known: dict[tuple[int, ...], Tensor] = {}  # the same tree is drafted many times
        for tokens in self._trees:
            key = tuple(tokens.tolist())
            if key not in known:
                outcomes = self._verifier.outcomes(*self._given(tokens))
                cells = (outcomes.stop.double()[:, None] * (outcomes.final.double() @ self._member)).flatten()
                known[key] = cells / cells.sum()
        return torch.stack([known[tuple(tokens.tolist())] for tokens in self._trees])

    def _siblings(self) -> ChiSquare:
        """Every sibling, by its rank under its parent, against its law given the earlier ones."""
        tokens, scene = torch.stack(self._trees), self._scene
        widest = max(map(len, scene.topology.children))
        laws, cells = [], []
        for parents, children in scene.topology.families:
            probs = scene.draft_rows[tokens[:, parents].flatten() % len(scene.draft_rows)]
            drawn = tokens[:, children].flatten(0, 1)
            for rank, law in enumerate(self._draws.laws(probs, drawn)):
                laws.append(_block(law.double() @ self._member, torch.full((len(law),), rank), widest))
                cells.append(rank * self._num_classes + scene.classes[drawn[:, rank]])
        if not laws:
            return ChiSquare(0.0, 0, 0)
        return chi_square(torch.cat(laws), torch.cat(cells))

    def _tokens(self, beside: Generator) -> ChiSquare:
        """The first D tokens of every step, each given the one before it.

        How many a step emits depends on what they are. So a step that emitted fewer is continued by fresh
        draws from the target; otherwise the counts would be biased under an exact verifier, too.
        """
        scene = self._scene
        num_rows, before, after = len(scene.target_rows), [], []
        for verdict in self._verdicts:
            tokens = [0, *verdict.tokens]
            while len(tokens) <= scene.topology.num_levels:
                tokens.append(draw_one(scene.target_rows[tokens[-1] % num_rows], beside))
            before += tokens[:-1]
            after += tokens[1:]
        row = torch.tensor(before) % num_rows
        laws = (scene.target_rows.double() @ self._member)[row]
        cells = row * self._num_classes + scene.classes[torch.tensor(after)]
        return chi_square(_block(laws / laws.sum(1, keepdim=True), row, num_rows), cells)


def _block(laws: Tensor, place: Tensor, count: int) -> Tensor:
    """Laws (n, K) as the `place`-th of `count` blocks of cells: (n, count x K), zero elsewhere."""
    where = torch.nn.functional.one_hot(place, count).to(laws.dtype)
    return (where[:, :, None] * laws[:, None]).flatten(1)
