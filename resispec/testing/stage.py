"""What a sampler is given, and how what it emits is read: a chain of positions, or siblings for one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Generator, Tensor

from resispec.draws import Draws
from resispec.testing.laws import Laws, Place

NONE = -1
"""Stands where no token was emitted."""
MAX_ELEMENTS = 1 << 22
"""Numbers in the laws that are made at a time."""


@dataclass(frozen=True)
class Tokens:
    """n tokens and where each stands: at which position, in which row and column of the laws; (n,) int64.

    start: the column of token 0 in the same row.
    """

    position: Tensor
    row: Tensor
    start: Tensor
    column: Tensor


@dataclass(frozen=True)
class Step:
    """What was drafted, (C, K) int64, and what was emitted, (C, P) int64 with NONE behind the last token."""

    drafted: Tensor
    emitted: Tensor


class Player(Protocol):
    """Drafts and verifies, or pretends to."""

    def play(self, root: Tensor) -> Step:
        """Emit tokens after the tokens `root` (C,)."""


Choose = Callable[[Place, int], Tensor]


@dataclass(frozen=True)
class Stage:
    """Laws, and what is drafted from them: as many `siblings` for one position, or a chain if that is 0.

    length: of the chain, L. draws: how tokens are drafted.
    """

    laws: Laws
    length: int
    siblings: int
    draws: Draws

    @property
    def num_positions(self) -> int:
        """P, the most tokens that can be emitted: L + 1, or 1."""
        return 1 if self.siblings else self.length + 1

    @property
    def num_drafted(self) -> int:
        """K: tokens drafted for every row."""
        return self.siblings or self.length

    @property
    def rows_at_a_time(self) -> int:
        """Rows whose laws are made at a time."""
        most = MAX_ELEMENTS // (self.laws.vocab_size * (self.num_positions + self.num_drafted))
        return min(4096, max(1, most))

    def drafted(self, root: Tensor, choose: Choose) -> Tensor:
        """(C, K) tokens; `choose` gives so many (C, count) for a place."""
        if self.siblings:
            return choose(self.laws.place(0, root), self.siblings)
        tokens, previous = [], root
        for position in range(self.length):
            previous = choose(self.laws.place(position, previous), 1)[:, 0]
            tokens.append(previous)
        return torch.stack(tokens, 1)

    def draw(self, generator: Generator) -> Choose:
        """Drafts as `draws` says."""
        return lambda place, count: self.laws.draw(self.laws.draft, place, self.draws, count, generator)

    def rows(self, root: Tensor, drafted: Tensor) -> tuple[Tensor, Tensor]:
        """The laws that a sampler gets: (C, L + 1, V) and (C, L, V) of a chain, (C, V) and (C, V) otherwise.

        A contiguous pair of tensors of its own.
        """
        laws = self.laws
        if self.siblings:
            place = laws.place(0, root)
            return laws.rows(laws.target, place), laws.rows(laws.draft, place)
        before = torch.cat((root[:, None], drafted), 1).unbind(1)
        places = [laws.place(position, previous) for position, previous in enumerate(before)]
        target = [laws.rows(laws.target, place) for place in places]
        draft = [laws.rows(laws.draft, place) for place in places[:-1]]
        return torch.stack(target, 1), torch.stack(draft, 1)

    def placed(self, root: Tensor, tokens: Tensor) -> Tokens:
        """Where tokens (C, K or P) stand, NONE left out; every one follows the one before it."""
        parts, previous = [], root
        for position, token in enumerate(tokens.unbind(1)):
            there = token != NONE
            place = Place(*(part[there] for part in self.laws.place(position, previous)))
            where = torch.full_like(place.row, position)
            parts.append(torch.stack((where, *place, self.laws.columns(place, token[there]))))
            previous = token
        return Tokens(*torch.cat(parts, 1))

    def check(self, step: Step) -> None:
        """Raise AssertionError for tokens that no verifier emits, whatever it was given."""
        emitted, vocab = step.emitted, self.laws.vocab_size
        if bool((emitted[:, 0] == NONE).any()):
            raise AssertionError("emitted nothing; a verifier emits at least one token")
        if bool((emitted >= vocab).any()):
            raise AssertionError(f"emitted token {int(emitted.max())} of {vocab} tokens")
        if self.siblings:
            return
        went_on = (emitted[:, 1:] != NONE) & (emitted[:, :-1] != step.drafted)
        if bool(went_on.any()):
            row = int(went_on.any(1).nonzero()[0])
            found, drafted = emitted[row][emitted[row] != NONE].tolist(), step.drafted[row].tolist()
            raise AssertionError(
                f"emitted {found} where {drafted} was drafted: "
                "it went on behind a token that was not drafted, and no law is known there"
            )


def play(stage: Stage, player: Player, sizes: list[int], generator: Generator) -> tuple[Tokens, Tokens]:
    """Let a player verify so many rows at a time: the tokens that it emitted, and the first ones drafted.

    Of siblings only the first of each row. Raises what `Stage.check` raises.
    """
    emitted, drafted = [], []
    for size in sizes:
        root = stage.laws.roots(size, generator)
        step = player.play(root)
        stage.check(step)
        emitted.append(stage.placed(root, step.emitted))
        drafted.append(stage.placed(root, step.drafted[:, :1] if stage.siblings else step.drafted))
    return _joined(emitted), _joined(drafted)


def _joined(parts: list[Tokens]) -> Tokens:
    names = ("position", "row", "start", "column")
    return Tokens(*(torch.cat([getattr(part, name) for part in parts]) for name in names))
