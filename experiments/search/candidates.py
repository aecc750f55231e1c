"""Topologies to try for a number of nodes, and the winners among those that were measured.

Independent siblings are interchangeable, so a shape is given by its widths, the number of nodes of
every level below the root: `resispec.trees.from_widths`. If draws have an order, as without
replacement, the first children deserve the larger subtrees, and the candidates are those of
Sequoia's search. Greedy draws need levels whose nodes have equally many children, or none.
"""

import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from resispec.trees import Topology, from_child_counts, from_widths
from resispec.trees.search import IMPOSSIBLE, search, winners

Widths = tuple[int, ...]
Shaped = TypeVar("Shaped")
FLATTER = (1.0, 0.75, 0.5)  # powers of an acceptance vector: 1 leaves it, others make it more even


class Value(NamedTuple):
    """Expected tokens a step of a topology, and their standard error over prompts."""

    tokens: float
    error: float


Found = Mapping[Topology, Value]


def regular(
    num_nodes: int, most_levels: int, per_level: int, is_defined: Callable[[Topology], bool]
) -> list[Widths]:
    """Shapes of so many nodes whose branching does not increase from level to level, then chains.

    num_nodes, most_levels: the root counted. The last level holds the remaining nodes, at least a
    quarter of the number in the level above. If more than `per_level` shapes have a number of
    levels, some are taken, evenly from their list sorted by widths. is_defined: whether a tree
    counts at all.
    """

    def branched(above: Widths, rest: int, limit: int) -> Iterator[Widths]:
        """Every way to go on below `above`, with `rest` nodes and at most `limit` children each."""
        last = above[-1] if above else 1
        for branching in range(2, min(limit, rest // last) + 1):
            widths = (*above, last * branching)
            yield widths
            yield from branched(widths, rest - widths[-1], branching)

    shapes = {
        filled(widths, num_nodes - 1) for widths in branched((), num_nodes - 1, num_nodes - 1)
    }
    kept = [
        shape
        for shape in shapes
        if 1 < len(shape) < most_levels
        and 4 * shape[-1] >= shape[-2]
        and is_defined(from_widths(shape))
    ]
    by_depth = itertools.groupby(sorted(kept, key=lambda shape: (len(shape), shape)), key=len)
    return [shape for _, group in by_depth for shape in spread(list(group), per_level)]


def delayed(num_nodes: int, most_levels: int, trunks: Sequence[int]) -> list[Widths]:
    """Shapes of so many nodes that branch late: one path, then independent paths below its end.

    These are the trees of delayed expansion (arXiv 2602.16994). num_nodes, most_levels: the root
    counted. trunks: lengths of the first path in tokens. For each of them, and for each number of
    levels, there is one shape; some of the paths are a token shorter.
    """
    shapes = list[Widths]()
    for trunk in trunks:
        rest = num_nodes - 1 - trunk
        for depth in range(2, most_levels - trunk):
            if 2 * depth <= rest:
                widest = math.ceil(rest / depth)
                shapes.append(filled([*[1] * trunk, *[widest] * depth], num_nodes - 1))
    return list(dict.fromkeys(shapes))


def even(num_nodes: int, most_levels: int, per_level: int) -> list[Topology]:
    """Trees of so many nodes in which all nodes of a level have equally many children, or none.

    num_nodes, most_levels, per_level: see `regular`. Branching does not increase from level to
    level; the nodes left for the last level go below the first nodes above it, at least a quarter
    of these.
    """

    def grown(
        counts: list[list[int]], width: int, rest: int, limit: int
    ) -> Iterator[list[list[int]]]:
        """Every way to add `rest` nodes below `counts`, whose last level has `width` nodes."""
        if not rest:
            yield counts
        elif len(counts) < most_levels - 1:
            for branching in range(1, min(limit, rest) + 1):
                inner = min(width, rest // branching)
                if inner == width or (4 * inner >= width and inner * branching == rest):
                    level = [branching] * inner + [0] * (width - inner)
                    yield from grown(
                        [*counts, level], inner * branching, rest - inner * branching, branching
                    )

    shapes = [from_child_counts(counts) for counts in grown([], 1, num_nodes - 1, num_nodes - 1)]
    ranked = sorted(shapes, key=lambda shape: (shape.num_levels, shape.parents))
    by_depth = itertools.groupby(ranked, key=lambda shape: shape.num_levels)
    return [
        shape
        for levels, group in by_depth
        if levels > 2
        for shape in spread(list(group), per_level)
    ]


def spread(shapes: Sequence[Shaped], most: int) -> list[Shaped]:
    """At most so many shapes, evenly over the list, its ends included; `most` is at least 2."""
    if len(shapes) <= most:
        return list(shapes)
    return [shapes[round(place * (len(shapes) - 1) / (most - 1))] for place in range(most)]


def filled(widths: Sequence[int], total: int) -> Widths:
    """Widths of sum `total`: those given, cut or continued at the bottom; the last is the rest."""
    bottom = max(widths[-2:])  # the last level of a shape may hold a rest
    endless = [*widths[:-1], *[bottom] * total]
    rests = itertools.accumulate(endless, operator.sub, initial=total)
    return tuple(min(width, rest) for width, rest in zip(endless, rests, strict=False) if rest > 0)


def neighbours(widths: Widths, share: float, most_levels: int) -> list[Widths]:
    """Shapes of as many nodes in which one of the first three levels is wider or narrower.

    The level changes alone, or with all levels below it; the bottom makes room or takes the rest,
    see `filled`. share: part of a width by which it changes, at least by 1. most_levels: the root
    counted.
    """
    shapes: dict[Widths, None] = {}
    for place, width in enumerate(widths[:3]):
        step = max(1, round(width * share))
        for change, end in itertools.product((step, -step), (place + 1, len(widths))):
            changed = [
                *widths[:place],
                *(level + change for level in widths[place:end]),
                *widths[end:],
            ]
            if min(changed) >= 1:
                shapes[filled(changed, sum(widths))] = None
    return [shape for shape in shapes if shape != widths and 1 < len(shape) < most_levels]


def ordered(acceptance: Sequence[float], num_nodes: int, levels: Sequence[int]) -> list[Topology]:
    """The best trees of so many nodes in up to each number of levels, given siblings' acceptance.

    acceptance: by place in draw order, see `resispec.trees.search`. Verification from the leaves up
    accepts later siblings and deeper nodes more often than such a vector says, so flatter vectors
    of the same sum are tried, too. num_nodes, levels: the root counted.
    """
    topologies: dict[Topology, None] = {}
    for power in FLATTER:
        searched = search(flattened(acceptance, power), num_nodes, max(levels))
        limits = [limit for limit in levels if searched.expected[num_nodes, limit] > IMPOSSIBLE]
        topologies |= dict.fromkeys(searched.topology(num_nodes, limit) for limit in limits)
    return list(topologies)


def flattened(acceptance: Sequence[float], power: float) -> list[float]:
    """The values to this power, times a factor that keeps their sum."""
    chances = [max(0.0, chance) for chance in acceptance]  # rounding may leave values below 0
    flatter = [chance**power for chance in chances]
    scale = sum(chances) / sum(flatter) if sum(flatter) else 1.0
    return [chance * scale for chance in flatter]


def widths_of(shape: Topology) -> Widths:
    """The number of nodes of every level below the root."""
    return tuple(map(len, shape.levels[1:]))


def leaders(found: Found, per_level: int = 1) -> dict[Topology, Value]:
    """The `per_level` shapes of most expected tokens for each number of levels, in rising order."""
    ranked = sorted(found, key=lambda shape: (shape.num_levels, -found[shape].tokens))
    by_depth = itertools.groupby(ranked, key=lambda shape: shape.num_levels)
    return {
        shape: found[shape]
        for _, shapes in by_depth
        for shape in itertools.islice(shapes, per_level)
    }


def fastest(found: Found) -> dict[Topology, float]:
    """The shapes that are the fastest at some ratio of times -> the ratio up to which each is.

    ratio: seconds of a forward of the draft over seconds of a forward of the target.
    """
    shapes = list(found)
    wins = winners([(shape.num_levels, found[shape].tokens) for shape in shapes])
    return {shapes[win.index]: win.to_ratio for win in wins}
