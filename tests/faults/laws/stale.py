"""The target's laws are those of the previous tree: a buffer per shape that is filled too late."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from faults.base import Fault, Where
from resispec.trees import chain
from resispec.verifiers import SiblingRule, Standard, TopDown


@dataclass(frozen=True)
class Stale(TopDown):
    """The first tree of a shape is verified with its own laws."""

    rule: SiblingRule = field(default_factory=Standard)
    buffers: dict[torch.Size, Tensor] = field(default_factory=dict)

    def verify(self, tree, target_probs, draft_probs, generator):
        """See `Verifier.verify`."""
        used = self.buffers.get(target_probs.shape, target_probs)
        self.buffers[target_probs.shape] = target_probs
        return super().verify(tree, used, draft_probs, generator)


# Simulated: 20,000 prompts, standard error .005
FAULT = Fault("laws of the previous tree", Stale, Where.LOOP, 0.252, vocab=3, topology=chain(1))
