"""Keeps what was trained: a folder under the cache root that is either complete or absent.

A folder is built under a temporary name beside its final one and renamed when everything is on disk, so that
killing the process at any moment leaves nothing that could be taken for a result. A lock that dies with its
process makes a second process wait for the first instead of training the same thing again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

from resispec import files
from resispec.errors import InvalidInput, first_line

MANIFEST = "manifest.json"

_LIBRARIES = ("torch", "transformers", "tokenizers")
_PACKAGE = Path(__file__).parent.parent
_WAITS = "another process is making %s; waiting for it"
_log = logging.getLogger(__name__)


def make_key(sources: dict[str, bytes], recipe: str, modules: tuple[str, ...]) -> str:
    """16 hexadecimal digits that change with the sources, the recipe, the libraries and the code that builds.

    modules: the files of `resispec` whose code decides the result.
    """
    digest = hashlib.sha256()
    versions = {"python": platform.python_version()} | {name: version(name) for name in _LIBRARIES}
    digest.update(json.dumps([recipe, versions]).encode())
    code = {f"resispec/{name}": (_PACKAGE / name).read_bytes() for name in modules}
    for name, content in sorted((sources | code).items()):
        digest.update(f"\n{name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def ensure_folder(root: Path | None, key: str, build: Callable[[Path], dict[str, Any]]) -> Path:
    """The complete folder `root/key`, built first if it is absent.

    root: `files.cache_root()` when None. build: fills an empty folder and returns facts for the manifest.
    Raises InvalidInput when the folder is there but damaged, or when the root cannot be written.
    """
    root = root or files.cache_root()
    folder = root / key
    if folder.exists():
        _verify(folder)
        return folder
    held = ExitStack()
    try:
        root.mkdir(parents=True, exist_ok=True)
        held.enter_context(files.locked(root / f".{key}.lock", on_wait=lambda: _log.warning(_WAITS, folder)))
    except OSError as error:
        raise InvalidInput(
            f"cache folder {root} cannot be written ({first_line(error)}); set RESISPEC_CACHE to one that can"
        ) from error
    with held:
        if not folder.exists():  # else another process has just built it
            _build(folder, build)
        for leftover in root.glob(f".{key}.tmp-*"):  # of killed processes: only the holder of the lock builds
            shutil.rmtree(leftover, ignore_errors=True)
    _verify(folder)
    return folder


def _build(folder: Path, build: Callable[[Path], dict[str, Any]]) -> None:
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.tmp-", dir=folder.parent))
    try:
        facts = build(temporary)
        _write_manifest(temporary, {"key": folder.name, **facts})
        temporary.chmod(0o755)  # mkdtemp's folders are private, a cache may be shared
        temporary.rename(folder)
        _sync(folder.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _write_manifest(folder: Path, facts: dict[str, Any]) -> None:
    """Put every file on disk, then the manifest with their checksums, then the folders."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in paths:
        _sync(path)
    sums = files.checksums(folder, [path.relative_to(folder).as_posix() for path in paths])
    files.write_json(folder / MANIFEST, {**facts, "files": sums})
    for path in (folder / MANIFEST, *(path for path in folder.rglob("*") if path.is_dir()), folder):
        _sync(path)


def _verify(folder: Path) -> None:
    """Raise InvalidInput, naming the first problem, unless every file is as it was written."""
    try:
        problem = files.damage(folder, files.read_json(folder / MANIFEST).get("files"))
    except InvalidInput as error:
        problem = str(error)
    if problem:
        raise InvalidInput(
            f"{folder}, made at first use, is damaged: {problem}; delete that folder and run again"
        )


def _sync(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
