"""What comes with the repository: a folder with a manifest of its files, and a model card."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from textwrap import fill
from typing import Any

from resispec import files
from resispec.kept import MANIFEST, Kept
from resispec.machine import checkout


def write(
    folder: Path, recipe: Kept, facts: Mapping[str, Any], paragraphs: Sequence[str], **words: str
) -> None:
    """Write the manifest and the card of a folder that holds all other files of a part.

    facts: of the manifest in the cache; its checksums are replaced by those of the folder.
    paragraphs: the card below its title, with facts and words in braces; `recipe` is the recipe's
    settings, `commit` that of the code.
    """
    names = sorted(path.name for path in folder.iterdir())
    told = {key: value for key, value in facts.items() if key not in ("files", "sha256")}
    manifest = {**told, "recipe": settings(recipe), "files": files.checksums(folder, names)}
    files.write_json(folder / MANIFEST, files.sealed(manifest))
    commit = str(checkout()["git_commit"])[:10]
    known = {**words, "commit": commit, **manifest}
    card = [f"# {folder.name}", *(fill(text.format(**known), 100) for text in paragraphs)]
    (folder / "README.md").write_text("\n\n".join(card) + "\n", encoding="utf-8")


def settings(recipe: Any) -> str:
    """The plain fields of a recipe and of the training in it, in words."""
    told = []
    for field in fields(recipe):
        value = getattr(recipe, field.name)
        if field.name == "training":
            told.append(settings(value))
        elif not isinstance(value, Kept) and value is not None:
            told.append(f"{field.name} = {value}")
    return ", ".join(told)
