"""The pytest plug-in: two options, and a summary of what every assertion of exactness could have seen.

pytest finds it by its entry point in the group `pytest11` and imports it in every run of an environment in
which it is installed. So it imports neither torch nor, as the library does not depend on it, pytest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

PROPERTY = "resispec"
"""Name of a test's property that holds a note; it is also in the XML that pytest writes for CI."""


@dataclass
class AssertionDefaults:
    """Defaults of assertions that say nothing else.

    seed: of all random numbers. samples: number of calls of a sampler. note: is told one line about every
    assertion that held; outside of pytest nobody reads the notes.
    """

    seed: int = 0
    samples: int = 20_000
    note: Callable[[str], object] = str


SESSION = AssertionDefaults()


@dataclass(frozen=True)
class Report:
    """Report of an assertion that held.

    subject: what was tested. details: findings, and the bias that would have shown. smallest_bias: the total
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


def pytest_addoption(parser: Any) -> None:
    """Add the options."""
    group = parser.getgroup("resispec", "exactness of speculative decoding")
    for name, metavar, text in (
        ("seed", "SEED", "seed of every assertion that names none"),
        ("samples", "NUMBER", "calls of a sampler in every assertion that names no number"),
    ):
        default = getattr(AssertionDefaults, name)
        text = f"{text} (default: {default})"
        group.addoption(f"--resispec-{name}", type=int, default=default, metavar=metavar, help=text)


def pytest_configure(config: Any) -> None:
    """Take the options over."""
    SESSION.seed = config.getoption("--resispec-seed")
    SESSION.samples = config.getoption("--resispec-samples")


def pytest_runtest_setup(item: Any) -> None:
    """Keep what assertions note with the test that makes them."""
    SESSION.note = lambda line: item.user_properties.append((PROPERTY, line))


def pytest_runtest_teardown() -> None:
    """Forget the test that is over."""
    SESSION.note = str


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Write the notes of all tests that passed, also in other processes; with `-q` nothing."""
    notes = [
        (report.nodeid, note)
        for report in terminalreporter.getreports("passed")
        for name, note in report.user_properties
        if name == PROPERTY
    ]
    if not notes or terminalreporter.verbosity < 0:
        return
    terminalreporter.section("exactness of speculative decoding")
    for test, note in notes:
        lines = note.replace("; ", "\n    ")
        terminalreporter.write_line(f"{test}\n  {lines}")
