"""The pairs of laws on which a sampler is tested: at every position of a chain a law p and a law q.

What a target and a draft say depends on the token before, as with real models. A verifier that goes on with
rows of a token that it has refused is right for laws that do not depend on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from resispec.audit.battery import KINDS, pair_of_laws
from resispec.audit.scenes import wide_laws
from resispec.draws import Draws

HARD = 8
"""Up to so many tokens the laws are a table with all kinds of the audit's battery."""
WIDE = 64
"""Above so many tokens they are Zipf-like, and between the two flat and far apart."""
FULL = tuple(kind for kind in KINDS if kind in ("random", "peaked", "p = q"))
"""The kinds whose draft has mass on every token."""
STRIDE = 7919
"""How far the law after token t + 1 is turned against that after t; a prime, so that no two are alike."""


class Place(NamedTuple):
    """Which laws hold: (C,) int64, the row, and the column of it that belongs to token 0."""

    row: Tensor
    start: Tensor


@dataclass(frozen=True)
class Laws:
    """Rows of laws; a subclass says which of them holds where.

    target, draft: (R, V), in the precision in which the sampler gets them, on the CPU.
    """

    target: Tensor
    draft: Tensor

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.target.shape[1]

    def roots(self, count: int, generator: Generator) -> Tensor:
        """(count,) tokens before the first position."""
        return torch.randint(self.vocab_size, (count,), generator=generator)

    def place(self, position: int, previous: Tensor) -> Place:
        """Which laws hold at a position after the tokens `previous` (C,)."""
        raise NotImplementedError

    def rows(self, laws: Tensor, place: Place) -> Tensor:
        """Those laws of `target` or `draft`, by token: (C, V)."""
        return laws[place.row]

    def columns(self, place: Place, tokens: Tensor) -> Tensor:
        """Where the tokens (C,) stand in their rows."""
        return (tokens + place.start) % self.vocab_size

    def draw(self, laws: Tensor, place: Place, draws: Draws, count: int, generator: Generator) -> Tensor:
        """Draw (C, count) tokens from `target` or `draft`; a row is gone through once for all its places."""
        columns = torch.empty(len(place.row), count, dtype=torch.int64)
        for row in place.row.unique():
            here = (place.row == row).nonzero()[:, 0]
            if draws.are_independent:
                columns[here] = draws.draw(laws[row], count * len(here), generator).view(-1, count)
            else:
                columns[here] = draws.draw(laws[row].expand(len(here), -1), count, generator)
        return (columns - place.start[:, None]) % self.vocab_size

    def name(self, position: int, row: int, column: int) -> str:
        """How messages call the token of a cell."""
        found = f"target {float(self.target[row, column]):.4g}, draft {float(self.draft[row, column]):.4g}"
        return f"{self._name(position, row, column)} ({found})"

    def _name(self, position: int, row: int, column: int) -> str:
        return f"position {position}: token {column}"


@dataclass(frozen=True)
class Given(Laws):
    """A row for every position, whatever was drafted: R = L + 1, the draft's last row is not used."""

    def roots(self, count: int, generator: Generator) -> Tensor:
        """See `Laws.roots`; which token it is plays no part."""
        return torch.zeros(count, dtype=torch.int64)

    def place(self, position: int, previous: Tensor) -> Place:
        """See `Laws.place`."""
        return Place(torch.full_like(previous, position), torch.zeros_like(previous))


@dataclass(frozen=True)
class Table(Laws):
    """A row for every token before: R = V, for narrow vocabularies."""

    def place(self, position: int, previous: Tensor) -> Place:
        """See `Laws.place`."""
        return Place(previous, torch.zeros_like(previous))

    def _name(self, position: int, row: int, column: int) -> str:
        return f"position {position}, after token {row}: token {column}"


@dataclass(frozen=True)
class Turned(Laws):
    """One row, turned by the token before: R = 1."""

    def place(self, position: int, previous: Tensor) -> Place:
        """See `Laws.place`."""
        return Place(torch.zeros_like(previous), (-STRIDE * previous) % self.vocab_size)

    def rows(self, laws: Tensor, place: Place) -> Tensor:
        """See `Laws.rows`."""
        return torch.cat((laws[0], laws[0])).unfold(0, self.vocab_size, 1)[place.start]

    def _name(self, position: int, row: int, column: int) -> str:
        return f"position {position}: a token"


def laws_for(vocab: int, kinds: Sequence[str], dtype: torch.dtype, generator: Generator) -> Laws:
    """The laws for a vocabulary of this size.

    Corners need few tokens: zeros, equal and disjoint laws. Random numbers that are used twice show where
    residuals are broad and tokens many enough, but few enough to be counted one by one. And what depends on
    the size of a vocabulary shows only in a wide one, whose mass is mostly with few tokens.
    """
    if vocab <= HARD:
        return hard_table(vocab, kinds, dtype, generator)
    if vocab <= WIDE:
        return Turned(*(law[None].to(dtype) for law in pair_of_laws("random", vocab, generator)))
    return zipf_pair(vocab, dtype, generator)


def hard_table(vocab: int, kinds: Sequence[str], dtype: torch.dtype, generator: Generator) -> Table:
    """A pair of the audit's battery for every token before, the kinds by turns."""
    pairs = [pair_of_laws(kinds[token % len(kinds)], vocab, generator) for token in range(vocab)]
    target, draft = (torch.stack(laws).to(dtype) for laws in zip(*pairs, strict=True))
    return Table(target, draft)


def zipf_pair(vocab: int, dtype: torch.dtype, generator: Generator) -> Turned:
    """The audit's wide laws, in an order that has nothing to do with their probabilities."""
    order = torch.randperm(vocab, generator=generator)
    seed = int(torch.randint(1 << 31, (), generator=generator))
    laws = (law[order].to(dtype) for law in wide_laws(vocab, seed=seed))
    return Turned(*(law[None] / law.sum() for law in laws))
