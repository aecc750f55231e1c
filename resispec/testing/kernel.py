"""Calls the function that is tested, as it wants to be called, and reads what it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from resispec.errors import InvalidInput
from resispec.testing.laws import Place
from resispec.testing.stage import NONE, Choose, Stage, Step


@dataclass(frozen=True)
class Arrays:
    """What a sampler computes with: numpy arrays, or tensors on a device."""

    numpy: bool
    device: torch.device

    def give(self, tensor: Tensor) -> Any:
        """A tensor on the CPU as the sampler gets it."""
        return tensor.numpy() if self.numpy else tensor.to(self.device)

    def generator(self, seed: int) -> Any:
        """A seeded numpy Generator, or a torch one on the device."""
        return np.random.default_rng(seed) if self.numpy else Generator(self.device).manual_seed(seed)


@dataclass(frozen=True)
class Kernel:
    """The sampler under test as a player, see `assert_exact_sampler` for how it is called.

    draft: the engine's own drafting, or None. batched: whether its arrays have a dimension for rows.
    generator: its own; ours: of what is drafted here.
    """

    stage: Stage
    sampler: Callable[..., Any]
    draft: Callable[..., Any] | None
    batched: bool
    arrays: Arrays
    generator: Any
    ours: Generator

    def play(self, root: Tensor) -> Step:
        """See `Player.play`."""
        noises: list[list[Any]] = []
        choose = self.stage.draw(self.ours) if self.draft is None else self._choose(self.draft, noises)
        drafted = self.stage.drafted(root, choose)
        given = [self.arrays.give(tensor) for tensor in (*self.stage.rows(root, drafted), drafted)]
        calls = [given] if self.batched else zip(*given, strict=True)
        found = [
            self.sampler(*call, self.generator, *self._noise(noises, index))
            for index, call in enumerate(calls)
        ]
        rows = _rows(found[0], len(root)) if self.batched else found
        width = self.stage.num_positions
        return Step(drafted, torch.tensor([_padded(row, width) for row in rows]))

    def _choose(self, draft: Callable[..., Any], noises: list[list[Any]]) -> Choose:
        """Drafts as the engine does; a list with the noise of every call joins `noises`."""

        def choose(place: Place, count: int) -> Tensor:
            rows = self.arrays.give(self.stage.laws.rows(self.stage.laws.draft, place))
            found = [draft(row, self.generator) for row in ([rows] if self.batched else rows)]
            if all(isinstance(drafted, tuple) for drafted in found):
                noises.append([noise for _, noise in found])
                found = [drafted for drafted, _ in found]
            tokens = [_listed(row) for row in (_rows(found[0], len(rows)) if self.batched else found)]
            if any(len(row) != count for row in tokens):
                raise InvalidInput(f"draft returned {tokens[0]}; allowed: {count} tokens for every row")
            return torch.tensor(tokens)

        return choose

    def _noise(self, noises: list[list[Any]], call: int) -> tuple[Any, ...]:
        """What a call gets besides: nothing, or the noise of its siblings or of every position."""
        if not noises:
            return ()
        return (noises[0][call],) if self.stage.siblings else ([noise[call] for noise in noises],)


def _rows(found: Any, count: int) -> Sequence[Any]:
    """What a call returned for `count` rows, one by one."""
    rows = found.tolist() if hasattr(found, "tolist") else found
    if not isinstance(rows, list | tuple) or len(rows) != count:
        size = len(rows) if isinstance(rows, list | tuple) else type(found).__name__
        raise InvalidInput(f"a call with {count} rows returned {size}; allowed: the tokens of every row")
    return rows


def _listed(row: Any) -> list[int]:
    """One row's tokens, which may be a number, a sequence or an array of them."""
    found = row.tolist() if hasattr(row, "tolist") else row
    found = list(found) if isinstance(found, list | tuple) else [found]
    tokens = [token.item() if hasattr(token, "item") else token for token in found]
    if not all(type(token) is int for token in tokens):
        raise InvalidInput(f"tokens are {row!r}; allowed: whole numbers, in one dimension for every row")
    return tokens


def _padded(row: Any, width: int) -> list[int]:
    """One row's tokens, and NONE up to `width`; the sampler may have padded with any negative numbers."""
    tokens = _listed(row)
    while tokens and tokens[-1] < 0:
        tokens.pop()
    if len(tokens) > width:
        raise AssertionError(f"emitted {tokens}; at most {width} tokens are possible")
    if any(token < 0 for token in tokens):
        raise AssertionError(f"emitted {tokens}; negative numbers may only stand behind the last token")
    return tokens + [NONE] * (width - len(tokens))
