"""What the answers of all servers have in common, and what is wrong with one, said in a line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from resispec.engines import Unanswered
from resispec.errors import InvalidInput


def dig(content: Any, *keys: str | int) -> Any:
    """What stands under keys and indices, one after the other; None where there is nothing."""
    for key in keys:
        try:
            content = content[key]
        except (LookupError, TypeError):
            return None
    return content


def whole_number(content: Any, *keys: str | int) -> int | None:
    """The whole number from 0 under these keys, None where there is none."""
    found = dig(content, *keys)
    return found if type(found) is int and found >= 0 else None


def whole_numbers(content: Any, *keys: str | int) -> list[int] | None:
    """The list of whole numbers from 0 under these keys, None where there is none."""
    found = dig(content, *keys)
    is_one = isinstance(found, list) and all(type(value) is int and value >= 0 for value in found)
    return found if is_one else None


def emitted(content: Any, *keys: str | int) -> tuple[int, ...]:
    """The token ids under these keys. Raises InvalidInput, with the reason, where there are none."""
    found = whole_numbers(content, *keys)
    if not found:
        where = ".".join(map(str, keys))
        raise InvalidInput(
            f"the server returns no token ids ({where} is {ascii(dig(content, *keys))[:40]}); its text is no "
            "substitute, since encoding text again does not give back the tokens that were emitted"
        )
    return tuple(found)


def check_length(prompt: Sequence[int], num_read: int | None) -> None:
    """Raise InvalidInput when a server says that it read another number of tokens than the prompt has."""
    if num_read not in (None, len(prompt)):
        raise InvalidInput(
            f"the server read {num_read} tokens where the prompt has {len(prompt)}: it shortened the prompt "
            "or put tokens before it, so a transcript would not say what the model saw"
        )


def ended(reason: Any) -> str:
    """Why an answer ended. Raises Unanswered for one that the server gave up, whose tokens are incomplete."""
    if not isinstance(reason, str) or reason in ("abort", "error"):
        raise Unanswered(f"the server gave the request up (finish reason {reason!r})")
    return reason
