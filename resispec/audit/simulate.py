"""Do the tokens that `verify` emits follow the target's law, and its verdicts the law of `outcomes`?

Enumeration and estimation judge the law that a verifier says it draws from. Decoding calls `verify`, which
may draw from another law: a bonus token at another temperature, one random number used twice, state that is
kept from one call to the next. So small trees are drafted, verified and counted many times, on several scenes
in turn, with one generator, as in a decoder.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Generator, Tensor
from torch.nn.functional import one_hot

from resispec.audit.chi_square import chi_square, chi_squared
from resispec.audit.verdict import AGAINST_OUTCOMES, LEAST_P, Statistic, Statistics, remeasured, z_score
from resispec.audit.z_score import overdraft_terms, rank_terms, surprisal_terms
from resispec.core import Tree, Verdict
from resispec.distributions import draw_one
from resispec.trees import Topology, families_by_level_on
from resispec.verifiers.base import Draws, Verifier, outcomes_of


@dataclass(frozen=True)
class Scene:
    """A topology and the laws of its tokens.

    name: for people, such as "wide". target_rows, draft_rows: (R, V) float32, the law of the token after a
    token t is row t % R: bigram models with R = V, one law for all nodes with R = 1. classes: (V,) int64,
    each token's class, from 0 to the number of classes minus 1; tokens of one class are counted together.
    trees_per_turn: trees verified per turn, more of small trees, which cost less.
    """

    name: str
    topology: Topology
    target_rows: Tensor
    draft_rows: Tensor
    classes: Tensor
    trees_per_turn: int = 1

    @property
    def num_siblings(self) -> int:
        """The most children of a node."""
        return max(map(len, self.topology.children))

    @cached_property
    def member(self) -> Tensor:
        """(V, K) float64: whether a token is in a class, so that a product with it is a sum over classes."""
        return one_hot(self.classes).double()

    def drafted(self, draws: Draws, generator: Generator) -> Tensor:
        """Draft the tokens (N,) of a new tree."""
        tokens = torch.zeros(self.topology.num_nodes, dtype=torch.int64)
        for parents, children in families_by_level_on(self.topology, tokens.device):
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
    """Draft and verify trees of all scenes, in turn, and compare counts with laws, on the CPU.

    Returns these chi-squares by the scene's name. For tokens, which must follow the target's law:
    "siblings": drafted siblings against the laws that they were drawn from;
    "tokens": the first D tokens, fresh ones where a step gave fewer;
    "token surprisal", "token overdraft", "token rank": the same tokens by the z-scores of decoding;
    "turns": whether a verdict depends on the one before it in the same scene, which it must not.
    For verdicts, which must follow `outcomes`, see AGAINST_OUTCOMES:
    "verdicts": the stopping node and the final token;
    "verdict surprisal", "verdict rank": the final token's z-scores under its law at that node.
    """
    samples: list[list[tuple[Tensor, Verdict]]] = [[] for _ in scenes]
    for _ in range(num_turns):
        for scene, pairs in zip(scenes, samples, strict=True):
            for _ in range(scene.trees_per_turn):
                tokens = scene.drafted(draws, generator)
                pairs.append((tokens, verifier.verify(*scene.given(tokens, draws), generator)))
    side_generator = Generator().manual_seed(0)  # the verifier's stream of random numbers is left alone
    results = {}
    for scene, pairs in zip(scenes, samples, strict=True):
        trees, verdicts = zip(*pairs, strict=True)
        verdict_counts = _verdict_counts(verifier, scene, draws, trees, verdicts, side_generator)
        token_counts = _token_counts(scene, verdicts, side_generator)
        siblings = _sibling_counts(scene, draws, torch.stack(trees))
        results[scene.name] = {"siblings": siblings, **token_counts, **verdict_counts}
    return results


def simulated(
    verifier: Verifier, scenes: Sequence[Scene], draws: Draws, num_turns: int, generator: Generator
) -> dict[str, dict[str, Statistic]]:
    """The counts of `simulate`, remeasured: all scenes in turn, and then each scene that looks suspicious.

    Where verdicts do not follow `outcomes`, the tokens may still be right: they are simulated for longer, to
    tell an inconsistent verifier from a biased one.
    """
    results = simulate(verifier, scenes, draws, num_turns, generator)
    for scene in scenes:
        first = results[scene.name]

        def measure(times: int, scene: Scene = scene, first: Statistics = first) -> Statistics:
            if times == 1:
                return first
            return simulate(verifier, [scene], draws, times * num_turns, generator)[scene.name]

        counts = dict(remeasured(measure))
        outliers = [name for name, count in counts.items() if count.p_value < LEAST_P]
        if outliers and all(name in AGAINST_OUTCOMES for name in outliers):
            counts |= {name: count for name, count in measure(16).items() if name not in AGAINST_OUTCOMES}
        results[scene.name] = counts
    return results


def _sibling_counts(scene: Scene, draws: Draws, trees: Tensor) -> Statistic:
    """Count siblings of trees (n, N), by rank under their parent, against their laws given earlier ones."""
    laws, cells = [], []
    for parents, children in scene.topology.families:
        probs = scene.draft_rows[trees[:, parents].flatten() % len(scene.draft_rows)]
        siblings = trees[:, children].flatten(0, 1)
        for rank, law in enumerate(draws.laws(probs, siblings)):
            laws.append(
                _block(law.double() @ scene.member, torch.full((len(law),), rank), scene.num_siblings)
            )
            cells.append(rank * scene.member.shape[1] + scene.classes[siblings[:, rank]])
    return chi_square(torch.cat(laws), torch.cat(cells)) if laws else chi_squared(0.0, 0, 0)


def _token_counts(scene: Scene, verdicts: Sequence[Verdict], generator: Generator) -> dict[str, Statistic]:
    """The first D tokens of every step, each against its law after the one before it.

    The number of tokens that a step emits depends on the tokens. So a step that emitted fewer is continued by
    fresh draws from the target; otherwise the counts would be biased under an exact verifier, too.
    """
    num_rows, before, after = len(scene.target_rows), list[int](), list[int]()
    for verdict in verdicts:
        tokens = [0, *verdict.tokens]
        while len(tokens) <= scene.topology.num_levels:
            tokens.append(draw_one(scene.target_rows[tokens[-1] % num_rows], generator))
        before += tokens[:-1]
        after += tokens[1:]
    rows, emitted = torch.tensor(before) % num_rows, torch.tensor(after)
    laws = (scene.target_rows.double() @ scene.member)[rows]
    blocks = _block(laws / laws.sum(1, keepdim=True), rows, num_rows)
    # Repeated pairs of a row and a token are computed once.
    (row, token), counts = torch.stack((rows, emitted)).unique(dim=1, return_counts=True)
    target, draft = scene.target_rows[row].double(), scene.draft_rows[row].double()
    return {
        "tokens": chi_square(blocks, rows * scene.member.shape[1] + scene.classes[emitted]),
        "token surprisal": _squared(surprisal_terms(target, token), counts),
        "token overdraft": _squared(overdraft_terms(target, draft, token), counts),
        "token rank": _squared(rank_terms(target, token), counts),
    }


def _verdict_counts(
    verifier: Verifier,
    scene: Scene,
    draws: Draws,
    trees: Sequence[Tensor],
    verdicts: Sequence[Verdict],
    generator: Generator,
) -> dict[str, Statistic]:
    """Stopping nodes and final tokens against `outcomes`, and every verdict against the one before it."""
    nodes = [(0, *verdict.path)[-1] for verdict in verdicts]
    final = torch.tensor([verdict.tokens[-1] for verdict in verdicts])
    cache: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}  # the same tree is drafted many times
    chances, laws = [], []
    for tokens, node in zip(trees, nodes, strict=True):
        key = tuple(tokens.tolist())
        if key not in cache:
            outcomes = outcomes_of(verifier, *scene.given(tokens, draws))
            rows = outcomes.final.double()
            cells = (outcomes.stop.double()[:, None] * (rows @ scene.member)).flatten()
            cache[key] = cells / cells.sum(), rows / rows.sum(-1, keepdim=True)
        chances.append(cache[key][0])
        laws.append(cache[key][1][node])
    chance, law = torch.stack(chances), torch.stack(laws)  # (n, N K) of nodes with classes, (n, V)
    cells = torch.tensor(nodes) * scene.member.shape[1] + scene.classes[final]
    share = torch.rand(len(cells), generator=generator, dtype=torch.float64)
    mass = chance.gather(1, cells[:, None])[:, 0]
    place = chance.cumsum(1).gather(1, cells[:, None])[:, 0] - mass + share * mass
    place -= place.mean()  # uniform where the verdicts follow `outcomes`
    covariance = float((place[1:] * place[:-1]).sum())
    turns = covariance / (float(place.square().mean()) * math.sqrt(len(place) - 1))
    return {
        "turns": chi_squared(turns**2, 1, len(place) - 1),
        "verdicts": chi_square(chance, cells),
        "verdict surprisal": _squared(surprisal_terms(law, final)),
        "verdict rank": _squared(rank_terms(law, final)),
    }


def _block(laws: Tensor, place: Tensor, count: int) -> Tensor:
    """Laws (n, K) as the `place`-th of `count` blocks of cells: (n, count x K), zero elsewhere."""
    mask = one_hot(place, count).to(laws.dtype)
    return (mask[:, :, None] * laws[:, None]).flatten(1)


def _squared(terms: tuple[Tensor, Tensor], counts: Tensor | None = None) -> Statistic:
    """A z-score as a chi-square. terms: deviations and variances (n,), each once or `counts` times."""
    counts = torch.ones_like(terms[0]) if counts is None else counts
    deviation, variance = (float((term * counts).sum()) for term in terms)
    score = z_score(deviation, variance, int(counts.sum()))
    return chi_squared(score.z**2, 1, score.n)
