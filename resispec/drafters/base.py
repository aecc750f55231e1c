"""The contract of drafting: a drafter is a strategy, a session its state for one sequence.

`NoDraft` drafts nothing.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Generator, Tensor

from resispec.core import Draft, Draws, DrawsKind, Tree, Verdict
from resispec.cuda_graphs import upload
from resispec.models import Pair, Warp
from resispec.trees import Topology, root_only


class DraftSession(Protocol):
    """Fills trees for one sequence after another."""

    def prefill(self, prompt: list[int], features: Tensor | None) -> None:
        """Begin a sequence; `prompt` holds at least one token, its last is the first root.

        features: (L-1, H), the target's, of all prompt tokens but the last; None if there is only
        one token.
        """

    def draft(self, root: int, generator: Generator) -> Draft:
        """Propose a tree below `root`, the last committed token.

        The next step may overwrite the draft's tensors.
        """

    def commit(self, verdict: Verdict, features: Tensor, target_probs: Tensor) -> None:
        """Learn the verdict on the last tree.

        features, target_probs: (N, H) and (N, V), the target's features and laws at every node of
        that tree.
        """


class Drafter(Protocol):
    """A way to fill trees."""

    @property
    def draws(self) -> DrawsKind:
        """The way in which siblings are chosen."""

    @property
    def topology(self) -> Topology:
        """A tree with as many nodes and levels as any that this drafter proposes."""

    def session(self, pair: Pair, warp: Warp, capacity: int) -> DraftSession:
        """Prepare to draft for a pair.

        warp: the settings that turn logits into laws. capacity: the most committed tokens of a
        sequence.
        """


def root_alone(root: int, device: torch.device) -> Draft:
    """The draft of a root without children; no law is ever read, so `probs` has no column."""
    return Draft(
        Tree(root_only(), upload([root], device), Draws.IID), torch.empty(1, 0, device=device)
    )


@dataclass(frozen=True)
class NoDraft:
    """Autoregressive decoding as a drafter: it proposes nothing, so a step emits one token."""

    draws: ClassVar[DrawsKind] = Draws.IID
    topology: ClassVar[Topology] = root_only()

    def session(self, pair: Pair, warp: Warp, capacity: int) -> DraftSession:
        """See `Drafter.session`; there is no state to keep."""
        return self

    def prefill(self, prompt: list[int], features: Tensor | None) -> None:
        """Do nothing."""

    def draft(self, root: int, generator: Generator) -> Draft:
        """Propose the root alone."""
        return root_alone(root, generator.device)

    def commit(self, verdict: Verdict, features: Tensor, target_probs: Tensor) -> None:
        """Do nothing."""
