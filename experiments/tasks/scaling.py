"""Table 5: expected accepted length by the number of candidates, in both arrangements of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from experiments.tasks.base import Workload, identity, share
from experiments.tasks.prefix_laws import PrefixRow, PrefixTask
from experiments.tasks.sampled_trees import check_leaves, compare, plain_drafter
from resispec.decode import Decoder
from resispec.drafters import DraftModel
from resispec.draws import Draws
from resispec.trees import Topology, complete, parallel_chains
from resispec.verifiers.rehearsal import rehearse

ARRANGEMENTS: Mapping[str, Callable[[int, int], Topology]] = {
    "complete": complete,
    "chains": lambda num_levels, num_candidates: parallel_chains(num_candidates, num_levels - 1),
}
"""Meanings of "N candidates at depth D": (levels, candidates) -> topology.

One candidate is a chain.
"""


@dataclass(frozen=True)
class ScalingRow(PrefixRow):
    """A row of Table 5: the fields of a `BoundRow` for several topologies.

    They are parts of one tree for each prefix. All lists but `rollout_log_ratios` have one entry a
    topology. arrangement: "complete" (`num_candidates` i.i.d. children at every node) or "chains"
    (as many i.i.d. paths).
    """

    arrangement: list[str]
    num_candidates: list[int]
    num_nodes: list[int]
    emitted: list[float]
    tree_log_ratios: list[list[list[float]]]
    rollout_log_ratios: list[list[float]]


@dataclass(frozen=True)
class Scaling(PrefixTask):
    """Expected accepted length of i.i.d. candidates in `num_levels` levels, in all ARRANGEMENTS.

    All topologies are parts of one drafted tree (the first siblings of i.i.d. ones are i.i.d.), so
    their differences are paired. num_levels: the root counted. rollouts: target paths after each
    prefix.
    """

    row: ClassVar[type[ScalingRow]] = ScalingRow
    num_candidates: Sequence[int]
    num_levels: int
    rollouts: int

    @property
    def _shapes(self) -> list[tuple[str, int, Topology]]:
        """Every topology with its arrangement and its number of candidates."""
        counts = list(map(int, self.num_candidates))
        return [
            (name, n, make(self.num_levels, n))
            for name, make in ARRANGEMENTS.items()
            for n in counts
        ]

    def check(self, decoder: Decoder) -> None:
        """See `Task`; of the decoder only the verifier is used, so the drafter must draw alike."""
        plain_drafter(decoder, "trees of several shapes are measured")
        for *_, shape in self._shapes:
            rehearse(decoder.verifier, Draws.IID, shape)
            check_leaves(decoder.verifier, Draws.IID, shape)

    @torch.inference_mode()
    def __call__(self, workload: Workload, index: int) -> ScalingRow:
        """See `Task`.

        The trees do not depend on the verifier: all verifiers of a seed see the same ones.
        """
        verifier, generator = workload.decoder.verifier, workload.generator(index)
        prefixes = self.prefixes(workload, index, generator).texts()
        arrangements, counts, shapes = zip(*self._shapes, strict=True)
        methods = [(DraftModel(shape), verifier) for shape in shapes]
        emitted, trees, paths = compare(workload, prefixes, methods, generator, self.rollouts)
        return ScalingRow(
            **identity(workload, index),
            num_prefixes=len(prefixes),
            arrangement=list(arrangements),
            num_candidates=list(counts),
            num_nodes=[shape.num_nodes for shape in shapes],
            emitted=emitted,
            tree_log_ratios=trees,
            rollout_log_ratios=paths,
        )

    def progress(self, rows: Sequence[ScalingRow]) -> dict[str, str]:
        """The expected accepted length of the widest complete tree."""
        widest = list(self.num_candidates).index(max(self.num_candidates))
        emitted = sum(row.emitted[widest] for row in rows)
        prefixes = sum(row.num_prefixes for row in rows)
        return {"accepted_length": share(emitted, prefixes, ".2f")}
