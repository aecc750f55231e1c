"""Expected tokens a step of what searches compare, from laws of drafted trees.

All that is compared with the same draws is a part of one drafted tree a prefix, so differences are paired,
and no acceptance is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch

from experiments.configurations import Configuration
from experiments.tasks.base import Workload, check_counts, identity, share
from experiments.tasks.prefix_laws import PrefixRow, written_prefixes
from experiments.tasks.sampled_trees import Root, expected_emitted, filled_by_draft_model, part
from resispec.draws import Draws
from resispec.errors import InvalidInput
from resispec.trees import Topology, union
from resispec.verifiers import Verifier

Method = tuple[Draws, Topology, Verifier]


@dataclass(frozen=True)
class EmittedRow(PrefixRow):
    """Expected tokens a step of all that is compared, given the drafted trees, summed over prefixes."""

    emitted: list[float]


def compare(workload: Workload, index: int, num_prefixes: int, methods: Sequence[Method]) -> EmittedRow:
    """Expected tokens of a step with every method, after prefixes of the target's own text."""
    generator, emitted = workload.generator(index), [0.0] * len(methods)
    places: dict[Draws, list[int]] = {}
    for place, (draws, _, _) in enumerate(methods):
        places.setdefault(draws, []).append(place)
    wholes = {draws: union([methods[place][1] for place in own]) for draws, own in places.items()}
    prefixes = written_prefixes(workload, index, generator, num_prefixes)
    for prefix in prefixes:
        root = Root(workload.pair, prefix, workload.sampling.warp)
        for draws, whole in wholes.items():
            drafted = root.draft(whole, generator, draws)
            laws = root.laws(workload.pair.target, drafted.tree)
            for place in places[draws]:
                _, topology, verifier = methods[place]
                emitted[place] += expected_emitted(verifier, *part(drafted, laws, topology))
    return EmittedRow(**identity(workload, index), num_prefixes=len(prefixes), emitted=emitted)


@dataclass(frozen=True)
class ComparisonTask:
    """Base of tasks that compare. num_prefixes: of what the target writes after a prompt."""

    row: ClassVar[type[EmittedRow]] = EmittedRow
    num_prefixes: int

    def progress(self, rows: Sequence[EmittedRow]) -> dict[str, str]:
        """The most expected tokens of anything that is compared."""
        most = max(sum(values) for values in zip(*(row.emitted for row in rows), strict=True))
        return {"best": share(most, sum(row.num_prefixes for row in rows), ".2f")}


@dataclass(frozen=True)
class Shapes(ComparisonTask):
    """Expected tokens a step of every topology with the cell's verifier and the draws of its decoder.

    topologies: each as the list of its nodes' parents.
    """

    topologies: Sequence[Sequence[int]]

    def __post_init__(self) -> None:
        check_counts(num_prefixes=self.num_prefixes, topologies=len(self.topologies))

    @torch.inference_mode()
    def __call__(self, workload: Workload, index: int) -> EmittedRow:
        """See `Task`. The trees do not depend on the verifier, so all verifiers of a seed see the same ones.

        Raises InvalidInput for draws whose first siblings are not those of fewer siblings.
        """
        draws, verifier = filled_by_draft_model(workload.decoder).draws, workload.decoder.verifier
        if not draws.can_be_cut:
            allowed = ", ".join(kind for kind in Draws if kind.can_be_cut)
            raise InvalidInput(f"shapes are compared for draws {allowed}; found {draws}")
        topologies = [Topology(tuple(map(int, parents))) for parents in self.topologies]
        methods = [(draws, topology, verifier) for topology in topologies]
        return compare(workload, index, self.num_prefixes, methods)


@dataclass(frozen=True)
class Configurations(ComparisonTask):
    """Expected tokens a step of every configuration; the cell's own decoder plays no part.

    configurations: as `Configuration.facts`.
    """

    configurations: Sequence[Mapping[str, Any]]

    def __post_init__(self) -> None:
        check_counts(num_prefixes=self.num_prefixes, configurations=len(self.configurations))

    @cached_property
    def _methods(self) -> list[Method]:
        configurations = map(Configuration.of, self.configurations)
        return [(Draws(one.draws), one.topology, one.decoder.verifier) for one in configurations]

    @torch.inference_mode()
    def __call__(self, workload: Workload, index: int) -> EmittedRow:
        """See `Task`."""
        return compare(workload, index, self.num_prefixes, self._methods)
