"""Log-probabilities that an engine served with its tokens: laws of tokens, as far as they go.

A server gives the K most probable tokens of each place. With the tokens beyond them as one class,
that is a law, and emitted tokens can be scored by it: what is expected under the law is taken off,
so that most of what differs by chance goes, too. Both arms are scored in one way, so it does not
matter whether the law is that before or after the temperature, as long as both arms give the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from referee.control.matching import END, MatchedRows
from referee.transcripts import Transcript
from resispec.errors import InvalidInput

TopLogprobs = Sequence[tuple[int, float]]
"""Tokens and their log-probabilities at one place."""

LARGEST_DIFFERENCE = 0.25
"""The largest difference of two arms' log-probabilities after equal tokens.

It bounds the median at first tokens, and all later ones but MOST_OTHER. That of logits between 16
and 32 rounded to bfloat16 is at most 0.125.
"""
MOST_OTHER = 0.1
"""The largest share of places behind first tokens at which the arms may differ by more."""
FEWEST = 5
"""The fewest such places that tell whether the arms mean the same there."""
MOST_MISSING = 0.05
"""The largest share of tokens without a law, such as those that end within a character."""
LEAST_TAIL = 1e-4
"""The least mass that is given to the tokens beyond the served ones."""
DEEPEST = 64
"""The longest beginning of two answers after which log-probabilities are compared."""
RANKS = (1, 2, 3, 5)
"""The last rank of each class of served tokens but the last, which is open."""


@dataclass(frozen=True)
class ServedLaws:
    """The laws of N symbols by their K most probable tokens, in order; the rest is one class.

    ids: (N, K) int64, -2 where there are fewer. masses: (N, K), 0 there. tail: (N,), the mass of
    all other tokens. known: (N,) bool, False for END.
    """

    ids: NDArray[np.int64]
    masses: NDArray[np.float64]
    tail: NDArray[np.float64]
    known: NDArray[np.bool_]


def laws_of(rows: MatchedRows) -> tuple[ServedLaws | None, str]:
    """The served laws of matched rows, or None, and a line that says what was used.

    Raises InvalidInput if all log-probabilities of an arm are 0.
    """
    lists = [row.top_logprobs for row in rows.transcripts]
    number = sum(one is not None for one in lists)
    if not number:
        return None, ""
    if number < len(lists):
        lacking = len(lists) - number
        return None, f"served log-probabilities were not used: {lacking} rows have none"
    for arm, name in ((True, "transcripts"), (False, "control")):
        of_arm = [rows.transcripts[row] for row in np.flatnonzero(rows.is_speculative == arm)]
        values = [value for row in of_arm for top in row.top_logprobs or () for _, value in top]
        if values and not any(values):
            raise InvalidInput(
                f"{of_arm[0].place}: the served log-probabilities of the {name} are all 0, as an "
                "engine writes that does not compute them; leave the key top_logprobs out"
            )
    for arm, name in ((True, "transcripts"), (False, "control")):
        share = _missing(rows, arm)
        if share > MOST_MISSING:
            return None, (
                f"served log-probabilities were not used: the {name} have none at {share:.0%} of "
                "the tokens, as of drafted ones"
            )
    if line := _other_meaning(*_differences(rows)):
        return None, f"served log-probabilities were not used: {line}"
    return _laws(rows), "served log-probabilities were used"


def _missing(rows: MatchedRows, arm: bool) -> float:
    """The share of an arm's tokens without served log-probabilities."""
    tops = [
        top
        for row in np.flatnonzero(rows.is_speculative == arm)
        for top in rows.transcripts[row].top_logprobs or ()
    ]
    return sum(not top for top in tops) / len(tops)


def _other_meaning(first: Sequence[float], later: Sequence[float]) -> str:
    """The reason why the arms' log-probabilities cannot be compared, "" if they can.

    first, later: see `_differences`. Speculation begins behind first tokens, and what an engine
    serves there can be another law, as the one before the temperature.
    """
    median = float(np.median(first)) if first else float("inf")
    if median > LARGEST_DIFFERENCE:
        return (
            "those of the first token after equal prompts differ by "
            f"{median:.2g} between the arms (the median), so the two do not mean the same, as "
            "before and after the temperature"
        )
    if len(later) < FEWEST:
        return (
            f"behind first tokens {len(later)} places of the arms follow equal tokens, too few "
            "to see whether they mean the same there; give more rows"
        )
    share = float(np.mean(np.array(later) > LARGEST_DIFFERENCE))
    if share > MOST_OTHER:
        return (
            f"behind first tokens those after equal tokens differ by more than "
            f"{LARGEST_DIFFERENCE:g} at {share:.0%} of {len(later)} places, so the arms do not "
            "mean the same there, as before and after the temperature"
        )
    return ""


