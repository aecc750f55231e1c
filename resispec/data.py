"""Prompts: documents in a fixed order, from a local file or from the hub.

A data set is anything with `prompts(count)`. Texts are cut to the first tokens by the caller, who knows the tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from resispec.models import hub
from resispec.errors import InvalidInput, first_line


@dataclass(frozen=True)
class Prompt:
    """A document to continue. id: stable within its data set."""

    id: str
    text: str


@dataclass(frozen=True)
class JsonlDataset:
    """A local JSON Lines file, one object a line with a text field and optionally an `id`."""

    path: str
    field: str = "text"

    def prompts(self, count: int) -> list[Prompt]:
        """The first `count` lines. Raises InvalidInput for a bad line or too few of them."""
        return read_jsonl(Path(self.path), count, self.field)


@dataclass(frozen=True)
class HubDataset:
    """A data set on the hub at a pinned revision, or a local file in its place.

    field: the column that holds the document. data_files: one shard instead of the whole split, where the whole is large.
    path: a local .jsonl file with the same field (or `text`) that replaces the hub.
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
        """The first `count` documents. Raises InvalidInput when the hub cannot be reached or there are too few documents."""
        if self.path is not None:
            return read_jsonl(Path(self.path), count, self.field)
        rows = islice(self._rows(), count)
        prompts = [Prompt(str(row.get("id", index)), row[self.field]) for index, row in enumerate(rows)]
        return _require(prompts, count, f"{self.repo} ({self.split})")

    def _rows(self) -> Iterable[dict[str, Any]]:
        offline = hub.is_offline("dataset", self.repo, self.revision)
        from datasets import (
            DownloadConfig,
            load_dataset,
        )  # takes over a second to import, and most runs do without

        files = {self.split: self.data_files} if self.data_files else None
        try:
            return load_dataset(
                self.repo,
                None if files else self.config,
                split=self.split,
                revision=self.revision,
                streaming=self.streaming,
                data_files=files,
                download_config=DownloadConfig(local_files_only=offline),
            )
        except (OSError, ValueError, ConnectionError) as error:
            raise InvalidInput(f"data set {self.repo} cannot be loaded: {first_line(error)}") from error


def read_jsonl(path: Path, count: int, field: str = "text") -> list[Prompt]:
    """The first `count` documents of a JSON Lines file.

    Raises InvalidInput, naming the file and the line, when the file is missing, a line is not a JSON object, or its text is
    missing or empty; and when there are fewer than `count` lines.
    """
    if not path.is_file():
        raise InvalidInput(
            f"data file {path} does not exist; give a .jsonl file, one object with a {field!r} a line"
        )
    with path.open(encoding="utf-8") as lines:
        return _require(list(islice(_documents(lines, path, field), count)), count, str(path))


def _documents(lines: Iterable[str], path: Path, field: str) -> Iterator[Prompt]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise InvalidInput(
                f"{path}, line {number} is not JSON ({error.msg}): {line.strip()[:60]!r}"
            ) from error
        text = (row.get(field) or row.get("text")) if isinstance(row, dict) else None
        if not isinstance(text, str) or not text:
            found = repr(line.strip()[:60])
            raise InvalidInput(
                f"{path}, line {number} has no text: expected an object with a non-empty {field!r}, found {found}"
            )
        yield Prompt(str(row.get("id", number - 1)), text)


def _require(prompts: list[Prompt], count: int, source: str) -> list[Prompt]:
    if len(prompts) < count:
        raise InvalidInput(
            f"{count} prompts were asked for and {source} has {len(prompts)}; lower num_prompts"
        )
    return prompts
