"""Questions about text that every Python installation has: training questions, and two data sets.

Questions are about functions of the standard library, numpy and pandas, and about pages of their
documentation and of the language reference. The embedded text's split decides, before anything
looks at a document, whether it is for training or for the data sets. Training asks about other
files and other pages of the reference than the data sets do, and about no text that contains one of
their paragraphs. HumanEval's problems are on neither side: no installation contains them, and no
package puts files of its own into the folders that are read.

A question's text is a user's message, without a chat template. Nothing that is read is imported or
run.
"""

import ast
import json
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from recipes.embedded.corpus import (
    TOPICS,
    Document,
    chunked,
    content_keys,
    docstrings,
    paragraph_key,
    parsed,
    read_sources,
    reference_split,
    share,
    split_files,
    stable_rank,
    statements,
    text_key,
)
from resispec.data import JsonlDataset, Prompt
from resispec.errors import InvalidInput
from resispec.files import cache_root
from resispec.kept import Kept, check_expected, entry
from resispec.progress import progress_bar

TRAINING, EXPLAIN, SUMMARISE = "training", "explain", "summarise"
"""Files of the recipe's folder, without their suffix; the last two are the data sets."""
_MIN_CHARS = 160  # a shorter text gives nothing to talk about


@dataclass(frozen=True)
class Function:
    """A function as a document. id: a stable name, made of the file's name and the function's line.

    code: the source, decorators included. docstring: "" if there is none. bare: the code without
    the docstring. head: the code up to the docstring's end, "" without a docstring.
    """

    id: str
    code: str
    docstring: str
    bare: str
    head: str


Asked = TypeVar("Asked", Function, Document)


@dataclass(frozen=True)
class QuestionKind:
    """A kind of question.

    weight: the share of documents that get this kind, relative to other kinds.

    ask: makes the question's text of a document; "" if there is nothing to ask.
    """

    weight: int
    ask: Callable[[Any], str]


def _code(instruction: str, part: str = "code") -> Callable[[Function], str]:
    return lambda function: f"{instruction}\n\n```python\n{getattr(function, part)}\n```"


def _page(instruction: str) -> Callable[[Document], str]:
    return lambda page: f"{instruction}\n\n{page.text}"


# The kinds that are measured have the most weight; "complete" gives only the head, as HumanEval
# does.
FUNCTION_KINDS = {
    EXPLAIN: QuestionKind(5, _code("Explain what this function does.")),
    "complete": QuestionKind(9, lambda function: function.head),
    "docstring": QuestionKind(2, _code("Write a docstring for this function.", "bare")),
    "lines": QuestionKind(1, _code("Go through this function line by line.")),
    "usage": QuestionKind(1, _code("Show an example of how to use this function.")),
    "test": QuestionKind(1, _code("Write a test for this function.")),
    "improve": QuestionKind(1, _code("How could this function be improved?")),
}
PAGE_KINDS = {
    SUMMARISE: QuestionKind(6, _page("Summarise this page of the documentation.")),
    "beginner": QuestionKind(1, _page("Explain this to somebody who is new to Python.")),
    "points": QuestionKind(1, _page("List the most important points of this text.")),
    "quiz": QuestionKind(
        1, _page("Write three questions that this text answers, with their answers.")
    ),
    "example": QuestionKind(1, _page("Give a short example in Python for what this text says.")),
}


