r"""Do emitted tokens follow the target's laws? Counts of tokens, and their places in four orders.

Whether a position is reached depends on what was emitted before it, in some verifiers even on what comes
after. Still, under an exact verifier the counts of emitted tokens less their laws have mean 0 and the
covariance of a multinomial: continued by fresh draws from the target they would be one, and the fresh part
has these properties by itself.

Every token has a place in [0, 1] when the vocabulary is put in an order that only depends on p and q: the
target's mass before it, and a random part of its own. That place is uniform, whatever the laws are, so that
places of all positions and laws can be put together. An order by p / q shows a bias toward the draft, one by
p - q a residual that is cut short, one by p a temperature, one by token random numbers that are used twice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from resispec.audit.chi_square import ChiSquare
from resispec.audit.verdict import POWER
from resispec.testing.laws import Laws
from resispec.testing.stage import Tokens

LEAST_EXPECTED = 10.0
"""Cells expected less often than this are counted together."""
NUM_PARTS = 16
"""Equal parts of the target's mass in which places are counted."""
OTHERS = -1
"""The cell of all entries that are expected less often."""
ORDERS = ("token", "p", "p / q", "p - q")


@dataclass(frozen=True)
class Cell:
    """The cell of a statistic that lies furthest out. errors: found less expected, in standard errors."""

    name: str
    expected: float
    found: int
    errors: float

    def __str__(self) -> str:
        numbers = f"expected {self.expected:.1f}, found {self.found}"
        return f"{self.name}: {numbers}, {self.errors:+.1f} standard errors"


@dataclass(frozen=True)
class Finding:
    """One statistic. what: of which counts it is."""

    what: str
    chi_square: ChiSquare
    worst: Cell


@dataclass(frozen=True)
class Counts:
    """Counts of K cells, (K,) each, and their G. index: of every cell's entry, OTHERS for the rare ones."""

    statistic: float
    index: Tensor
    expected: Tensor
    found: Tensor

    @property
    def errors(self) -> Tensor:
        """How far every count lies out, in standard errors."""
        share = self.expected / self.found.sum()
        return (self.found - self.expected) / (self.expected * (1 - share)).clamp_min(1e-300).sqrt()


def findings(laws: Laws, tokens: Tokens, generator: Generator) -> list[Finding]:
    """All statistics of emitted tokens: by token, and by place, of all of them and at the last position."""
    found = [by_token(laws, tokens)]
    own = torch.rand(len(tokens.row), generator=generator, dtype=torch.float64)
    for order in ORDERS:
        places = _places(laws, tokens, order, own)
        found += by_place(places, f"by falling {order}" if order != "token" else "by token")
        last = tokens.position == tokens.position.max()
        if not bool(last.all()):
            found += by_place(places[last], f"at the last position by {order}")
    return found


def by_token(laws: Laws, tokens: Tokens) -> Finding:
    """G over the laws that occurred: position and row. A token of probability 0 is found for certain."""
    law = laws.target.double()
    law = law / law.sum(1, keepdim=True)
    cell = (tokens.position * len(law) + tokens.row) * laws.vocab_size + tokens.column
    counts = torch.bincount(cell).double()
    counts = torch.nn.functional.pad(counts, (0, -len(counts) % law.numel())).view(-1, *law.shape)
    total, degrees, worst = 0.0, 0, Cell("no token", 0.0, 0, 0.0)
    impossible = (counts > 0) & (law == 0)
    if bool(impossible.any()):
        position, row, column = impossible.nonzero()[0].tolist()
        number = int(counts[position, row, column])
        worst = Cell(laws.name(position, row, column), 0.0, number, math.inf)
        return Finding("tokens", ChiSquare(math.inf, 1, len(cell)), worst)
    for position, row in counts.sum(-1).nonzero().tolist():
        part = compared(counts[position, row], law[row])
        total, degrees = total + part.statistic, degrees + len(part.index) - 1
        furthest = int(part.errors.abs().argmax())
        if len(part.index) > 1 and abs(float(part.errors[furthest])) > abs(worst.errors):
            column = int(part.index[furthest])
            name = (
                f"position {position}: rare tokens" if column == OTHERS else laws.name(position, row, column)
            )
            worst = _cell(name, part, furthest)
    return Finding("tokens", ChiSquare(total, degrees, len(cell)), worst)


