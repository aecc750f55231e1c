"""What the user can mend, said in one line."""


class InvalidInput(ValueError):
    """Something the user gave is wrong; the message is one line: what is wrong, what was found, what is allowed."""


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type's name when it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
