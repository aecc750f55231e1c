"""Files that are whole or absent, checksums that show damage, locks that die with their process."""

import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from resispec.errors import InvalidInput, first_line


def cache_root() -> Path:
    """The folder of trained models and fetched data: `$RESISPEC_CACHE`, or `~/.cache/resispec`."""
    return Path(os.environ.get("RESISPEC_CACHE") or "~/.cache/resispec").expanduser()


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file's path; the file replaces `path` when the block ends well.

    Makes the folder.

    So a file that is present is complete. When the block raises, the temporary file is removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


@contextmanager
def in_cache(folder: Path) -> Iterator[None]:
    """Make a folder of the cache for the files that the block writes.

    Raises InvalidInput, which names the way out, when the folder or a file cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        reason = f"cache folder {folder} cannot be written ({first_line(error)})"
        raise InvalidInput(f"{reason}; set RESISPEC_CACHE to one that can") from error


def write_atomically(path: Path, text: str) -> None:
    """Write a text file, see `replacing`."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Any) -> None:
    """Write JSON atomically, indented, with a newline at the end."""
    write_atomically(path, json.dumps(content, indent=2, sort_keys=True, default=str) + "\n")


def read_bytes(path: Path) -> bytes:
    """The content of a regular file.

    Raises OSError when it cannot be read, and for a FIFO or a device, which could be read without
    an end.
    """
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError("it is a FIFO, a socket or a device; allowed: a regular file")
    return path.read_bytes()


def check_output(path: Path, inputs: Iterable[Path], folders: Iterable[Path] = ()) -> None:
    """Raise InvalidInput if a file to write is a folder, or read by the command, see `check_apart`.

    folders: those of models that the command reads, in which it writes no file. To be called before
    anything is measured.
    """
    if path.is_dir():
        raise InvalidInput(f"the file to write is '{path}', a folder; allowed: the name of a file")
    check_apart(path, inputs)
    for folder in folders:
        if path.resolve().is_relative_to(folder.resolve()):
            raise InvalidInput(
                f"{path} is in the folder of the model {folder}; allowed: any other place"
            )


def check_apart(path: Path, inputs: Iterable[Path]) -> None:
    """Raise InvalidInput if a file or folder to write is one of those that the command reads.

    A link counts as what it leads to.
    """
    for given in inputs:
        is_same = path.exists() and given.exists() and path.samefile(given)
        if is_same or path.resolve() == given.resolve():
            raise InvalidInput(
                f"{path} is read by this command, which would write over it; give another name"
            )


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises InvalidInput, one line that names the file, when it is missing, unreadable or holds no
    object.
    """
    try:
        content = json.loads(read_bytes(path).decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInput(f"{path} cannot be read as JSON ({first_line(error)})") from error
    if not isinstance(content, dict):
        raise InvalidInput(f"{path} holds a {type(content).__name__}; expected a JSON object")
    return content


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content as a JSON object with its checksum under the key `sha256`, for `read_sealed`."""
    values = json.loads(json.dumps(content, default=str))
    return {**values, "sha256": _seal(values)}


def read_sealed(path: Path) -> dict[str, Any]:
    """Read a JSON object and compare it with its checksum from `sealed`, if it has one.

    Raises InvalidInput as `read_json` does, and when the checksum does not match the content.
    """
    content = read_json(path)
    if "sha256" in content and content.pop("sha256") != _seal(content):
        hint = "take the sha256 out to keep a change of your own"
        raise InvalidInput(
            f"{path} is not what was written: its sha256 is that of other content; {hint}"
        )
    return content


def _seal(values: Mapping[str, Any]) -> str:
    """The SHA-256 of JSON values, whatever their order and layout in a file."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def checksums(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """The SHA-256 of each file, by its name relative to the folder."""
    facts = {name: (folder / name).stat() for name in names}
    return {
        name: _sha256((folder / name).resolve(), fact.st_size, fact.st_mtime_ns)
        for name, fact in facts.items()
    }


@cache
def _sha256(path: Path, _num_bytes: int, _changed: int) -> str:
    """The SHA-256 of a file, which a command reads only once unless the file changes."""
    return hashlib.sha256(read_bytes(path)).hexdigest()


def remembered_sha256(path: Path) -> str:
    """The SHA-256 of a large file, which is read once; the cache keeps it between processes.

    A file of another size, time of change or inode is read again. Raises OSError when it cannot be
    read.
    """
    fact = path.stat()
    # an archive may set the time of its content, but not that of the file's entry
    known_by = [str(path.resolve()), fact.st_size, fact.st_mtime_ns, fact.st_ctime_ns, fact.st_ino]
    name = hashlib.sha256(json.dumps(known_by).encode()).hexdigest()
    kept = cache_root() / "checksums" / name
    with suppress(OSError, ValueError):
        if re.fullmatch("[0-9a-f]{64}", digest := kept.read_text("utf-8")):
            return digest
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    with suppress(OSError):  # without a cache it is read anew
        write_atomically(kept, digest)
    return digest


def damage(folder: Path, expected: Any, names: Iterable[str] = ()) -> str | None:
    """The first change of files since `checksums` saw them, in words; None if there is none.

    expected: a result of `checksums`. Anything else, or an empty mapping, counts as damage, too.
    names: the names of files that `expected` must list.
    """
    if not isinstance(expected, dict) or not expected:
        return "its list of files is missing"
    if missing := [name for name in names if name not in expected]:
        return f"its list of files lacks {', '.join(missing)}"
    for name, digest in expected.items():
        try:
            if checksums(folder, [name])[name] != digest:
                return f"{name} is not what was written"
        except OSError as error:
            return f"{name} cannot be read ({first_line(error)})"
    return None


@contextmanager
def locked(path: Path, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold an exclusive lock on a file made for it; it ends with the process, however that ends.

    on_wait: called once before waiting, if another process holds the lock; None means not to wait.
    Raises TimeoutError when another process holds the lock and `on_wait` is None.
    """
    lock = FileLock(path)
    try:
        held = lock.acquire(timeout=0)
    except Timeout as error:
        if on_wait is None:
            raise TimeoutError(f"{path} is held by another process") from error
        on_wait()
        held = lock.acquire(poll_interval=0.2)
    with held:
        yield