@dataclass(frozen=True)
class QuestionsRecipe(Kept):
    """Settings by which the installation's text becomes questions.

    num_functions, num_pages: the number of training questions about functions and about pages.
    num_prompts: the number of questions in each data set. max_chars: the most characters of a
    function or of a page's excerpt, so that nearly all prompts have at most 256 tokens. max_files:
    the most source files of each side, for quick trials. version: a number that is raised when the
    same settings give other questions.
    """

    num_functions: int = 4096
    num_pages: int = 2048
    num_prompts: int = 192
    max_chars: int = 600
    max_files: int | None = None
    version: int = field(default=1, init=False)

    def key(self) -> str:
        """See `Kept.key`."""
        return text_key(self)

    def make(self, folder: Path) -> dict[str, Any]:
        """Write training questions and both data sets as lines of `{"id", "text", "category"}`."""
        questions = make_questions(self, read_sources())
        for name, prompts in questions.items():
            lines = [json.dumps(asdict(prompt), ensure_ascii=False) + "\n" for prompt in prompts]
            (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
        return {"questions": {name: len(prompts) for name, prompts in questions.items()}}


QUESTIONS_RECIPE = QuestionsRecipe()
"""The recipe of the questions that everyone gets."""
FILES = {f"smollm2_{name}": f"{name}.jsonl" for name in (EXPLAIN, SUMMARISE)}
"""Data sets by name -> their files in the recipe's folder."""


@dataclass(frozen=True)
class SmolLM2Dataset:
    """Questions about held-out text, in a fixed order, made of texts on this machine.

    name: `smollm2_explain` or `smollm2_summarise`. path: a local .jsonl file that replaces the made
    file. fingerprint: the expected key of the recipe; None allows any. Raises InvalidInput for an
    unknown name.
    """

    name: str
    path: str | None = None
    fingerprint: str | None = None

    def __post_init__(self) -> None:
        entry("data set", self.name, FILES)

    def prompts(self, count: int) -> list[Prompt]:
        """The first `count` prompts; the recipe makes the files first if they are absent.

        Raises InvalidInput when this installation would make other prompts, and as `JsonlDataset`
        does.
        """
        if self.path is not None:
            return JsonlDataset(self.path).prompts(count)
        check_expected(f"prompts of {self.name}", self.fingerprint, QUESTIONS_RECIPE.key())
        file = QUESTIONS_RECIPE.folder() / FILES[self.name]
        return JsonlDataset(str(file)).prompts(count)

    def check(self, count: int, _template: str | None = None) -> None:
        """Raise InvalidInput as `prompts` would, as far as can be known without making anything."""
        if self.path is not None or (cache_root() / QUESTIONS_RECIPE.key()).is_dir():
            self.prompts(count)
        elif count > (most := QUESTIONS_RECIPE.num_prompts):
            raise InvalidInput(
                f"{count} prompts were asked for and {self.name} has at most {most}; lower "
                "num_prompts"
            )


def questions_fingerprint() -> str:
    """The key of the questions' recipe."""
    return QUESTIONS_RECIPE.key()


def make_questions(
    recipe: QuestionsRecipe, sources: Mapping[str, bytes]
) -> dict[str, list[Prompt]]:
    """Lists of questions by the names of their files, each in a fixed mixed order.

    The first training questions, however many are taken, mix all kinds. No two are about the same
    document, and none is about a text that contains a paragraph of a held-out document. Raises
    InvalidInput if the installation's text gives fewer questions than the recipe asks for.
    """
    training, held_out = split_files(sources, recipe.max_files)
    reference = reference_split(sources[TOPICS])
    functions, held_out_functions, pages = list[Function](), list[Function](), list[Document]()
    for name in progress_bar(held_out, unit="file", desc="questions: held-out files"):
        held_out_functions += _functions(
            name, sources[name], parsed(sources[name]), recipe.max_chars
        )
    for name in progress_bar(training, unit="file", desc="questions: training files"):
        module = parsed(sources[name])
        file_functions = list(_functions(name, sources[name], module, recipe.max_chars))
        ids = {function.id for function in file_functions}
        functions += file_functions
        pages += [page for page in docstrings(name, module) if page.id not in ids]
    chunks = [chunk for run in reference.training for chunk in chunked(run, recipe.max_chars)]
    held_out_keys = {key for page in reference.held_out for key in content_keys(page.text)}
    for function in held_out_functions:
        held_out_keys |= content_keys(function.code) | content_keys(function.docstring)
    new_functions = (
        function for function in _mixed(functions) if _is_fresh(function.code, held_out_keys)
    )
    # The reference comes first, since the data set's pages are from it; docstrings give the rest.
    new_pages = (page for page in [*chunks, *_mixed(pages)] if _is_fresh(page.text, held_out_keys))
    excerpts = _excerpts(_mixed(reference.held_out), recipe.max_chars)
    questions = [
        *_ask("training, functions", new_functions, FUNCTION_KINDS, recipe.num_functions),
        *_ask(
            "training, pages", _excerpts(new_pages, recipe.max_chars), PAGE_KINDS, recipe.num_pages
        ),
    ]
    explain, summarise = {EXPLAIN: FUNCTION_KINDS[EXPLAIN]}, {SUMMARISE: PAGE_KINDS[SUMMARISE]}
    return {
        TRAINING: sorted(questions, key=lambda prompt: stable_rank(f"place of {prompt.id}")),
        EXPLAIN: _ask(EXPLAIN, _mixed(held_out_functions), explain, recipe.num_prompts),
        SUMMARISE: _ask(SUMMARISE, excerpts, summarise, recipe.num_prompts),
    }


def _is_fresh(text: str, paragraphs: Set[str]) -> bool:
    """Whether a text contains none of these paragraphs, wherever its own begin and end."""
    key = paragraph_key(text)
    return not any(paragraph in key for paragraph in paragraphs)


def _mixed(documents: Iterable[Asked]) -> list[Asked]:
    return sorted(documents, key=lambda document: stable_rank(document.id))


def _functions(name: str, source: bytes, module: ast.Module, max_chars: int) -> Iterator[Function]:
    """A file's functions and methods that do something and are neither too short nor too long."""
    lines = source.decode("utf-8", errors="ignore").splitlines()

    def part(*spans: tuple[int, int]) -> str:
        """Lines by their numbers from 1, the last one of each span included."""
        return textwrap.dedent(
            "\n".join(line for first, last in spans for line in lines[first - 1 : last])
        )

    for node in statements(module):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        first = min(piece.lineno for piece in (node, *node.decorator_list))
        last = node.end_lineno or first
        code, docstring = part((first, last)), ast.get_docstring(node) or ""
        if not _MIN_CHARS <= len(code) <= max_chars or len(node.body) == bool(docstring):
            continue
        bare, head = code, ""
        if docstring:
            begin, end = node.body[0].lineno, node.body[0].end_lineno or last
            bare, head = part((first, begin - 1), (end + 1, last)), part((first, end)) + "\n"
        yield Function(f"{name}:{node.lineno}", code, docstring, bare, head)


def _excerpts(pages: Iterable[Document], max_chars: int) -> Iterator[Document]:
    """The beginnings of pages, cut at a line's end; a page whose lines are too long is left out."""
    for page in pages:
        text = "\n".join([*page.text.splitlines(), ""])
        excerpt = text[:max_chars].rpartition("\n")[0].strip("\n")
        if len(excerpt) >= _MIN_CHARS:
            yield Document(page.id, excerpt)


def _ask(
    name: str,
    documents: Iterable[Function | Document],
    kinds: Mapping[str, QuestionKind],
    count: int,
) -> list[Prompt]:
    """Questions about the first documents, one for each; a hash of its id decides the kind.

    name: the name of the questions, for the message. Raises InvalidInput if there are fewer than
    `count`.
    """
    deck = [kind for kind, about in kinds.items() for _ in range(about.weight)]
    prompts: dict[str, Prompt] = {}  # by their texts
    for document in documents:
        kind = deck[int(share(f"kind of {document.id}") * len(deck))]
        if text := kinds[kind].ask(document):
            prompts.setdefault(text, Prompt(document.id, text, kind))
        if len(prompts) == count:
            return list(prompts.values())
    raise InvalidInput(
        f"smollm2 questions ({name}): this installation's text gives {len(prompts)}; {count} are "
        "needed"
    )
