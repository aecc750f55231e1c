"""Prompts of benchmarks: questions with categories, from a pinned file of the web or from a local one.

Importing this module takes no torch.
"""

from __future__ import annotations

import gzip
import hashlib
import itertools
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

from resispec.data import Prompt, check_count, checked, enough, json_lines
from resispec.errors import InvalidInput, first_line
from resispec.files import cache_root, replacing

TIMEOUT_S = 20.0


@dataclass(frozen=True)
class QuestionDataset:
    """A JSON Lines file of questions, fetched once and known by its checksum.

    Categories take turns: the first question of every category, then the second of every one, so that the
    first prompts, however many, have about as many of each. Of a question with several turns the first turn
    is the prompt.

    url: of the file; one that ends in .gz is compressed. sha256: of the file at the url. field: what holds
    the question, a text or a list of turns. id_field: what holds its id, if anything does. category: of
    questions that have no `category` of their own. categories: those that are asked, in this order; all when
    None. path: a local .jsonl file with the same fields (or `text` and `id`) that replaces the url.
    """

    url: str
    sha256: str
    field: str
    id_field: str | None = None
    category: str | None = None
    categories: Sequence[str] | None = None
    path: str | None = None

    def prompts(self, count: int) -> list[Prompt]:
        """The first `count` questions.

        Raises InvalidInput, in one line, when the file cannot be had or is another one, for a question
        without a text or with another's id, for a category that there is not, and when there are too few.
        """
        check_count(count)
        file = fetched(self.url, self.sha256) if self.path is None else Path(self.path)
        source = self.path or self.url
        groups: dict[str | None, list[Prompt]] = {}
        for prompt in checked(self._documents(file), self.field, source):
            groups.setdefault(prompt.category, []).append(prompt)
        asked = self._asked(groups, source)
        return enough(_in_turn(groups[name] for name in asked), count, source)

    def _documents(self, file: Path) -> Iterator[tuple[str, int, Any]]:
        """The lines of the file, with the question, its id and its category where `checked` reads them."""
        for where, index, row in json_lines(file):
            yield where, index, row | self._found(row) if isinstance(row, dict) else row

    def _found(self, row: Mapping[str, Any]) -> dict[str, Any]:
        found = row.get(self.field)
        if isinstance(found, list) and found:
            found = found[0]
        name = row.get(self.id_field) if self.id_field else None
        return {
            self.field: found,
            "id": row.get("id") if name is None else name,
            "category": row.get("category") or self.category,
        }

    def _asked(self, groups: Mapping[str | None, list[Prompt]], source: str) -> list[str | None]:
        """The categories that are asked. Raises InvalidInput for one that no question has."""
        if self.categories is None:
            return list(groups)
        known = [name for name in groups if name is not None]
        allowed = f"allowed: {', '.join(known)}" if known else "its questions have no categories"
        if isinstance(self.categories, str) or not self.categories:
            raise InvalidInput(f"categories is {self.categories!r}; expected a list like [qa,rag]; {allowed}")
        for name in self.categories:
            if name not in known:
                raise InvalidInput(f"{source} has no category {name!r}; {allowed}")
        return list(dict.fromkeys(self.categories))


def _in_turn(groups: Iterable[list[Prompt]]) -> list[Prompt]:
    rounds = itertools.zip_longest(*groups)
    return [prompt for one in rounds for prompt in one if prompt is not None]


def fetched(url: str, sha256: str) -> Path:
    """A copy of a file of the web in the cache, without compression; it is fetched if there is none.

    url: one that ends in .gz is compressed. sha256: of the file at the url, in hexadecimal digits. Raises
    InvalidInput, naming the ways out, when it cannot be fetched or kept, or is another file.
    """
    path = cache_root() / "questions" / f"{sha256}.jsonl"
    if path.is_file():
        return path
    ways = "ways out: connect to it, or give a local file (dataset.path=FILE.jsonl)"
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            content = answer.read()
    except (OSError, ValueError, HTTPException) as error:
        raise InvalidInput(f"{url} cannot be fetched ({first_line(error)}); {ways}") from error
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise InvalidInput(f"{url} is another file than the pinned one: SHA-256 {found}, expected {sha256}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial:
            partial.write_bytes(gzip.decompress(content) if url.endswith(".gz") else content)
    except OSError as error:
        reason = f"cache folder {path.parent} cannot be written ({first_line(error)})"
        raise InvalidInput(f"{reason}; set RESISPEC_CACHE to one that can") from error
    return path
