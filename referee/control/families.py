"""Families of counts of matched rows, in which a difference of two arms can show.

Everything here is a function of the rows alone, never of their arms, so that shuffled arms are as
good as the observed ones (see `permutation`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from referee.control.matching import END, MatchedRows
from referee.control.permutation import Family, family_of, family_of_values, shares_of
from referee.control.served import ServedLaws, served_values

DEPTH = 8
"""The first tokens of a row that are compared given equal tokens before them."""
LEAST_ROWS = 5
"""The fewest rows that must have a token in its context for it to be counted alone."""
SMOOTHING = 5.0
"""The weight of a token's chance without a context in that with it, in tokens."""
RARE = 0.01
"""The share of tokens that are called unlikely: those of the least chance after the text before."""
CAUSES = {
    "first tokens": "the first token, as after a prefill, or one step of the acceptance",
    "equal prefixes": "tokens that are kept or drawn in another way after the same tokens",
    "tokens": "tokens that come more or less often",
    "tokens after one": "tokens that come more or less often after the token before them",
    "tokens after two": "tokens that come more or less often after the two before them",
    "predictability": "another temperature or filter, argmax, or drafts that are kept too often "
    "or too rarely",
    "frequency": "common tokens too often or too rarely: another temperature, a bias to the draft",
    "strays": "stray tokens that no other row has, or a tail that is cut",
    "unlikely": "stray tokens, or a tail that is cut",
    "repetition": "tokens of the row's own past too often or too rarely: a penalty, rows of the "
    "cache, drafts from the prompt",
    "repeated pairs": "loops, or drafts of prompt lookup that are kept too often",
    "ids": "random numbers that are used twice, or an id map",
    "length": "sequences that end too early or too late",
    "ends": "sequences that end too rarely or too often",
    "served surprisal": "emitted tokens that the law that the engine served does not expect",
    "served ranks": "emitted tokens from other ranks than the law that the engine served has",
    "served tail": "emitted tokens beyond the served ones too often or too rarely",
}
"""The likely cause of a difference, by the family that differs most."""
Codes = NDArray[np.int64]


def families_of(rows: MatchedRows, laws: ServedLaws | None = None) -> dict[str, Family]:
    """The families by name, without those that cannot tell these rows apart.

    laws: those that the engine served, if they are to be used.
    """
    stratum, share = rows.stratum, shares_of(rows.stratum, rows.is_speculative)
    token, row = _code(rows.token), rows.row
    first = np.flatnonzero(np.diff(row, prepend=-1))
    position = np.arange(len(row)) - first[row]
    before = _shifted(rows.token, position, 1, rows)
    earlier = _shifted(rows.token, position, 2, rows)
    one = _code(before)
    two = _code(one, _code(earlier))
    pair, triple = _code(one, token), _code(two, token)
    found: dict[str, Family | None] = {}

    is_first = position == 0
    prompt = stratum[row]
    found["first tokens"] = family_of(
        row[is_first],
        _code(prompt[is_first], token[is_first]),
        stratum,
        share,
        least=2,
    )
    past, prefix = _prefixes(prompt, token, position)
    if len(at := np.flatnonzero((position > 0) & (position < DEPTH))):
        found["equal prefixes"] = family_of(
            row[at], _code(prefix[at]), stratum, share, least=2, context=_code(past[at])
        )
    found["tokens"] = family_of(row, token, stratum, share, least=LEAST_ROWS)
    for name, feature, context in (
        ("tokens after one", pair, one),
        ("tokens after two", triple, two),
    ):
        found[name] = family_of(row, feature, stratum, share, least=LEAST_ROWS, context=context)

    is_token = rows.token != END
    counts = np.bincount(token)
    frequency = counts[token] / len(token)
    chance = frequency
    for context, feature in ((one, pair), (two, triple), (past, prefix)):
        chance = _smoothed(context, feature, chance)
    in_prompt = np.isin(_joint(prompt, rows.token), _prompt_keys(rows))
    is_seen = in_prompt | ~_is_first_of(_code(row, token))
    support = np.bincount(token[_is_first_of(_code(row, token))])
    sums = {
        "predictability": np.log(chance),
        "frequency": np.log(frequency),
        "strays": np.where(is_token, (support[token] == 1) & ~in_prompt, 0.0),
        "unlikely": np.where(is_token, chance <= np.quantile(chance[is_token], RARE), 0.0),
        "repetition": np.where(is_token, is_seen, 0.0),
        "repeated pairs": np.where(is_token, ~_is_first_of(_code(row, pair)), 0.0),
        "ids": np.where(is_token, _without(rows.token, np.log(frequency), np.log(chance)), 0.0),
    }
    totals = {name: _sums(value, row, rows.num_rows) for name, value in sums.items()}
    totals["length"] = _sums(is_token, row, rows.num_rows, centre=False)
    totals["ends"] = _sums(~is_token, row, rows.num_rows, centre=False)
    if laws is not None:
        totals |= served_values(rows, laws)
    for name, values in totals.items():
        found[name] = family_of_values(values, stratum, share)
    return {name: family for name, family in found.items() if family is not None}


