"""Walks through small drafted trees, counted against the laws of their tokens and verdicts.

A token that an exact verifier emits follows the target's law after the tokens before it, at every
position of a walk. Whether a walk goes so far does not depend on this token: if walks that end
earlier are continued by fresh draws, all tokens at a position follow the target; the fresh ones do,
so the emitted ones do, too.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn.functional import one_hot, pad

from resispec.audit.as_sibling_rule import kept_outcomes
from resispec.audit.chi_square import chi_square, chi_square_of_counts, chi_squared, of_sums, summed
from resispec.audit.verdict import FINAL_TOKENS, MIN_VARIANCE, Statistic, z_score
from resispec.core import Tree, Verdict
from resispec.trees import Topology, families_by_level_on
from resispec.verifiers.base import DrawsKind, Outcomes, Verifier

MOST_READ = 256
"""The most different trees whose `outcomes` are computed."""
MOST_DRAFTED = 3_000
"""The most trees whose siblings are counted."""
MOST_ENTRIES = 2**23
"""About how many entries of siblings' laws are held at once."""
MOST_BACK = 3
"""The steps before a walk that it must not depend on."""


class TokenScores(NamedTuple):
    """A number for every token, minus its mean under a law.

    deviations: (R, V); variances: (R,), float64.
    """

    deviations: Tensor
    variances: Tensor

    @classmethod
    def of(cls, values: Tensor, laws: Tensor) -> "TokenScores":
        """From numbers (R, V) of tokens and their laws (R, V), float64; 0 times infinity is 0."""
        is_counted = laws > 0
        finite = torch.where(is_counted, values, 0.0)
        deviations = values - (laws * finite).sum(-1, keepdim=True)
        squares = torch.where(is_counted, deviations, 0.0).square()
        return cls(deviations, (laws * squares).sum(-1))


def scores_of(laws: Tensor, draft_laws: Tensor | None = None) -> dict[str, TokenScores]:
    """The statistics of `resispec.audit.z_score` for laws (R, V); no overdraft without a draft."""
    p = laws.double()
    p = p / p.sum(-1, keepdim=True)
    values = {"surprisal": -p.log(), "rank": p.cumsum(-1) - p / 2}
    if draft_laws is not None:
        values["overdraft"] = (draft_laws > laws).double()
    return {name: TokenScores.of(numbers, p) for name, numbers in values.items()}


@dataclass(frozen=True)
class Scene:
    """A topology and the laws of its tokens.

    name: for people, such as "wide". target_rows, draft_rows: (R, V) float32, the law of the token
    after a token t is row t % R: bigram models with R = V, one law for all nodes with R = 1.
    classes: (V,) int64, each token's class, from 0 to the number of classes minus 1; tokens of one
    class are counted together. trees_per_turn: trees verified one after the other in a turn.
    setting: the temperature and filters that such laws come from, for people.
    """

    name: str
    topology: Topology
    target_rows: Tensor
    draft_rows: Tensor
    classes: Tensor
    trees_per_turn: int = 1
    setting: str = "T = 1"

    @property
    def num_siblings(self) -> int:
        """The most children of a node."""
        return max(map(len, self.topology.children))

    @cached_property
    def member(self) -> Tensor:
        """Whether a token is in a class, (V, K) float64; a product with it sums by class."""
        return one_hot(self.classes).double()

    @cached_property
    def class_laws(self) -> Tensor:
        """The chances (R, K) of classes under the target's rows, float64."""
        return _chances(self.target_rows, self.member)

    @cached_property
    def scores(self) -> Mapping[str, TokenScores]:
        """The statistics of the target's rows."""
        return scores_of(self.target_rows, self.draft_rows)

    def drafted(self, draws: DrawsKind, generator: Generator) -> Tensor:
        """Draft the tokens (N,) of a new tree."""
        tokens = torch.zeros(self.topology.num_nodes, dtype=torch.int64)
        for parents, children in families_by_level_on(self.topology, tokens.device):
            probs = self.draft_rows[tokens[parents] % len(self.draft_rows)]
            tokens[children] = draws.draw(probs, children.shape[1], generator)
        return tokens

    def given(self, tokens: Tensor, draws: DrawsKind) -> tuple[Tree, Tensor, Tensor]:
        """The tree and the laws, (N, V) each, that a verifier is given."""
        rows = tokens % len(self.target_rows)
        return Tree(self.topology, tokens, draws), self.target_rows[rows], self.draft_rows[rows]


@dataclass(frozen=True)
class Walks:
    """The drafts and verdicts of one scene, in order. trees: (n, N) int64, the drafted tokens."""

    scene: Scene
    draws: DrawsKind
    trees: Tensor
    verdicts: Sequence[Verdict]

    @cached_property
    def tokens(self) -> Tensor:
        """The emitted tokens (n, D), -1 after the last one of a walk."""
        levels = self.scene.topology.num_levels
        rows = [
            verdict.tokens + (-1,) * (levels - verdict.num_emitted) for verdict in self.verdicts
        ]
        return torch.tensor(rows)

    @cached_property
    def is_emitted(self) -> Tensor:
        """(n, D)."""
        return self.tokens >= 0

    @cached_property
    def rows(self) -> Tensor:
        """The row (n, D) of the law of every emitted token; elsewhere any row."""
        before = pad(self.tokens[:, :-1], (1, 0))  # a root's token is 0
        return before.clamp_min(0) % len(self.scene.target_rows)