def by_place(places: Tensor, name: str) -> list[Finding]:
    """G over equal parts of [0, 1], and the mean, of places (n,) that are uniform for an exact sampler."""
    count, parts = len(places), NUM_PARTS
    while parts > 1 and count < parts * LEAST_EXPECTED:
        parts //= 2
    cells = torch.bincount((places * parts).long(), minlength=parts).double()
    found = compared(cells, torch.full_like(cells, 1 / parts))
    furthest = int(found.errors.abs().argmax())
    part = int(found.index[furthest])
    worst = _cell(f"from {part}/{parts} to {part + 1}/{parts} of the target's mass, {name}", found, furthest)
    z = float((places - 0.5).sum()) * math.sqrt(12 / max(1, count))
    return [
        Finding(f"places, {name}", ChiSquare(found.statistic, parts - 1, count), worst),
        Finding(f"mean place, {name}", ChiSquare(z * z, 1, count), worst),
    ]


def compared(counts: Tensor, law: Tensor) -> Counts:
    """Counts (V,) against a law (V,): G with Williams' correction; rare cells are counted together.

    G, unlike Pearson's sum, keeps its law far out in the tail where a cell is expected ten times only.
    """
    total = counts.sum()
    expected = total * law
    is_common = expected >= LEAST_EXPECTED
    index, rare = is_common.nonzero()[:, 0], (~is_common).nonzero()[:, 0]
    found, mean = counts[index], expected[index]
    if len(rare):
        if len(index) and float(expected[rare].sum()) < LEAST_EXPECTED:
            smallest = int(mean.argmin())
            found[smallest] += counts[rare].sum()
            mean[smallest] += expected[rare].sum()
        else:
            index = torch.cat((index, torch.tensor([OTHERS])))
            found = torch.cat((found, counts[rare].sum()[None]))
            mean = torch.cat((mean, expected[rare].sum()[None]))
    size = len(index)
    if size < 2:
        return Counts(0.0, index, mean, found)
    g = 2 * torch.xlogy(found, found / mean).sum()
    correction = 1 + ((total / mean).sum() - 1) / (6 * total * (size - 1))
    return Counts(float((g / correction).clamp_min(0)), index, mean, found)


def smallest_bias(count: int, level: float) -> float:
    """The total variation along one of the orders that `count` tokens show in 9 of 10 tests at `level`.

    A bias of total variation d between parts of the target's mass adds at least 4 d^2 for every token to a
    chi-square (Cauchy-Schwarz); the noncentral law is taken as normal.
    """
    degrees, limit = NUM_PARTS - 1, limit_of(NUM_PARTS - 1, level)
    spread = 2 * (POWER + math.sqrt(POWER**2 - degrees / 2 + limit))
    noncentrality = (spread**2 / 2 - degrees) / 2
    return min(1.0, math.sqrt(noncentrality / (4 * max(1, count))))


def limit_of(degrees: int, level: float) -> float:
    """The chi-square that is exceeded with probability `level`."""
    low, high = 0.0, 4e3
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if ChiSquare(middle, degrees, 1).p_value > level else (low, middle)
    return high


def _places(laws: Laws, tokens: Tokens, order: str, own: Tensor) -> Tensor:
    """(n,) float64 in [0, 1): the target's mass before every token in an order, and `own` of the token's."""
    p, q = laws.target.double(), laws.draft.double()
    p = p / p.sum(1, keepdim=True)
    keys = {"token": torch.arange(p.shape[1]).expand_as(p), "p": -p, "p / q": -p / q, "p - q": q - p}
    ranks = keys[order].nan_to_num().argsort(dim=1, stable=True)
    sorted_mass = p.gather(1, ranks)
    before = torch.zeros_like(p).scatter(1, ranks, sorted_mass.cumsum(1) - sorted_mass)
    found = before[tokens.row, tokens.column]
    if order == "token":  # the row begins at the column of token 0
        found = (found - before[tokens.row, tokens.start]) % 1
    return (found + own * p[tokens.row, tokens.column]).clamp(0, 1 - 2**-53)


def _cell(name: str, counts: Counts, place: int) -> Cell:
    numbers = float(counts.expected[place]), int(counts.found[place]), float(counts.errors[place])
    return Cell(name, *numbers)
