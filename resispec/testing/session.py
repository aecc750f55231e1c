"""What a run of pytest decides for all assertions, and what they tell it; without torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def _nowhere(line: str) -> None:
    """Outside of pytest nobody reads the notes."""


@dataclass
class Session:
    """Defaults of assertions that say nothing else.

    seed: of all random numbers. samples: how many times a sampler is called. note: is told one line about
    every assertion that held.
    """

    seed: int = 0
    samples: int = 20_000
    note: Callable[[str], None] = _nowhere


SESSION = Session()


@dataclass(frozen=True)
class Report:
    """What an assertion that held has seen.

    subject: what was tested. details: what was found, and how much would have been. smallest_bias: the total
    variation that would have shown in 9 of 10 such tests.
    """

    subject: str
    details: tuple[str, ...]
    smallest_bias: float

    def __str__(self) -> str:
        return f"{self.subject}: {'; '.join(self.details)}"

    def noted(self) -> Report:
        """This report, once the session has been told."""
        SESSION.note(str(self))
        return self
