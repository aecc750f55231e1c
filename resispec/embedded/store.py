"""The cache of trained models: a folder under the cache root is either complete or absent.

A folder is built under a temporary name beside its final one and renamed when it is complete, so that killing
the process at any moment leaves nothing that could be taken for a result: the next one goes on from the
checkpoint there. A lock that dies with its process makes a second process wait for the first instead of
training the same thing again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import platform
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from resispec import files
from resispec.errors import InvalidInput, first_line
from resispec.training import CHECKPOINT

MANIFEST = "manifest.json"

_LIBRARIES = ("torch", "transformers", "tokenizers")
_log = logging.getLogger(__name__)


def make_key(recipe: object, sources: Mapping[str, bytes]) -> str:
    """16 hexadecimal digits that change with the recipe, its version included, the sources and the libraries.

    recipe: dataclasses, whose repr counts. sources: the content that the recipe is applied to, by name.
    """
    digest = hashlib.sha256(json.dumps([repr(recipe), _versions()]).encode())
    for name, content in sorted(sources.items()):
        digest.update(f"\n{name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


@cache
def _versions() -> dict[str, str]:
    return {"python": platform.python_version()} | {name: version(name) for name in _LIBRARIES}


def ensure_folder(root: Path | None, key: str, build: Callable[[Path], dict[str, Any]]) -> Path:
    """The complete folder `root/key`, built first if it is absent.

    root: `files.cache_root()` when None. build: fills a folder, empty but for the `CHECKPOINT` of a training
    that was stopped, and returns facts for the manifest.
    Raises InvalidInput when the folder is there but damaged, or when the root cannot be written.
    """
    root = root or files.cache_root()
    folder, lock = root / key, root / f".{key}.lock"
    if not folder.exists():
        try:
            root.mkdir(parents=True, exist_ok=True)
            lock.touch()
        except OSError as error:
            raise InvalidInput(
                f"cache folder {root} cannot be written ({first_line(error)}); set RESISPEC_CACHE to one "
                "that can"
            ) from error
        waits = f"another process is making {folder}; waiting for it"
        with files.locked(lock, on_wait=lambda: _log.warning(waits)):
            if not folder.exists():  # else another process has just built it
                _build(folder, build)
    try:
        problem = files.damage(folder, files.read_json(folder / MANIFEST).get("files"))
    except InvalidInput as error:
        problem = str(error)
    if problem:
        raise InvalidInput(
            f"{folder}, made at first use, is damaged: {problem}; delete that folder and run again"
        )
    return folder


def _build(folder: Path, build: Callable[[Path], dict[str, Any]]) -> None:
    """Fill a folder beside the final one; of a try that was stopped only the checkpoint is kept."""
    import torch  # takes seconds, and naming a folder does not need it

    partial = folder.with_name(f".{folder.name}.partial")
    partial.mkdir(exist_ok=True)
    for path in list(partial.rglob("*")):
        if path.is_file() and path.name != CHECKPOINT:
            path.unlink()
    with torch.inference_mode(False):  # an audit may be what first asks for a model
        facts = build(partial)
    (partial / CHECKPOINT).unlink(missing_ok=True)
    names = sorted(path.relative_to(partial).as_posix() for path in partial.rglob("*") if path.is_file())
    manifest = {"key": folder.name, **facts, "files": files.checksums(partial, names)}
    files.write_json(partial / MANIFEST, manifest)
    partial.rename(folder)
