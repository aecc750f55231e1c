"""Write a part of the embedded models into the package, with a model card."""

import shutil
from dataclasses import fields
from textwrap import fill
from typing import Any

import torch

from experiments.provenance import provenance
from recipes.embedded.text import STREAMS
from resispec import files
from resispec.embedded import committed
from resispec.kept import MANIFEST, Kept

PARAGRAPHS = (
    "{what} Made for resispec by `python -m recipes embedded --publish` at commit {commit}, in "
    "{seconds:g} seconds on two cores, with {recipe}.",
    "Its key, {key}, is a hash of this recipe, of the text, and of the versions of Python, torch, "
    "transformers and tokenizers that made it; it names measured cells.",
    "Text: the language reference and the standard library of Python (PSF-2.0), docstrings of "
    "numpy (BSD-3-Clause) and pandas (BSD-3-Clause). What so small a model measures says nothing "
    "about large ones.",
)
"""The model card below its title."""
KINDS = {
    "texts": "A tokenizer, and documents that nothing was trained on: one JSON object per line.",
    "target": "A language model, float32.",
    "draft": "A draft model, float32, trained on the laws of the target in its name.",
    "eagle": "An EAGLE drafter of the target in its name, float32.",
    "eagle3": "An EAGLE-3 drafter of the target in its name, float32.",
}
"""What a part is, by the first word of its name."""


def write(name: str, recipe: Kept) -> None:
    """Replace a part in the package by what the cache has of its recipe.

    The training text is left out: it is made again when something is trained.
    """
    source, folder = recipe.folder(), committed.ROOT / name
    facts = files.read_sealed(source / MANIFEST)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    names = [one for one in facts["files"] if one != STREAMS]
    for one in names:
        shutil.copyfile(source / one, folder / one)
    told = {key: value for key, value in facts.items() if key not in ("files", "sha256")}
    manifest = {**told, "files": files.checksums(folder, names)}
    files.write_json(folder / MANIFEST, files.sealed(manifest))
    what = KINDS[name.partition("_")[0]]
    commit = provenance(torch.device("cpu"))["git_commit"][:10]
    words = {"what": what, "recipe": _settings(recipe), "commit": commit, **told}
    card = [f"# {name}", *(fill(text.format(**words), 100) for text in PARAGRAPHS)]
    (folder / "README.md").write_text("\n\n".join(card) + "\n", encoding="utf-8")


def _settings(recipe: Any) -> str:
    """The plain fields of a recipe and of the training in it, in words."""
    told = []
    for field in fields(recipe):
        value = getattr(recipe, field.name)
        if field.name == "training":
            told.append(_settings(value))
        elif not isinstance(value, Kept) and value is not None:
            told.append(f"{field.name} = {value}")
    return ", ".join(told)
