"""What a run of pytest decides for all assertions, and where they note what they found; without torch."""

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
