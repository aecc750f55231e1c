"""Temperature 0 is another question: is every token the most probable one, or as good as that?

Two computations of the same logits differ by rounding, so the best token is decided by it where two are
nearly equal. A token counts as greedy when its logit is at most NEAR_TIE below the best. Every token is
judged after the tokens that were really emitted before it, so one divergence does not make the next.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from resispec.audit.transcripts.judging import POWER, Comparison
from resispec.audit.transcripts.statistics import rate_difference
from resispec.audit.transcripts.terms import NEAR_TIE, Tokens
from resispec.models.scoring import Stretch
from resispec.models.warpers import SamplingSettings, penalised
from resispec.transcripts import Transcript

SHOWN = 5


@dataclass(frozen=True)
class Gaps(Tokens):
    """How far the logits of N emitted tokens are below the best.

    best: (N,) int64, the most probable token. gap: (N,) float32, after the penalties.
    """

    best: Tensor
    gap: Tensor

    @property
    def is_greedy(self) -> Tensor:
        """(N,) bool: is a token the best one, or as good?"""
        return self.gap <= NEAR_TIE


def gaps_of(stretch: Stretch, settings: SamplingSettings) -> Gaps:
    """The gaps of a stretch's tokens."""
    scores = penalised(stretch, settings)
    best = scores.max(-1)
    gap = best.values - scores.gather(-1, stretch.tokens[:, None])[:, 0]
    position = torch.arange(stretch.first, stretch.first + len(gap))
    return Gaps(torch.full_like(position, stretch.row), position, best.indices.cpu(), gap.cpu())


def greedy_reference(what: str, gaps: Gaps, transcripts: Sequence[Transcript]) -> Comparison:
    """One arm's greedy rows against the target."""
    first = _first_divergences(gaps, transcripts)
    lines = [
        f"{one['place']}: output token {one['position']} is {one['token']}, whose logit is {one['gap']:.3g} "
        f"below that of {one['best']}; allowed: {NEAR_TIE:g}"
        for one in first[:SHOWN]
    ]
    if len(first) > SHOWN:
        lines.append(f"and {len(first) - SHOWN} more rows that diverge")
    best, ties = int((gaps.gap == 0).sum()), int((gaps.is_greedy & (gaps.gap > 0)).sum())
    others = len(gaps.gap) - best - ties
    fact = (
        f"greedy equality: {best} tokens are the best, {ties} as good (logits within {NEAR_TIE}), "
        f"{others} are neither"
    )
    return Comparison(
        what,
        len(gaps.row),
        len(gaps.row.unique()),
        len(gaps.row),
        {},
        tuple(lines),
        smallest_share=-math.log(1 - POWER) / len(gaps.gap),
        facts=(fact,),
        details={
            "near_tie": NEAR_TIE,
            "best": best,
            "near_ties": ties,
            "not_greedy": others,
            "first_divergences": first,
        },
    )


def greedy_control(what: str, gaps: Gaps, control: Gaps, prompts: Tensor, same: str) -> Comparison:
    """The rates of tokens that are not greedy, in one arm and in the other.

    prompts: see `rate_difference`. same: how many answers are the same, in words.
    """
    groups = {"all": {"not greedy": rate_difference(~gaps.is_greedy, ~control.is_greedy, prompts)}}
    rows = len(gaps.row.unique())
    return Comparison(what, len(gaps.row), rows, len(gaps.row), groups, facts=(same,))


def _first_divergences(gaps: Gaps, transcripts: Sequence[Transcript]) -> list[dict[str, object]]:
    """Where each row is not greedy for the first time; output tokens are counted from 1."""
    found: dict[int, dict[str, object]] = {}
    for index in (~gaps.is_greedy).nonzero()[:, 0].tolist():
        row, position = int(gaps.row[index]), int(gaps.position[index])
        if row not in found:
            found[row] = {
                "place": transcripts[row].place,
                "position": position + 1,
                "token": transcripts[row].output_token_ids[position],
                "best": int(gaps.best[index]),
                "gap": float(gaps.gap[index]),
            }
    return list(found.values())
