"""Text that every installation has: the language reference, docstrings, and standard-library source.

Source files are read as bytes and parsed with `ast`; nothing of them is imported or run. The split into
training and held-out text is decided by a stable hash of names, before anything else looks at the text: whole
files for docstrings and code (so a file's docstrings and its code are always on the same side), single chunks
for the few long topics of the reference.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from resispec.errors import InvalidInput

NAMES = ("embedded_reference", "embedded_docstrings", "embedded_code")

_TOPICS = "stdlib/pydoc_data/topics.py"
_PACKAGES = ("numpy", "pandas")
# Tests, generated tables and installers teach nothing about prose or ordinary code; the first two hold other
# people's packages.
_SKIPPED_FOLDERS = frozenset([
    "site-packages", "dist-packages", "__pycache__", "test", "tests", "testing", "idle_test", "idlelib",
    "lib2to3", "turtledemo", "encodings", "ensurepip", "pydoc_data", "__phello__",
])  # fmt: skip
_HELD_OUT_FILES = 0.15
_HELD_OUT_CHUNKS = 0.42  # the reference is short: less would not leave 200 prompts
_MIN_DOCSTRING_CHARS = 200
_REFERENCE_CHUNK_CHARS = 450
_CODE_CHUNK_CHARS = 700
_MIN_SHARED_CHARS = 40  # shorter paragraphs ("Returns -------") are idiom, not content


@dataclass(frozen=True)
class Document:
    """One text. id: stable, made of the source's name and a place in it."""

    id: str
    text: str


@dataclass(frozen=True)
class Split:
    """One data set: texts to train on, and texts that nothing is trained on, in a fixed order."""

    training: list[Document]
    held_out: list[Document]


def read_sources() -> dict[str, bytes]:
    """Every source file by its name (`stdlib/argparse.py`, `numpy/linalg/_linalg.py`), in sorted order.

    Raises InvalidInput when numpy, pandas or the language reference is missing.
    """
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    roots = {"stdlib": stdlib} | {package: _package_folder(package) for package in _PACKAGES}
    files = {
        f"{name}/{path.relative_to(root).as_posix()}": path
        for name, root in roots.items()
        for path in _python_files(root)
    }
    files[_TOPICS] = stdlib / "pydoc_data" / "topics.py"
    if not files[_TOPICS].is_file():
        raise InvalidInput(
            f"the embedded pair needs the language reference at {files[_TOPICS]}; this Python lacks it"
        )
    return {name: files[name].read_bytes() for name in sorted(files)}


def build_corpus(sources: dict[str, bytes], max_chars: int, max_files: int | None = None) -> dict[str, Split]:
    """Split the sources' text into the three data sets, by name.

    max_chars: training text of one data set at most, in characters. max_files: files of each side at most,
    for quick trials. No paragraph of a held-out text, of any data set, is in a training text of any data set.
    """
    files = sorted((name for name in sources if name != _TOPICS), key=stable_rank)
    held_out = [name for name in files if _share(name) < _HELD_OUT_FILES][:max_files]
    training = [name for name in files if _share(name) >= _HELD_OUT_FILES][:max_files]
    library = [name for name in training if name.startswith("stdlib/")]
    splits = {
        "embedded_reference": _reference(sources[_TOPICS]),
        "embedded_docstrings": Split(
            _until(max_chars, _docstrings(sources, training)), list(_docstrings(sources, held_out))
        ),
        "embedded_code": Split(
            _until(max_chars, _modules(sources, library)),
            list(_module_chunks(sources, [name for name in held_out if name.startswith("stdlib/")])),
        ),
    }
    return _separate(splits)


def stable_rank(name: str) -> str:
    """A hash of a name that orders names the same way on every machine and in every process."""
    return hashlib.sha256(name.encode()).hexdigest()


def paragraph_key(paragraph: str) -> str:
    """A paragraph without its layout, so that an indented copy counts as a copy."""
    return " ".join(paragraph.split())


def _share(name: str) -> float:
    """Where a name falls in [0, 1), uniformly."""
    return int(stable_rank(name)[:12], 16) / 16**12


def _package_folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise InvalidInput(f"the embedded pair learns from {package}'s docstrings: pip install {package}")
    return Path(spec.origin).parent


