"""Expected tokens a step of candidate topologies, from laws of drafted trees: for `search.best_shape`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from experiments.tasks.base import Workload, check_counts, identity
from experiments.tasks.drafted import (
    EmittedRow,
    Root,
    emitted_by_parts,
    filled_by_draft_model,
    progress_of_best,
)
from experiments.tasks.prefixes import written_prefixes
from resispec.draws import Draws
from resispec.errors import InvalidInput
from resispec.trees import Topology, union


@dataclass(frozen=True)
class Shapes:
    """Expected tokens a step of every candidate with the cell's verifier and the draws of its decoder.

    All candidates are parts of one drafted tree a prefix, so their differences are paired, and no acceptance
    is drawn.

    num_prefixes: of what the target writes after a prompt. topologies: the candidates, each as the list of
    its nodes' parents.
    """

    row: ClassVar[type[EmittedRow]] = EmittedRow
    num_prefixes: int
    topologies: Sequence[Sequence[int]]

    def __post_init__(self) -> None:
        check_counts(num_prefixes=self.num_prefixes, topologies=len(self.topologies))

    @torch.inference_mode()
    def __call__(self, workload: Workload, index: int) -> EmittedRow:
        """See `Task`. The trees do not depend on the verifier, so all verifiers of a seed see the same ones.

        Raises InvalidInput for draws whose first siblings are not those of fewer siblings.
        """
        draws, generator = filled_by_draft_model(workload.decoder).draws, workload.generator(index)
        if not draws.can_be_cut:
            allowed = ", ".join(kind for kind in Draws if kind.can_be_cut)
            raise InvalidInput(f"shapes are compared for draws {allowed}; found {draws}")
        verifier = workload.decoder.verifier
        compared = [(Topology(tuple(map(int, parents))), verifier) for parents in self.topologies]
        whole = union([topology for topology, _ in compared])
        emitted = [0.0] * len(compared)
        prefixes = written_prefixes(workload, index, generator, self.num_prefixes)
        for prefix in prefixes:
            root = Root(workload.pair, prefix, workload.sampling.warp)
            found = emitted_by_parts(root, whole, draws, compared, generator)
            emitted = [sum(values) for values in zip(emitted, found, strict=True)]
        return EmittedRow(**identity(workload, index), num_prefixes=len(prefixes), emitted=emitted)

    def progress(self, rows: Sequence[EmittedRow]) -> dict[str, str]:
        """The most expected tokens of any candidate."""
        return progress_of_best(rows)
