"""A tree's ceiling: the most that any exact verifier can accept, from drafted and target paths."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from experiments.tasks.base import Task, Workload, identity, share
from experiments.tasks.prefix_laws import PrefixRow, written_prefixes
from experiments.tasks.sampled_trees import check_leaves, compare, plain_drafter
from resispec.decode import Decoder

MEASURED = "the ceiling of a tree is measured"


@dataclass(frozen=True)
class BoundRow(PrefixRow):
    """Numbers for the ceiling of a tree, as `experiments.tasks.sampled_trees.compare` returns them.

    num_nodes: verified positions. emitted: expected tokens a step given the tree, summed over
    prefixes. tree_log_ratios: [prefix][level]. rollout_log_ratios: [rollout][level].
    """

    num_nodes: int
    emitted: float
    tree_log_ratios: list[list[float]]
    rollout_log_ratios: list[list[float]]


@dataclass(frozen=True)
class Bound(Task):
    """Ratios of both models' laws along drafted and target paths, for `resispec.audit.path_bound`.

    num_prefixes: prefixes of the target's text after a prompt, with a tree each. rollouts: target
    paths after each prefix.
    """

    row: ClassVar[type[BoundRow]] = BoundRow
    num_prefixes: int
    rollouts: int

    def check(self, decoder: Decoder) -> None:
        """See `Task`; the decoder's siblings must be i.i.d."""
        drafter = plain_drafter(decoder, MEASURED)
        super().check(decoder)
        check_leaves(decoder.verifier, drafter.draws, drafter.topology)

    @torch.inference_mode()
    def __call__(self, workload: Workload, index: int) -> BoundRow:
        """See `Task`.

        The trees are the decoder's; raises InvalidInput unless its siblings are i.i.d.
        """
        drafter, generator = plain_drafter(workload.decoder, MEASURED), workload.generator(index)
        prefixes = written_prefixes(workload, index, generator, self.num_prefixes)
        method = (drafter, workload.decoder.verifier)
        [emitted], [trees], paths = compare(workload, prefixes, [method], generator, self.rollouts)
        counts = {"num_prefixes": len(prefixes), "num_nodes": drafter.topology.num_nodes}
        ratios = {"tree_log_ratios": trees, "rollout_log_ratios": paths}
        return BoundRow(**identity(workload, index) | counts | ratios, emitted=emitted)

    def progress(self, rows: Sequence[BoundRow]) -> dict[str, str]:
        """The expected accepted length."""
        emitted, prefixes = sum(row.emitted for row in rows), sum(row.num_prefixes for row in rows)
        return {"accepted_length": share(emitted, prefixes, ".2f")}
