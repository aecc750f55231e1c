"""A distilled draft as it comes with the repository: what was trained, in rows of eight bits.

Embeddings are the target's, and so are the rows of the head for tokens that are not drafted. A
draft that is rounded is another draft; exact verification is exact with any.
"""

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from recipes import cards
from recipes.smollm2.recipe import PUBLISHED, ROOT, CommittedRecipe
from recipes.smollm2.train import read_token_ids, save_draft
from recipes.training.drafters import draft_of
from resispec import kept
from resispec.files import read_sealed
from resispec.models import load_pair
from resispec.models.grid import Grid, rounded

ROWS = "rows.safetensors"
SCALES = ".scales"
PARAGRAPHS = (
    "A draft of SmolLM2-135M-Instruct: layers of the target, trained on its laws, in rows of eight "
    "bits with a scale each; norms are float32. It needs the target, whose embeddings it shares.",
    "Made for resispec by `python -m recipes smollm2 {name} --publish` at commit {commit}, in "
    "{seconds:g} seconds on two cores, with {recipe}. Answers: {answers}.",
    "It learnt from the target's own answers to questions about the language reference and the "
    "standard library of Python (PSF-2.0), numpy and pandas (BSD-3-Clause). SmolLM2 is Apache-2.0.",
)
"""The model card below its title."""


def publish(name: str) -> None:
    """Replace the rows of a drafter in the repository by what its recipe gives,
    which is trained first if the cache lacks it.
    """
    recipe, folder = PUBLISHED[name], ROOT / name
    source = recipe.folder()
    ids = read_token_ids(source)
    pair: Any = load_pair(str(source), None)
    tensors = pair.target.module.state_dict()
    trained = {key: value for key, value in tensors.items() if "embed_tokens" not in key}
    trained["lm_head.weight"] = trained["lm_head.weight"][ids]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    save_file(packed({**trained, "token_ids": ids}), folder / ROWS)
    facts = {**read_sealed(source / kept.MANIFEST), "answers": cards.settings(recipe.answers)}
    cards.write(folder, recipe, facts, PARAGRAPHS, name=name)


def make_draft(recipe: CommittedRecipe, folder: Path) -> dict[str, Any]:
    """Write the folder of a draft that comes with the repository; returns facts for the manifest.

    Raises InvalidInput when the committed rows are damaged.
    """
    tensors = unpacked(load_file(kept.whole(ROOT / recipe.name, "the repository") / ROWS))
    pair: Any = load_pair(str(recipe.target.folder()), None)
    target = pair.target.module
    draft = draft_of(target, PUBLISHED[recipe.name].training.layers, tensors["token_ids"])
    embeddings = {"model.embed_tokens.weight": draft.model.embed_tokens.weight}
    draft.load_state_dict({**tensors, **embeddings})
    save_draft(draft, target, pair.tokenizer, folder)
    return {"draftable": len(tensors["token_ids"])}


def packed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by name, each matrix of them as whole numbers and their scales."""
    written = {}
    for name, tensor in tensors.items():
        if tensor.ndim == 2:
            grid = rounded(tensor.float(), bits=8)
            written[name] = grid.numbers
            written[name + SCALES] = grid.scales
        else:
            written[name] = tensor.contiguous()
    return written


def unpacked(written: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors by name, matrices in float32, of what `packed` gave."""
    tensors = {}
    for name, tensor in written.items():
        if tensor.dtype == torch.int8:
            tensors[name] = Grid(8, tensor, written[name + SCALES]).dense().float()
        elif not name.endswith(SCALES):
            tensors[name] = tensor
    return tensors
