"""A drafter as it comes with the repository: what was trained, in rows of eight bits.

Embeddings are the target's, and so are the rows of a distilled draft's head for tokens that are not
drafted. A draft that is rounded is another draft; exact verification is exact with any.
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
from recipes.training.recipe import DistillationRecipe, Eagle3Recipe
from resispec import kept
from resispec.files import read_sealed
from resispec.models import load_pair
from resispec.models.grid import Grid, rounded

ROWS, CONFIG, WEIGHTS = "rows.safetensors", "config.json", "model.safetensors"
SCALES = ".scales"
HEAD, EMBEDDINGS = "lm_head.weight", "embed_tokens.weight"
KINDS = {
    Eagle3Recipe: "An EAGLE-3 drafter of SmolLM2-135M-Instruct, trained on its laws,",
    DistillationRecipe: "A draft of SmolLM2-135M-Instruct: layers of the target, trained on its "
    "laws,",
}
"""What a drafter is, by the kind of its training."""
PARAGRAPHS = (
    "{what} in rows of eight bits with a scale each; norms are float32. It needs the target, whose "
    "embeddings it shares.",
    "Made for resispec by `python -m recipes smollm2 {name} --publish` at commit {commit}, in "
    "{seconds:g} seconds on two cores, with {recipe}. Answers: {answers}.",
    "It learnt from the target's own answers to questions about the language reference and the "
    "standard library of Python (PSF-2.0), numpy and pandas (BSD-3-Clause). SmolLM2 is Apache-2.0.",
)
"""The model card below its title."""


def publish(name: str) -> None:
    """Replace a drafter's rows in the repository by its recipe's, trained if the cache lacks it."""
    recipe, folder = PUBLISHED[name], ROOT / name
    source = recipe.folder()
    weights = load_file(source / WEIGHTS)
    trained = {key: value for key, value in weights.items() if not key.endswith(EMBEDDINGS)}
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if _is_eagle(name):
        shutil.copyfile(source / CONFIG, folder / CONFIG)
    else:
        ids = read_token_ids(source)
        trained |= {HEAD: trained[HEAD][ids], "token_ids": ids}
    save_file(packed(trained), folder / ROWS)
    facts = {**read_sealed(source / kept.MANIFEST), "answers": cards.settings(recipe.answers)}
    cards.write(folder, recipe, facts, PARAGRAPHS, name=name, what=KINDS[type(recipe.training)])


def make_draft(recipe: CommittedRecipe, folder: Path) -> dict[str, Any]:
    """Write the folder of a drafter that comes with the repository; returns facts for the manifest.

    Raises InvalidInput when the committed rows are damaged.
    """
    source = kept.whole(ROOT / recipe.name, "the repository")
    tensors = unpacked(load_file(source / ROWS))
    if _is_eagle(recipe.name):
        shutil.copyfile(source / CONFIG, folder / CONFIG)
        save_file(tensors, folder / WEIGHTS)
        return {"draftable": len(tensors[HEAD])}
    pair: Any = load_pair(str(recipe.target.folder()), None)
    target = pair.target.module
    training: Any = PUBLISHED[recipe.name].training
    draft = draft_of(target, training.layers, tensors["token_ids"])
    embeddings = {"model.embed_tokens.weight": draft.model.embed_tokens.weight}
    draft.load_state_dict({**tensors, **embeddings})
    save_draft(draft, target, pair.tokenizer, folder)
    return {"draftable": len(tensors["token_ids"])}


def _is_eagle(name: str) -> bool:
    """Whether a drafter is an EAGLE-3 one, which transformers does not read."""
    return isinstance(PUBLISHED[name].training, Eagle3Recipe)


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
