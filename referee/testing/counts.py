"""Counts of emitted tokens and of their places in three orders: do they follow the target's laws?

Whether a position is reached depends on the tokens before it, in some verifiers even on the tokens
after it. Still, under an exact verifier the counts of emitted tokens less their laws have mean 0
and the covariance of a multinomial: if fresh draws from the target continued the rows, the counts
would be multinomial, and the fresh draws have these properties by themselves.

If the vocabulary has an order that depends only on p and q, every token has a place in [0, 1]: the
target's mass before it, and a random part of its own. That place is uniform, whatever the laws are,
so that places of all positions and laws are counted together. The order by p / q shows a bias
toward the draft, the order by p a temperature or a residual that is cut short, the order by token
random numbers that are used twice.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from scipy import special, stats
from torch import Tensor

from referee.testing.stage import PlacedTokens, Stage
from resispec.audit.chi_square import LEAST_EXPECTED, chi_squared
from resispec.audit.verdict import Statistic

MOST_CELLS = 64
"""The most cells of a law: its most probable tokens are counted one by one, all others together."""
NUM_PARTS = 16
"""The number of equal parts of the target's mass in which places are counted."""
ORDERS = ("by token", "by falling p", "by falling p / q")


class CountTest(NamedTuple):
    """A chi-square of counts.

    what: the counts in words. worst: the cell that lies furthest out, in words.
    """

    what: str
    chi_square: Statistic
    worst: str


class Cells(NamedTuple):
    """Names of K cells, and their expected and found counts, (K,) float64, with the same sum."""

    names: Sequence[str]
    expected: Tensor
    found: Tensor


def counted(what: str, tables: Iterable[Cells]) -> CountTest:
    """Pearson's chi-square over tables, each of which has one degree of freedom less than cells."""
    total, degrees, count, furthest, worst = 0.0, 0, 0, 0.0, "none"
    for names, expected, found in tables:
        total += float(((found - expected).square() / expected).sum())
        degrees, count = degrees + len(names) - 1, count + int(found.sum())
        rest = (1 - expected / found.sum()).clamp_min(1e-9)
        errors = (found - expected) / (expected * rest).sqrt()
        cell = int(errors.abs().argmax())
        if len(names) > 1 and float(errors[cell].abs()) > furthest:
            furthest = float(errors[cell].abs())
            numbers = f"expected {float(expected[cell]):.1f}, found {int(found[cell])}"
            worst = f"{names[cell]}: {numbers}, {float(errors[cell]):+.1f} standard errors"
    return CountTest(what, chi_squared(total, degrees, count), worst)


def count_tests(stage: Stage, tokens: PlacedTokens) -> list[CountTest]:
    """All statistics of emitted tokens: by token, and by place at all positions and the last."""
    tests = [by_token(stage, stage.target, tokens)]
    is_last = tokens.position == stage.num_positions - 1
    for order in ORDERS:
        place = places(stage, tokens, order)
        tests += by_place(place, order)
        if not bool(is_last.all()):
            tests += by_place(place[is_last], f"at the last position {order}")
    return tests


def by_token(stage: Stage, laws: Tensor, tokens: PlacedTokens) -> CountTest:
    """The test of token counts at each position and row; a token of probability 0 fails it."""
    is_impossible = laws[tokens.row, tokens.token] == 0
    if bool(is_impossible.any()):
        position, row, token = (int(part[is_impossible][0]) for part in tokens)
        worst = f"{_cell_name(stage, position, row, token)}: impossible, but emitted"
        return CountTest("tokens", chi_squared(math.inf, 1, len(tokens.token)), worst)
    keys, tables = tokens.position * len(laws) + tokens.row, []
    for key in keys.unique().tolist():
        position, row = divmod(key, len(laws))
        cells, *counts = token_cells(laws[row], tokens.token[keys == key])
        tables.append(Cells([_cell_name(stage, position, row, token) for token in cells], *counts))
    return counted("tokens", tables)


