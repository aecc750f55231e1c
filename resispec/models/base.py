"""A language model as decoding uses it: sessions that forward tokens under explicit masks and positions."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from resispec.cuda_graphs import as_unit, upload


class Session(Protocol):
    """One sequence in a model: committed rows in its cache, and behind them those of the current step.

    Whatever changes lies in tensors on the device, so that its methods can be part of a captured unit, see
    `resispec.cuda_graphs`.
    """

    def extend(self, tokens: Tensor) -> Tensor:
        """Commit K tokens (K,) int64, each seeing all before it; returns their features (K, H)."""

    def forward(self, tokens: Tensor, depths: Tensor, visible: Tensor) -> Tensor:
        """Append K tokens (K,) int64 to the current step and return their features (K, H).

        depths: (K,) int64, positions behind the last committed one, 0 for the next. visible: (K, R) bool, of
        the step's R rows, of which these K are the last, those that a token may attend to; it sees all
        committed rows.
        """

    def keep(self, rows: Tensor) -> None:
        """Commit the step's rows at these places (K,) int64, in this order, and forget the others."""

    def clear(self) -> None:
        """Forget everything."""


class Model(Protocol):
    """A causal language model."""

    vocab_size: int
    context: int
    device: torch.device

    def session(self, capacity: int, drafted: int = 0) -> Session:
        """Start an empty sequence; its cache holds `capacity` committed rows and `drafted` of a step."""

    def head(self, features: Tensor) -> Tensor:
        """Logits (K, V) of features (K, H)."""


def keeping(session: Session, device: torch.device) -> Callable[[Sequence[int]], object]:
    """`Session.keep` as a captured unit, by the numbers of the rows."""

    def keep(_: None, rows: Tensor) -> tuple[()]:
        session.keep(rows)
        return ()

    unit = as_unit(keep, device)
    return lambda rows: unit(None, upload(rows, device))


def features_of(model: Model, tokens: Sequence[int]) -> Tensor:
    """Features (K, H) of a whole sequence of K tokens, each seeing all before it."""
    return model.session(len(tokens)).extend(upload(tokens, model.device))
