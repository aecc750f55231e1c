"""Expected tokens a step of configurations, from laws of drafted trees: for `search.fastest`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch

from experiments.costs.configuration import Configuration
from experiments.tasks.base import Workload, check_counts, identity, share
from experiments.tasks.drafted import Root, expected_emitted, part
from experiments.tasks.prefixes import PrefixRow, written_prefixes
from resispec.draws import Draws
from resispec.trees import Topology, union


@dataclass(frozen=True)
class ConfigurationsRow(PrefixRow):
    """Configurations of one kind of draws or several.

    emitted: of every configuration, expected tokens a step given the drafted tree, summed over prefixes.
    """

    emitted: list[float]


@dataclass(frozen=True)
class Configurations:
    """Expected tokens a step of every configuration; the cell's own decoder plays no part.

    Those with the same draws are parts of one drafted tree a prefix, so their differences are paired, and no
    acceptance is drawn.

    num_prefixes: of what the target writes after a prompt. configurations: as `Configuration.facts`.
    """

    row: ClassVar[type[ConfigurationsRow]] = ConfigurationsRow
    num_prefixes: int
    configurations: Sequence[Mapping[str, Any]]

    def __post_init__(self) -> None:
        check_counts(num_prefixes=self.num_prefixes, configurations=len(self.configurations))

    @cached_property
    def _compared(self) -> list[Configuration]:
        return [Configuration.of(facts) for facts in self.configurations]

    @cached_property
    def _largest(self) -> dict[str, Topology]:
        """By the name of the draws, the tree that all shapes with these draws are parts of."""
        shapes: dict[str, list[Topology]] = {}
        for one in self._compared:
            shapes.setdefault(one.draws, []).append(one.topology)
        return {draws: union(own) for draws, own in shapes.items()}

    @torch.inference_mode()
    def __call__(self, workload: Workload, index: int) -> ConfigurationsRow:
        """See `Task`."""
        generator, emitted = workload.generator(index), [0.0] * len(self._compared)
        prefixes = written_prefixes(workload, index, generator, self.num_prefixes)
        for prefix in prefixes:
            for draws, largest in self._largest.items():
                root = Root(workload.pair, prefix, workload.sampling.temperature, largest.num_nodes)
                whole = root.draft(largest, generator, Draws(draws))
                laws = root.read(workload.pair.target).laws(whole.tree)
                for place, one in enumerate(self._compared):
                    if one.draws == draws:
                        drafted = part(whole, laws, one.topology)
                        emitted[place] += expected_emitted(one.decoder.verifier, *drafted)
        return ConfigurationsRow(**identity(workload, index), num_prefixes=len(prefixes), emitted=emitted)

    def progress(self, rows: Sequence[ConfigurationsRow]) -> dict[str, str]:
        """The most expected tokens of any configuration."""
        most = max(sum(values) for values in zip(*(row.emitted for row in rows), strict=True))
        return {"best": share(most, sum(row.num_prefixes for row in rows), ".2f")}
