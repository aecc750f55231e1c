"""Power by planting: the share of wrong tokens that the test would have found nine times in ten.

The rows of both arms are shuffled within prompts, so the arms differ by chance alone; then tokens
of one of them are replaced. The rows, their lengths, prompts and laws are the user's own, so this
says what their files can show. A replaced token does not go on as a biased engine's text would,
and real faults can be harder to see.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from referee.control.families import families_of
from referee.control.matching import END, MatchedRows
from referee.control.permutation import PermutationTest, shuffled
from referee.control.served import ServedLaws

SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""The shares of tokens that are tried."""
REPEATS = 6
"""The most times that a share is planted."""
TOKENS = 200_000
"""The tokens of all repeats together, at most, if two are enough for that."""
SHUFFLES = 120
"""The shuffles that standardise the statistics of planted rows."""
ONE_IN_TEN = 1.2816
"""The z-score above which nine of ten normal draws lie, with the sign turned."""
EULER = 0.5772
Tokens = NDArray[np.int64]


def _strays(rows: MatchedRows, generator: Generator) -> Tokens:
    return generator.integers(0, rows.token.max() + 1, len(rows.token))


def _others(rows: MatchedRows, generator: Generator) -> Tokens:
    emitted = rows.token[rows.token != END]
    return generator.choice(emitted, len(rows.token))


def _likeliest(rows: MatchedRows, generator: Generator) -> Tokens:
    """The token that follows the token before it most often; at the first place, the own one."""
    before = np.roll(rows.token, 1)
    before[np.diff(rows.row, prepend=-1) != 0] = END
    is_pair = (before != END) & (rows.token != END)
    pairs, counts = np.unique(
        np.stack([before[is_pair], rows.token[is_pair]]), axis=1, return_counts=True
    )
    order = np.lexsort((counts, pairs[0]))  # the last of each first token is the most frequent
    first, second = pairs[0][order], pairs[1][order]
    place = np.searchsorted(first, before, side="right") - 1
    is_known = (place >= 0) & (before != END)
    is_known &= first[place.clip(0)] == before
    return np.where(is_known, second[place.clip(0)], rows.token)


KINDS: Mapping[str, Callable[[MatchedRows, Generator], Tokens]] = {
    "stray ids": _strays,
    "tokens of other places": _others,
    "the likeliest token after the one before": _likeliest,
}
"""Replacements of tokens: a uniform id, a draw from all emitted ones, or the argmax of the text."""


def planted(rows: MatchedRows, kind: str, share: float, generator: Generator) -> MatchedRows:
    """Rows in which this share of the speculative rows' tokens is replaced.

    kind: a key of KINDS.
    """
    is_chosen = generator.random(len(rows.token)) < share
    is_chosen &= rows.is_speculative[rows.row] & (rows.token != END)
    return rows.with_tokens(np.where(is_chosen, KINDS[kind](rows, generator), rows.token))


def smallest_shares(
    rows: MatchedRows, laws: ServedLaws | None, limit: float, generator: Generator
) -> dict[str, float | None]:
    """For each kind the least of SHARES that is found nine times in ten; None if none is.

    limit: the p-value that the test must reach. The bar for the largest statistic is taken from
    shuffles as the quantile of a Gumbel law with their mean and standard deviation.
    """
    repeats = int(np.clip(TOKENS // max(1, len(rows.token)), 2, REPEATS))

    def found(kind: str, share: float) -> bool:
        margins = []
        for _ in range(repeats):
            labels = shuffled(rows.stratum, rows.is_speculative, 1, generator)[:, 0]
            null = replace(rows, is_speculative=labels)
            wrong = planted(null, kind, share, generator)
            families = families_of(wrong, laws)
            test = PermutationTest(families, rows.stratum, labels, generator, SHUFFLES)
            spread = test.calibration.std() * np.sqrt(6) / np.pi
            bar = test.calibration.mean() + spread * (-np.log(-np.log1p(-limit)) - EULER)
            margins.append(max(test.standardised().values()) - bar)
        return float(np.mean(margins)) > ONE_IN_TEN * max(1.0, float(np.std(margins)))

    return {kind: _first(SHARES, lambda share, kind=kind: found(kind, share)) for kind in KINDS}


def _first(values: tuple[float, ...], holds: Callable[[float], bool]) -> float | None:
    """The first of increasing values for which something holds that holds for all behind it."""
    low, high = 0, len(values)
    while low < high:
        middle = (low + high) // 2
        if holds(values[middle]):
            high = middle
        else:
            low = middle + 1
    return values[low] if low < len(values) else None
