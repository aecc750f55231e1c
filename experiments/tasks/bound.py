"""The ceiling of a tree: what its drafted paths and the target's own allow any exact verifier to accept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from experiments.tasks.prefixes import identity, written_contexts
from experiments.tasks.drafted import Root, expected_emitted, filled_by_draft_model, finite
from experiments.tasks import Context
from resispec.audit.path_bound import tree_log_ratios
from resispec.core import Draws
from resispec.errors import InvalidInput
from resispec.law_rows import BoundRow
from resispec.trees import parallel_chains


@dataclass(frozen=True)
class Bound:
    """Ratios of the target's and the draft's laws along drafted and target paths, for `resispec.audit.path_bound`.

    contexts: of what the target writes after a prompt, with one drafted tree each. rollouts: of the target, a context.
    """

    contexts: int
    rollouts: int

    @torch.inference_mode()
    def __call__(self, context: Context, index: int) -> BoundRow:
        """See `Task`. The trees are those of the cell's decoder. Raises InvalidInput unless it draws i.i.d. siblings."""
        drafter, generator = filled_by_draft_model(context.decoder), context.generator(index)
        if drafter.draws is not Draws.IID:
            raise InvalidInput(
                "the ceiling of a tree is measured for i.i.d. siblings; allowed: decoder=specinfer"
            )
        shape, prefixes = drafter.topology, written_contexts(context, index, generator, self.contexts)
        paths = parallel_chains(self.rollouts, shape.num_levels - 1)
        emitted, trees, rollouts = 0.0, [], []
        for prefix in prefixes:
            capacity = len(prefix) + max(shape.num_nodes, paths.num_nodes)
            root = Root(context.pair, prefix, context.sampling.temperature, capacity)
            draft = root.draft(shape, generator)
            target_probs = root.read(context.pair.target).laws(draft.tree)
            emitted += expected_emitted(context.decoder.verifier, draft, target_probs)
            trees.append(finite(tree_log_ratios(draft.tree, target_probs, draft.probs)))
            rollouts += [finite(path) for path in root.target_path_ratios(paths, generator)]
        shared = identity(context, index, len(prefixes))
        return BoundRow(
            **shared,
            num_nodes=shape.num_nodes,
            emitted=emitted,
            tree_log_ratios=trees,
            rollout_log_ratios=rollouts,
        )

    def progress(self, rows: Sequence[dict[str, Any]]) -> dict[str, str]:
        """The expected accepted length."""
        return {
            "accepted_length": f"{sum(row['emitted'] for row in rows) / sum(row['num_contexts'] for row in rows):.2f}"
        }
