"""Expected tokens a step of configurations, from laws of drafted trees: for `search.fastest`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import torch

from experiments.costs.configuration import Configuration
from experiments.tasks.base import Workload, check_counts, identity
from experiments.tasks.drafted import EmittedRow, Root, emitted_by_parts, progress_of_best
from experiments.tasks.prefixes import written_prefixes
from resispec.draws import Draws
from resispec.trees import Topology, union
from resispec.verifiers import Verifier


class _Group(NamedTuple):
    """Configurations with the same draws.

    whole: the tree that all their shapes are parts of. places: of each among all configurations.
    """

    draws: Draws
    whole: Topology
    compared: list[tuple[Topology, Verifier]]
    places: list[int]


@dataclass(frozen=True)
class Configurations:
    """Expected tokens a step of every configuration; the cell's own decoder plays no part.

    Those with the same draws are parts of one drafted tree a prefix, so their differences are paired, and no
    acceptance is drawn.

    num_prefixes: of what the target writes after a prompt. configurations: as `Configuration.facts`.
    """

    row: ClassVar[type[EmittedRow]] = EmittedRow
    num_prefixes: int
    configurations: Sequence[Mapping[str, Any]]

    def __post_init__(self) -> None:
        check_counts(num_prefixes=self.num_prefixes, configurations=len(self.configurations))

    @cached_property
    def _groups(self) -> list[_Group]:
        """The configurations by their draws."""
        found: dict[str, list[tuple[int, Configuration]]] = {}
        for place, one in enumerate(map(Configuration.of, self.configurations)):
            found.setdefault(one.draws, []).append((place, one))
        return [
            _Group(
                Draws(draws),
                union([one.topology for _, one in own]),
                [(one.topology, one.decoder.verifier) for _, one in own],
                [place for place, _ in own],
            )
            for draws, own in found.items()
        ]

    @torch.inference_mode()
    def __call__(self, workload: Workload, index: int) -> EmittedRow:
        """See `Task`."""
        generator, emitted = workload.generator(index), [0.0] * len(self.configurations)
        prefixes = written_prefixes(workload, index, generator, self.num_prefixes)
        for prefix in prefixes:
            root = Root(workload.pair, prefix, workload.sampling.warp)
            for group in self._groups:
                found = emitted_by_parts(root, group.whole, group.draws, group.compared, generator)
                for place, value in zip(group.places, found, strict=True):
                    emitted[place] += value
        return EmittedRow(**identity(workload, index), num_prefixes=len(prefixes), emitted=emitted)

    def progress(self, rows: Sequence[EmittedRow]) -> dict[str, str]:
        """The most expected tokens of any configuration."""
        return progress_of_best(rows)