def token_cells(law: Tensor, tokens: Tensor) -> tuple[list[int | None], Tensor, Tensor]:
    """Cells of tokens (n,) of one law (V,): each cell's token, expected count and found count.

    Less probable tokens share a cell whose token is None, or if expected too rarely, the last
    token's cell.
    """
    law = law.double() / law.sum(dtype=torch.float64)
    found = torch.bincount(tokens, minlength=len(law)).double()
    order = law.argsort(descending=True, stable=True)
    expected, found = len(tokens) * law[order], found[order]
    count = int((expected[: MOST_CELLS - 1] >= LEAST_EXPECTED).sum())
    cells: list[int | None] = [*order[:count].tolist()]
    if count == 0 or float(expected[count:].sum()) >= LEAST_EXPECTED:
        cells.append(None)
    first = len(cells) - 1  # the cell with the tokens that are counted together
    return cells, *(
        torch.cat((counts[:first], counts[first:].sum()[None])) for counts in (expected, found)
    )


def by_place(place: Tensor, name: str) -> list[CountTest]:
    """Tests of places (n,), uniform if exact: counts in equal parts of [0, 1], and the mean."""
    count, parts = len(place), NUM_PARTS
    while parts > 1 and count < parts * LEAST_EXPECTED:
        parts //= 2
    found = torch.bincount((place * parts).long(), minlength=parts).double()
    names = [
        f"from {part}/{parts} to {part + 1}/{parts} of the target's mass, {name}"
        for part in range(parts)
    ]
    expected = torch.full_like(found, count / parts).clamp_min(1e-9)
    # a uniform number's variance is 1 / 12
    z = float((place - 0.5).sum()) * math.sqrt(12 / max(1, count))
    cells = counted(f"places, {name}", [Cells(names, expected, found)])
    return [cells, CountTest(f"mean place, {name}", chi_squared(z * z, 1, count), cells.worst)]


def places(stage: Stage, tokens: PlacedTokens, order: str) -> Tensor:
    """Places (n,) float64 in [0, 1): the mass before a token in an order, and part of its own."""
    p, q = stage.target.double(), stage.draft.double()
    p = p / p.sum(1, keepdim=True)
    keys = dict(zip(ORDERS, (-torch.arange(p.shape[1]).expand_as(p), p, p / q), strict=True))
    ranks = keys[order].nan_to_num().argsort(dim=1, descending=True, stable=True)
    mass = p.gather(1, ranks)
    before = torch.zeros_like(p).scatter(1, ranks, mass.cumsum(1) - mass)
    shares = torch.rand(len(tokens.token), generator=stage.generator, dtype=torch.float64)
    place = before[tokens.row, tokens.token] + shares * p[tokens.row, tokens.token]
    return place.clamp(0, 1 - 2**-53)


def smallest_bias(count: int, level: float) -> float:
    """The total variation along an order that 9 of 10 tests of `count` tokens find at `level`.

    A bias of total variation d between parts of the target's mass adds at least 4 d^2 a token to a
    chi-square (Cauchy-Schwarz).
    """
    degrees = NUM_PARTS - 1
    limit = stats.chi2.isf(level, degrees)
    # The noncentral chi-square is beyond the limit nine times in ten.
    noncentrality = special.chndtrinc(limit, degrees, 0.1)
    return min(1.0, math.sqrt(noncentrality / (4 * max(1, count))))


def _cell_name(stage: Stage, position: int, row: int, token: int | None) -> str:
    """The name of a token in messages, with its law unless each position has one of its own."""
    where = f"position {position}" if stage.by_position else f"position {position}, law {row}"
    if token is None:
        return f"{where}: all other tokens"
    masses = (
        f"target {float(stage.target[row, token]):.4g}, draft {float(stage.draft[row, token]):.4g}"
    )
    return f"{where}: token {token} ({masses})"
