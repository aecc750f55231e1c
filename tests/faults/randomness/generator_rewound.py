"""The generator is rewound between drafting and verifying: a token is tested with the number that drew it."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from faults.base import Fault, Where
from resispec.trees import chain
from resispec.verifiers import SiblingRule, Standard, TopDown


@dataclass(frozen=True)
class GeneratorRewound(TopDown):
    """It goes back to where the last step ended; the first step is right."""

    rule: SiblingRule = field(default_factory=Standard)
    states: list[Tensor] = field(default_factory=list)

    def verify(self, tree, target_probs, draft_probs, generator):
        """See `Verifier.verify`."""
        if self.states:
            generator.set_state(self.states[0])
        verdict = super().verify(tree, target_probs, draft_probs, generator)
        self.states[:] = [generator.get_state()]
        return verdict


# Simulated: 20,000 prompts, standard error .005
FAULT = Fault(
    "generator rewound after drafting", GeneratorRewound, Where.LOOP, 0.099, vocab=3, topology=chain(1)
)