TreeOutcomes = Callable[[tuple[int, ...]], Outcomes]
"""The outcomes of a tree of a scene with these tokens."""


def outcomes_in(
    verifier: Verifier, scene: Scene, draws: DrawsKind, tokens: tuple[int, ...]
) -> Outcomes:
    """The outcomes of a tree of the scene with these tokens."""
    return kept_outcomes(verifier, *scene.given(torch.tensor(tokens), draws))


def statistics_of(outcomes: TreeOutcomes, walks: Walks) -> dict[str, Statistic]:
    """Chi-squares of walks.

    For tokens, which must follow the target's law:

    - "siblings": drafted siblings against the laws that they were drawn from;
    - "tokens", "tokens by row": all emitted tokens, together, and for each row of the scene apart;
    - "token 1", ..., "bonus token": those of one position, the last of which comes from a leaf;
      each of these also with " surprisal", " overdraft" and " rank", by the z-scores of decoding;
    - "1 back, overdraft", ...: whether a walk depends on one shortly before it.

    For verdicts, which must follow `outcomes`, see AGAINST_OUTCOMES:

    - "verdicts": the stopping node and the final token;
    - "residual", "leaf": the final token, where a node with children or a leaf ends the walk;
      each also with " surprisal" and " rank".
    """
    return {
        "siblings": _siblings(walks),
        **_tokens(walks),
        **_dependence(walks),
        **_verdicts(outcomes, walks),
    }


def _chances(laws: Tensor, member: Tensor) -> Tensor:
    """The chances (R, K) of classes under laws (R, V)."""
    chances = laws.double() @ member
    return chances / chances.sum(-1, keepdim=True)


def _counted(rows: Tensor, cells: Tensor, shape: Sequence[int]) -> Tensor:
    """How often each row (n,) goes with each cell (n,): counts of this shape, float64."""
    places = rows * shape[1] + cells
    return torch.bincount(places, minlength=shape[0] * shape[1]).double().view(*shape)


def _score(name: str, deviation: float, variance: float, count: int) -> Statistic:
    """A z-score as a chi-square; of no degrees if it rests on too little, see MIN_VARIANCE."""
    score = z_score(deviation, variance, count)
    if variance < MIN_VARIANCE[name] and abs(score.z) < float("inf"):
        return chi_squared(0.0, 0, count)
    return chi_squared(score.z**2, 1, count)


