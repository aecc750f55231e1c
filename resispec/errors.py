"""What the user can mend, said in one line."""

from __future__ import annotations


class InvalidInput(ValueError):
    """Something the user gave is wrong; one line says what is wrong, what was found and what is allowed."""


def first_line(error: BaseException) -> str:
    """The first line of an error's message; a line that ends with a colon brings the next one along.

    The type's name stands for an empty message.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    end = next((number for number, line in enumerate(lines, start=1) if not line.endswith(":")), len(lines))
    return " ".join(lines[:end]) or type(error).__name__
