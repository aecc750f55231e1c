r"""The most tokens that any exact verifier of a small tree can accept, by linear programming.

A verifier decides, given all that a drafted tree shows, where the walk stops and what is emitted there. For
every set S of drafted places the variables are
    w_S(x), the probability that S is drafted and that the accepted path passes place x of S, and
    f_S(x, y), that S is drafted, the walk stops at x, and y, which was not drafted below x, is emitted there.
What passes x goes on to a child or stops, w_S(x) = sum_y w_S(x y) + f_S(x, y), and w_S(root) = Pr(S).
Exact means that for every place x and token y, summed over the sets S,
    w(x y) + f(x, y) = p(y | x) w(x),
since what stopped before x goes on there by fresh draws from p, so that what passes x must do so, too. At the
last level, tokens are drawn from p. The optimum is the largest sum of all w: the expected number of accepted
tokens.

*Full knowledge.* With one world, a verifier knows p and q everywhere, also where nothing was drafted.
*Drafted knowledge.* A real one knows the laws at drafted places only, and must be exact whatever the others
are. With several worlds the program decides once for all worlds that look the same from a drafted tree, and
is to be exact in every one of them; its optimum is the mean over the worlds. What is exact in all possible
worlds is exact in these, so no real verifier exceeds it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from resispec.audit.joint.account import verified_trees
from resispec.audit.joint.worlds import Places, World, drafted_places, sequence
from resispec.errors import InvalidInput
from resispec.trees import Topology
from resispec.verifiers.base import Draws, Verifier

ROOT, PASS = 0, -1
Shown = tuple[Places, tuple[bytes, ...]]
"""What a drafted tree shows: its places, and the laws at all of them but the last level's."""


@dataclass(frozen=True)
class Optimum:
    """The best that an exact verifier can do.

    accepted: the expected number of accepted tokens. point: (M,), the solution, see `JointProgram.columns`.
    prices: by (world, place x, token y), how much more would be accepted for each unit by which y may be
    emitted after x in place of the cheapest token there.
    """

    accepted: float
    point: np.ndarray
    prices: dict[tuple[int, int, int], float]


