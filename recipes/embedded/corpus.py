"""Text that every installation has: the language reference, docstrings, standard-library source.

Source files are read as bytes and parsed with `ast`; nothing in them is imported or run. A stable
hash of names decides the split into training and held-out text, before anything else looks at the
text. It assigns whole files for docstrings and code, so that a file's docstrings and its code are
always on the same side, and single chunks for the few long topics of the reference.
"""

import ast
import hashlib
import importlib.util
import os
import sysconfig
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from resispec.errors import InvalidInput
from resispec.kept import make_key

TOPICS = "stdlib/pydoc_data/topics.py"
"""The name of the source file that holds the language reference."""
# Tests, generated tables and installers teach nothing about prose or ordinary code; the first two
# hold other people's packages.
_SKIPPED_FOLDERS = frozenset([
    "site-packages", "dist-packages", "__pycache__", "test", "tests", "testing", "idle_test",
    "idlelib",
    "lib2to3", "turtledemo", "encodings", "ensurepip", "pydoc_data", "__phello__",
])  # fmt: skip
_HELD_OUT_FILES = 0.15


@dataclass(frozen=True)
class Document:
    """One text. id: a stable name, made of the source's name and a place in it."""

    id: str
    text: str


@dataclass(frozen=True)
class Split:
    """One data set: texts to train on, and texts that nothing is trained on, in a fixed order."""

    training: list[Document]
    held_out: list[Document]


def read_sources() -> dict[str, bytes]:
    """Every source file by name (`stdlib/argparse.py`, `numpy/linalg/_linalg.py`), in sorted order.

    Raises InvalidInput when numpy or pandas is missing, FileNotFoundError without the language
    reference.
    """
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    roots = {"stdlib": stdlib} | {
        package: _package_folder(package) for package in ("numpy", "pandas")
    }
    files = {
        f"{name}/{path.relative_to(root).as_posix()}": path
        for name, root in roots.items()
        for path in _python_files(root)
    }
    files[TOPICS] = stdlib / "pydoc_data" / "topics.py"
    return {name: files[name].read_bytes() for name in sorted(files)}


@cache  # it reads the whole standard library
def text_key(recipe: object) -> str:
    """The key of a recipe that reads this installation's text, see `make_key`.

    Raises as `read_sources`.
    """
    return make_key(recipe, read_sources())


def build_corpus(
    sources: dict[str, bytes], max_chars: int, max_files: int | None = None
) -> dict[str, Split]:
    """Split the sources' text into the three data sets, by name.

    max_chars: characters of training text for each data set; the document that reaches them is the
    last one. max_files: the most files of each side, for quick trials. No paragraph of any data
    set's held-out text is in a training text of any data set, unless it is short enough to be
    idiom.
    """
    training, held_out = split_files(sources, max_files)

    def prose(names: list[str]) -> Iterator[Document]:
        for name in names:
            yield from docstrings(name, parsed(sources[name]))

    def code(names: list[str]) -> Iterator[Document]:
        for name in names:
            if name.startswith("stdlib/"):
                yield Document(name, sources[name].decode("utf-8", errors="ignore"))

    chunks = [chunk for module in code(held_out) for chunk in chunked(module, min_chars=700)]
    splits = {
        "embedded_reference": reference_split(sources[TOPICS]),
        "embedded_docstrings": Split(_until(max_chars, prose(training)), list(prose(held_out))),
        "embedded_code": Split(_until(max_chars, code(training)), chunks),
    }
    return _separate(splits)


def split_files(
    sources: Mapping[str, bytes], max_files: int | None = None
) -> tuple[list[str], list[str]]:
    """Names of the training and of the held-out source files, each in a fixed mixed order.

    max_files: the most files of each side. The language reference is on neither side, see
    `reference_split`.
    """
    files = sorted((name for name in sources if name != TOPICS), key=stable_rank)
    held_out = [name for name in files if share(name) < _HELD_OUT_FILES]
    training = [name for name in files if share(name) >= _HELD_OUT_FILES]
    return training[:max_files], held_out[:max_files]


def stable_rank(name: str) -> str:
    """A hash of a name that orders names the same way on every machine and in every process."""
    return hashlib.sha256(name.encode()).hexdigest()


def paragraph_key(paragraph: str) -> str:
    """A paragraph without its layout, so that an indented copy counts as a copy."""
    return " ".join(paragraph.split())


def content_keys(text: str) -> set[str]:
    """The keys of a text's paragraphs but short ones, which are idiom, like "Returns -------"."""
    return {key for key in map(paragraph_key, paragraphs(text)) if len(key) >= 40}


def share(name: str) -> float:
    """A name's stable number in [0, 1), uniform over names."""
    return int(stable_rank(name)[:12], 16) / 16**12