def _siblings(walks: Walks) -> Statistic:
    """Siblings of the first trees, by rank, against their laws given the earlier siblings."""
    scene, draws = walks.scene, walks.draws
    laws, cells = defaultdict[int, list[Tensor]](list), defaultdict[int, list[Tensor]](list)
    size = max(1, MOST_ENTRIES // (scene.topology.num_nodes * len(scene.classes)))
    for trees in walks.trees[:MOST_DRAFTED].split(size):
        for parents, children in scene.topology.families:
            probs = scene.draft_rows[trees[:, parents].flatten() % len(scene.draft_rows)]
            siblings = trees[:, children].flatten(0, 1)
            for rank, law in enumerate(draws.laws(probs, siblings)):
                laws[rank].append(_chances(law, scene.member))
                cells[rank].append(scene.classes[siblings[:, rank]])
    by_rank = []
    for rank, parts in laws.items():
        chances = torch.cat(parts)
        by_rank.append(chi_square(chances, torch.cat(cells[rank])))
    return summed(by_rank)


def _tokens(walks: Walks) -> dict[str, Statistic]:
    """All emitted tokens, and those of every position apart."""
    scene, levels = walks.scene, walks.scene.topology.num_levels
    rows, tokens = walks.rows[walks.is_emitted], walks.tokens[walks.is_emitted]
    counts = _counted(rows, scene.classes[tokens], scene.class_laws.shape)
    by_row = zip(scene.class_laws.split(1), counts.split(1), strict=True)
    found = {
        "tokens": chi_square_of_counts(scene.class_laws, counts),
        "tokens by row": summed(
            [chi_square_of_counts(*row) for row in by_row if bool(row[1].any())]
        ),
    }
    found |= _scored(scene, rows, tokens, "token")
    for place in range(levels):
        name = "bonus token" if place == levels - 1 else f"token {place + 1}"
        is_here = walks.is_emitted[:, place]
        rows, tokens = walks.rows[is_here, place], walks.tokens[is_here, place]
        if len(rows):
            counts = _counted(rows, scene.classes[tokens], scene.class_laws.shape)
            found[name] = chi_square_of_counts(scene.class_laws, counts)
            found |= _scored(scene, rows, tokens, name)
    return found


def _scored(scene: Scene, rows: Tensor, tokens: Tensor, name: str) -> dict[str, Statistic]:
    """The z-scores of tokens (m,) under the target's rows (m,)."""
    found = {}
    for kind, (deviations, variances) in scene.scores.items():
        sums = float(deviations[rows, tokens].sum()), float(variances[rows].sum())
        found[f"{name} {kind}"] = _score(kind, *sums, len(rows))
    return found


def _dependence(walks: Walks) -> dict[str, Statistic]:
    """Whether tokens go with how far one of the last walks went, or with the ranks of its tokens.

    Given all that came before, a token's score has mean 0; so has its product with anything known
    before.
    """
    scene, is_emitted = walks.scene, walks.is_emitted
    scores, variances = dict[str, Tensor](), dict[str, Tensor]()
    for kind, (deviations, of_rows) in scene.scores.items():
        if kind != "surprisal":  # it is unbounded
            scores[kind] = torch.where(is_emitted, deviations[walks.rows, walks.tokens], 0.0)
            variances[kind] = torch.where(is_emitted, of_rows[walks.rows], 0.0)
    known = torch.cat((is_emitted[:, 1:].double() - 0.5, scores["rank"]), 1)
    found = {}
    for back in range(1, min(MOST_BACK, len(known) - 1) + 1):
        before = known[:-back]
        for kind in scores:
            parts = []
            for score, variance in zip(
                scores[kind][back:].T, variances[kind][back:].T, strict=True
            ):
                if float(variance.sum()) >= MIN_VARIANCE[kind]:
                    covariance = before.T @ (before * variance[:, None])
                    parts.append(of_sums(before.T @ score, covariance, len(before)))
            found[f"{back} back, {kind}"] = summed(parts)
    return found


def _verdicts(outcomes_of_tree: TreeOutcomes, walks: Walks) -> dict[str, Statistic]:
    """Stopping nodes and final tokens against `outcomes`."""
    scene, topology = walks.scene, walks.scene.topology
    ends = defaultdict[tuple[int, ...], Counter[tuple[int, int]]](Counter)
    for tree, verdict in zip(walks.trees.tolist(), walks.verdicts, strict=True):
        key = tuple(tree)
        if key in ends or len(ends) < MOST_READ:
            ends[key][(0, *verdict.path)[-1], verdict.tokens[-1]] += 1
    num_classes = scene.member.shape[1]
    chances, counts = [], []
    final = {name: _FinalTokens(scene) for name in FINAL_TOKENS}
    for key, outcomes_seen in ends.items():
        outcomes = outcomes_of_tree(key)
        chance = (
            outcomes.stop.double()[:, None] * _chances(outcomes.final, scene.member)
        ).flatten()
        chances.append(chance / chance.sum())
        nodes, tokens = torch.tensor([*outcomes_seen]).T
        times = torch.tensor([*outcomes_seen.values()])
        cells = nodes * num_classes + scene.classes[tokens]
        counts.append(torch.bincount(cells, times.double(), minlength=len(chance)))
        for name, is_inner in zip(FINAL_TOKENS, (True, False), strict=True):
            is_here = torch.tensor(
                [bool(topology.children[node]) is is_inner for node in nodes.tolist()]
            )
            if bool(is_here.any()):
                final[name].add(outcomes.final, nodes[is_here], tokens[is_here], times[is_here])
    found = {"verdicts": chi_square_of_counts(torch.stack(chances), torch.stack(counts))}
    for name, part in final.items():
        found |= part.statistics(name)
    return found


class _FinalTokens:
    """Final tokens against the laws that `outcomes` gives them where the walk ended."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.laws, self.counts = list[Tensor](), list[Tensor]()
        self.sums = {name: [0.0, 0.0] for name in ("surprisal", "rank")}

    def add(self, laws: Tensor, nodes: Tensor, tokens: Tensor, times: Tensor) -> None:
        """Add tokens (m,) drawn from laws (N, V) at nodes (m,), each so many times (m,)."""
        places, order = nodes.unique(return_inverse=True)
        chances = _chances(laws[places], self.scene.member)
        cells = order * chances.shape[1] + self.scene.classes[tokens]
        counts = torch.bincount(cells, times.double(), minlength=chances.numel())
        self.laws.append(chances)
        self.counts.append(counts.view(chances.shape))
        for name, (deviations, variances) in scores_of(laws[places]).items():
            self.sums[name][0] += float((deviations[order, tokens] * times).sum())
            self.sums[name][1] += float((variances[order] * times).sum())

    def statistics(self, name: str) -> dict[str, Statistic]:
        """The chi-square over classes and the z-scores, by name; none if nothing was added."""
        if not self.laws:
            return {}
        counts = torch.cat(self.counts)
        count = int(counts.sum())
        found = {name: chi_square_of_counts(torch.cat(self.laws), counts)}
        for kind, (deviation, variance) in self.sums.items():
            found[f"{name} {kind}"] = _score(kind, deviation, variance, count)
        return found
