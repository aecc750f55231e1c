"""Training of SmolLM2's drafters on its answers: a distilled draft, and an EAGLE-3 drafter."""

from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from recipes.smollm2.answers import read_answers
from recipes.smollm2.recipe import LearntRecipe
from recipes.training.drafters import new_training
from resispec.kept import CHECKPOINT
from resispec.models import Eagle3Module, load_pair, save_eagle

TOKEN_IDS = "token_ids.safetensors"


def train_drafter(recipe: LearntRecipe, folder: Path) -> dict[str, Any]:
    """Train the drafter in `folder`, from a checkpoint there if any; return facts for the manifest.

    It learns the laws of the target in the precision that wrote the answers.
    """
    sequences = read_answers(recipe.answers.folder())
    pair = load_pair(str(recipe.answers.target.folder()), None, dtype=recipe.answers.dtype)
    target: Any = pair.target
    training = new_training(target.module, sequences, recipe.training)
    is_eagle = isinstance(training.module, Eagle3Module)
    training.run(
        f"SmolLM2's {'EAGLE-3 drafter' if is_eagle else 'distilled draft'}", folder / CHECKPOINT
    )
    if is_eagle:
        save_eagle(training.module, folder)
    else:
        save_draft(training.module, target.module, pair.tokenizer, folder)
    return training.last_losses()


def save_draft(draft: Any, target: Any, tokenizer: Any, folder: Path) -> None:
    """Write a distilled draft as a folder that transformers reads, with the ids of drafted tokens.

    The rows of the head that the draft lacks are the target's.
    """
    ids, weight = draft.token_ids, draft.lm_head.weight.detach()
    rows = target.get_output_embeddings().weight.detach().float().index_copy(0, ids, weight)
    draft.lm_head.weight = nn.Parameter(rows)
    del draft.token_ids
    draft.save_pretrained(folder)
    tokenizer.inner.save_pretrained(folder)
    save_file({"token_ids": ids}, folder / TOKEN_IDS)


def read_token_ids(folder: Path) -> Tensor:
    """The ids (D,) int64 of the tokens that a distilled draft drafts."""
    return load_file(folder / TOKEN_IDS)["token_ids"]
