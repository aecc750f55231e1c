"""The generator is seeded anew in every step, so that all steps decide and draft with the same numbers."""

from functools import partial

from faults.base import Fault, Where
from resispec.trees import chain
from resispec.verifiers import Standard, TopDown


class SeededAnew(TopDown):
    """See `TopDown`."""

    def verify(self, tree, target_probs, draft_probs, generator):
        """See `Verifier.verify`."""
        return super().verify(tree, target_probs, draft_probs, generator.manual_seed(0))


# Simulated: 20,000 prompts, standard error below .001
FAULT = Fault(
    "generator seeded anew in every step",
    partial(SeededAnew, Standard()),
    Where.LOOP,
    0.992,
    vocab=3,
    topology=chain(1),
)