def _python_files(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        skipped = _SKIPPED_FOLDERS | {name for name in folders if name.startswith("config-")}
        folders[:] = [name for name in folders if name not in skipped]
        yield from (Path(folder, name) for name in files if name.endswith(".py") and name[:5] != "test_")


def _reference(source: bytes) -> Split:
    """Split the topics into chunks; neighbouring training chunks of a topic are joined, so they read on."""
    training: list[Document] = []
    held_out: list[Document] = []
    seen: set[str] = set()
    for topic, text in sorted(_topics(source).items()):
        # Topics quote each other's sections.
        fresh = [part for part in _paragraphs(text) if not _seen_before(part, seen)]
        run: list[str] = []
        for number, chunk in enumerate(_pack(fresh, _REFERENCE_CHUNK_CHARS)):
            name = f"{topic}:{number}"
            if _share(name) >= _HELD_OUT_CHUNKS:
                run.append(chunk)
                continue
            held_out.append(Document(name, chunk))
            training += _joined(f"{topic}:<{number}", run)
            run = []
        training += _joined(f"{topic}:end", run)
    return Split(training, sorted(held_out, key=lambda document: stable_rank(document.id)))


def _topics(source: bytes) -> dict[str, str]:
    """The dictionary that `pydoc_data/topics.py` assigns."""
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and isinstance(statement.value, ast.Dict):
            return {str(topic): str(text) for topic, text in ast.literal_eval(statement.value).items()}
    raise InvalidInput(f"{_TOPICS} of this Python holds no dictionary of topics")


def _joined(name: str, chunks: list[str]) -> list[Document]:
    return [Document(name, "\n\n".join(chunks))] if chunks else []


def _seen_before(paragraph: str, seen: set[str]) -> bool:
    key = paragraph_key(paragraph)
    known = key in seen
    seen.add(key)
    return known


def _docstrings(sources: dict[str, bytes], names: Iterable[str]) -> Iterator[Document]:
    for name in names:
        for node in ast.walk(_parse(sources[name])):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text and len(text) >= _MIN_DOCSTRING_CHARS:
                    yield Document(f"{name}:{getattr(node, 'lineno', 0)}", text)


def _parse(source: bytes) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old files warn about invalid escapes: not the user's concern
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError):
            return ast.Module(body=[], type_ignores=[])  # templates and files for other Python versions


def _modules(sources: dict[str, bytes], names: Iterable[str]) -> Iterator[Document]:
    yield from (Document(name, sources[name].decode("utf-8", errors="ignore")) for name in names)


def _module_chunks(sources: dict[str, bytes], names: Iterable[str]) -> Iterator[Document]:
    for module in _modules(sources, names):
        for number, chunk in enumerate(_pack(_paragraphs(module.text), _CODE_CHUNK_CHARS)):
            yield Document(f"{module.id}#{number}", chunk)


def _paragraphs(text: str) -> list[str]:
    return [part.strip("\n") for part in text.split("\n\n") if part.strip()]


def _pack(paragraphs: list[str], min_chars: int) -> Iterator[str]:
    """Join consecutive paragraphs until a chunk has `min_chars`; a shorter rest goes to the last chunk."""
    chunks: list[list[str]] = [[]]
    for paragraph in paragraphs:
        if sum(map(len, chunks[-1])) >= min_chars:
            chunks.append([])
        chunks[-1].append(paragraph)
    if len(chunks) > 1 and sum(map(len, chunks[-1])) < min_chars:
        rest = chunks.pop()
        chunks[-1] += rest
    yield from ("\n\n".join(chunk) for chunk in chunks if chunk)


def _until(max_chars: int, documents: Iterator[Document]) -> list[Document]:
    """Documents up to a number of characters: the rest is never even parsed."""
    kept: list[Document] = []
    room = max_chars
    while room > 0 and (document := next(documents, None)) is not None:
        kept.append(document)
        room -= len(document.text)
    return kept


def _separate(splits: dict[str, Split]) -> dict[str, Split]:
    """Drop repeated held-out texts, and every training paragraph that is in a held-out text."""
    seen: set[str] = set()
    held_out = {
        name: [document for document in split.held_out if not _seen_before(document.text, seen)]
        for name, split in splits.items()
    }
    hidden = {
        paragraph_key(part)
        for documents in held_out.values()
        for text in documents
        for part in _paragraphs(text.text)
    }
    return {name: Split(_without(split.training, hidden), held_out[name]) for name, split in splits.items()}


def _without(documents: list[Document], hidden: set[str]) -> list[Document]:
    hidden = {key for key in hidden if len(key) >= _MIN_SHARED_CHARS}
    kept: list[Document] = []
    seen: set[str] = set()
    for document in documents:
        parts = [part for part in _paragraphs(document.text) if paragraph_key(part) not in hidden]
        text = "\n\n".join(parts)
        if text and not _seen_before(text, seen):
            kept.append(Document(document.id, text))
    return kept
