"""The joint optimum of small trees, and what exact verifiers leave of it.

Found (docs/optimal-verification.md, results/published/embedded/joint.md): `traversal_optimal`
leaves 3.4 % of the joint optimum in the mean over 84 worlds with independent draws, and
`level_optimal` 2.3 %.

A *world* has p and q after every sequence of fewer tokens than there are levels. A *place* is such
a sequence as a number: the root is 0, and token t after place x leads to V x + 1 + t. Nodes of a
drafted tree that hold the same sequence share a place, and how often a sequence was drafted changes
nothing about what can be accepted.

The optimum is a linear program. For every set S of drafted places its variables are
    w_S(x), the probability that S is drafted and that the accepted path passes place x of S, and
    f_S(x, y), that S is drafted, the walk stops at x, and y, which was not drafted below x, is
    emitted there.
What passes x goes on to a child or stops, w_S(x) = sum_y w_S(x y) + f_S(x, y), and w_S(root) =
Pr(S).
Exact means that for every place x and token y, summed over the sets S,
    w(x y) + f(x, y) = p(y | x) w(x),
since what stopped before x goes on there by fresh draws from p, so that what passes x must do so,
too. At the last level, tokens are drawn from p. The optimum is the largest sum of all w: the
expected number of accepted tokens. Every exact verifier is a point of the program.

*Full knowledge.* With one world, a verifier knows p and q everywhere, also where nothing was
drafted. *Drafted knowledge.* A real one knows the laws at drafted places only, and must be exact
whatever the others are. With several worlds the program decides once for all worlds that look the
same from a drafted tree, and is to be exact in every one of them; its optimum is the mean over the
worlds, and no real verifier exceeds it.
"""

from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import product

import numpy as np
import pandas as pd
import torch
from scipy.optimize import linprog
from scipy.sparse import coo_array
from torch import Tensor

from analysis import figures, joint
from analysis.joint import COMPARED, DRAFTED, OPTIMUM, ROUNDING, UNEVEN
from experiments.bench.frame import Measured, run_bench
from resispec.core import Tree
from resispec.errors import InvalidInput
from resispec.progress import progress_bar
from resispec.trees import Topology, chain, complete, from_child_counts
from resispec.verifiers import Draws, DrawsKind, Verifier, available, get_verifier

BIASED = {"resispec", "hsd", "dial", "lenience", "typical", "relaxed"}
EXACT = [name for name in available() if name not in BIASED]
ONE, ALL = (Draws.IID,), tuple(Draws)
SHAPES: dict[str, tuple[Topology, int, tuple[DrawsKind, ...]]] = {
    "1-1-1": (chain(3), 3, ONE),
    "3": (complete(2, 3), 4, ALL),
    "2-1": (from_child_counts([[2], [1, 1]]), 3, ALL),
    UNEVEN: (from_child_counts([[2], [0, 1]]), 3, ALL),
    "2-2": (complete(3, 2), 2, ONE),
    "3-1": (from_child_counts([[3], [1, 1, 1]]), 2, ONE),
    "2-1-1": (from_child_counts([[2], [1, 1], [1, 1]]), 2, ONE),
}
"""By their children a level: topologies, V, and the draws that they are measured with."""
LAWS = {
    "flat, near": (1, 0.5),
    "flat, far": (1, 1.0),
    "sharp, near": (3, 0.5),
    "sharp, far": (3, 1.0),
}
"""Sharpness of p and q, and their distance, see `random_world`."""
POSSIBLE = {("2-1", 2): 6, ("2-1", 3): 2, (UNEVEN, 3): 3, ("3-1", 2): 3, ("2-1-1", 2): 2}
"""By shape and V: how many laws are possible after a sequence that was not drafted."""
NUM_WORLDS = 3
"""Random worlds of every kind of known laws."""
Shown = tuple[frozenset[int], tuple[bytes, ...]]
"""View of a drafted tree: its places, and the laws at all of them but the last level's."""


@dataclass(frozen=True, eq=False)
class World:
    """Laws after every sequence of fewer than D tokens: target, draft (K, V) float64.

    The sequences stand level after level. inner: the number of places above the last level.
    """

    target: Tensor
    draft: Tensor
    inner: int

    @cached_property
    def laws(self) -> tuple[bytes, ...]:
        """p and q at every place, as something that can be compared at once."""
        rows = zip(self.target.numpy(), self.draft.numpy(), strict=True)
        return tuple(p.tobytes() + q.tobytes() for p, q in rows)

    def shown(self, places: frozenset[int]) -> Shown:
        """View of a drafted tree of these places."""
        return places, tuple(self.laws[place] for place in sorted(places) if place < self.inner)


