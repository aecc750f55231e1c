"""An arm of an audit: what one engine wrote, and what the target says about every token of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from resispec.audit.transcripts import greedy, terms
from resispec.audit.transcripts.greedy import NEAR_TIE, SHOWN, Gaps
from resispec.audit.transcripts.rows import Transcript
from resispec.audit.transcripts.statistics import Statistic, sharing
from resispec.audit.transcripts.terms import Reading, Terms, lookups
from resispec.models.scoring import Scorer, rescore

SHARED_CHANCE = 1e-4
"""Rows whose places go together with less chance than this share their random numbers."""


@dataclass(frozen=True)
class Arm:
    """Transcripts, rescored. terms: of the rows that were sampled. gaps: of those at temperature 0.

    sharing: whether sampled rows draw with the same random numbers. eos_token_ids: the target's.
    """

    transcripts: Sequence[Transcript]
    terms: Terms | None
    gaps: Gaps | None
    sharing: Statistic | None
    eos_token_ids: tuple[int, ...]

    @property
    def is_shared(self) -> bool:
        """Do rows share their random numbers, by their seeds or by what they drew?"""
        seeds = [one.seed for one in self.transcripts if one.temperature > 0 and one.seed is not None]
        found = self.sharing is not None and self.sharing.p_value < SHARED_CHANCE
        return found or len(set(seeds)) < len(seeds)

    @property
    def without_eos(self) -> list[str]:
        """The places of sampled rows that no limit ended, if none of them has an end-of-sequence token."""
        ids = self.eos_token_ids
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

    def impossible(self, chosen: Terms) -> list[str]:
        """The tokens that their settings rule out by more than rounding, a line each for the first."""
        far = (chosen.below > NEAR_TIE).nonzero()[:, 0].tolist()
        lines = []
        for index in far[:SHOWN]:
            one, position = self.transcripts[int(chosen.row[index])], int(chosen.position[index])
            lines.append(
                f"{one.place}: output token {position + 1} is {one.output_token_ids[position]}, which "
                f"{one.setting} rules out: its logit is {float(chosen.below[index]):.2g} below the last that "
                f"is kept; allowed: {NEAR_TIE:g}, for rounding"
            )
        return [*lines, *([f"and {len(far) - SHOWN} more tokens like these"] if len(far) > SHOWN else [])]


def measure(
    transcripts: Sequence[Transcript],
    target: Scorer,
    draft: Scorer | None = None,
    on_tokens: Callable[[int], None] = lambda _: None,
) -> Arm:
    """Rescore an arm. on_tokens: told how many output tokens were rescored since it was last called."""
    scorers = [target] if draft is None else [target, draft]
    generator = torch.Generator().manual_seed(0)
    found_terms, found_gaps = [], []
    suggested = [lookups(*one.written) if one.temperature > 0 else torch.empty(0) for one in transcripts]
    for stretch, *drafted in rescore(scorers, [one.written for one in transcripts]):
        one = transcripts[stretch.row]
        if one.temperature > 0:
            reading = Reading(one, target.eos_token_ids, suggested[stretch.row])
            law = drafted[0] if drafted else None
            found_terms.append(terms.terms_of(stretch, law, reading, generator))
        else:
            found_gaps.append(greedy.gaps_of(stretch, one))
        on_tokens(len(stretch.logits))
    sampled = terms.join(found_terms) if found_terms else None
    return Arm(
        transcripts,
        sampled,
        greedy.join(found_gaps) if found_gaps else None,
        sharing(sampled) if sampled else None,
        target.eos_token_ids,
    )
