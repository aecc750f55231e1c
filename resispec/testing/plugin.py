"""The pytest plug-in: two options, and a summary of what every assertion of exactness could have seen.

pytest finds it by its entry point in the group `pytest11` and imports it in every run of an environment in
which resispec is installed. So it imports neither torch nor, as the library does not depend on it, pytest.
"""

from __future__ import annotations

from typing import Any

from resispec.testing.session import SESSION, Session

PROPERTY = "resispec"
"""The name of a test's property that holds a note; it is also in the XML that pytest writes for CI."""


def pytest_addoption(parser: Any) -> None:
    """Add the options."""
    group = parser.getgroup("resispec", "exactness of speculative decoding")
    defaults = Session()
    group.addoption(
        "--resispec-seed",
        type=int,
        default=defaults.seed,
        metavar="SEED",
        help="seed of every assertion that names none (default: %(default)s)",
    )
    group.addoption(
        "--resispec-samples",
        type=int,
        default=defaults.samples,
        metavar="NUMBER",
        help="calls of a sampler in every assertion that names no number (default: %(default)s)",
    )


def pytest_configure(config: Any) -> None:
    """Take the options over."""
    SESSION.seed = config.getoption("--resispec-seed")
    SESSION.samples = config.getoption("--resispec-samples")


def pytest_runtest_setup(item: Any) -> None:
    """Keep what assertions note with the test that makes them."""
    SESSION.note = lambda line: item.user_properties.append((PROPERTY, line))


def pytest_runtest_teardown() -> None:
    """The test is over."""
    SESSION.note = Session.note


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