def _code(*columns: Codes) -> Codes:
    """Numbers from 0 for the distinct tuples of columns, (N,)."""
    codes = np.unique(columns[0], return_inverse=True)[1]
    for column in columns[1:]:
        codes = np.unique(_joint(codes, column), return_inverse=True)[1]
    return codes


def _joint(first: Codes, second: Codes) -> Codes:
    """One number for each pair; the second is a token, END or a code, so below 2**32."""
    return (first << 32) + (second + 1)


def _shifted(token: Codes, position: Codes, by: int, rows: MatchedRows) -> Codes:
    """The token this many places earlier in the row or its prompt; END - 1 before the prompt."""
    shifted = np.roll(token, by)
    early = np.flatnonzero(position < by)
    strata = rows.stratum[rows.row[early]]
    for place, stratum in zip(early, strata, strict=True):
        prompt, back = rows.prompts[stratum], by - int(position[place])
        shifted[place] = prompt[-back] if back <= len(prompt) else END - 1
    return shifted


def _smoothed(context: Codes, feature: Codes, chance: NDArray) -> NDArray[np.float64]:
    """The chance of each symbol in its context, by all other places with this context.

    context, feature: (N,), numbers of the context, and of it with the symbol. chance: (N,), that
    without this context, which counts like SMOOTHING places.
    """
    times, hits = (np.bincount(codes)[codes] for codes in (_code(context), _code(feature)))
    return (hits - 1 + SMOOTHING * chance) / (times - 1 + SMOOTHING)


def _prefixes(prompt: Codes, token: Codes, position: Codes) -> tuple[Codes, Codes]:
    """Numbers of the symbols before a symbol, and of these with it, equal for equal prompts.

    From place DEPTH on every symbol has a number of its own.
    """
    past = np.arange(len(token)) + 2 * len(token)
    prefix = past.copy()
    for depth in range(DEPTH):
        at = np.flatnonzero(position == depth)
        past[at] = prompt[at] + 4 * len(token) if depth == 0 else prefix[at - 1]
        prefix[at] = at[np.unique(_joint(past[at], token[at]), return_inverse=True)[1]]
    return past, prefix


def _without(token: Codes, *columns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ids less what a linear function of these columns says of them.

    Common tokens have small ids in many vocabularies.
    """
    design = np.stack([np.ones(len(token)), *columns], 1)
    ids = token / max(1, token.max())
    return ids - design @ np.linalg.lstsq(design, ids)[0]


def _prompt_keys(rows: MatchedRows) -> Codes:
    """The joint numbers of a stratum and a token of its prompt."""
    sizes = [len(prompt) for prompt in rows.prompts]
    tokens = np.concatenate([np.array(prompt, dtype=np.int64) for prompt in rows.prompts])
    return _joint(np.repeat(np.arange(len(sizes)), sizes), tokens)


def _is_first_of(codes: Codes) -> NDArray[np.bool_]:
    """Whether an entry is the first with its code, (N,) bool."""
    is_first = np.zeros(len(codes), dtype=bool)
    is_first[np.unique(codes, return_index=True)[1]] = True
    return is_first


def _sums(values: NDArray, row: Codes, num_rows: int, centre: bool = True) -> NDArray[np.float64]:
    """The sums (R,) of rows, of values less their mean, so that a row's length hardly counts."""
    values = np.asarray(values, dtype=float)
    return np.bincount(row, values - values.mean() if centre else values, num_rows)
