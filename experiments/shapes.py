"""Candidate topologies that are compared on the same drafted trees, and which candidates to try; see experiments.best_shape.

A shape is given by its widths, the number of nodes of every level below the root: `resispec.topology.from_widths`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from experiments.law_tasks import context_lengths, identity
from experiments.law_trees import Root, expected_emitted, part
from experiments.tasks import Context
from resispec.core import Draws
from resispec.errors import InvalidInput
from resispec.law_rows import ShapesRow
from resispec.topology import from_widths, union

Widths = tuple[int, ...]


@dataclass(frozen=True)
class Shapes:
    """Expected tokens a step of every candidate with the cell's verifier.

    All candidates are parts of one drafted tree a context, so their differences are paired, and no coin is thrown.
    contexts: prefixes of a prompt. widths: of every candidate. draws: how siblings are drawn.
    Raises InvalidInput without a candidate, for a width below one, and for greedy draws, whose parts are not greedy draws.
    """

    contexts: int
    widths: Sequence[Sequence[int]]
    draws: Draws

    def __post_init__(self) -> None:
        union([from_widths(widths) for widths in self.widths])
        if self.draws == Draws.GREEDY:
            raise InvalidInput("shapes: draws greedy; allowed: iid, without_replacement, point_mass")

    @torch.inference_mode()
    def __call__(self, context: Context, index: int) -> ShapesRow:
        """See `Task`. The trees do not depend on the verifier, so all verifiers of a seed see the same ones."""
        generator, (_, tokens) = context.generator(index), context.prompts[index]
        shapes = [from_widths(widths) for widths in self.widths]
        largest = union(shapes)
        emitted = [0.0] * len(shapes)
        lengths = context_lengths(len(tokens), self.contexts)
        for length in lengths:
            root = Root(context.pair, tokens[:length], context.sampling.temperature, len(tokens) + largest.num_nodes)
            whole = root.draft(largest, generator, Draws(self.draws))
            laws = root.read(context.pair.target).laws(whole.tree)
            for place, shape in enumerate(shapes):
                emitted[place] += expected_emitted(context.decoder.verifier, *part(whole, laws, shape))
        widths = [[int(width) for width in row] for row in self.widths]
        return ShapesRow(**identity(context, index, len(lengths)), widths=widths, emitted=emitted)

    def progress(self, rows: Sequence[dict[str, Any]]) -> dict[str, str]:
        """The most expected tokens of any candidate."""
        totals = [sum(row["emitted"][place] for row in rows) for place in range(len(self.widths))]
        return {"best": f"{max(totals) / sum(row['num_contexts'] for row in rows):.2f}"}


def regular(num_nodes: int, most_levels: int, per_level: int) -> list[Widths]:
    """Shapes of so many nodes, the root counted: branchings that do not increase from level to level, then chains.

    The last level, which holds the rest, has at least a quarter of the nodes above. Of more than `per_level` shapes with as many
    levels some are taken, evenly over the list of them by widths.
    """
    by_depth: dict[int, set[Widths]] = {}
    for widths in _branched((), num_nodes - 1, num_nodes - 1):
        shape = filled(widths, num_nodes - 1)
        if 1 < len(shape) < most_levels and 4 * shape[-1] >= shape[-2]:
            by_depth.setdefault(len(shape), set()).add(shape)
    found = [sorted(by_depth[depth]) for depth in sorted(by_depth)]
    return [shape for shapes in found for shape in spread(shapes, per_level)]


def _branched(above: Widths, left: int, limit: int) -> Iterator[Widths]:
    """The widths of every way to branch below `above` with so many nodes left and at most `limit` children a node."""
    last = above[-1] if above else 1
    for branching in range(2, min(limit, left // last) + 1):
        widths = (*above, last * branching)
        yield widths
        yield from _branched(widths, left - widths[-1], branching)


def spread(shapes: Sequence[Widths], most: int) -> list[Widths]:
    """At most so many of the shapes, evenly over the list, its ends included; `most` is at least 2."""
    places = range(len(shapes)) if len(shapes) <= most else [round(i * (len(shapes) - 1) / (most - 1)) for i in range(most)]
    return [shapes[place] for place in places]


def filled(widths: Sequence[int], total: int) -> Widths:
    """Widths of sum `total`: those given, cut at the bottom or continued as chains there, the last level holding the rest."""
    found: list[int] = []
    bottom = max(widths[-2:])  # the last level of a shape may hold a rest
    for width in (*widths[:-1], *[bottom] * total):
        found.append(min(width, total))
        total -= found[-1]
        if total == 0:
            break
    return tuple(found)


def neighbours(widths: Widths, share: float, most_levels: int) -> list[Widths]:
    """Shapes of as many nodes in which one of the first three levels is wider or narrower, alone or with all levels below it.

    share: of the level's width, by which it changes; at least 1. The bottom makes room or takes what is left, see `filled`.
    most_levels: the root counted.
    """
    found = []
    for place in range(min(3, len(widths))):
        step = max(1, round(widths[place] * share))
        for change in (step, -step):
            for reach in (place + 1, len(widths)):
                changed = [width + change * (place <= level < reach) for level, width in enumerate(widths)]
                if min(changed) >= 1:
                    found.append(filled(changed, sum(widths)))
    return [shape for shape in unique(found) if shape != widths and 1 < len(shape) < most_levels]


def unique(shapes: Iterable[Widths]) -> list[Widths]:
    """Each shape once, in order."""
    return list(dict.fromkeys(shapes))
