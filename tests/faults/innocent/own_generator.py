"""The verifier decides with a generator of its own, seeded once from the one that it is given."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Generator

from faults.base import Fault, Where
from resispec.trees import chain
from resispec.verifiers import SiblingRule, Standard, TopDown


@dataclass(frozen=True)
class OwnGenerator(TopDown):
    """See `TopDown`."""

    rule: SiblingRule = field(default_factory=Standard)
    own: list[Generator] = field(default_factory=list)

    def verify(self, tree, target_probs, draft_probs, generator):
        """See `Verifier.verify`."""
        if not self.own:
            seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
            self.own.append(Generator(generator.device).manual_seed(seed))
        return super().verify(tree, target_probs, draft_probs, self.own[0])


FAULT = Fault(
    "verifier with a generator of its own", OwnGenerator, Where.LOOP, 0.0, vocab=3, topology=chain(1)
)
