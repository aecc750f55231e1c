"""Autoregressive decoding as a drafter: the tree is the root alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from resispec.core import Draft, Draws, Tree, Verdict
from resispec.models import Pair
from resispec.trees import Topology, root_only


@dataclass(frozen=True)
class NoDraft:
    """Proposes nothing, so every step emits one token of the target."""

    @property
    def topology(self) -> Topology:
        """The root."""
        return root_only()

    def start(
        self, pair: Pair, prompt: list[int], temperature: float, capacity: int, features: Tensor | None
    ) -> NoDraftSession:
        """See `Drafter.start`; the draft model is not used."""
        return NoDraftSession(pair.target.device)


class NoDraftSession:
    """Nothing to remember."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._topology = root_only()

    def draft(self, root: int, generator: Generator) -> Draft:
        """The root alone; no law is ever read, so `probs` has no column."""
        tokens = torch.tensor([root], device=self._device)
        return Draft(Tree(self._topology, tokens, Draws.IID), torch.empty(1, 0, device=self._device))

    def commit(self, verdict: Verdict, features: Tensor) -> None:
        """Nothing to learn."""
