"""A language model in decoding: sessions forward tokens under explicit masks and positions."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from resispec.cuda_graphs import as_unit, upload
from resispec.errors import InvalidInput


class Session(Protocol):
    """One sequence in a model: the committed rows of its cache, then the rows of the current step.

    All state that changes lies in tensors on the device, so that the methods can be part of a
    captured unit, see `resispec.cuda_graphs`.
    """

    def extend(self, tokens: Tensor) -> Tensor:
        """Commit tokens (K,) int64, each of which sees all before it; returns features (K, H)."""

    def forward(self, tokens: Tensor, depths: Tensor, visible: Tensor) -> Tensor:
        """Append K tokens (K,) int64 to the current step and return their features (K, H).

        depths: (K,) int64, the tokens' positions, counted from the first position that is not
        committed. visible: (K, R) bool, whether each token may attend to each of the step's R rows,
        the last K of which are these tokens; every token sees all committed rows.
        """

    def keep(self, rows: Tensor) -> None:
        """Commit the step's rows at places (K,) int64, in this order, and forget the others."""

    def clear(self) -> None:
        """Forget everything."""


class Model(Protocol):
    """A causal language model."""

    vocab_size: int
    context: int
    device: torch.device

    def session(self, capacity: int, drafted: int = 0) -> Session:
        """Start an empty sequence for `capacity` committed rows and `drafted` rows of a step."""

    def head(self, features: Tensor) -> Tensor:
        """Logits (K, V) of features (K, H)."""


def keeping(session: Session, device: torch.device) -> Callable[[Sequence[int]], object]:
    """`Session.keep` as a captured unit that takes the places of the rows as a list of numbers."""

    def keep(_: None, rows: Tensor) -> tuple[()]:
        session.keep(rows)
        return ()

    unit = as_unit(keep, device)
    return lambda rows: unit(None, upload(rows, device))


def check_one_side(
    switches: Sequence[int], prompt_length: int, length: int, text: str, role: str
) -> None:
    """Raise InvalidInput for texts in which a model's frequencies change, see `causal.switches_in`.

    prompt_length: laws are read from the prompt's last token on. length: the positions that the
    model reads. text: what takes these positions; the line begins with it. role: such as "target".
    """
    for switch in switches:
        if prompt_length - 1 <= switch < length:
            raise InvalidInput(
                f"{text} take {length} positions; the {role}'s frequencies (longrope) change "
                f"beyond {switch}; allowed: at most {switch} positions, or prompts from "
                f"{switch + 2} tokens"
            )


def features_of(model: Model, tokens: Sequence[int], prompt_length: int = 1) -> Tensor:
    """Features (K, H) of a whole sequence of K tokens, each of which sees all before it.

    prompt_length: the caller reads them from the prompt's last token on, see `check_one_side`.
    """
    switches = getattr(model, "rope_switches", ())
    check_one_side(switches, prompt_length, len(tokens), "the tokens of a text", "model")
    return model.session(len(tokens)).extend(upload(tokens, model.device))
