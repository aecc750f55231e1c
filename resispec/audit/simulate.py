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
from resispec.audit.z_score import rank_terms, surprisal_terms, z_score
from resispec.core import Tree, Verdict
from resispec.distributions import draw_one
from resispec.trees import Topology
from resispec.verifiers.base import Draws, Verifier


@dataclass(frozen=True)
class Scene:
    """A topology and the laws of its tokens.

    name: for people, such as "wide".
    target_rows, draft_rows: (R, V) float32, the law of the token after a token t is row t % R: bigram models
    with R = V, one law for all nodes with R = 1. classes: (V,) int64, tokens of one class are counted
    together; from 0 to the number of classes less 1. trees_per_turn: more for small trees, which cost less.
    """

    name: str
    topology: Topology
    target_rows: Tensor
    draft_rows: Tensor
    classes: Tensor
    trees_per_turn: int = 1


def simulate(
    verifier: Verifier, scenes: Sequence[Scene], draws: Draws, num_turns: int, generator: Generator
) -> dict[str, ChiSquare]:
    """Draft and verify trees of all scenes, by turns, and compare counts with laws.

    Returns, for every scene, such as "wide", what was counted on the CPU:
    "siblings, wide": drafted siblings against the laws that they were drawn from;
    "verdicts, wide": the stopping node and the final token against `outcomes`;
    "surprisal, wide", "rank, wide": the final token against its law at that node, by decoding's z-scores;
    "tokens, wide": the first D tokens, fresh ones where a step gave fewer, against the target;
    "turns, wide": whether a verdict depends on the one before it in the same scene, which it must not.
    """
    records = [_Record(verifier, scene, draws) for scene in scenes]
    for _ in range(num_turns):
        for record in records:
            record.turn(generator)
    beside = Generator().manual_seed(0)  # the verifier's stream of random numbers is left alone
    return {
        f"{name}, {scene.name}": found
        for scene, record in zip(scenes, records, strict=True)
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

    def turn(self, generator: Generator) -> None:
        """Draft and verify the trees of one turn."""
        for _ in range(self._scene.trees_per_turn):
            self._step(generator)

    def _step(self, generator: Generator) -> None:
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
        nodes, final, chances, laws = self._judged()
        cells = nodes * self._num_classes + self._scene.classes[final]
        share = torch.rand(len(cells), generator=beside, dtype=torch.float64)
        chance = chances.gather(1, cells[:, None])[:, 0]
        below = chances.cumsum(1).gather(1, cells[:, None])[:, 0] - chance
        uniform = below + share * chance - 0.5  # uniform on (-1/2, 1/2) where the verdicts follow their laws
        turns = 12 * float((uniform[1:] * uniform[:-1]).sum()) / math.sqrt(len(cells) - 1)
        return {
            "siblings": self._siblings(),
            "verdicts": chi_square(chances, cells),
            "surprisal": _squared(*surprisal_terms(laws, final)),
            "rank": _squared(*rank_terms(laws, final)),
            "tokens": self._tokens(beside),
            "turns": ChiSquare(turns**2, 1, len(cells) - 1),
        }

    def _given(self, tokens: Tensor) -> tuple[Tree, Tensor, Tensor]:
        """What a verifier is given of a tree."""
        scene = self._scene
        rows = tokens % len(scene.target_rows)
        tree = Tree(scene.topology, tokens, self._draws)
        return tree, scene.target_rows[rows], scene.draft_rows[rows]

    def _judged(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What was drawn, and its laws under `outcomes`.

        Stopping nodes and final tokens (n,); the chances of all pairs of a node and a class of tokens
        (n, N x K); the final token's law at the node that was stopped at (n, V).
        """
        nodes = [(0, *verdict.path)[-1] for verdict in self._verdicts]
        known: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}  # the same tree is drafted many times
        chances, laws = [], []
        for tokens, node in zip(self._trees, nodes, strict=True):
            key = tuple(tokens.tolist())
            if key not in known:
                outcomes = self._verifier.outcomes(*self._given(tokens))
                final = outcomes.final.double()
                cells = (outcomes.stop.double()[:, None] * (final @ self._member)).flatten()
                known[key] = cells / cells.sum(), final / final.sum(-1, keepdim=True)
            chances.append(known[key][0])
            laws.append(known[key][1][node])
        final_tokens = torch.tensor([verdict.tokens[-1] for verdict in self._verdicts])
        return torch.tensor(nodes), final_tokens, torch.stack(chances), torch.stack(laws)

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


def _squared(deviation: Tensor, variance: Tensor) -> ChiSquare:
    """A z-score as a chi-square: terms (n,) of deviations, and their variances."""
    score = z_score(float(deviation.sum()), float(variance.sum()), len(deviation))
    return ChiSquare(score.z**2, 1, score.n)
