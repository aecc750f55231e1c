"""What a planted fault says about itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from resispec.drafters import Drafter, DraftModel
from resispec.trees import Topology, complete
from resispec.verifiers import Draws, SiblingRule, Verifier


class Where(StrEnum):
    """Where a fault lives, and so what can see it.

    LAW: in what `law` or `outcomes` says. VERIFY: only in what `verify` draws; `outcomes` is right. DRAFTER:
    siblings are drawn in another way than the rule is told. LOOP: in randomness or memory across steps, so
    that a single call of `verify` looks right.
    """

    LAW = "law"
    VERIFY = "verify"
    DRAFTER = "drafter"
    LOOP = "loop"


@dataclass(frozen=True)
class Fault:
    """One planted fault, or an innocent case, which looks like a fault and has none.

    make: a new sibling rule or verifier; a new one for every sequence, since some remember. A verifier whose
    `verify` does not draw what its `outcomes` says, and whose real law is known, has `true_outcomes`.
    draws: how the siblings are really drawn; where the drafter lies, an object whose `draw` and `weights` are
    what is done and whose `laws` are what the rule is told.
    total_variation: the bias, 0 for an innocent case, on the laws over `vocab` tokens and the tree of
    `faults.truth`. It is checked by enumeration, or, for faults of the loop, measured once by simulation.
    """

    name: str
    make: Callable[[], SiblingRule | Verifier]
    where: Where
    total_variation: float
    draws: Draws = Draws.IID
    vocab: int = 6
    topology: Topology = complete(2, 3)

    @property
    def is_biased(self) -> bool:
        """Whether anything is wrong at all."""
        return self.total_variation > 0

    @property
    def told(self) -> Draws:
        """The known kind of draws that the rule is told."""
        return Draws(self.draws.value)

    def drafter(self, topology: Topology) -> Drafter:
        """The drafter with which the fault shows in real decoding."""
        return DraftModel(topology, self.draws)