class JointProgram:
    """The program for trees of one topology, drafted in one of several equally likely worlds.

    columns: the index of w_S(x), by (S, x, PASS), and of f_S(x, y), by (S, x, y). rows: of every equation the
    world, x and y that it is about; None for those about one S. value: (M,), what an entry adds to the number
    of accepted tokens.
    Raises InvalidInput when worlds do not fit the topology or differ at the root, which every tree shows.
    """

    def __init__(self, topology: Topology, draws: Draws, worlds: Sequence[World]) -> None:
        if len({world.laws[ROOT] for world in worlds}) != 1:
            raise InvalidInput(
                "worlds that differ at the root, or none; allowed: at least one, and one root law"
            )
        self.topology, self.draws, self.worlds = topology, draws, tuple(worlds)
        self.columns: dict[tuple[Shown, int, int], int] = {}
        self.rows: list[tuple[int, int, int] | None] = []
        self.value: list[float] = []
        self._of: dict[Shown, list[tuple[int, int, int]]] = {}
        self._entries: list[tuple[int, int, float]] = []
        self._right: list[float] = []
        for index in range(len(worlds)):
            self._add_world(index)

    def _add_world(self, index: int) -> None:
        """Variables for what no earlier world shows, and what exactness in this world demands."""
        world, vocab = self.worlds[index], self.worlds[index].vocab
        passing: dict[int, list[int]] = defaultdict(list)
        emitting: dict[tuple[int, int], list[int]] = defaultdict(list)
        for places, chance in drafted_places(self.topology, world, self.draws).items():
            shown = shown_by(places, world)
            if shown not in self._of:
                self._add_shown(shown, chance, world)
            for x, y, column in self._of[shown]:
                if y != PASS:
                    emitting[x, y].append(column)
                    continue
                passing[x].append(column)
                if x != ROOT:
                    emitting[divmod(x - 1, vocab)].append(column)
                    self.value[column] += 1 / len(self.worlds)
        for x in sorted(place for place in passing if place < world.level_starts[-2]):
            for y, probability in enumerate(world.target[x].tolist()):
                terms = [(column, 1.0) for column in emitting[x, y]]
                self._add_row((index, x, y), terms + [(column, -probability) for column in passing[x]], 0.0)

    def _add_shown(self, shown: Shown, chance: float, world: World) -> None:
        """The variables of one set S and the equations among them."""
        places, vocab = shown[0], world.vocab
        self._of[shown] = []
        for x in (ROOT, *sorted(places)):
            after = range(vocab * x + 1, vocab * x + 1 + vocab) if x < world.level_starts[-2] else ()
            for y in (PASS, *(y for y, place in enumerate(after) if place not in places)):
                self._of[shown].append((x, y, len(self.value)))
                self.columns[shown, x, y] = len(self.value)
                self.value.append(0.0)
        self._add_row(None, [(self.columns[shown, ROOT, PASS], 1.0)], chance)
        for x in (ROOT, *sorted(places)):
            if x < world.level_starts[-2]:
                ways = (
                    (vocab * x + 1 + y, PASS) if vocab * x + 1 + y in places else (x, y) for y in range(vocab)
                )
                terms = [(self.columns[shown, *way], -1.0) for way in ways]
                self._add_row(None, [(self.columns[shown, x, PASS], 1.0), *terms], 0.0)

    def _add_row(
        self, about: tuple[int, int, int] | None, terms: list[tuple[int, float]], right: float
    ) -> None:
        self._entries += [(len(self.rows), column, factor) for column, factor in terms]
        self.rows.append(about)
        self._right.append(right)

    @property
    def _matrix(self) -> Any:
        """The equations' left sides, a sparse array (rows, M)."""
        rows, columns, factors = zip(*self._entries, strict=True)
        return (
            _scipy("sparse")
            .coo_array((factors, (rows, columns)), shape=(len(self.rows), len(self.value)))
            .tocsr()
        )

    def solve(self) -> Optimum:
        """Solve the program with HiGHS. Raises InvalidInput where scipy is not installed."""
        found = _scipy("optimize").linprog(
            -np.array(self.value), A_eq=self._matrix, b_eq=self._right, bounds=(0, None), method="highs"
        )
        if found.status != 0:
            raise ArithmeticError(f"the program was not solved: {found.message}")
        duals = zip(self.rows, found.eqlin.marginals, strict=True)
        prices = {about: -float(price) for about, price in duals if about}
        # What passes a place emits some token, so a constant may be added to the prices of all tokens there.
        least: dict[tuple[int, int], float] = defaultdict(lambda: np.inf)
        for about, price in prices.items():
            least[about[:2]] = min(least[about[:2]], price)
        return Optimum(
            -found.fun, found.x, {about: price - least[about[:2]] for about, price in prices.items()}
        )

    def point(self, verifier: Verifier) -> np.ndarray:
        """A verifier as a point (M,) of the program.

        Where it stops and emits a token that was drafted there, below another copy of the node for example,
        the point goes on: with the same emitted law, and so with more tokens than the verifier.
        """
        found = np.zeros(len(self.value))
        for world in self.worlds:
            here = np.zeros(len(self.value))
            for places, chance, outcomes in verified_trees(verifier, self.topology, world, self.draws):
                emits = np.zeros_like(world.target)
                np.add.at(emits, places, chance * outcomes.stop[:, None] * outcomes.final)
                self._add_walks(here, shown_by(frozenset(places.tolist()) - {ROOT}, world), emits, world)
            found = np.where(here > 0, here, found)
        return found

    def _add_walks(self, point: np.ndarray, shown: Shown, emits: np.ndarray, world: World) -> None:
        """Add what is done with one tree; emits: (K, V), where the walk stops and what it emits there."""
        for x in sorted(shown[0]):
            above = divmod(x - 1, world.vocab)
            emits[x] += emits[above] * world.target[x].numpy()
            emits[above] = 0.0
        passes = emits.sum(-1)
        for x in range(len(passes) - 1, ROOT, -1):
            passes[(x - 1) // world.vocab] += passes[x]
        for x, y, column in self._of[shown]:
            point[column] += passes[x] if y == PASS else emits[x, y]

    def violations(self, point: np.ndarray, tolerance: float = 1e-9) -> list[str]:
        """The equations that a point does not satisfy, in words, the worst first."""
        errors, vocab = self._matrix @ point - np.array(self._right), self.worlds[0].vocab
        found = []
        for row in np.argsort(-np.abs(errors)):
            error, about = float(errors[row]), self.rows[row]
            if abs(error) <= tolerance:
                break
            if about:
                world, place, token = about
                found.append(
                    f"world {world}: after {sequence(place, vocab)}, token {token} is emitted "
                    f"{'more' if error > 0 else 'less'} often than p allows, by {abs(error):.3g}"
                )
            else:
                found.append(f"the chances of one drafted tree do not add up, by {abs(error):.3g}")
        return found


def shown_by(places: Places, world: World) -> Shown:
    """What a drafted tree of these places shows in a world."""
    return places, tuple(world.laws[place] for place in sorted(places) if place < world.level_starts[-2])


def _scipy(part: str) -> Any:
    """A part of scipy, which the library alone does not install."""
    try:
        return import_module(f"scipy.{part}")
    except ImportError as error:
        raise InvalidInput(
            "the joint optimum takes scipy, which is not installed; allowed: pip install scipy"
        ) from error