def random_world(
    topology: Topology, vocab: int, sharpness: float, distance: float, seed: int
) -> World:
    """A world for trees of this topology, with Dirichlet laws.

    sharpness: 1 / the Dirichlet's parameter, so 1 is uniform over all laws, and 4 has few likely
    tokens. distance: the share of q that is a law of its own; the rest is p's.
    """
    inner = sum(vocab**level for level in range(topology.num_levels - 1))
    places = inner + vocab ** (topology.num_levels - 1)
    rng = np.random.default_rng(seed)
    target, other = rng.dirichlet(np.full(vocab, 1 / sharpness), size=(2, places))
    draft = distance * other + (1 - distance) * target
    return World(torch.from_numpy(target), torch.from_numpy(draft), inner)


def mixtures(worlds: Sequence[World]) -> list[World]:
    """All worlds that take the laws at the root from the first of these, and elsewhere from any.

    Seeing some of the laws says nothing about the others. Laws of the last level do not matter to
    the program, so those of the first world stay.
    """
    mixed = []
    for choice in product(worlds, repeat=max(0, worlds[0].inner - 1)):
        target, draft = worlds[0].target.clone(), worlds[0].draft.clone()
        for place, world in enumerate(choice, start=1):
            target[place], draft[place] = world.target[place], world.draft[place]
        mixed.append(World(target, draft, worlds[0].inner))
    return mixed


def drafted(
    topology: Topology, world: World, draws: DrawsKind
) -> Iterator[tuple[Tree, Tensor, float]]:
    """Every tree that can be drafted, with its nodes' places (N,) and its probability."""
    vocab, num_drafted = world.target.shape[1], topology.num_nodes - 1
    tokens = torch.tensor([(0, *row) for row in product(range(vocab), repeat=num_drafted)])
    places = torch.zeros_like(tokens)
    for node, parent in enumerate(topology.parents[1:], start=1):
        places[:, node] = vocab * places[:, parent] + 1 + tokens[:, node]
    chances = world.target.new_ones(len(tokens))
    for parents, children in topology.families:
        rows = world.draft[places[:, parents]]
        chances = chances * draws.weights(rows, tokens[:, children]).prod(-1)
    for index in chances.nonzero()[:, 0].tolist():
        yield Tree(topology, tokens[index], draws), places[index], float(chances[index])


def accepted_tokens(
    verifier: Verifier, topology: Topology, world: World, draws: DrawsKind
) -> float:
    """Expected accepted tokens of a verifier.

    Raises InvalidInput for draws it is not defined for.
    """
    accepted = 0.0
    for tree, places, chance in drafted(topology, world, draws):
        stop = verifier.outcomes(tree, world.target[places], world.draft[places]).stop
        accepted += chance * float(stop @ topology.depths.double())
    return accepted


