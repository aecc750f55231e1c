"""The best topology for a budget of nodes, by dynamic programming (Sequoia, arXiv 2402.12374).

The search assumes that, whatever the prefix, the b-th child in draw order is the accepted one with
probability p_b. A node is then reached with the product of the probabilities on its path. A step
emits in the mean as many tokens as nodes are reached; the root counts for the token that ends every
step.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from resispec.errors import InvalidInput
from resispec.trees import MAX_NODES, Topology, from_child_counts

IMPOSSIBLE = -math.inf
"""The value of a size that no tree within the limits has."""

ROUNDING = 1e-5
"""Allowed excess of measured probabilities, means in float32, over the bounds of a law."""


def expected_tokens(topology: Topology, acceptance: Sequence[float]) -> float:
    """Expected tokens per step: the sum over nodes of the product of probabilities on their paths.

    acceptance[b - 1]: probability that the b-th child in draw order is the accepted one, at every
    node. Raises InvalidInput when `acceptance` holds no probabilities, IndexError when a node has
    more children.
    """
    chances = _checked(acceptance)
    probs = [1.0] * topology.num_nodes
    for node, children in enumerate(topology.children):
        for rank, child in enumerate(children):
            probs[child] = probs[node] * chances[rank]
    return math.fsum(probs)


@dataclass(frozen=True)
class Searched:
    """The best tree of every size and depth, see `search`.

    N is the most nodes and D the most levels, the root counted in both.

    expected: (N + 1, D + 1) float64; [m, l] is the most expected tokens of m nodes in at most l
    levels, -inf where there is no such tree. num_children: (N + 1, D + 1) int64, the number of the
    root's children in the best tree. kept: (B + 1, N + 1, D + 1) int64; [b, m, l] is how many of m
    nodes are left when the last child's subtree is taken off the best tree with b children.
    """

    expected: NDArray[np.float64]
    num_children: NDArray[np.int64]
    kept: NDArray[np.int64]

    def topology(self, num_nodes: int, num_levels: int) -> Topology:
        """The best tree of exactly `num_nodes` nodes in at most `num_levels` levels.

        Among equally good trees, the root with the fewest children wins. Raises InvalidInput when
        there is no such tree, or when it was not searched for.
        """
        most_nodes, most_levels = (size - 1 for size in self.expected.shape)
        is_searched = 1 <= num_nodes <= most_nodes and 1 <= num_levels <= most_levels
        if not is_searched or self.expected[num_nodes, num_levels] == IMPOSSIBLE:
            raise InvalidInput(
                f"no tree of {num_nodes} nodes in {num_levels} levels was found; searched: 1 to "
                f"{most_nodes} nodes, 1 to {most_levels} levels, up to {len(self.kept) - 1} "
                "children a node"
            )
        counts, level = [], [num_nodes]
        for height in range(num_levels, 0, -1):
            families = [self._subtrees(size, height) for size in level]
            counts.append([len(family) for family in families])
            level = [size for family in families for size in family]
        return from_child_counts(counts)

    def _subtrees(self, num_nodes: int, num_levels: int) -> list[int]:
        """The number of nodes in the subtree of each child of the root, in draw order."""
        sizes = []
        for rank in range(int(self.num_children[num_nodes, num_levels]), 0, -1):
            rest = int(self.kept[rank, num_nodes, num_levels])
            sizes.append(num_nodes - rest)
            num_nodes = rest
        return sizes[::-1]


def search(acceptance: Sequence[float], num_nodes: int, num_levels: int) -> Searched:
    """The best tree of each size up to `num_nodes` and depth up to `num_levels`, the root counted.

    Sequoia's recurrence, where E_b[m, l] is the best value if the root has b children:

        E_0[1, l] = 1
        E_b[m, l] = max over y of E_(b-1)[y, l] + p_b * max over c of E_c[m - y, l - 1]

    acceptance: p_1, p_2, ...; see `expected_tokens`. At ties the smallest y and the fewest children
    win. Raises InvalidInput when `acceptance` holds no probabilities, or a limit is not from 1 to
    MAX_NODES.
    """
    if not all(type(limit) is int and 1 <= limit <= MAX_NODES for limit in (num_nodes, num_levels)):
        raise InvalidInput(
            f"found {num_nodes!r} nodes, {num_levels!r} levels; allowed: 1 to {MAX_NODES}, the "
            "root counted"
        )
    # No node has more children than there are nodes below the root.
    chances = _checked(acceptance)[: num_nodes - 1]
    best = np.full((num_nodes + 1, num_levels + 1), IMPOSSIBLE)
    num_children = np.zeros(best.shape, dtype=np.int64)
    kept = np.zeros((len(chances) + 1, *best.shape), dtype=np.int64)
    sizes = np.arange(num_nodes + 1)
    # [m, y] = m - y, or 0 if y exceeds m: no tree has 0 nodes.
    rest = np.maximum(sizes[:, None] - sizes, 0)
    for level in range(1, num_levels + 1):
        values = np.full((len(chances) + 1, num_nodes + 1), IMPOSSIBLE)
        values[0, 1] = 1
        subtree = best[rest, level - 1]
        for rank, chance in enumerate(chances, start=1):
            # A multiplication would turn -inf * 0 into NaN.
            gain = np.full_like(subtree, IMPOSSIBLE)
            np.multiply(chance, subtree, out=gain, where=subtree > IMPOSSIBLE)
            totals = values[rank - 1] + gain
            kept[rank, :, level] = totals.argmax(1)
            values[rank] = totals.max(1)
        num_children[:, level] = values.argmax(0)
        best[:, level] = values.max(0)
    return Searched(best, num_children, kept)


def _checked(acceptance: Sequence[float]) -> list[float]:
    """Acceptance chances in [0, 1].

    Raises InvalidInput for others or a sum above 1, up to ROUNDING.
    """
    chances = [float(chance) for chance in acceptance]
    in_range = all(-ROUNDING <= chance <= 1 + ROUNDING for chance in chances)  # not so for NaN
    if not chances or not in_range or math.fsum(chances) > 1 + ROUNDING:
        raise InvalidInput(
            f"acceptance holds {len(chances)} values, {chances[:8]}, of sum {sum(chances)}; "
            "allowed: at least one, each in [0, 1], of sum at most 1"
        )
    return [min(max(chance, 0.0), 1.0) for chance in chances]


@dataclass(frozen=True)
class Times:
    """Measured seconds of the two models' forwards.

    target_s: number of positions -> seconds of one target forward over that many. It holds 1, and
    its times are positive. draft_s: seconds of one forward of the draft over a level.
    """

    target_s: Mapping[int, float]
    draft_s: float

    def step_s(self, num_nodes: int, num_levels: int) -> float:
        """Seconds of the forwards of a step: one of the target, and one of the draft a level.

        The last level has no forward of the draft, since leaves are never forwarded.
        """
        return (num_levels - 1) * self.draft_s + self.target_s[num_nodes]


@dataclass(frozen=True)
class Choice:
    """The tree that is fastest on a machine; `speedup` is over autoregressive decoding."""

    topology: Topology
    expected_tokens: float
    speedup: float


def choose(searched: Searched, times: Times, num_nodes: int | None = None) -> Choice:
    """The searched tree of a measured size with the fewest expected seconds per token.

    One node is autoregressive decoding. At ties the fewest nodes win, then the fewest levels.

    searched: holds every measured size. num_nodes: the only allowed size, which is measured and has
    a tree; None allows every measured size, and those without a tree are skipped.
    """
    most_levels = searched.expected.shape[1] - 1
    costs = {
        (size, levels): times.step_s(size, levels) / searched.expected[size, levels]
        for size in sorted(times.target_s)
        for levels in range(1, most_levels + 1)
        if num_nodes in (None, size) and searched.expected[size, levels] > IMPOSSIBLE
    }
    shape = min(costs, key=lambda limits: costs[limits])
    speedup = times.target_s[1] / float(costs[shape])
    return Choice(searched.topology(*shape), float(searched.expected[shape]), speedup)


@dataclass(frozen=True)
class Winner:
    """A shape that emits most tokens per unit of time at cost ratios in [from_ratio, to_ratio].

    index: its place among the shapes.
    """

    index: int
    from_ratio: float
    to_ratio: float


def winners(shapes: Sequence[tuple[int, float]]) -> list[Winner]:
    """The winning shapes, each with its interval of cost ratios r >= 0, in order of rising r.

    r: the time of one draft forward over a level, divided by the time of one target forward.
    shapes: (levels, expected tokens), the root counted; a step of l levels takes the time of 1 + r
    (l - 1) target forwards. Time per token is a line in r, so the winners are the lower envelope of
    the lines, computed exactly. Of equal shapes the first is named; a shape that wins at a single
    ratio only is not.
    """
    # The time at r = 0, and its slope.
    lines = [(1 / tokens, (levels - 1) / tokens) for levels, tokens in shapes]
    ratio, best = 0.0, min(range(len(lines)), key=lines.__getitem__)
    envelope: list[Winner] = []
    while True:
        start, slope = lines[best]
        # A later winner has a smaller slope; the line met first is next, the flattest of lines met
        # at once.
        crossings = [
            ((line[0] - start) / (slope - line[1]), line[1], index)
            for index, line in enumerate(lines)
            if line[1] < slope
        ]
        if not crossings:
            return [*envelope, Winner(best, ratio, math.inf)]
        crossing, _, successor = min(crossings)
        envelope.append(Winner(best, ratio, crossing))
        ratio, best = crossing, successor
