"""The models and texts that come with the package: folders with a manifest, which has a key."""

from functools import cache
from pathlib import Path

from resispec import files, kept
from resispec.errors import InvalidInput

ROOT = Path(__file__).parent / "files"


@cache
def key(name: str) -> str:
    """The key of the recipe that made a folder, see `resispec.kept.make_key`; names cells."""
    return str(files.read_sealed(ROOT / name / kept.MANIFEST)["key"])


@cache  # a process reads the files once to compare them with their checksums
def folder(name: str) -> Path:
    """A folder whose files are as they were published.

    Raises InvalidInput, which says what is damaged and what to do.
    """
    if problem := kept.damage(ROOT / name):
        reason = f"{ROOT / name}, a part of resispec, is damaged: {problem}"
        raise InvalidInput(f"{reason}; install it again, or restore it by git")
    return ROOT / name
