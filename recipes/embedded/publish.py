"""Write a part of the embedded models into the package, with a model card."""

import shutil

from recipes import cards
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
    for one in facts["files"]:
        if one != STREAMS:
            shutil.copyfile(source / one, folder / one)
    cards.write(folder, recipe, facts, PARAGRAPHS, what=KINDS[name.partition("_")[0]])
