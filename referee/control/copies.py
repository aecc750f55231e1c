"""Copies: rows of an arm that repeat others of it, which two arms with one law do not explain.

Retries and resumed runs write answers twice, and a copy is no new draw. But short or likely answers
are repeated by chance. Without a law, how often that happens is seen by the arms themselves: equal
answers to one prompt are as likely in two arms as in one. So the number of answers whose repeats
are all in one arm is compared with that in shuffled arms, as every statistic is (`permutation`):
two arms with one law and independent rows are called copies with a chance of LIMIT at most.

A fault can make an engine repeat itself, too. One that lowers the temperature makes answers that
are nearly equal, as well, and one that takes the likeliest token makes all answers equal that begin
alike. Neither is taken for copies. Where there is hardly any randomness left, or two rows of each
prompt are all that there is, a fault and copies look alike, and the line leaves it open.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from referee.control.matching import LONG, MatchedRows
from referee.control.permutation import shuffled

LIMIT = 1e-3
"""The chance up to which repeats are called copies."""
SHUFFLES = 4000
"""The shuffles that give the chance."""
STEP = 500
"""The shuffles that are drawn at a time."""
Output = tuple[int, ...]
Places = Mapping[Output, Sequence[int]]
"""The rows that have an output."""


def copies(rows: MatchedRows) -> Iterator[str]:
    """A line if rows without seeds repeat others of their arm and prompt more than chance does.

    A row that begins as another one does, until it ends, repeats it, too.
    """
    prompts: dict[int, dict[Output, list[int]]] = defaultdict(lambda: defaultdict(list))
    for number, row in enumerate(rows.transcripts):
        prompts[int(rows.stratum[number])][row.output_token_ids].append(number)
    answers = [answer for places in prompts.values() for answer in _repeated(places, rows)]
    if not answers:
        return
    # only prompts with such answers are shuffled
    chosen = np.flatnonzero(np.isin(rows.stratum, [rows.stratum[answer[0]] for answer in answers]))
    places = [np.searchsorted(chosen, answer) for answer in answers]
    stratum, labels = rows.stratum[chosen], rows.is_speculative[chosen]

    def in_one_arm(labels: NDArray[np.bool_]) -> NDArray[np.int64]:
        """The number of answers in one arm alone, of each shuffle, (B,). labels: (R, B)."""
        alone = [(labels[place] == labels[place[0]]).all(0) for place in places]
        return np.sum(alone, axis=0)

    observed, generator, reached = in_one_arm(labels[:, None])[0], np.random.default_rng(0), 0
    for _ in range(SHUFFLES // STEP):
        counts = in_one_arm(shuffled(stratum, labels, STEP, generator))
        reached += int((counts >= observed).sum())
    chance = (1 + reached) / (1 + SHUFFLES)
    if chance > LIMIT:
        return
    alone = [answer for answer in answers if len({*rows.is_speculative[answer].tolist()}) == 1]
    most = [rows.is_speculative[answer[0]] for answer in alone]
    if _takes_the_likeliest(prompts.values(), rows.is_speculative == (np.mean(most) > 0.5)):
        return
    first, second, *_ = (rows.transcripts[number].place for number in alone[0])
    yield (
        f"{sum(map(len, alone)) - len(alone)} rows have the prompt and the output of another of "
        f"their arm, or its beginning (the first: {second} repeats {first}), and of none in the "
        f"other arm, by chance with probability {chance:.1g}: copies, cached or partial answers or "
        "one seed for several requests, which are no new evidence, or hardly any randomness; "
        "allowed: each such answer once, or rows with their seeds"
    )


def _repeated(places: Places, rows: MatchedRows) -> Iterator[list[int]]:
    """The rows of each output of a prompt that several rows without seeds have.

    They have all of it or a long beginning until they end, and no other output begins with its
    first half.
    """
    beginnings = {
        output: [other for other in places if len(other) >= LONG and output[: len(other)] == other]
        for output in places
    }
    continued = {other for output in places for other in beginnings[output] if other != output}
    for output, others in beginnings.items():
        numbers = [number for other in others for number in places[other]]
        has_seeds = any(rows.transcripts[number].seed is not None for number in numbers)
        if len(numbers) < 2 or output in continued or has_seeds:
            continue
        half = output[: min(map(len, others)) // 2]
        if not any(other[: len(half)] == half for other in places if other not in others):
            yield sorted(numbers)


def _takes_the_likeliest(prompts: Iterable[Places], is_of_arm: NDArray[np.bool_]) -> bool:
    """Whether rows of an arm go on alike wherever they begin alike, and three or more are equal.

    They begin with one token and go on alike for a while. Of two equal rows one can be a copy.
    """
    most = 0
    for places in prompts:
        counts = {output: int(is_of_arm[numbers].sum()) for output, numbers in places.items()}
        beginnings = {output[: LONG // 2] for output, count in counts.items() if count}
        if len({tokens[0] for tokens in beginnings}) < len(beginnings):
            return False
        most = max(most, *counts.values())
    return most > 2
