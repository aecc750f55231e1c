"""An EAGLE drafter for the embedded target, trained on the same text at first use and cached."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from resispec.embedded.corpus import NAMES, build_corpus, read_sources
from resispec.embedded.recipe import Recipe
from resispec.embedded.train import EOS_ID
from resispec.models import Tokenizer, load_pair, save_eagle
from resispec.training.eagle import EagleTraining, Sequences, new_drafter
from resispec.training.recipe import EagleRecipe


def train_drafter(
    recipe: EagleRecipe, pair_recipe: Recipe, pair_folder: Path, folder: Path
) -> dict[str, Any]:
    """Write the drafter into `folder`; return facts of the training. Shows one progress bar."""
    started = time.perf_counter()
    pair: Any = load_pair(str(pair_folder / "target"), None)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sums, and so the result, must not depend on the number of cores
    try:
        sequences = _sequences(pair_recipe, pair.tokenizer)
        target = pair.target.module
        training = EagleTraining(target, new_drafter(target, recipe.seed), sequences, recipe)
        history = _fit(training, recipe.steps)
    finally:
        torch.set_num_threads(threads)
    save_eagle(training.module, folder)
    last = torch.tensor(history[-max(1, recipe.steps // 10) :]).mean(0).tolist()
    seconds = round(time.perf_counter() - started, 1)
    return {"seconds": seconds, "feature_loss": round(last[0], 4), "law_loss_nats": round(last[1], 4)}


def _fit(training: EagleTraining, steps: int) -> list[tuple[float, float]]:
    """The losses of every step: of the features, and of the laws in nats per token."""
    history = []
    bar = tqdm(range(steps), desc="embedded EAGLE drafter", unit="step", dynamic_ncols=True)
    for _ in bar:
        history.append(training.step())
        bar.set_postfix(feature=f"{history[-1][0]:.3f}", law=f"{history[-1][1]:.2f}", refresh=False)
    return history


def _sequences(recipe: Recipe, tokenizer: Tokenizer) -> Sequences:
    """The pair's training text in windows of the same length.

    Every data set is drawn as often as in the training of the pair.
    """
    corpus = build_corpus(read_sources(), recipe.max_chars, recipe.max_files)
    windows: list[list[int]] = []
    weights: list[float] = []
    for name, share in zip(NAMES, recipe.mixture, strict=True):
        texts = (tokenizer.encode(document.text) for document in corpus[name].training)
        stream = [token for tokens in texts for token in (*tokens, EOS_ID)]
        found = [stream[start : start + recipe.window] for start in range(0, len(stream) - 2, recipe.window)]
        windows += found
        weights += [share / max(1, len(found))] * len(found)
    return Sequences(windows, torch.tensor(weights))
