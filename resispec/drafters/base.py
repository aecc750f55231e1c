"""The contract of drafting: a drafter is a strategy, a session is its state for one sequence."""

from __future__ import annotations

from typing import Protocol

from torch import Generator, Tensor

from resispec.core import Draft, Verdict
from resispec.models import Pair, Warp
from resispec.trees import Topology


class DraftSession(Protocol):
    """Fills trees for one sequence after another."""

    def prefill(self, prompt: list[int], features: Tensor | None) -> None:
        """Begin a sequence; `prompt` holds at least one token, its last is the first root.

        features: (L-1, H), the target's, of all prompt tokens but the last; None where there is no other.
        """

    def draft(self, root: int, generator: Generator) -> Draft:
        """Propose a tree below `root`, the last committed token.

        Its tensors may be overwritten by the next step's.
        """

    def commit(self, verdict: Verdict, features: Tensor) -> None:
        """Learn the verdict on the last tree. features: (N, H), the target's at every node of that tree."""


class Drafter(Protocol):
    """A way to fill trees."""

    @property
    def topology(self) -> Topology:
        """A tree with as many nodes and levels as any that this drafter proposes."""

    def session(self, pair: Pair, warp: Warp, capacity: int) -> DraftSession:
        """Prepare to draft for a pair.

        warp: from logits to laws. capacity: the most committed tokens of a sequence.
        """