class Program:
    """The linear program for trees of a topology, drafted in one of several equally likely worlds.

    value: (M,), what a variable adds to the number of accepted tokens. All worlds have one law at
    the root.
    """

    def __init__(self, topology: Topology, draws: DrawsKind, worlds: Sequence[World]) -> None:
        self.value: list[float] = []
        self._variables: dict[Shown, list[tuple[int, int | None, int]]] = {}
        self._entries: list[tuple[int, int, float]] = []
        self._right: list[float] = []
        for world in worlds:
            self._add_world(topology, draws, world, 1 / len(worlds))

    def _add_world(self, topology: Topology, draws: DrawsKind, world: World, weight: float) -> None:
        """Variables for what no earlier world shows, and what exactness in this world demands."""
        chances: dict[frozenset[int], float] = defaultdict(float)
        for _, places, chance in drafted(topology, world, draws):
            chances[frozenset(places.tolist())] += chance
        vocab = world.target.shape[1]
        passing: dict[int, list[int]] = defaultdict(list)
        emitting: dict[tuple[int, int], list[int]] = defaultdict(list)
        for places, chance in chances.items():
            shown = world.shown(places)
            if shown not in self._variables:
                self._add_tree(shown, chance, world)
            for x, y, column in self._variables[shown]:
                if y is not None:
                    emitting[x, y].append(column)
                    continue
                passing[x].append(column)
                if x:
                    emitting[divmod(x - 1, vocab)].append(column)
                    self.value[column] += weight
        for x in sorted(place for place in passing if place < world.inner):
            for y, probability in enumerate(world.target[x].tolist()):
                emitted = [(column, 1.0) for column in emitting[x, y]]
                self._add_row(emitted + [(column, -probability) for column in passing[x]], 0.0)

    def _add_tree(self, shown: Shown, chance: float, world: World) -> None:
        """Variables of one set S, (x, None, w_S(x)) and (x, y, f_S(x, y)), and their equations."""
        places, vocab = shown[0], world.target.shape[1]
        columns: dict[tuple[int, int | None], int] = {}
        for x in sorted(places):
            below = range(vocab * x + 1, vocab * x + 1 + vocab) if x < world.inner else ()
            for y in (None, *(y for y, place in enumerate(below) if place not in places)):
                columns[x, y] = len(self.value)
                self.value.append(0.0)
        self._variables[shown] = [(x, y, column) for (x, y), column in columns.items()]
        self._add_row([(columns[0, None], 1.0)], chance)
        for x in (place for place in sorted(places) if place < world.inner):
            ways = [
                columns.get((vocab * x + 1 + y, None), columns.get((x, y))) for y in range(vocab)
            ]
            self._add_row([(columns[x, None], 1.0), *((column, -1.0) for column in ways)], 0.0)

    def _add_row(self, terms: Sequence[tuple[int, float]], right: float) -> None:
        self._entries += [(len(self._right), column, factor) for column, factor in terms]
        self._right.append(right)

    def optimum(self) -> float:
        """The largest expected number of accepted tokens, by HiGHS."""
        rows, columns, factors = zip(*self._entries, strict=True)
        matrix = coo_array(
            (factors, (rows, columns)), shape=(len(self._right), len(self.value))
        ).tocsr()
        solution = linprog(-np.array(self.value), A_eq=matrix, b_eq=self._right, method="highs")
        if solution.status != 0:
            raise ArithmeticError(f"the program was not solved: {solution.message}")
        return -solution.fun


@dataclass(frozen=True)
class Case:
    """Random worlds of one kind: all mixtures of `possible` ones."""

    shape: str
    vocab: int
    draws: DrawsKind
    laws: str
    seed: int
    possible: int = 1

    def accepted(self) -> dict[str, float]:
        """Tokens that the optimum and exact verifiers accept, a mean over the worlds."""
        topology = SHAPES[self.shape][0]
        seeds = range(100 * self.seed, 100 * self.seed + self.possible)
        worlds = mixtures(
            [random_world(topology, self.vocab, *LAWS[self.laws], seed) for seed in seeds]
        )
        alone = [Program(topology, self.draws, [world]).optimum() for world in worlds]
        accepted = {OPTIMUM: sum(alone) / len(worlds)}
        if self.possible > 1:
            accepted[DRAFTED] = Program(topology, self.draws, worlds).optimum()
        for name in EXACT if self.possible == 1 else (COMPARED,):
            with suppress(InvalidInput):  # not with these draws, or not on trees
                tokens = [
                    accepted_tokens(get_verifier(name), topology, one, self.draws) for one in worlds
                ]
                accepted[name] = sum(tokens) / len(worlds)
        assert max(accepted.values()) <= accepted[OPTIMUM] + ROUNDING
        return accepted


def cases() -> list[Case]:
    """NUM_WORLDS worlds of every kind, and one family of worlds a kind for what is not drafted."""
    alone = [
        Case(shape, vocab, draws, laws, seed)
        for shape, (_, vocab, kinds) in SHAPES.items()
        for draws, laws, seed in product(kinds, LAWS, range(NUM_WORLDS))
    ]
    return alone + [
        Case(shape, vocab, Draws.IID, laws, 0, possible)
        for (shape, vocab), possible in POSSIBLE.items()
        for laws in LAWS
    ]


def solved(wanted: Sequence[Case]) -> pd.DataFrame:
    """One tidy row per case and verifier, the joint optimum being one of them."""
    rows = [
        {**asdict(case), "draws": str(case.draws), "verifier": name, "accepted": accepted}
        for case in progress_bar(wanted, desc="joint optimum", unit="world")
        for name, accepted in case.accepted().items()
    ]
    return pd.DataFrame(rows)


def measure(options: Namespace) -> Measured:
    """Two tables, what they show in words, and the figure, which is written here."""
    frame = solved(cases())
    figures.save_figure(joint.draw(frame), options.results / "embedded" / "joint")
    tables = [joint.left_by_verifiers(frame), joint.left_by_knowledge(frame)]
    return tables, joint.notes(frame), frame


if __name__ == "__main__":
    run_bench("joint", __doc__, measure, device=None)