def _package_folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise InvalidInput(
            f"the embedded pair learns from {package}'s docstrings: pip install {package}"
        )
    return Path(spec.origin).parent


def _python_files(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        folders[:] = [
            name for name in folders if name not in _SKIPPED_FOLDERS and name[:7] != "config-"
        ]
        yield from (
            Path(folder, name) for name in files if name.endswith(".py") and name[:5] != "test_"
        )


def reference_split(source: bytes) -> Split:
    """Split the topics into chunks; neighbouring training chunks of a topic become one document."""
    split, seen = Split([], []), set[str]()
    topics = next(node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Dict))
    for topic, text in sorted(ast.literal_eval(topics).items()):
        # Topics quote each other's sections.
        parts = [part for part in paragraphs(text) if _is_new(part, seen)]
        run: list[str] = []
        for number, chunk in enumerate(_packed(parts, min_chars=450)):
            name = f"{topic}:{number}"
            if share(name) >= 0.42:  # the reference is short: less held-out text has no 200 prompts
                run.append(chunk)
                continue
            split.held_out.append(Document(name, chunk))
            if run:
                split.training.append(Document(f"{topic}:<{number}", "\n\n".join(run)))
            run = []
        if run:
            split.training.append(Document(f"{topic}:end", "\n\n".join(run)))
    split.held_out.sort(key=lambda document: stable_rank(document.id))
    return split


def _is_new(text: str, seen: set[str]) -> bool:
    """Whether a text was not seen before, in any layout; from now on it counts as seen."""
    num_seen = len(seen)
    seen.add(paragraph_key(text))
    return len(seen) > num_seen


def parsed(source: bytes) -> ast.Module:
    """The syntax tree of a source file, empty for a template or code of other Python versions."""
    with warnings.catch_warnings():
        # old files warn about invalid escapes: not the user's concern
        warnings.simplefilter("ignore")
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError):
            return ast.Module([], [])


def statements(module: ast.Module) -> Iterator[ast.AST]:
    """A module and its statements, nested ones too, in `ast.walk`'s order without expressions."""
    queue, kinds = deque[ast.AST]([module]), (ast.stmt, ast.excepthandler, ast.match_case)
    while queue:
        node = queue.popleft()
        yield node
        queue.extend(part for part in ast.iter_child_nodes(node) if isinstance(part, kinds))


def docstrings(name: str, module: ast.Module) -> Iterator[Document]:
    """The docstrings of a file that have at least 200 characters. name: the file's name."""
    for node in statements(module):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text and len(text) >= 200:
                yield Document(f"{name}:{getattr(node, 'lineno', 0)}", text)


def paragraphs(text: str) -> list[str]:
    """The parts of a text that empty lines separate."""
    return [part.strip("\n") for part in text.split("\n\n") if part.strip()]


def chunked(document: Document, min_chars: int) -> Iterator[Document]:
    """The chunks of a document, each of whole paragraphs, see `_packed`."""
    for number, chunk in enumerate(_packed(paragraphs(document.text), min_chars)):
        yield Document(f"{document.id}#{number}", chunk)


def _packed(parts: list[str], min_chars: int) -> Iterator[str]:
    """Join consecutive paragraphs until a chunk has `min_chars`; a shorter rest joins the last."""
    chunks: list[list[str]] = [[]]
    for paragraph in parts:
        if sum(map(len, chunks[-1])) >= min_chars:
            chunks.append([])
        chunks[-1].append(paragraph)
    if len(chunks) > 1 and sum(map(len, chunks[-1])) < min_chars:
        rest = chunks.pop()
        chunks[-1] += rest
    yield from ("\n\n".join(chunk) for chunk in chunks if chunk)


def _until(max_chars: int, documents: Iterator[Document]) -> list[Document]:
    """The first documents, until they have `max_chars` characters; the rest is never parsed."""
    selection: list[Document] = []
    while max_chars > 0 and (document := next(documents, None)) is not None:
        selection.append(document)
        max_chars -= len(document.text)
    return selection


def _separate(splits: dict[str, Split]) -> dict[str, Split]:
    """Drop repeated texts, and long training paragraphs that any data set's held-out texts have."""
    seen, keys = set[str](), set[str]()
    for split in splits.values():
        split.held_out[:] = [
            document for document in split.held_out if _is_new(document.text, seen)
        ]
        keys |= {key for document in split.held_out for key in content_keys(document.text)}
    for split in splits.values():
        seen = set()
        documents = [
            Document(document.id, "\n\n".join(parts))
            for document in split.training
            if (
                parts := [
                    part for part in paragraphs(document.text) if paragraph_key(part) not in keys
                ]
            )
        ]
        split.training[:] = [document for document in documents if _is_new(document.text, seen)]
    return splits
