"""The pytest plug-in: two options, the fixture `resispec_server`, and a summary of assertions.

The summary says what every assertion of exactness could have seen. pytest finds the plug-in by its
entry point in the group `pytest11` and imports it in every run of an environment in which it is
installed. So it imports no torch, and no pytest either, on which the library does not depend.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

pytest_plugins = ("referee.testing.fixtures",)  # which imports pytest
PROPERTY = "resispec"
"""Name of the property of a test that holds a note; pytest also writes it to the XML for CI."""


@dataclass
class AssertionDefaults:
    """Defaults of assertions that say nothing else.

    seed: that of all random numbers. samples: the number of calls of a sampler. note: a function
    that gets one line about every assertion that held; outside of pytest the lines are dropped.
    """

    seed: int = 0
    samples: int = 20_000
    note: Callable[[str], object] = str


SESSION = AssertionDefaults()


@dataclass(frozen=True)
class Report:
    """Report of an assertion that held.

    subject: what was tested. details: findings, and the bias that would have shown. smallest_bias:
    the total variation that would have shown in 9 of 10 such tests.
    """

    subject: str
    details: tuple[str, ...]
    smallest_bias: float

    def __str__(self) -> str:
        return f"{self.subject}: {'; '.join(self.details)}"

    def noted(self) -> Report:
        """Give this report's text to the session's `note`, and return the report."""
        SESSION.note(str(self))
        return self


def pytest_addoption(parser: Any) -> None:
    """Add the options of the plug-in to pytest."""
    group = parser.getgroup("resispec", "exactness of speculative decoding")
    for name, metavar, text in (
        ("seed", "SEED", "seed of every assertion that names none"),
        ("samples", "NUMBER", "calls of a sampler in every assertion that names no number"),
    ):
        default = getattr(AssertionDefaults, name)
        text = f"{text} (default: {default})"
        group.addoption(f"--resispec-{name}", type=int, default=default, metavar=metavar, help=text)
    text = "KEY = VALUE lines, defaults of the fixture of this name: command, format, target, ..."
    parser.addini("resispec_server", text, type="linelist", default=[])


def pytest_configure(config: Any) -> None:
    """Make the values of the options the session's defaults."""
    SESSION.seed = config.getoption("--resispec-seed")
    SESSION.samples = config.getoption("--resispec-samples")


def pytest_runtest_setup(item: Any) -> None:
    """Store the notes of assertions with the test that makes them."""
    SESSION.note = lambda line: item.user_properties.append((PROPERTY, line))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Write the notes of all tests that passed, in other processes too; nothing with `-q`."""
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
