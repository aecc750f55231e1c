"""Numbers that a verifier is given as options: checked in one place."""

from collections.abc import Callable
from typing import Any

from resispec.errors import InvalidInput


def check_number(
    option: str, value: Any, is_allowed: Callable[[float], bool], allowed: str
) -> None:
    """Raise InvalidInput for a value that is no number, or none that is allowed.

    option: its name with the verifier's, "lenience: factor". allowed: what is, in words.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and is_allowed(value)):
        raise InvalidInput(f"{option}={value}; allowed: {allowed}")
