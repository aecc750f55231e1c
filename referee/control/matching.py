"""Matching of two arms: sampled rows that continue one prompt under one setting, from either arm.

If speculation changes nothing, such rows are draws from one law, whatever that law is, and so they
are exchangeable: which of them came from which arm is chance. That holds for rows whose random
numbers have nothing to do with each other, so declared seeds that say otherwise are refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from referee.transcripts import LIMIT, Transcript
from resispec.errors import InvalidInput

END = -1
"""The symbol behind the last token of a row that ended before the limit."""
ENDED = 3
"""The fewest rows of an arm that ended by themselves, or by one token, to tell what ends rows."""
OFTEN = 0.25
"""The least share of the rows that ended by themselves for a token that ends rows.

Rows that end at a stop string or with another end-of-sequence token can be the others.
"""
GIVEN_UP = ("abort", "aborted", "error", "cancelled", "canceled", "timeout")
"""The reasons for which engines say that a row ended although its text goes on."""
LONG = 8
"""The fewest tokens of rows that are called repeats of each other."""
Integers = NDArray[np.int64]
Stratum = tuple[tuple[int, ...], str]
"""A prompt and a setting in words."""


@dataclass(frozen=True)
class MatchedRows:
    """R rows of two arms in S strata of one prompt and setting each, sorted by stratum.

    Their N symbols are emitted tokens, and END behind rows that ended before the limit.

    stratum: (R,) int64. is_speculative: (R,) bool, the arm of each row; every stratum has rows of
    both. row, token: (N,) int64, the row of each symbol and the symbol. prompts: S prompts.
    transcripts: the R rows, see `within_limits`.
    """

    stratum: Integers
    is_speculative: NDArray[np.bool_]
    row: Integers
    token: Integers
    prompts: Sequence[tuple[int, ...]]
    transcripts: Sequence[Transcript]

    @property
    def num_rows(self) -> int:
        """R."""
        return len(self.stratum)

    def with_tokens(self, token: Integers) -> MatchedRows:
        """These rows with other symbols in their places."""
        return replace(self, token=token)

    def tokens_of(self, is_speculative: bool) -> int:
        """The number of emitted tokens of an arm."""
        return int(((self.is_speculative[self.row] == is_speculative) & (self.token != END)).sum())


def sampled(rows: Iterable[Transcript]) -> list[Transcript]:
    """The rows that are samples: those at a temperature above 0."""
    return [row for row in rows if row.temperature > 0]


def check_independent(arms: Mapping[str, Sequence[Transcript]]) -> None:
    """Raise InvalidInput if sampled rows' seeds say that draws are shared, in or between arms.

    Several answers to one request share its seed, and have draws of their own.

    arms: the rows by the arm's name, all of one condition each.
    """
    owners: dict[int, tuple[str, Transcript]] = {}
    samples: dict[int, set[int | None]] = {}
    for name, rows in arms.items():
        for row in rows:
            if row.seed is None:
                continue
            arm, other = owners.setdefault(row.seed, (name, row))
            known = samples.setdefault(row.seed, set())
            is_of_request = (arm, other.prompt_token_ids, other.setting) == (
                name,
                row.prompt_token_ids,
                row.setting,
            )
            is_another = row.sample is not None and None not in known and row.sample not in known
            known.add(row.sample)
            if other is row or (is_of_request and is_another):
                continue
            where = f"in the {name}" if arm == name else f"in the {arm} and in the {name}"
            raise InvalidInput(
                f"{row.place}: seed {row.seed} is used {where} (as in {other.place}), so their "
                "draws need not be independent, which a comparison of two arms needs; allowed: a "
                "seed for each row, or none, and others in the control"
            )


def check_answered(arms: Mapping[str, Sequence[Transcript]]) -> None:
    """Raise InvalidInput if the engine gave up a row before its limit.

    Its text did not end there, and slow rows, which are given up, are more of one arm than the
    other.

    arms: see `within_limits`.
    """
    for name, rows in arms.items():
        given_up = [row for row in rows if (row.finish_reason or "").lower() in GIVEN_UP]
        if given_up:
            raise InvalidInput(
                f"{given_up[0].place}: the finish reason is {given_up[0].finish_reason!r}, as of "
                f"{len(given_up)} rows of the {name}: they were given up, so how they end is not "
                "known; allowed: rows that ended or reached the limit, so ask for these again "
                "with more time"
            )


def check_ends(arms: Mapping[str, Sequence[Transcript]]) -> None:
    """Raise InvalidInput if one arm alone logs a token that ends rows.

    The other arm never has it, although rows of it ended, and it ends OFTEN of the rows that ended.

    arms: see `within_limits`.
    """
    ends: dict[str, Counter[int]] = {}
    seen = {}
    for name, rows in arms.items():
        ends[name] = Counter(row.output_token_ids[-1] for row in rows if _has_ended(row))
        seen[name] = {token for row in rows for token in row.output_token_ids}
    for name, other in (tuple(arms), tuple(reversed(tuple(arms)))):
        if ends[other].total() < ENDED:
            continue
        fewest = max(ENDED, OFTEN * ends[name].total())
        alone = [
            token
            for token, number in ends[name].items()
            if number >= fewest and token not in seen[other]
        ]
        if alone:
            raise InvalidInput(
                f"{ends[name][alone[0]]} rows of the {name} that ended before a limit end with "
                f"token {alone[0]}, which the {other} never has although rows of it ended, too: "
                "one of them leaves out the end-of-sequence token; log it in both"
            )


def within_limits(
    arms: Sequence[Sequence[Transcript]], most: int | None = None
) -> list[list[Transcript]]:
    """The rows of arms, cut to tokens that all rows of their prompt and setting could have had.

    These are as many as the least limit of these rows: a row's `max_new_tokens`, or its length if
    it ended by a limit before that, or else the limit that most such rows of its arm have. An arm
    whose rows have none may have had a smaller one than the other, so the length of its longest row
    counts. If a longest text of an arm, with its prompt, ended by a limit before its
    `max_new_tokens`, its length is the arm's context, which limits all rows. most: the largest
    limit of any row.
    """
    least: dict[Stratum, int] = {}
    for rows in arms:
        limits = list(map(_limit, rows))
        known = Counter(filter(None, limits))
        usual = max(len(row.output_token_ids) for row in rows)
        if known:
            usual = max(known, key=lambda limit: (known[limit], -limit))
        context = _context(rows)
        for row, limit in zip(rows, limits, strict=True):
            limit = limit or usual
            limit = limit if context is None else min(limit, context - len(row.prompt_token_ids))
            limit = limit if most is None else min(limit, most)
            key = stratum_of(row)
            least[key] = min(limit, least.get(key, limit))
    return [[row.cut(least[stratum_of(row)]) for row in rows] for rows in arms]


def cuts(arms: Iterable[Iterable[Transcript]], within: Iterable[Iterable[Transcript]]) -> str:
    """A line that says to how many tokens rows were cut, "" if none was.

    within: the rows of the arms after it.
    """
    pairs = zip(chain(*arms), chain(*within), strict=True)
    lengths = {
        len(cut.output_token_ids)
        for row, cut in pairs
        if len(cut.output_token_ids) < len(row.output_token_ids)
    }
    if not lengths:
        return ""
    sizes = " to ".join(map(str, sorted({min(lengths), max(lengths)})))
    return f"rows are cut to {sizes} tokens, the least limit of those of their prompt"


def stratum_of(row: Transcript) -> Stratum:
    """The stratum that a row belongs to."""
    return row.prompt_token_ids, row.setting


def _said_limit(row: Transcript) -> int | None:
    limit = row.extra.get(LIMIT)
    return limit if type(limit) is int and limit > 0 else None


def _limit(row: Transcript) -> int | None:
    said = _said_limit(row)
    if row.finish_reason != "length":
        return said
    length = len(row.output_token_ids)
    return length if said is None else min(said, length)


def _context(rows: Sequence[Transcript]) -> int | None:
    """The most tokens of an arm's texts, if one of that length ended before its own limit."""
    lengths = [sum(map(len, row.written)) for row in rows]
    longest = max(lengths)
    ends = [row for row, length in zip(rows, lengths, strict=True) if length == longest]
    is_early = any((_limit(row) or 0) < (_said_limit(row) or 0) for row in ends)
    return longest if is_early else None


