"""Prompts: documents in a fixed order, from a local file or from the hub.

A data set is anything with `prompts(count)`. Texts are cut to the first tokens by the caller, who knows the
tokenizer. Importing this module takes neither torch nor the datasets library.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from resispec.errors import InvalidInput, first_line


@dataclass(frozen=True)
class Prompt:
    """A document to continue. id: stable, and unique within its data set. category: what kind it is."""

    id: str
    text: str
    category: str | None = None


@dataclass(frozen=True)
class JsonlDataset:
    """A local JSON Lines file, one object a line with a text field and optionally `id` and `category`."""

    path: str
    field: str = "text"

    def prompts(self, count: int) -> list[Prompt]:
        """The first `count` documents, see `read_jsonl`."""
        return read_jsonl(Path(self.path), count, self.field)


@dataclass(frozen=True)
class HubDataset:
    """A data set on the hub at a pinned revision, or a local file in its place.

    field: the column that holds the document. data_files: one shard instead of the whole split, where the
    whole is large. path: a local .jsonl file with the same field (or `text`) that replaces the hub.
    """

    repo: str
    config: str | None
    split: str
    field: str
    revision: str
    streaming: bool = False
    data_files: str | None = None
    path: str | None = None

    def prompts(self, count: int) -> list[Prompt]:
        """The first `count` documents.

        Raises InvalidInput when the hub cannot be reached, when a document has no text or another's id, or
        when there are too few.
        """
        if self.path is not None:
            return read_jsonl(Path(self.path), count, self.field)
        source = f"data set {self.repo} ({self.split})"
        check_count(count)
        try:
            rows = list(islice(self._rows(), count))
        except InvalidInput:
            raise
        except Exception as error:  # a broken connection or shard can raise anything
            raise InvalidInput(f"{source} cannot be loaded: {first_line(error)}") from error
        numbered = ((f"document {index}", index, row) for index, row in enumerate(rows))
        return enough(checked(islice(numbered, count), self.field, source), count, source)

    def _rows(self) -> Iterable[Any]:
        try:
            # It takes over a second to import, and most runs do without.
            from datasets import DownloadConfig, load_dataset
        except ImportError as error:
            raise InvalidInput(
                f"data set {self.repo} is on the hub, and the datasets library is not installed: "
                "pip install 'resispec[harness]', or give a local file (dataset.path=FILE.jsonl)"
            ) from error
        from resispec import hub

        offline = hub.is_offline("dataset", self.repo, self.revision)
        files = {self.split: self.data_files} if self.data_files else None
        return load_dataset(
            self.repo,
            None if files else self.config,
            split=self.split,
            revision=self.revision,
            streaming=self.streaming,
            data_files=files,
            download_config=DownloadConfig(local_files_only=offline),
        )


def read_jsonl(path: Path, count: int, field: str = "text") -> list[Prompt]:
    """The first `count` documents of a JSON Lines file in UTF-8; every line is a document.

    A document without an `id` is named by its line, counted from 0. Raises InvalidInput, naming the file and
    the line, when the file cannot be read, a line is not a JSON object with text in `field` (or `text`), or
    two documents share an id; and when there are fewer than `count`.
    """
    check_count(count)
    if not path.is_file():
        raise InvalidInput(
            f"data file {path} does not exist; give a .jsonl file, one object with a {field!r} a line"
        )
    return enough(checked(islice(json_lines(path), count), field, str(path)), count, str(path))


def check_count(count: int) -> None:
    """Raise InvalidInput unless that many prompts can be asked for."""
    if type(count) is not int or count < 1:
        raise InvalidInput(f"{count!r} prompts were asked for; allowed: whole numbers from 1")


def json_lines(path: Path) -> Iterator[tuple[str, int, Any]]:
    """What every line of a JSON Lines file holds, with its place in words and its number, counted from 0.

    Raises InvalidInput, naming the file and the line, when it cannot be read or a line is no JSON.
    """
    try:
        with path.open("rb") as lines:
            for index, line in enumerate(lines):
                where = f"line {index + 1}"
                yield where, index, _parsed(line, f"{path}, {where}")
    except OSError as error:
        raise InvalidInput(f"data file {path} cannot be read: {first_line(error)}") from error


def _parsed(line: bytes, where: str) -> Any:
    if not line.strip():
        raise InvalidInput(f"{where} is empty; allowed: one JSON object a line")
    try:
        return json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{where} is not text in UTF-8 (byte {error.start}): {line[:40]!r}") from error
    except (ValueError, RecursionError) as error:
        found = line.decode().strip()[:60]
        raise InvalidInput(f"{where} is not JSON ({first_line(error)}): {found!r}") from error


def checked(documents: Iterable[tuple[str, int, Any]], field: str, source: str) -> list[Prompt]:
    """Documents as prompts, once each has text and an id of its own.

    documents: of each its place in words, its number, and an object with text in `field` (or `text`), and
    optionally `id` and `category`. Raises InvalidInput, naming the source and the place.
    """
    prompts: list[Prompt] = []
    places: dict[str, str] = {}
    for where, index, row in documents:
        prompt = _prompt(row, index, field, f"{source}, {where}")
        if prompt.id in places:
            raise InvalidInput(
                f"{source}, {where} has the id {prompt.id!r} of {places[prompt.id]}; "
                "allowed: one of its own, or none"
            )
        places[prompt.id] = where
        prompts.append(prompt)
    return prompts


def enough(prompts: list[Prompt], count: int, source: str) -> list[Prompt]:
    """The first `count` prompts. Raises InvalidInput, naming the source, when there are fewer."""
    if len(prompts) < count:
        raise InvalidInput(
            f"{count} prompts were asked for and {source} has {len(prompts)}; lower num_prompts"
        )
    return prompts[:count]


def _prompt(row: Any, index: int, field: str, where: str) -> Prompt:
    text = (row.get(field) or row.get("text")) if isinstance(row, dict) else None
    if not isinstance(text, str) or not text.strip():
        found = ascii(row)[:60]
        raise InvalidInput(
            f"{where} has no text: expected an object with a non-empty {field!r}, found {found}"
        )
    name, category = _label(row, "id", where), _label(row, "category", where)
    try:
        f"{name}{category}{text}".encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"{where} holds half of a character ({error.reason}), which no text has"
        ) from error
    return Prompt(str(index) if name is None else name, text, category or None)


def _label(row: dict[str, Any], key: str, where: str) -> str | None:
    value = row.get(key)
    if not isinstance(value, str | int | None):
        raise InvalidInput(f"{where} has the {key} {value!r}; allowed: a text or a whole number")
    return None if value is None else str(value)
