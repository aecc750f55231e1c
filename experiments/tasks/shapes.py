"""Expected tokens a step of candidate topologies, from laws of drafted trees: for `search.best_shape`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from experiments.tasks.base import Workload, check_counts, identity, share
from experiments.tasks.drafted import Root, expected_emitted, filled_by_draft_model, part
from experiments.tasks.prefixes import PrefixRow, written_prefixes
from resispec.draws import Draws
from resispec.errors import InvalidInput
from resispec.trees import Topology, union


@dataclass(frozen=True)
class ShapesRow(PrefixRow):
    """Candidate topologies, all of them parts of one drafted tree a prefix.

    emitted: of every candidate, expected tokens a step given the drafted tree, summed over prefixes.
    """

    emitted: list[float]


@dataclass(frozen=True)
class Shapes:
    """Expected tokens a step of every candidate with the cell's verifier and the draws of its decoder.

    All candidates are parts of one drafted tree a prefix, so their differences are paired, and no acceptance
    is drawn.

    num_prefixes: of what the target writes after a prompt. topologies: the candidates, each as the list of
    its nodes' parents.
    """

    row: ClassVar[type[ShapesRow]] = ShapesRow
    num_prefixes: int
    topologies: Sequence[Sequence[int]]

    def __post_init__(self) -> None:
        check_counts(num_prefixes=self.num_prefixes, topologies=len(self.topologies))

    @torch.inference_mode()
    def __call__(self, workload: Workload, index: int) -> ShapesRow:
        """See `Task`. The trees do not depend on the verifier, so all verifiers of a seed see the same ones.

        Raises InvalidInput for draws whose first siblings are not those of fewer siblings.
        """
        draws, generator = filled_by_draft_model(workload.decoder).draws, workload.generator(index)
        if not draws.can_be_cut:
            allowed = ", ".join(kind for kind in Draws if kind.can_be_cut)
            raise InvalidInput(f"shapes are compared for draws {allowed}; found {draws}")
        candidates = [Topology(tuple(map(int, parents))) for parents in self.topologies]
        largest = union(candidates)
        emitted = [0.0] * len(candidates)
        prefixes = written_prefixes(workload, index, generator, self.num_prefixes)
        for prefix in prefixes:
            root = Root(workload.pair, prefix, workload.sampling.temperature, largest.num_nodes)
            whole = root.draft(largest, generator, draws)
            laws = root.read(workload.pair.target).laws(whole.tree)
            for place, topology in enumerate(candidates):
                emitted[place] += expected_emitted(workload.decoder.verifier, *part(whole, laws, topology))
        return ShapesRow(**identity(workload, index), num_prefixes=len(prefixes), emitted=emitted)

    def progress(self, rows: Sequence[ShapesRow]) -> dict[str, str]:
        """The most expected tokens of any candidate."""
        most = max(sum(values) for values in zip(*(row.emitted for row in rows), strict=True))
        return {"best": share(most, sum(row.num_prefixes for row in rows), ".2f")}
