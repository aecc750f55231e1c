"""An arm of an audit: the transcripts of one engine, rescored by the target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import torch

from referee.audit.statistics import sharing, statistics_of
from referee.audit.terms import (
    NEAR_TIE,
    GreedyGaps,
    TokenTerms,
    gaps_of,
    join,
    lookups,
    terms_of,
    with_serial,
)
from referee.rescoring import Scorer, check_fit, rescore
from referee.transcripts import Transcript
from resispec.audit.verdict import MIN_TOKENS, Statistic

SHARED_CHANCE = 1e-4
"""Chance below which rows whose places go together share their random numbers."""
SHOWN = 5
"""Most lines about single tokens."""


@dataclass(frozen=True)
class Arm:
    """Transcripts, rescored by a target.

    terms: of the rows that were sampled. gaps: of those at temperature 0. Either is None without such rows.
    """

    transcripts: Sequence[Transcript]
    target: Scorer
    terms: TokenTerms | None
    gaps: GreedyGaps | None

    @property
    def num_tokens(self) -> int:
        """The number of sampled tokens."""
        return 0 if self.terms is None else len(self.terms.row)

    def statistics(self, num_tokens: int | None = None) -> dict[str, Statistic]:
        """Every statistic by its name, of all tokens that were sampled or of the first `num_tokens`."""
        if self.terms is None:
            return {}
        terms = self.terms.where(torch.arange(self.num_tokens)[:num_tokens])
        return dict(statistics_of(terms, self.is_shared))

    def of_rows(self, rows: Sequence[int]) -> Arm:
        """The arm of some of the rows, at least one, in this order."""
        parts = [None if tokens is None else tokens.of_rows(rows) for tokens in (self.terms, self.gaps)]
        terms, gaps = (part if part is not None and len(part.row) else None for part in parts)
        return Arm([self.transcripts[row] for row in rows], self.target, terms, gaps)

    @property
    def by_load(self) -> dict[str, Arm]:
        """The arm of each number of requests at a time, fewest first, by words for it; one number has "".

        Loads repeat prompts and may repeat seeds, so no statistic is taken over several of them.
        """
        rows: dict[int, list[int]] = {}
        for row, transcript in enumerate(self.transcripts):
            rows.setdefault(transcript.concurrency or 0, []).append(row)
        if len(rows) == 1:
            return {"": self}
        return {f"{load or 'an unknown number'} at a time": self.of_rows(rows[load]) for load in sorted(rows)}

    @cached_property
    def sharing(self) -> Statistic | None:
        """Do sampled rows draw with the same random numbers? See `statistics.sharing`."""
        return None if self.terms is None else sharing(self.terms)

    @property
    def is_shared(self) -> bool:
        """Do rows share their random numbers, by their seeds or by their draws?"""
        rows = [row for row in self.transcripts if row.temperature > 0 and row.seed is not None]
        seeds = [(row.seed, row.sample) for row in rows]
        goes_together = self.sharing is not None and self.sharing.p_value < SHARED_CHANCE
        return goes_together or len(set(seeds)) < len(seeds)

    @property
    def groups(self) -> dict[str, TokenTerms]:
        """The terms of all sampled tokens, and of every setting that has enough of them but not all."""
        if self.terms is None:
            return {}
        groups, settings = {"all": self.terms}, [row.setting for row in self.transcripts]
        for setting in dict.fromkeys(settings):
            part = self.terms.where(torch.tensor([other == setting for other in settings])[self.terms.row])
            if MIN_TOKENS <= len(part.row) < self.num_tokens:
                groups[setting] = part
        return groups

    def without_eos(self) -> tuple[str, ...]:
        """A line where sampled rows that no limit ended are there, and none has an end-of-sequence token."""
        ids = set(self.target.eos_token_ids)
        rows = [row for row in self.transcripts if row.finish_reason != "length" and row.temperature > 0]
        if not ids or not rows or any(ids.intersection(row.output_token_ids) for row in rows):
            return ()
        return (
            f"{len(rows)} rows did not end by a limit and none of them has an end-of-sequence token (the "
            f"first: {rows[0].place}): it was left out of the transcripts or is never emitted; without it "
            "no statistic can be trusted, so log every token",
        )

    def ruled_out(self) -> tuple[str, ...]:
        """The tokens that their settings rule out by more than rounding, a line each for the first."""
        if self.terms is None:
            return ()
        terms = self.terms.where(~self.terms.is_possible)
        rows = (self.transcripts[row] for row in terms.row.tolist())
        lines = (
            f"{row.place}: output token {position + 1} is {row.output_token_ids[position]}, which "
            f"{row.setting} rules out; allowed: what could be kept if logits were {NEAR_TIE:g} off"
            for row, position in zip(rows, terms.position.tolist(), strict=True)
        )
        return shown(lines, len(terms.row), "tokens like these")


def shown(lines: Iterable[str], count: int, kind: str) -> tuple[str, ...]:
    """The first of `count` lines, and how many more of their kind there are."""
    tail = [f"and {count - SHOWN} more {kind}"] if count > SHOWN else []
    return (*islice(lines, SHOWN), *tail)


def measure(
    transcripts: Sequence[Transcript],
    target: Scorer,
    draft: Scorer | None = None,
    on_tokens: Callable[[int], object] = bool,
) -> Arm:
    """Rescore transcripts. on_tokens: told how many output tokens were rescored since it was last called.

    Raises InvalidInput as `check_fit`, and NoVerdict as `rescore`.
    """
    scorers = [target] if draft is None else [target, draft]
    check_fit(scorers, transcripts)
    generator = torch.Generator().manual_seed(0)
    terms, gaps = [], []
    suggestions = [lookups(row) if row.temperature > 0 else torch.empty(0) for row in transcripts]
    for stretch, *drafts in rescore(scorers, transcripts):
        row = transcripts[stretch.row]
        if row.temperature > 0:
            inputs = row, target.eos_token_ids, suggestions[stretch.row], generator
            terms.append(terms_of(stretch, drafts[0] if drafts else None, *inputs))
        else:
            gaps.append(gaps_of(stretch, row))
        on_tokens(len(stretch.logits))
    return Arm(transcripts, target, with_serial(join(terms)) if terms else None, join(gaps) if gaps else None)
