"""Trainings of toy drafters: what decides their result, and the command."""

import dataclasses
import json
import sys

import pytest
import torch

from experiments.grid import cells_of
from recipes import train_eagle
from resispec.decode import Decoder, Sampling
from resispec.drafters import Eagle
from resispec.embedded import eagle_fingerprint
from resispec.errors import InvalidInput
from resispec.models import load_eagle_pair
from resispec.trees import chain
from resispec.verifiers import get_verifier
from tests.models.toy_eagle import DISTILLED, EAGLE, EAGLE3, training
from tests.toys import save_tiny_pair

LONGER = {"steps": 40, "warmup_steps": 5}
DEEP = dataclasses.replace(EAGLE3, depth=3, **LONGER)
LAST = [start % 5 for start in range(30)]  # from where sequences are learnt


@pytest.mark.parametrize(
    ("recipe", "learnt_from", "losses"),
    [
        (
            dataclasses.replace(EAGLE, steps=60, warmup_steps=5),
            None,
            (1, 0.6461, 4.3102, 0.3481, 4.1080),
        ),
        (DEEP, None, (2, 3.5471, 3.5733, 3.0596, 3.0748)),
        (dataclasses.replace(DISTILLED, **LONGER), LAST, (2, 1.1450, 0.3401, 1.0956, 0.3533)),
    ],
)
def test_a_recipe_s_losses_change_with_its_version_and_the_target_stays(
    recipe, learnt_from, losses
):
    """A change of these losses changes what is trained and needs a new version of the recipe."""
    under_way, random_state = training(recipe, learnt_from=learnt_from), torch.get_rng_state()
    before = {name: weight.clone() for name, weight in under_way._target.state_dict().items()}
    history = [under_way.step() for _ in range(13)]
    assert (recipe.version, *history[0], *history[-1]) == pytest.approx(losses, abs=2e-3)
    assert all(
        torch.equal(weight, before[name]) for name, weight in under_way._target.state_dict().items()
    )
    embeddings = getattr(under_way.module, "model", under_way.module).embed_tokens.weight
    assert torch.equal(embeddings, before["model.embed_tokens.weight"])
    assert torch.equal(torch.get_rng_state(), random_state)


def test_the_last_steps_of_a_distillation_raise_the_overlap_itself():
    """Of 4 steps the last 2; what is measured stays the same."""
    under_way = training(dataclasses.replace(DISTILLED, overlap_steps=2))
    for number in range(4):
        loss, (cross_entropy, overlap) = under_way._losses([0, 1, 2])
        assert loss == (1 - overlap if number >= 2 else cross_entropy)
        under_way.step()
    before = under_way._losses([0, 1, 2])[1][1]
    for _ in range(10):
        under_way.step()
    assert under_way._losses([0, 1, 2])[1][1] > before


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Trains a toy drafter by the command, and returns its exit code."""
    save_tiny_pair(tmp_path, layers=3)
    lines = [json.dumps({"text": "abc def gh " * 4 + "abcdefgh"[index % 8]}) for index in range(8)]
    (tmp_path / "text.jsonl").write_text("\n".join(lines) + "\n")
    toy = [
        f"output={tmp_path}/drafter", "documents=8", "document_tokens=24", "recipe.steps=3",
        "recipe.warmup_steps=1", "pair=llama2_7b_chat__eagle", f"pair.target={tmp_path}/target",
        "dataset=jsonl", f"dataset.path={tmp_path}/text.jsonl", "device=cpu", "num_threads=1",
    ]  # fmt: skip

    def train(*overrides):
        monkeypatch.setattr(sys, "argv", ["train_eagle", *toy, *overrides])
        return train_eagle.run_single(train_eagle.run_training, "train_eagle", ())

    return train


@pytest.mark.parametrize(
    ("recipe", "num_draftable"),
    [([], 64), (["recipe=eagle3", "recipe.num_draftable=40", "recipe.depth=2"], 40)],
)
def test_the_command_trains_a_drafter_that_loads(command, tmp_path, recipe, num_draftable):
    assert command(*recipe, "prompt_template='gh {text} abc'") == 0
    pair = load_eagle_pair(str(tmp_path / "target"), str(tmp_path / "drafter"))
    assert pair.draft.num_draftable == num_draftable and bool(pair.draft.taps) == bool(recipe)
    result = Decoder(Eagle(chain(2)), get_verifier("standard")).generate(
        pair, [1, 2, 3], Sampling(1.0, 9, 64), torch.Generator().manual_seed(0)
    )
    assert len(result.tokens) == 9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("document_tokens=500", "document_tokens is 500; the target has 256 positions"),
        ("first_prompt=1", "9 prompts were asked for"),
    ],
)
def test_a_drafter_that_cannot_be_trained_is_refused_in_one_line(
    command, tmp_path, capsys, change, message
):
    assert command("prompt_template=null", change) == 1 and not (tmp_path / "drafter").exists()
    line = capsys.readouterr().err
    assert line.startswith(f"error: {message}") and line.count("\n") == 1


def test_an_embedded_pair_is_named_by_its_drafter():
    for name, size in (("embedded_eagle", None), ("embedded_eagle3", 1024)):
        [cell] = cells_of([f"pair={name}"])
        assert cell.config["pair"]["fingerprint"] == eagle_fingerprint("2m", size)
    with pytest.raises(InvalidInput, match="unknown embedded EAGLE drafter 2m .*=2048.; allowed"):
        cells_of(["pair=embedded_eagle3", "pair.num_draftable=2048"])
