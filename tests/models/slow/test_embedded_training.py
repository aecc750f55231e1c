"""Trainings of tiny embedded models: their bytes, what they learn, and that a killed one goes on."""

import dataclasses
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from test_embedded import DRAFT, TARGET

from resispec.embedded import NAMES, text, train
from resispec.embedded.corpus import build_corpus, read_sources
from resispec.embedded.recipe import TEXT_RECIPE, DrafterRecipe
from resispec.training import checkpoints
from resispec.training.recipe import EagleRecipe

DRAFTER = DrafterRecipe(TARGET, EagleRecipe(steps=4, batch_size=2, learning_rate=1e-3, warmup_steps=1))


def test_a_training_leaves_the_callers_state_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("RESISPEC_CACHE", str(tmp_path))
    random_state, threads = torch.get_rng_state(), torch.get_num_threads()
    with torch.inference_mode():  # as in an audit that is the first to ask for a pair
        DRAFT.folder()
    assert torch.equal(torch.get_rng_state(), random_state) and torch.get_num_threads() == threads


def test_every_real_data_set_has_200_prompts():
    splits = build_corpus(read_sources(), max_chars=200_000)
    tokenizer = text.train_tokenizer(splits, TEXT_RECIPE.vocab_size)
    # Less text makes a slightly worse tokenizer, hence longer prompts: ask for more tokens.
    recipe = dataclasses.replace(TEXT_RECIPE, min_prompt_tokens=105)
    for name in NAMES:
        chosen = text.choose_prompts(name, splits[name].held_out, tokenizer, recipe)
        assert 200 <= len(chosen) <= recipe.num_prompts


def trained(recipe, teacher=None):
    """The training of a model on text of seven tokens in turn, done."""
    streams = [torch.arange(600) % 7 for _ in NAMES]
    training = train.ModelTraining(train.build_model(recipe, 300), teacher, streams, recipe)
    with train.one_thread_each():
        while training.done < recipe.steps:
            training.step()
    return training


def test_the_results_of_a_recipe_change_with_its_version():
    """Whatever changes these losses changes what is trained, and takes a new version of the recipe."""
    target = trained(dataclasses.replace(TARGET, steps=8))
    draft = trained(dataclasses.replace(DRAFT, steps=20), target.module)
    losses = [history[place][0] for history in (target.history, draft.history) for place in (0, -1)]
    assert (TARGET.version, *losses) == pytest.approx((1, 5.712, 4.189, 5.739, 4.122), abs=2e-3)


DIES_AT_THE_THIRD_STEP = """
import os, signal, sys
sys.path[:0] = ["tests/models", "tests/models/slow"]
from test_embedded_training import DRAFTER
from resispec.training import checkpoints

def step(training, going_on=checkpoints.Training.step):
    if type(training).__name__ == sys.argv[1] and training.done == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return going_on(training)

checkpoints._SAVE_EVERY_S, checkpoints._SAVING_SHARE = 0.0, 1e9
checkpoints.Training.step = step
DRAFTER.folder()
"""


def test_killed_trainings_go_on_and_end_with_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setenv("RESISPEC_CACHE", str(tmp_path / "whole"))
    whole = [recipe.folder() for recipe in (TARGET, DRAFTER)]
    cache = tmp_path / "stopped"
    monkeypatch.setenv("RESISPEC_CACHE", str(cache))
    for killed in ("ModelTraining", "EagleTraining"):
        child = subprocess.run(
            [sys.executable, "-c", DIES_AT_THE_THIRD_STEP, killed],
            cwd=Path(__file__).parents[3], capture_output=True, check=False,
        )  # fmt: skip
        assert child.returncode == -signal.SIGKILL, child.stderr
    numbers, step = [], checkpoints.Training.step
    monkeypatch.setattr(checkpoints.Training, "step", lambda it: numbers.append(it.done) or step(it))
    DRAFTER.folder()
    assert numbers == [2, 3]  # of the drafter's four; the second child has finished its target
    for folder in whole:
        resumed = cache / folder.name
        assert {path.name for path in folder.iterdir()} == {path.name for path in resumed.iterdir()}
        assert (folder / "model.safetensors").read_bytes() == (resumed / "model.safetensors").read_bytes()
    assert not list(cache.glob(".*.partial"))
