"""Trainings of tiny embedded models: what they learn, and that a stopped one goes on."""

import dataclasses

import pytest
import torch

from recipes.embedded import text, train
from recipes.embedded.corpus import build_corpus, read_sources
from recipes.embedded.recipe import TEXT_RECIPE
from recipes.training import checkpoints
from resispec.embedded import NAMES
from tests.models.toy_recipes import DRAFT, TARGET


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


def trained(recipe, checkpoint, teacher=None):
    """The training of a model on text of seven tokens in turn, done."""
    streams = [torch.arange(600) % 7 for _ in NAMES]
    training = train.ModelTraining(train.build_model(recipe, 300), teacher, streams, recipe)
    with train.one_thread_each():
        training.run("toy", checkpoint)
    return training


def test_the_results_of_a_recipe_change_with_its_version(tmp_path):
    """A change of these losses changes what is trained and needs a new version of the recipe."""
    target = trained(dataclasses.replace(TARGET, steps=8), tmp_path / "target.pt")
    draft = trained(dataclasses.replace(DRAFT, steps=20), tmp_path / "draft.pt", target.module)
    losses = [history[place][0] for history in (target.history, draft.history) for place in (0, -1)]
    assert (TARGET.version, *losses) == pytest.approx((1, 5.712, 4.189, 5.739, 4.122), abs=2e-3)


def test_a_stopped_training_of_a_model_ends_as_one_that_was_not(tmp_path, monkeypatch):
    """Its random windows go on, too; trainings of drafters are in test_eagle_training.py."""
    step = checkpoints.Training.step

    def stopped(under_way):
        if under_way.done == 2:
            raise KeyboardInterrupt
        return step(under_way)

    whole = trained(TARGET, tmp_path / "whole.pt")
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "_SAVE_EVERY_S", 0.0)
        patch.setattr(checkpoints, "_SAVING_SHARE", 1e9)
        patch.setattr(checkpoints.Training, "step", stopped)
        with pytest.raises(KeyboardInterrupt):
            trained(TARGET, tmp_path / "stopped.pt")
    again = trained(TARGET, tmp_path / "stopped.pt")
    assert again.history == whole.history and len(whole.history) == TARGET.steps
    for one, other in zip(again.module.parameters(), whole.module.parameters(), strict=True):
        assert torch.equal(one, other)
