"""Looks at an engine's answers as they come, until bets decide."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from referee.transcripts import INDEX, Transcript
from resispec.commands import as_typed

if TYPE_CHECKING:  # these import torch
    from referee.audit import Arm
    from referee.audit.bets import Wealth
    from referee.rescoring import Scorer

LOOK = 25
"""The least prompts between two looks."""
Ask = Callable[[int], list[Transcript]]
"""A function from a number n to the rows of the first n prompts, by load.

They stand in a file, so what was asked before is not asked again.
"""


@dataclass(frozen=True)
class InterimEvidence:
    """The evidence when some prompts have their answers.

    rows: all rows until now, by load. arm: the same, rescored. best: the bets of the load with the
    most against it; None if rows share random numbers, or none has a temperature above 0. limit:
    the e-value that decides.
    """

    rows: list[Transcript]
    arm: Arm
    best: Wealth | None
    limit: float

    @property
    def took(self) -> int | None:
        """The number of tokens after which bets decided, None if they have not.

        A bet on missing ends of sequence decides nothing if the rows lack them, see `missing_ends`.
        """
        from referee.audit.alternatives import NO_END  # imports torch

        if self.best is None or (self.best.winner == NO_END and self.arm.without_eos):
            return None
        return self.best.took(self.limit)


def looks(
    ask: Ask, num_prompts: int, scorers: Sequence[Scorer], loads: Sequence[int]
) -> Iterator[InterimEvidence]:
    """Ask for prompts, and look at the evidence after every few of them.

    An e-value may be looked at as often as one likes, see `referee.audit.bets`. That is done when
    all answers are there, so that none is left out for its length. num_prompts: the most prompts.
    scorers: the target's, and the draft's if there is one. loads: the numbers of requests at a
    time; there are at least LOOK prompts between two looks, and twice the largest load.
    """
    from referee.audit.arm import joined, measure
    from referee.audit.comparisons import BET_RATE
    from referee.conditions import between

    arms: list[Arm] = []
    begin, step = 0, max(LOOK, 2 * max(loads, default=1))
    for end in (*range(step, num_prompts, step), num_prompts):
        rows = ask(end)
        new = [row for row in rows if row.extra[INDEX] >= begin]
        arms.append(measure(new, *scorers, seed=begin))
        begin = end
        whole = joined(arms)
        parts = whole.by_condition
        bets = (arm.wealth for arm in parts.values())
        known = [wealth for wealth in bets if wealth is not None]
        best = max(known, key=lambda wealth: wealth.largest_log, default=None)
        # as many bets as the judge may have: of each arm, and of arms beside each other
        num_bets = len(parts) + len([*between([*parts], has_control=False)])
        yield InterimEvidence(rows, whole, best, num_bets / BET_RATE)


def until_decided(
    ask: Ask, num_prompts: int, scorers: Sequence[Scorer], loads: Sequence[int]
) -> tuple[list[Transcript], str]:
    """Ask for prompts until bets decide; returns the rows, and one line that says what was found.

    The arguments are those of `looks`.
    """
    from referee.audit.bets import in_figures
    from referee.audit.comparisons import missing_ends

    for look in looks(ask, num_prompts, scorers, loads):
        best, limit = look.best, look.limit
        if look.took is not None:
            return look.rows, (
                f"decided: e-value {in_figures(best.largest_log)} by the bet on {best.winner}; "
                f"{limit:,.0f} was reached after {look.took:,} tokens. "
                f"`{as_typed('referee.audit')}` judges the file, and checks the rescoring before "
                "it accuses"
            )
    if best is None:
        return (
            look.rows,
            "not decided: rows share random numbers, or none has a temperature above 0",
        )
    if best.took(limit) is not None:
        return look.rows, f"not decided: {missing_ends(look.arm)}"
    return look.rows, (
        f"not decided after {num_prompts} prompts: e-value {in_figures(best.log_e_value)}, at its "
        f"largest {in_figures(best.largest_log)}; {limit:,.0f} decides. A larger --num-prompts "
        "goes on from here"
    )
