"""An arm of an audit: the transcripts of one engine, rescored by the target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice

import torch

from referee.audit.statistics import sharing, statistics_of
from referee.audit.terms import (
    NEAR_TIE,
    GreedyGaps,
    TokenTerms,
    gaps_of,
    lookups,
    terms_of,
    with_serial,
)
from referee.rescoring import Scorer, check_fit, rescore
from referee.transcripts import Transcript
from resispec.audit.verdict import MIN_TOKENS, Statistic
from resispec.progress import progress_bar

SHOWN = 5
"""The most lines about single tokens or rows; a last line counts the others."""
token_bar = partial(progress_bar, unit="token", leave=False, delay=1)
"""A progress bar that counts tokens."""


@dataclass(frozen=True)
class Arm:
    """Transcripts, rescored by a target.

    terms: of the tokens of sampled rows. gaps: of the tokens of rows at temperature 0. Each is None
    if there are no such rows.
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
        """All statistics by name, over all sampled tokens or over the first `num_tokens`
        of them.
        """
        if self.terms is None:
            return {}
        terms = self.terms.where(torch.arange(self.num_tokens)[:num_tokens])
        return dict(statistics_of(terms, self.is_shared))

    def of_rows(self, rows: Sequence[int]) -> Arm:
        """An arm of the given rows, at least one, in the given order."""
        parts = [
            None if tokens is None else tokens.of_rows(rows) for tokens in (self.terms, self.gaps)
        ]
        terms, gaps = (part if part is not None and len(part.row) else None for part in parts)
        return Arm([self.transcripts[row] for row in rows], self.target, terms, gaps)

    @property
    def by_load(self) -> dict[int, Arm]:
        """An arm for each load (number of requests at a time, 0 if it is unknown), smallest first.

        Loads repeat prompts and may repeat seeds, so no statistic mixes loads.
        """
        rows: dict[int, list[int]] = {}
        for row, transcript in enumerate(self.transcripts):
            rows.setdefault(transcript.concurrency or 0, []).append(row)
        return {load: self.of_rows(rows[load]) if len(rows) > 1 else self for load in sorted(rows)}

    @cached_property
    def sharing(self) -> Statistic | None:
        """The test whether sampled rows share random numbers, see `statistics.sharing`;
        None without tokens.

        First tokens do not count: an engine may draw those of all rows in another way, as after a
        prefill.
        """
        later = None if self.terms is None else self.terms.where(self.terms.position > 0)
        return sharing(later) if later is not None and len(later.row) else None

    @property
    def is_shared(self) -> bool:
        """Whether sampled rows share random numbers: a seed and sample occur twice,
        or `sharing` shows it.
        """
        rows = [row for row in self.transcripts if row.temperature > 0 and row.seed is not None]
        seeds = [(row.seed, row.sample) for row in rows]
        goes_together = self.sharing is not None and self.sharing.p_value < 1e-4
        return goes_together or len(set(seeds)) < len(seeds)

    @property
    def groups(self) -> dict[str, TokenTerms]:
        """The terms of all sampled tokens, and of each setting that has MIN_TOKENS
        of them but not all.
        """
        if self.terms is None:
            return {}
        groups, settings = {"all": self.terms}, [row.setting for row in self.transcripts]
        for setting in dict.fromkeys(settings):
            part = self.terms.where(
                torch.tensor([other == setting for other in settings])[self.terms.row]
            )
            if MIN_TOKENS <= len(part.row) < self.num_tokens:
                groups[setting] = part
        return groups

    def without_eos(self) -> tuple[str, ...]:
        """One line if sampled rows ended without a limit,
        but none of them has an end-of-sequence token.
        """
        ids = set(self.target.eos_token_ids)
        rows = [
            row for row in self.transcripts if row.finish_reason != "length" and row.temperature > 0
        ]
        if not ids or not rows or any(ids.intersection(row.output_token_ids) for row in rows):
            return ()
        return (
            f"{len(rows)} rows did not end by a limit and none of them has an end-of-sequence "
            f"token (the first: {rows[0].place}): it was left out of the transcripts or is never "
            "emitted; without it no statistic can be trusted, so log every token",
        )

    def ruled_out(self) -> tuple[str, ...]:
        """Lines about the first tokens that their settings rule out by more than rounding."""
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
    """The first SHOWN of `count` lines, and a line that says how many more
    of this kind there are.
    """
    tail = [f"and {count - SHOWN} more {kind}"] if count > SHOWN else []
    return (*islice(lines, SHOWN), *tail)


def measure(
    transcripts: Sequence[Transcript],
    target: Scorer,
    draft: Scorer | None = None,
    on_tokens: Callable[[int], object] = bool,
) -> Arm:
    """Rescore transcripts.

    on_tokens: called with the number of output tokens rescored since its last call.

    Raises InvalidInput like `check_fit`, and NoVerdict like `rescore`.
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
    sampled = with_serial(TokenTerms.join(terms)) if terms else None
    return Arm(transcripts, target, sampled, GreedyGaps.join(gaps) if gaps else None)
