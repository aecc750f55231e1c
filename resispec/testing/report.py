"""What a test of a sampler found, in words and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from resispec.testing.statistics import Finding, smallest_bias


@dataclass(frozen=True)
class Report:
    """What an assertion that held has seen.

    subject: what was tested. num_samples: calls of a sampler, or tuples of siblings. p_value: the probability
    that something exact gives a statistic as far out as the furthest one, all of them counted.
    smallest_bias: the total variation that would have been shown in 9 of 10 such tests, on the stage where it
    is largest. details: a line for every stage.
    """

    subject: str
    num_samples: int
    p_value: float
    smallest_bias: float
    details: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.subject}: no bias found; {'; '.join(self.details)}"


@dataclass(frozen=True)
class Outcome:
    """The statistics of one stage. name: "V = 6". calls: rows verified. tokens: how many were emitted."""

    name: str
    calls: int
    tokens: int
    findings: Sequence[Finding]

    @property
    def furthest(self) -> Finding:
        """The statistic that is the least likely."""
        return min(
            self.findings, key=lambda finding: (finding.chi_square.p_value, -abs(finding.worst.errors))
        )

    def p_value(self, num_statistics: int) -> float:
        """The probability that one of so many statistics lies as far out as the furthest of these."""
        return min(1.0, num_statistics * self.furthest.chi_square.p_value)

    def line(self, num_statistics: int, false_alarm: float) -> str:
        """What is said of a stage on which nothing was found."""
        least = smallest_bias(self.tokens, false_alarm / num_statistics)
        return (
            f"{self.name}: {self.calls} calls, {self.tokens} tokens, p = {self.p_value(num_statistics):.2g}, "
            f"a bias of {least:.2g} would have shown"
        )

    def failure(self, num_statistics: int) -> str:
        """What is said of a stage on which something was found."""
        found = self.furthest
        return (
            f"{self.name}: p = {self.p_value(num_statistics):.2g}, {self.calls} calls, {self.tokens} tokens\n"
            f"    {found.what}: chi-square {found.chi_square.statistic:.1f}, "
            f"{found.chi_square.degrees} degrees of freedom\n"
            f"    worst cell: {found.worst}"
        )
