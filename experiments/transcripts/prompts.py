"""Prompts as token ids: from the embedded data sets, or from a file with ids or texts."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path

from resispec.data import check_count, json_lines, read_jsonl
from resispec.embedded import NAMES, EmbeddedDataset
from resispec.errors import InvalidInput
from resispec.transcripts import Transcript

IDS = "prompt_token_ids"


def token_prompts(
    source: str, count: int, length: int, encode: Callable[[str], list[int]]
) -> list[tuple[int, ...]]:
    """The first `count` prompts of a source.

    source: an embedded data set or a .jsonl file, whose rows have a `text` or `prompt_token_ids`; so a file
    of transcripts gives its prompts to another engine. length: texts are cut to their first tokens, ids are
    taken as they are. encode: a text's ids, for sources with texts.
    Raises InvalidInput, naming the file and the line, for what is none of these.
    """
    if source in NAMES:
        documents = EmbeddedDataset(source).prompts(count)
    elif Path(source).is_file() and _has_ids(Path(source)):
        return _ids(Path(source), count)
    elif source.endswith(".jsonl"):
        documents = read_jsonl(Path(source), count)
    else:
        raise InvalidInput(f"unknown prompts {source!r}; allowed: {', '.join(NAMES)}, or a .jsonl file")
    return [_checked(encode(document.text)[:length], f"document {document.id}") for document in documents]


def _has_ids(path: Path) -> bool:
    """Whether the first row of a file has token ids."""
    return any(isinstance(row, dict) and IDS in row for _, _, row in islice(json_lines(path), 1))


def _ids(path: Path, count: int) -> list[tuple[int, ...]]:
    check_count(count)
    found = []
    for where, _, row in islice(json_lines(path), count):
        ids = row.get(IDS) if isinstance(row, dict) else None
        if not isinstance(ids, list):
            raise InvalidInput(f"{path}, {where} has no {IDS}; all rows have them, or none")
        found.append(_checked(ids, f"{path}, {where}"))
    if len(found) < count:
        raise InvalidInput(f"{count} prompts were asked for and {path} has {len(found)}")
    return found


def _checked(ids: list[int], place: str) -> tuple[int, ...]:
    """Token ids as a prompt. Raises InvalidInput when a transcript could not have it."""
    return Transcript(tuple(ids), (0,), place=place).prompt_token_ids