def _has_ended(row: Transcript) -> bool:
    """Whether a row ended by itself before the limit."""
    return row.finish_reason != "length"


def match(transcripts: Sequence[Transcript], control: Sequence[Transcript]) -> MatchedRows | None:
    """The rows of strata that have rows of both arms; None if there are none.

    transcripts, control: see `within_limits`.
    """
    strata: dict[Stratum, tuple[list[Transcript], list[Transcript]]] = {}
    for side, rows in enumerate((transcripts, control)):
        for row in rows:
            strata.setdefault(stratum_of(row), ([], []))[side].append(row)
    both = {key: sides for key, sides in strata.items() if all(sides)}
    if not both:
        return None
    matched = [row for sides in both.values() for side in sides for row in side]
    symbols = [[*row.output_token_ids, *[END] * _has_ended(row)] for row in matched]
    labels = [[True] * len(first) + [False] * len(second) for first, second in both.values()]
    sizes = [len(part) for part in labels]
    return MatchedRows(
        np.repeat(np.arange(len(sizes)), sizes),
        np.concatenate([np.array(part) for part in labels]),
        np.repeat(np.arange(len(matched)), [len(part) for part in symbols]),
        np.concatenate([np.array(part, dtype=np.int64) for part in symbols]),
        [prompt for prompt, _ in both],
        matched,
    )


def doubts(rows: MatchedRows) -> Iterator[str]:
    """A line if rows of a prompt repeat each other in both arms, so are no independent draws."""
    shares = []
    for arm in (True, False):
        outputs: dict[int, list[tuple[int, ...]]] = {}
        for row in np.flatnonzero(rows.is_speculative == arm):
            tokens = rows.transcripts[row].output_token_ids
            outputs.setdefault(int(rows.stratum[row]), []).append(tokens)
        several = [texts for texts in outputs.values() if len(texts) > 1]
        repeats = [len(set(texts)) == 1 and len(texts[0]) >= LONG for texts in several]
        shares.append(sum(repeats) / len(repeats) if repeats else 0.0)
    if min(shares) > 0.5:
        yield (
            "in both arms the rows of a prompt repeat each other: one seed for several of them, or "
            "hardly any randomness, so they are no independent draws; give every request a seed of "
            "its own, or none"
        )
