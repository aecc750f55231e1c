"""What the entries of `speed` are called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KINDS = {
    "chain": "chain",
    "iid": "best, independent draws",
    "without_replacement": "best, without replacement",
    "point_mass": "best, likeliest tokens",
}
"""Kind of an entry -> what it is called; the rest of its name is its size."""
SINGLE = {
    "one_token": "one token at a time",
    "fastest": "tree=fastest",
    "generate": "transformers, generate",
    "assisted": "transformers, assisted",
}


def kind_of(entry: str) -> str:
    """The part of an entry's name before its size."""
    return entry.partition(" ")[0]


def entry_text(row: Mapping[str, Any]) -> str:
    """What an entry is called in a table, without its verifier and size."""
    kind = kind_of(row["entry"])
    return SINGLE.get(kind) or KINDS.get(kind) or kind
