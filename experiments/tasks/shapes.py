"""Expected tokens a step of the candidates that searches compare, from laws of drafted trees.

If draws can be cut, all candidates with these draws are parts of one drafted tree for each prefix,
so that their differences are paired. No acceptance is drawn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from experiments.configurations import Configuration
from experiments.tasks.base import Task, Workload, identity, share
from experiments.tasks.prefix_laws import PrefixRow, written_prefixes
from experiments.tasks.sampled_trees import Method, check_leaves, compare, filled_by_draft_model
from resispec.trees import Topology
from resispec.verifiers import get_verifier


@dataclass(frozen=True)
class EmittedRow(PrefixRow):
    """Expected tokens a step of every candidate, given the drafted trees, summed over prefixes."""

    emitted: list[float]


@dataclass(frozen=True)
class ComparisonTask(Task):
    """Base of tasks that compare candidates.

    num_prefixes: those of the target's text after a prompt.
    """

    row: ClassVar[type[EmittedRow]] = EmittedRow
    num_prefixes: int

    def methods(self, workload: Workload) -> list[Method]:
        """The candidates that are compared."""
        raise NotImplementedError

    @torch.inference_mode()
    def __call__(self, workload: Workload, index: int) -> EmittedRow:
        """See `Task`.

        The trees do not depend on the verifier: all verifiers of a seed see the same ones.
        """
        methods, generator = self.methods(workload), workload.generator(index)
        prefixes = written_prefixes(workload, index, generator, self.num_prefixes)
        emitted, *_ = compare(workload, prefixes, methods, generator)
        return EmittedRow(**identity(workload, index), num_prefixes=len(prefixes), emitted=emitted)

    def progress(self, rows: Sequence[EmittedRow]) -> dict[str, str]:
        """The most expected tokens a step of any candidate."""
        most = max(sum(values) for values in zip(*(row.emitted for row in rows), strict=True))
        return {"best": share(most, sum(row.num_prefixes for row in rows), ".2f")}


@dataclass(frozen=True)
class Shapes(ComparisonTask):
    """Expected tokens a step of topologies, lists of parents, with the cell's verifier and draws.

    Recycled laws are those of the prefix alone, which lacks the trees of earlier steps.
    """

    topologies: Sequence[Sequence[int]]

    def methods(self, workload: Workload) -> list[Method]:
        """A method for every topology."""
        drafter, verifier = filled_by_draft_model(workload.decoder), workload.decoder.verifier
        trees = [Topology(tuple(map(int, parents))) for parents in self.topologies]
        check_leaves(verifier, drafter.draws, trees[0])
        return [(replace(drafter, topology=tree), verifier) for tree in trees]


@dataclass(frozen=True)
class Configurations(ComparisonTask):
    """Expected tokens a step of configurations, given as `facts`; the cell's decoder is unused."""

    configurations: Sequence[Mapping[str, Any]]

    def methods(self, workload: Workload) -> list[Method]:  # noqa: ARG002
        """A method for every configuration."""
        configurations = map(Configuration.of, self.configurations)
        return [(one.drafter, get_verifier(one.verifier)) for one in configurations]
