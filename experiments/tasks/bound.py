"""The ceiling of a tree: what its drafted paths and the target's own allow any exact verifier to accept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from experiments.tasks.base import Workload, check_counts, identity, share
from experiments.tasks.prefix_laws import PrefixRow, written_prefixes
from experiments.tasks.sampled_trees import Root, expected_emitted, filled_by_draft_model, finite
from resispec.audit.ceiling import tree_log_ratios
from resispec.errors import InvalidInput
from resispec.trees import parallel_chains


@dataclass(frozen=True)
class BoundRow(PrefixRow):
    """The ceiling of one tree.

    num_nodes: verified positions. emitted: expected tokens a step given the tree, summed over prefixes.
    tree_log_ratios: [prefix][level], the largest log prod p / q over the drafted tree's paths to that level.
    rollout_log_ratios: [rollout][level], the same along paths of the target.
    Ratios with a zero probability are plus or minus `experiments.tasks.sampled_trees.INFINITE`.
    """

    num_nodes: int
    emitted: float
    tree_log_ratios: list[list[float]]
    rollout_log_ratios: list[list[float]]


@dataclass(frozen=True)
class Bound:
    """Ratios of both models' laws along drafted and target paths, for `resispec.audit.ceiling.path_bound`.

    num_prefixes: of what the target writes after a prompt, a tree each. rollouts: of the target, a prefix.
    """

    row: ClassVar[type[BoundRow]] = BoundRow
    num_prefixes: int
    rollouts: int

    def __post_init__(self) -> None:
        check_counts(num_prefixes=self.num_prefixes, rollouts=self.rollouts)

    @torch.inference_mode()
    def __call__(self, workload: Workload, index: int) -> BoundRow:
        """See `Task`. The trees are the decoder's; raises InvalidInput unless its siblings are i.i.d."""
        drafter, generator = filled_by_draft_model(workload.decoder), workload.generator(index)
        if not drafter.draws.are_independent:
            allowed = "allowed: decoder=specinfer"
            raise InvalidInput(f"the ceiling of a tree is measured for i.i.d. siblings; {allowed}")
        topology = drafter.topology
        prefixes = written_prefixes(workload, index, generator, self.num_prefixes)
        paths = parallel_chains(self.rollouts, topology.num_levels - 1)
        emitted, trees, rollouts = 0.0, [], []
        for prefix in prefixes:
            root = Root(workload.pair, prefix, workload.sampling.warp)
            draft = root.draft(topology, generator)
            target_probs = root.laws(workload.pair.target, draft.tree)
            emitted += expected_emitted(workload.decoder.verifier, draft, target_probs)
            trees.append(finite(tree_log_ratios(draft.tree, target_probs, draft.probs)))
            rollouts += [finite(path) for path in root.target_path_ratios(paths, generator)]
        return BoundRow(
            **identity(workload, index),
            num_prefixes=len(prefixes),
            num_nodes=topology.num_nodes,
            emitted=emitted,
            tree_log_ratios=trees,
            rollout_log_ratios=rollouts,
        )

    def progress(self, rows: Sequence[BoundRow]) -> dict[str, str]:
        """The expected accepted length."""
        emitted, prefixes = sum(row.emitted for row in rows), sum(row.num_prefixes for row in rows)
        return {"accepted_length": share(emitted, prefixes, ".2f")}
