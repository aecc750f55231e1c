"""Do the tokens that `verify` emits follow the target's law, and its verdicts the law of `outcomes`?

Enumeration and estimation judge the law that a verifier says it draws from. Decoding calls `verify`, which
may draw from another one: a bonus token at another temperature, one random number used twice, state that is
kept from one call to the next. So small trees are drafted, verified and counted, many times, on several
scenes by turns, with one generator, as a decoder would.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Generator, Tensor
from torch.nn.functional import one_hot

from resispec.audit.chi_square import chi_square, chi_squared
from resispec.audit.verdict import Statistic, z_score
from resispec.audit.z_score import overdraft_terms, rank_terms, surprisal_terms
from resispec.core import Tree, Verdict
from resispec.distributions import draw_one
from resispec.trees import Topology
from resispec.verifiers.base import Draws, Verifier

PIECE = 2048
"""Tokens whose laws are looked at together."""


@dataclass(frozen=True)
class Scene:
    """A topology and the laws of its tokens.

    name: for people, such as "wide". target_rows, draft_rows: (R, V) float32, the law of the token after a
    token t is row t % R: bigram models with R = V, one law for all nodes with R = 1. classes: (V,) int64,
    tokens of one class are counted together; from 0 to the number of classes less 1. trees_per_turn: more for
    small trees, which cost less.
    """

    name: str
    topology: Topology
    target_rows: Tensor
    draft_rows: Tensor
    classes: Tensor
    trees_per_turn: int = 1

    def drafted(self, draws: Draws, generator: Generator) -> Tensor:
        """The tokens (N,) of a new tree."""
        tokens = torch.zeros(self.topology.num_nodes, dtype=torch.int64)
        for parents, children in self.topology.families_by_level:
            probs = self.draft_rows[tokens[parents] % len(self.draft_rows)]
            tokens[children] = draws.draw(probs, children.shape[1], generator)
        return tokens

    def given(self, tokens: Tensor, draws: Draws) -> tuple[Tree, Tensor, Tensor]:
        """The tree and the laws, (N, V) each, that a verifier is given."""
        rows = tokens % len(self.target_rows)
        return Tree(self.topology, tokens, draws), self.target_rows[rows], self.draft_rows[rows]


def simulate(
    verifier: Verifier, scenes: Sequence[Scene], draws: Draws, num_turns: int, generator: Generator
) -> dict[str, dict[str, Statistic]]:
    """Draft and verify trees of all scenes, by turns, and compare counts with laws, on the CPU.

    Returns by the scene's name these chi-squares. Of tokens, which must follow the target's law:
    "siblings": drafted siblings against the laws that they were drawn from;
    "tokens": the first D tokens, fresh ones where a step gave fewer;
    "token surprisal", "token overdraft", "token rank": the same by decoding's z-scores;
    "turns": whether a verdict depends on the one before it in the same scene, which it must not.
    Of verdicts, which must follow `outcomes`, see AGAINST_OUTCOMES:
    "verdicts": the stopping node and the final token;
    "verdict surprisal", "verdict rank": the final token's z-scores under its law at that node.
    """
    records = [_Record(verifier, scene, draws) for scene in scenes]
    for _ in range(num_turns):
        for record in records:
            for _ in range(record.scene.trees_per_turn):
                tokens = record.scene.drafted(draws, generator)
                verdict = verifier.verify(*record.scene.given(tokens, draws), generator)
                record.trees.append(tokens)
                record.verdicts.append(verdict)
    beside = Generator().manual_seed(0)  # the verifier's stream of random numbers is left alone
    return {record.scene.name: record.results(beside) for record in records}


@dataclass
class _Record:
    """The trees (N,) and verdicts of one scene."""

    verifier: Verifier
    scene: Scene
    draws: Draws
    trees: list[Tensor] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._num_classes = int(self.scene.classes.max()) + 1
        # (V, K): the sum over a class is a product with this.
        self._member = one_hot(self.scene.classes, self._num_classes).double()

    def results(self, beside: Generator) -> dict[str, Statistic]:
        """The statistics of `simulate`."""
        nodes, final, chances, laws = self._judged()
        cells = nodes * self._num_classes + self.scene.classes[final]
        share = torch.rand(len(cells), generator=beside, dtype=torch.float64)
        chance = chances.gather(1, cells[:, None])[:, 0]
        below = chances.cumsum(1).gather(1, cells[:, None])[:, 0] - chance
        place = below + share * chance  # uniform on (0, 1) where the verdicts follow `outcomes`
        before, after = self._tokens(beside)
        return {
            "siblings": self._siblings(),
            "tokens": self._token_counts(before, after),
            **self._token_scores(before, after),
            "turns": _turns(place - place.mean()),
            "verdicts": chi_square(chances, cells),
            "verdict surprisal": _squared(*surprisal_terms(laws, final)),
            "verdict rank": _squared(*rank_terms(laws, final)),
        }

    def _judged(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Stopping nodes and final tokens (n,), and their laws under `outcomes`.

        The chances of all pairs of a node and a class of tokens (n, N x K); the final token's law at the node
        that was stopped at (n, V).
        """
        nodes = [(0, *verdict.path)[-1] for verdict in self.verdicts]
        known: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}  # the same tree is drafted many times
        chances, laws = [], []
        for tokens, node in zip(self.trees, nodes, strict=True):
            key = tuple(tokens.tolist())
            if key not in known:
                outcomes = self.verifier.outcomes(*self.scene.given(tokens, self.draws))
                final = outcomes.final.double()
                cells = (outcomes.stop.double()[:, None] * (final @ self._member)).flatten()
                known[key] = cells / cells.sum(), final / final.sum(-1, keepdim=True)
            chances.append(known[key][0])
            laws.append(known[key][1][node])
        final_tokens = torch.tensor([verdict.tokens[-1] for verdict in self.verdicts])
        return torch.tensor(nodes), final_tokens, torch.stack(chances), torch.stack(laws)

    def _siblings(self) -> Statistic:
        """Every sibling, by its rank under its parent, against its law given the earlier ones."""
        tokens, scene = torch.stack(self.trees), self.scene
        widest = max(map(len, scene.topology.children))
        laws, cells = [], []
        for parents, children in scene.topology.families:
            probs = scene.draft_rows[tokens[:, parents].flatten() % len(scene.draft_rows)]
            drawn = tokens[:, children].flatten(0, 1)
            for rank, law in enumerate(self.draws.laws(probs, drawn)):
                laws.append(_block(law.double() @ self._member, torch.full((len(law),), rank), widest))
                cells.append(rank * self._num_classes + scene.classes[drawn[:, rank]])
        if not laws:
            return chi_squared(0.0, 0, 0)
        return chi_square(torch.cat(laws), torch.cat(cells))

    def _tokens(self, beside: Generator) -> tuple[Tensor, Tensor]:
        """The first D tokens of every step, each behind the one before it: (n D,) both.

        How many a step emits depends on what they are. So a step that emitted fewer is continued by fresh
        draws from the target; otherwise the counts would be biased under an exact verifier, too.
        """
        scene = self.scene
        num_rows, before, after = len(scene.target_rows), [], []
        for verdict in self.verdicts:
            tokens = [0, *verdict.tokens]
            while len(tokens) <= scene.topology.num_levels:
                tokens.append(draw_one(scene.target_rows[tokens[-1] % num_rows], beside))
            before += tokens[:-1]
            after += tokens[1:]
        return torch.tensor(before), torch.tensor(after)

    def _token_scores(self, before: Tensor, after: Tensor) -> dict[str, Statistic]:
        """The z-scores of decoding, over every token; in pieces, since laws of wide scenes are large."""
        terms: dict[str, list[Tensor]] = {"surprisal": [], "overdraft": [], "rank": []}
        for row, token in zip(before.split(PIECE), after.split(PIECE), strict=True):
            target, draft = (
                rows[row % len(rows)].double() for rows in (self.scene.target_rows, self.scene.draft_rows)
            )
            terms["surprisal"].append(torch.stack(surprisal_terms(target, token)))
            terms["overdraft"].append(torch.stack(overdraft_terms(target, draft, token)))
            terms["rank"].append(torch.stack(rank_terms(target, token)))
        return {f"token {name}": _squared(*torch.cat(parts, 1)) for name, parts in terms.items()}

    def _token_counts(self, before: Tensor, after: Tensor) -> Statistic:
        """Every token against its law after the one before it."""
        num_rows = len(self.scene.target_rows)
        row = before % num_rows
        laws = (self.scene.target_rows.double() @ self._member)[row]
        cells = row * self._num_classes + self.scene.classes[after]
        return chi_square(_block(laws / laws.sum(1, keepdim=True), row, num_rows), cells)


def _turns(place: Tensor) -> Statistic:
    """Correlation of every verdict's place (n,), less the mean, with that of the verdict before it."""
    spread = float(place.square().mean())
    turns = float((place[1:] * place[:-1]).sum()) / (spread * math.sqrt(len(place) - 1))
    return chi_squared(turns**2, 1, len(place) - 1)


def _block(laws: Tensor, place: Tensor, count: int) -> Tensor:
    """Laws (n, K) as the `place`-th of `count` blocks of cells: (n, count x K), zero elsewhere."""
    where = one_hot(place, count).to(laws.dtype)
    return (where[:, :, None] * laws[:, None]).flatten(1)


def _squared(deviation: Tensor, variance: Tensor) -> Statistic:
    """A z-score as a chi-square: terms (n,) of deviations, and their variances."""
    score = z_score(float(deviation.sum()), float(variance.sum()), len(deviation))
    return chi_squared(score.z**2, 1, score.n)
