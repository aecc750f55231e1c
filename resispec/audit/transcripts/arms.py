"""An arm of an audit: what one engine wrote, and what the target says about every token of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from resispec.audit.transcripts.greedy import SHOWN, Gaps, gaps_of
from resispec.audit.transcripts.statistics import Statistic, sharing, statistics_of
from resispec.audit.transcripts.terms import (
    NEAR_TIE,
    Reading,
    T,
    Terms,
    join,
    lookups,
    terms_of,
    with_serial,
)
from resispec.errors import InvalidInput
from resispec.models.scoring import Scorer, check_fit, rescore
from resispec.transcripts import Transcript

SHARED_CHANCE = 1e-4
"""Rows whose places go together with less chance than this share their random numbers."""


@dataclass(frozen=True)
class Arm:
    """Transcripts, rescored by a target.

    terms: of the rows that were sampled. gaps: of those at temperature 0. Either is None without such rows.
    """

    transcripts: Sequence[Transcript]
    target: Scorer
    terms: Terms | None
    gaps: Gaps | None

    @property
    def num_tokens(self) -> int:
        """How many tokens were sampled."""
        return 0 if self.terms is None else len(self.terms.row)

    def statistics(self, num_tokens: int | None = None) -> dict[str, Statistic]:
        """Every statistic by its name, of all tokens that were sampled or of the first `num_tokens`."""
        if self.terms is None:
            return {}
        return statistics_of(self.terms.where(torch.arange(self.num_tokens)[:num_tokens]), self.is_shared)

    def of_rows(self, rows: Sequence[int]) -> Arm:
        """The arm of some of the rows, at least one, in this order."""
        chosen = [self.transcripts[row] for row in rows]
        return Arm(chosen, self.target, _of_rows(self.terms, rows), _of_rows(self.gaps, rows))

    @cached_property
    def sharing(self) -> Statistic | None:
        """Do sampled rows draw with the same random numbers? See `statistics.sharing`."""
        return None if self.terms is None else sharing(self.terms)

    @property
    def is_shared(self) -> bool:
        """Do rows share their random numbers, by their seeds or by what they drew?"""
        seeds = [one.seed for one in self.transcripts if one.temperature > 0 and one.seed is not None]
        found = self.sharing is not None and self.sharing.p_value < SHARED_CHANCE
        return found or len(set(seeds)) < len(seeds)

    @property
    def without_eos(self) -> list[str]:
        """The places of sampled rows that no limit ended, if none of them has an end-of-sequence token."""
        ids = self.target.eos_token_ids
        ended = [one for one in self.transcripts if one.finish_reason != "length" and one.temperature > 0]
        lacking = [one.place for one in ended if not any(token in ids for token in one.output_token_ids)]
        return lacking if ids and len(lacking) == len(ended) else []

    def settings(self, at_least: int) -> dict[str, Tensor]:
        """Which rows (R,) bool were sampled under each setting that has so many tokens."""
        sampled = [one.setting if one.temperature > 0 else "" for one in self.transcripts]
        counts = Counter[str]()
        for setting, one in zip(sampled, self.transcripts, strict=True):
            counts[setting] += len(one.output_token_ids)
        large = [setting for setting, count in counts.items() if setting and count >= at_least]
        return {name: torch.tensor([setting == name for setting in sampled]) for name in large}

    def ruled_out(self) -> list[str]:
        """The tokens that their settings rule out by more than rounding, a line each for the first."""
        if self.terms is None:
            return []
        out = self.terms.where(~self.terms.is_possible)
        lines = []
        for row, position in zip(out.row[:SHOWN].tolist(), out.position[:SHOWN].tolist(), strict=True):
            one = self.transcripts[row]
            lines.append(
                f"{one.place}: output token {position + 1} is {one.output_token_ids[position]}, which "
                f"{one.setting} rules out; allowed: what could be kept if logits were {NEAR_TIE:g} off"
            )
        more = len(out.row) - SHOWN
        return [*lines, *([f"and {more} more tokens like these"] if more > 0 else [])]


def _of_rows(tokens: T | None, rows: Sequence[int]) -> T | None:
    """The tokens of some rows, None where these have none."""
    found = None if tokens is None else tokens.of_rows(rows)
    return found if found is not None and len(found.row) else None


def check_rows(transcripts: Sequence[Transcript], scorers: Sequence[Scorer]) -> None:
    """Raise InvalidInput when there are no rows, and for one that a model cannot have read or written."""
    if not transcripts:
        raise InvalidInput("there are no transcripts; at least one row is needed")
    for one in transcripts:
        for scorer in scorers:
            check_fit(scorer, one.written, one.place)


def measure(
    transcripts: Sequence[Transcript],
    target: Scorer,
    draft: Scorer | None = None,
    on_tokens: Callable[[int], None] = lambda _: None,
) -> Arm:
    """Rescore transcripts. on_tokens: told how many output tokens were rescored since it was last called.

    Raises InvalidInput as `check_rows`.
    """
    scorers = [target] if draft is None else [target, draft]
    check_rows(transcripts, scorers)
    generator = torch.Generator().manual_seed(0)
    found_terms, found_gaps = [], []
    suggested = [lookups(*one.written) if one.temperature > 0 else torch.empty(0) for one in transcripts]
    for stretch, *drafted in rescore(scorers, [one.written for one in transcripts]):
        one = transcripts[stretch.row]
        if one.temperature > 0:
            reading = Reading(one, target.eos_token_ids, suggested[stretch.row])
            found_terms.append(terms_of(stretch, drafted[0] if drafted else None, reading, generator))
        else:
            found_gaps.append(gaps_of(stretch, one))
        on_tokens(len(stretch.logits))
    return Arm(
        transcripts,
        target,
        with_serial(join(found_terms)) if found_terms else None,
        join(found_gaps) if found_gaps else None,
    )
