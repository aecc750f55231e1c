"""The cache of folders that are made at first use; a folder in the cache is complete or absent.

A folder is built under a temporary name beside its final one and renamed when it is complete. So
killing the process at any moment leaves nothing that could be taken for a result, and the next
process goes on from the checkpoint in the temporary folder. A lock that dies with its process makes
a second process wait for the first instead of training the same thing again.
"""

import hashlib
import json
import logging
import platform
import time
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar, TypeVar

from resispec import files
from resispec.errors import InvalidInput

Named = TypeVar("Named")

MANIFEST = "manifest.json"
CHECKPOINT = "checkpoint.pt"
"""The name of the file from which a stopped training goes on."""

_LIBRARIES = ("torch", "transformers", "tokenizers")
_log = logging.getLogger(__name__)


def make_key(recipe: object, sources: Mapping[str, bytes]) -> str:
    """16 hexadecimal digits that change with the recipe and its version, sources and libraries.

    recipe: dataclasses, whose repr enters the key. sources: content that the recipe is applied to,
    by name.
    """
    digest = hashlib.sha256(json.dumps([repr(recipe), _versions()]).encode())
    for name, content in sorted(sources.items()):
        digest.update(f"\n{name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


@cache
def _versions() -> dict[str, str]:
    return {"python": platform.python_version()} | {name: version(name) for name in _LIBRARIES}


def entry(kind: str, name: str, known: Mapping[str, Named]) -> Named:
    """The known entry of a name.

    Raises InvalidInput, listing the known names, for an unknown name.
    """
    if name not in known:
        raise InvalidInput(f"unknown {kind} {name!r}; allowed: {', '.join(known)}")
    return known[name]


def check_expected(kind: str, expected: str | None, made_here: str) -> None:
    """Raise InvalidInput when this installation makes something else than expected.

    kind: the kind of things, for the message. expected, made_here: fingerprints; expected None
    allows any.
    """
    if expected not in (None, made_here):
        raise InvalidInput(
            f"the {kind} {expected} were asked for; this installation makes {made_here}"
        )


def check(folder: Path) -> None:
    """Compare the files of a complete folder of the cache with their checksums.

    Raises InvalidInput, which says what is damaged and what to do.
    """
    if problem := damage(folder):
        reason = f"{folder}, made at first use, is damaged: {problem}"
        raise InvalidInput(f"{reason}; delete that folder and run again")


def damage(folder: Path) -> str | None:
    """The damage of a folder with a manifest, in words; None if it is as it was written."""
    try:
        return files.damage(folder, files.read_sealed(folder / MANIFEST).get("files"))
    except InvalidInput as error:
        return str(error)


def whole(folder: Path, owner: str) -> Path:
    """A committed folder, whose files are as they were published.

    owner: what the folder is a part of, for the message. Raises InvalidInput, which says what is
    damaged and what to do.
    """
    if problem := damage(folder):
        reason = f"{folder}, a part of {owner}, is damaged: {problem}"
        raise InvalidInput(f"{reason}; install it again, or restore it by git")
    return folder


def folders() -> list[Path]:
    """The complete folders that the cache holds, sorted by name."""
    return sorted(path for path in files.cache_root().glob("[0-9a-f]" * 16) if path.is_dir())


class Kept:
    """A recipe whose result is kept in the cache, in a folder named by the recipe's key.

    maker: the function that `make` calls, as module:function, since most of them import torch.
    sources: names of fields with the recipes whose keys enter this recipe's key; all fields enter
    it by their repr.
    """

    maker: ClassVar[str]
    sources: ClassVar[tuple[str, ...]] = ()

    def key(self) -> str:
        """The name of the folder, see `make_key`."""
        return make_key(self, {name: getattr(self, name).key().encode() for name in self.sources})

    def make(self, folder: Path) -> dict[str, Any]:
        """Fill a new folder and return facts for its manifest; the caller adds the seconds it took.

        folder: empty except for the `CHECKPOINT` of a training that was stopped. The recipes among
        this recipe's fields have already made their folders.
        """
        return resolve_name(self.maker)(self, folder)

    def folder(self) -> Path:
        """The complete folder, made first if it is absent.

        Raises InvalidInput when the folder is damaged or the cache cannot be written.
        """
        root = files.cache_root()
        folder, lock = root / self.key(), root / f".{self.key()}.lock"
        if not folder.exists():
            with files.in_cache(root):
                lock.touch()
            message = f"another process is making {folder}; waiting for it"
            with files.locked(lock, on_wait=lambda: _log.warning(message)):
                if not folder.exists():  # else another process has just built it
                    self._build(folder)
        check(folder)
        return folder

    def _build(self, folder: Path) -> None:
        """Fill a folder beside the final one, then rename it.

        Of a stopped try only the checkpoint is used.
        """
        import torch  # takes seconds, and naming a folder does not need it

        partial = folder.with_name(f".{folder.name}.partial")
        partial.mkdir(exist_ok=True)
        for path in list(partial.rglob("*")):
            if path.is_file() and path.name != CHECKPOINT:
                path.unlink()
        for recipe in vars(self).values():
            if isinstance(recipe, Kept):
                recipe.folder()
        start = time.perf_counter()
        with torch.inference_mode(False):  # an audit may be the first to ask for a model
            facts = self.make(partial)
        facts["seconds"] = round(time.perf_counter() - start, 1)
        (partial / CHECKPOINT).unlink(missing_ok=True)
        names = sorted(
            path.relative_to(partial).as_posix() for path in partial.rglob("*") if path.is_file()
        )
        manifest = {"key": folder.name, **facts, "files": files.checksums(partial, names)}
        files.write_json(partial / MANIFEST, files.sealed(manifest))
        partial.rename(folder)
