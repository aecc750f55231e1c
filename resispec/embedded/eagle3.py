"""An EAGLE-3 drafter for an embedded target, trained on the same text at first use and cached."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from resispec.embedded.eagle import _sequences
from resispec.embedded.recipe import ModelRecipe
from resispec.embedded.train import read_module
from resispec.models import save_eagle
from resispec.training.eagle3 import Eagle3Training, new_eagle3
from resispec.training.recipe import Eagle3Recipe


def train_drafter(
    recipe: Eagle3Recipe, target_recipe: ModelRecipe, text: Path, target: Path, folder: Path
) -> dict[str, Any]:
    """Write the drafter into `folder`; return facts of the training. Shows one progress bar.

    text, target: the folders of the target's text and of the target.
    """
    started = time.perf_counter()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sums, and so the result, must not depend on the number of cores
    try:
        module = read_module(target)
        sequences = _sequences(target_recipe, text)
        training = Eagle3Training(module, new_eagle3(module, sequences, recipe), sequences, recipe)
        history = _fit(training, recipe.steps)
    finally:
        torch.set_num_threads(threads)
    save_eagle(training.module, folder)
    last = torch.tensor(history[-max(1, recipe.steps // 10) :]).mean(0).tolist()
    seconds = round(time.perf_counter() - started, 1)
    return {"seconds": seconds, "first_loss_nats": round(last[0], 4), "last_loss_nats": round(last[1], 4)}


def _fit(training: Eagle3Training, steps: int) -> list[tuple[float, float]]:
    """The losses of every update: of the first and of the last step of training-time test, in nats."""
    history = []
    bar = tqdm(range(steps), desc="embedded EAGLE-3 drafter", unit="step", dynamic_ncols=True)
    for _ in bar:
        history.append(training.step())
        bar.set_postfix(first=f"{history[-1][0]:.2f}", last=f"{history[-1][1]:.2f}", refresh=False)
    return history
