"""The pytest fixture `resispec_server`, of the plug-in; imports no torch until it is used."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def resispec_server(pytestconfig: pytest.Config, tmp_path: Path) -> Callable[..., Any]:
    """A function that fails unless a server keeps its target's law.

    It calls `referee.testing.assert_exact_server`, whose options, and the command, have defaults in
    the ini option of this name. Rows and logs are written to the test's temporary folder.
    """
    defaults = given(pytestconfig.getini("resispec_server"))

    def check(command: str | None = None, **options: Any) -> Any:
        """See `referee.testing.assert_exact_server`."""
        __tracebackhide__ = True
        from referee.testing import assert_exact_server
        from resispec.errors import InvalidInput

        chosen = {"folder": tmp_path, **defaults, **options}
        default = chosen.pop("command", None)
        if not (words := command or default):
            raise InvalidInput("a server's test needs a command that starts the server")
        return assert_exact_server(words, **chosen)

    return check


def given(lines: Iterable[str]) -> dict[str, Any]:
    """The options in lines like "KEY = VALUE", numbers as numbers.

    Raises InvalidInput for another line. Unknown keys are refused where they are used.
    """
    from resispec.errors import InvalidInput

    options: dict[str, Any] = {}
    for line in lines:
        key, equals, value = (part.strip() for part in line.partition("="))
        if not (key and equals and value):
            raise InvalidInput(f"resispec_server: {line!r} in pytest's ini; allowed: KEY = VALUE")
        options[key] = _number(value)
    return options


def _number(text: str) -> str | int | float:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
