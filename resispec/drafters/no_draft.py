"""Autoregressive decoding as a drafter: the tree is the root alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from resispec.core import Draft, Draws, Tree, Verdict
from resispec.cuda_graphs import upload
from resispec.models import Pair, Warp
from resispec.trees import Topology, root_only


@dataclass(frozen=True)
class NoDraft:
    """Proposes nothing, so every step emits one token of the target."""

    @property
    def topology(self) -> Topology:
        """The root."""
        return root_only()

    def session(self, pair: Pair, warp: Warp, capacity: int) -> NoDraftSession:
        """See `Drafter.session`; the draft model is not used."""
        return NoDraftSession(pair.target.device)


class NoDraftSession:
    """Nothing to remember."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._topology = root_only()
        self._probs = torch.empty(1, 0, device=device)

    def prefill(self, prompt: list[int], features: Tensor | None) -> None:
        """Nothing to read."""

    def draft(self, root: int, generator: Generator) -> Draft:
        """The root alone; no law is ever read, so `probs` has no column."""
        return Draft(Tree(self._topology, upload([root], self._device), Draws.IID), self._probs)

    def commit(self, verdict: Verdict, features: Tensor) -> None:
        """Nothing to learn."""
