"""A drafter of EAGLE or EAGLE-3 for an embedded target, trained on the same text at first use and cached."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from resispec.embedded.recipe import ModelRecipe
from resispec.embedded.text import read_streams
from resispec.embedded.train import read_module
from resispec.models import save_eagle
from resispec.training import new_training
from resispec.training.base import Sequences
from resispec.training.recipe import Eagle3Recipe, EagleRecipe


def train_drafter(
    recipe: EagleRecipe | Eagle3Recipe, target_recipe: ModelRecipe, text: Path, target: Path, folder: Path
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
        training = new_training(module, sequences, recipe)
        history = list(training.updates(recipe.steps, "embedded"))
    finally:
        torch.set_num_threads(threads)
    save_eagle(training.module, folder)
    last = torch.tensor(history[-max(1, recipe.steps // 10) :]).mean(0).tolist()
    losses = {name: round(loss, 4) for name, loss in zip(training.measured, last, strict=True)}
    return {"seconds": round(time.perf_counter() - started, 1), **losses}


def _sequences(recipe: ModelRecipe, text: Path) -> Sequences:
    """The training text in windows of the same length.

    Every data set is drawn as often as in the training of the target.
    """
    windows: list[list[int]] = []
    weights: list[float] = []
    for tokens, share in zip(read_streams(text), recipe.mixture, strict=True):
        stream = tokens.tolist()
        found = [stream[start : start + recipe.window] for start in range(0, len(stream) - 2, recipe.window)]
        windows += found
        weights += [share / max(1, len(found))] * len(found)
    return Sequences(windows, torch.tensor(weights))
