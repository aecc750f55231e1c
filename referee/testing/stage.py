"""The stage on which a sampler is tested: laws p and q of all positions, tokens drafted from q.

The laws depend on the token before, as with real models, and rows of a batch differ. This shows
verifiers that go on with the laws after a token that they refused, or that mix up rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from resispec.audit.battery import pair_of_laws
from resispec.audit.simulation_cases import wide_laws
from resispec.draws import DrawsKind

NONE = -1
"""The number that stands where no token was emitted."""
MAX_ELEMENTS = 1 << 22
"""The most numbers that are worked on at a time."""
NUM_LAWS = 6
"""The number of laws of a stage; after token t the law is number t % 6."""
NARROW = 8
"""Up to so many tokens, pairs of laws are of the audit battery's kinds, in the battery's order."""
WIDE = 64
"""Above so many tokens laws are Zipf-like; from NARROW to WIDE they are flat and far apart."""
FULL = ("random", "peaked", "p = q")
"""The kinds whose draft has mass on every token."""


class PlacedTokens(NamedTuple):
    """n tokens, the position of each and the row of its laws, (n,) int64 each."""

    position: Tensor
    row: Tensor
    token: Tensor


@dataclass(frozen=True)
class Stage:
    """Laws, and tokens drafted from them: `siblings` for one position, a chain if that is 0.

    target, draft: (R, V), in the sampler's precision, on the CPU. The law after a token t is row
    t % R; with `by_position`, the law at position i is row i, whatever was drafted. length: L, that
    of the chain. draws: the kind of drafting. generator: that of all random numbers except the
    sampler's.
    """

    target: Tensor
    draft: Tensor
    length: int
    siblings: int
    draws: DrawsKind
    generator: Generator
    by_position: bool = False

    @property
    def vocab_size(self) -> int:
        """The vocabulary size V."""
        return self.target.shape[1]

    @property
    def num_positions(self) -> int:
        """P, the most tokens that can be emitted: L + 1, or 1 for siblings."""
        return 1 if self.siblings else self.length + 1

    def roots(self, count: int) -> Tensor:
        """Random tokens (count,) that stand before the first position."""
        return torch.randint(self.vocab_size, (count,), generator=self.generator)

    def rows(self, root: Tensor, tokens: Tensor) -> Tensor:
        """Rows (C, K + 1), at most P, of the laws after each of `root` (C,) and `tokens` (C, K)."""
        before = torch.cat((root[:, None], tokens), 1)[:, : self.num_positions]
        positions = torch.arange(before.shape[1]).expand_as(before)
        return positions if self.by_position else before % len(self.target)

    def drafted(self, root: Tensor, choose: Callable[[Tensor, int], Tensor]) -> Tensor:
        """The drafted tokens (C, L or B).

        choose: drafts tokens (C, count) from rows (C,) of the laws.
        """
        tokens = root.new_empty(len(root), 0)
        for position in range(1 if self.siblings else self.length):
            rows = self.rows(root, tokens)[:, position]
            tokens = torch.cat((tokens, choose(rows, self.siblings or 1)), 1)
        return tokens

    def choose(self, rows: Tensor, count: int) -> Tensor:
        """Draft tokens (C, count) by `draws` from rows (C,) of the draft's laws, see `drafted`."""
        return self.draw(self.draft, rows, self.draws, count)

    def draw(self, laws: Tensor, rows: Tensor, draws: DrawsKind, count: int) -> Tensor:
        """Draw tokens (C, count) of rows (C,) of laws (R, V); a row's independent ones at once."""
        tokens = torch.empty(len(rows), count, dtype=torch.int64)
        for row in rows.unique().tolist():
            places = (rows == row).nonzero()[:, 0]
            if draws.are_independent:
                tokens[places] = draws.draw(laws[row], count * len(places), self.generator).view(
                    -1, count
                )
                continue
            for part in places.split(max(1, MAX_ELEMENTS // self.vocab_size)):
                tokens[part] = draws.draw(laws[row].expand(len(part), -1), count, self.generator)
        return tokens

    def laws(self, root: Tensor, drafted: Tensor) -> tuple[Tensor, Tensor]:
        """A sampler's laws p and q: (C, L + 1, V) and (C, L, V) for a chain, else (C, V) each."""
        rows = self.rows(root, drafted)
        if self.siblings:
            return self.target[rows[:, 0]], self.draft[rows[:, 0]]
        return self.target[rows], self.draft[rows[:, :-1]]

    def placed(self, root: Tensor, tokens: Tensor) -> PlacedTokens:
        """The tokens (C, K) with positions and rows, without NONE; each follows the one before."""
        rows = self.rows(root, tokens[:, :-1])
        mask = tokens != NONE
        position = torch.arange(tokens.shape[1]).expand_as(tokens)
        return PlacedTokens(position[mask], rows[mask], tokens[mask])

    def check(self, drafted: Tensor, emitted: Tensor) -> None:
        """Raise AssertionError for tokens (C, P) that no verifier emits, whatever it was given."""
        if bool((emitted[:, 0] == NONE).any()):
            raise AssertionError("emitted nothing; a verifier emits at least one token")
        if bool((emitted >= self.vocab_size).any()):
            raise AssertionError(f"emitted token {int(emitted.max())} of {self.vocab_size} tokens")
        went_on = (emitted[:, 1:] != NONE) & (emitted[:, :-1] != drafted[:, : emitted.shape[1] - 1])
        if bool(went_on.any()):
            row = int(went_on.any(1).nonzero()[0])
            tokens = emitted[row][emitted[row] != NONE].tolist()
            raise AssertionError(
                f"emitted {tokens} where {drafted[row].tolist()} was drafted: "
                "it went on behind a token that was not drafted, and no law is known there"
            )


def laws_for(vocab: int, kinds: Sequence[str], generator: Generator) -> tuple[Tensor, Tensor]:
    """Laws p and q for a vocabulary of this size, (NUM_LAWS, V) float64 each.

    Corner cases (zeros, equal and disjoint laws) need few tokens. Random numbers that are used
    twice show if residuals are broad and tokens many, but few enough to be counted one by one.
    Faults that depend on the size of a vocabulary show only in a wide one, most of whose mass is on
    few tokens.
    """
    pairs, kinds = [], kinds if vocab <= NARROW else ("random",)
    for number in range(NUM_LAWS):
        if vocab <= WIDE:
            pairs.append(pair_of_laws(kinds[number % len(kinds)], vocab, generator))
            continue
        # ids have nothing to do with probabilities
        order = torch.randperm(vocab, generator=generator)
        seed = int(torch.randint(1 << 31, (), generator=generator))
        pair = (law[order].double() for law in wide_laws(vocab, seed=seed))
        pairs.append([law / law.sum() for law in pair])
    target, draft = (torch.stack(laws) for laws in zip(*pairs, strict=True))
    return target, draft