def _differences(rows: MatchedRows) -> tuple[list[float], list[float]]:
    """Differences of the arms' log-probabilities after equal tokens: at first and at later ones.

    At each place where rows of both arms go on, that of the first row of either arm counts.
    """
    first, later = [], []
    for stratum in range(len(rows.prompts)):
        in_stratum = rows.stratum == stratum
        sides = [
            _by_prefix([rows.transcripts[row] for row in np.flatnonzero(in_stratum & is_of_arm)])
            for is_of_arm in (rows.is_speculative, ~rows.is_speculative)
        ]
        for prefix in sides[0].keys() & sides[1].keys():
            if (difference := _largest(*(side[prefix] for side in sides))) is not None:
                (later if prefix else first).append(difference)
    return first, later


def _by_prefix(transcripts: Sequence[Transcript]) -> dict[tuple[int, ...], TopLogprobs]:
    """The served log-probabilities of the first row after each prefix of up to DEEPEST tokens."""
    found: dict[tuple[int, ...], TopLogprobs] = {}
    for row in transcripts:
        for place, top in enumerate((row.top_logprobs or ())[: DEEPEST + 1]):
            found.setdefault(row.output_token_ids[:place], top)
    return found


def _largest(own: TopLogprobs, other: TopLogprobs) -> float | None:
    """The largest difference of log-probabilities of tokens in both lists, None without any."""
    values, others = dict(own), dict(other)
    common = values.keys() & others.keys()
    # the least likely of two lists differ by rounding alone
    likely = [token for token in common if others[token] > -3.0] or common
    return max((abs(values[token] - others[token]) for token in likely), default=None)


def _laws(rows: MatchedRows) -> ServedLaws:
    tops: list[Sequence[tuple[int, float]]] = []
    counts = np.bincount(rows.row, minlength=rows.num_rows)
    for transcript, count in zip(rows.transcripts, counts, strict=True):
        tops += transcript.top_logprobs or ()
        if count > len(transcript.output_token_ids):
            tops.append(())
    size = max(map(len, tops))
    ids = np.full((len(tops), size), -2, dtype=np.int64)
    logs = np.full((len(tops), size), -np.inf)
    for place, top in enumerate(tops):
        ordered = sorted(top, key=lambda entry: -entry[1])
        ids[place, : len(top)] = [token for token, _ in ordered]
        logs[place, : len(top)] = [value for _, value in ordered]
    masses = np.exp(logs)
    tail = np.maximum(1 - masses.sum(1), LEAST_TAIL)
    known = rows.token != END
    return ServedLaws(ids, masses, tail, known & (masses.sum(1) > 0))


def served_values(rows: MatchedRows, laws: ServedLaws) -> dict[str, NDArray[np.float64]]:
    """For each family the rows' sums of scores less what served laws expect, (R,) or (K, R)."""
    ids, masses, tail = laws.ids, laws.masses, laws.tail
    hits = ids == rows.token[:, None]
    is_outside = ~hits.any(1)
    own = np.where(is_outside, tail, (masses * hits).sum(1))
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.where(masses > 0, np.log(masses), 0.0)
    entropy = -(masses * logs).sum(1) - tail * np.log(tail)
    surprisal = -np.log(np.maximum(own, 1e-30)) - entropy
    classes = np.searchsorted(RANKS, np.arange(1, ids.shape[1] + 1))
    ranks = []
    for number in range(int(classes.max()) + 1):
        chosen = classes == number
        ranks.append(hits[:, chosen].any(1) - masses[:, chosen].sum(1))
    outside = is_outside - tail

    def sums(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.bincount(rows.row, np.where(laws.known, values, 0.0), rows.num_rows)

    return {
        "served surprisal": sums(surprisal),
        "served ranks": np.stack([sums(values) for values in ranks]),
        "served tail": sums(outside),
    }
