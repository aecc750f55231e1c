"""What the command that trains drafters checks before it loads a model."""

import dataclasses

import pytest
from omegaconf import OmegaConf
from toys import save_tiny_pair

from experiments.configuration.schema import CONF
from experiments.train_eagle import checked
from resispec import embedded
from resispec.errors import InvalidInput
from resispec.training.recipe import Eagle3Recipe, EagleRecipe


def config(**changed):
    composed = OmegaConf.to_container(OmegaConf.load(CONF / "train_eagle.yaml"))
    own = {name: composed[name] for name in ("documents", "document_tokens", "save_every")}
    run = {
        "temperature": 1.0, "sampling": {"max_new_tokens": 8, "max_length": 16}, "prompt_tokens": 8,
        "first_prompt": 0, "num_prompts": 1, "first_tuning_prompt": 0, "warmup_prompts": 0,
        "seed": 0, "num_threads": None, "jobs": 1, "wandb": {"mode": "disabled", "project": "resispec"},
        "compiled": False, "device": "cpu", "dtype": "float32", "prompt_template": None,
    }  # fmt: skip
    nodes = {"output": "drafter", "pair": {"target": "t", "draft": "d"}, "dataset": {"_target_": "data"}}
    return run | own | nodes | {"recipe": recipe("eagle")} | changed


def recipe(name, **changed):
    return OmegaConf.to_container(OmegaConf.load(CONF / "recipe" / f"{name}.yaml")) | changed


def test_a_target_is_taken_from_an_embedded_pair_without_its_draft(tmp_path, monkeypatch):
    save_tiny_pair(tmp_path)
    monkeypatch.setattr(embedded, "ensure_model", lambda _, name: tmp_path / name.split()[0])
    node = {"target": "2m", "draft": "80k", "fingerprint": embedded.pair_fingerprint("2m", "80k")}
    given = config(pair=dict(node))
    checked(given)
    pair = embedded.load_pair(**given["pair"])
    assert pair.draft is None and pair.target.vocab_size == 64
    assert embedded.load_pair(**node).draft is not None
    with pytest.raises(InvalidInput, match="were asked for; this installation makes"):
        embedded.load_pair(**(node | {"draft": None}))


@pytest.mark.parametrize(("name", "kind"), [("eagle", EagleRecipe), ("eagle3", Eagle3Recipe)])
def test_the_file_has_the_recipes_defaults(name, kind):
    assert checked(config(recipe=recipe(name))) == kind()
    assert set(recipe(name)) - {"_target_"} == {field.name for field in dataclasses.fields(kind)}


def test_the_draft_is_not_loaded():
    given = config()
    checked(given)
    assert given["pair"] == {"target": "t", "draft": None}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"output": "???"}, "output must be given"),
        ({"dataset": {"path": "???"}}, "dataset.path must be given"),
        ({"pair": {}}, "pair must be given"),
        ({"documents": 0}, "documents is 0; allowed: from 1"),
        ({"document_tokens": 2}, "document_tokens is 2; allowed: from 3"),
        ({"save_every": -5}, "save_every is -5; allowed: from 1"),
        ({"recipe": recipe("eagle", steps="many")}, "recipe.steps: .* found 'many'"),
        ({"recipe": recipe("eagle3", steps=1.5)}, "recipe.steps: .* found 1.5"),
        ({"recipe": recipe("eagle", learning_rate=-1.0)}, "learning_rate is positive"),
        ({"recipe": None}, "recipe is a None; allowed: .*EagleRecipe, .*Eagle3Recipe"),
        ({"recipe": {"_target_": "os.system"}}, "recipe is a os.system; allowed: "),
        ({"device": "abacus"}, "device is 'abacus'"),
    ],
)
def test_wrong_values_are_refused_in_one_line(changed, message):
    with pytest.raises(InvalidInput, match=message) as refused:
        checked(config(**changed))
    assert "\n" not in str(refused.value)
