"""The models and texts that come with the package: folders with a manifest, which has a key."""

from functools import cache
from pathlib import Path

from resispec import files, kept

ROOT = Path(__file__).parent / "files"


@cache
def key(name: str) -> str:
    """The key of the recipe that made a folder, see `resispec.kept.make_key`; names cells."""
    return str(files.read_sealed(ROOT / name / kept.MANIFEST)["key"])


@cache  # a process reads the files once to compare them with their checksums
def folder(name: str) -> Path:
    """A folder of the package; otherwise as `resispec.kept.whole`."""
    return kept.whole(ROOT / name, "resispec")
