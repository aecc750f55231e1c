"""What decoding asks of a language model: sessions that forward tokens under explicit masks and positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor


class Session(Protocol):
    """One sequence in a model, with the cache of what was forwarded."""

    @property
    def length(self) -> int:
        """Cached positions."""

    def forward(self, tokens: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        """Append K tokens to the cache and return their features (K, H).

        tokens, positions: (K,) int64. visible: (K, length + K) bool, True where a token may attend.
        """

    def keep(self, past: int, rows: Sequence[int]) -> None:
        """Keep the first `past` cached positions and those at offsets `rows` after them, no others."""


class Model(Protocol):
    """A causal language model."""

    vocab_size: int
    context: int
    device: torch.device

    def session(self, capacity: int) -> Session:
        """Start an empty sequence whose cache holds `capacity` positions."""

    def head(self, features: Tensor) -> Tensor:
        """Logits (K, V) of features (K, H)."""


def extend(session: Session, tokens: Sequence[int], device: torch.device) -> Tensor:
    """Append committed tokens to a session, each seeing all before it; returns their features (K, H)."""
    past, count = session.length, len(tokens)
    positions = torch.arange(past, past + count, device=device)
    visible = torch.ones(count, past + count, dtype=torch.bool, device=device).tril(past)
    return session.forward(torch.tensor(tokens, device=device), positions, visible)


def behind_anything(visible: Tensor, capacity: int) -> Tensor:
    """Put a block (K, R) bool behind `capacity` columns of True.

    The last `past + R` columns are the mask after `past` tokens.
    """
    return torch.cat((visible.new_ones(len(visible), capacity), visible), 1)


class Tokenizer(Protocol):
    """Text to token ids and back."""

    eos_token_id: int | None

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, with the special tokens that the model expects."""

    def decode(self, token_ids: list[int]) -> str:
        """Text of token ids."""

    def beginning(self, text: str, count: int) -> str:
        """The text of the first `count` tokens of a text, without special tokens."""
