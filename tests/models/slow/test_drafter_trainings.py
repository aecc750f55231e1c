"""Trainings of toy drafters: what they learn, what decides their result, and the command."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from test_eagle_training import EAGLE, EAGLE3, training
from toys import save_tiny_pair

from experiments.grid import cells_of
from resispec.decode import Decoder, Sampling
from resispec.drafters import Eagle
from resispec.embedded.recipe import drafter_recipe
from resispec.models import load_eagle_pair
from resispec.training import CHECKPOINT
from resispec.trees import chain
from resispec.verifiers import get_verifier

LONGER = [
    dataclasses.replace(EAGLE, steps=60, warmup_steps=5),
    dataclasses.replace(EAGLE3, steps=40, warmup_steps=5, depth=3),
]


@pytest.mark.parametrize("recipe", LONGER, ids=["EAGLE", "EAGLE-3"])
def test_training_lowers_both_losses_and_leaves_the_rest_alone(recipe):
    under_way, random_state = training(recipe), torch.get_rng_state()
    before = {name: weight.clone() for name, weight in under_way._target.state_dict().items()}
    history = torch.tensor([under_way.step() for _ in range(recipe.steps)])
    assert (history[-5:].mean(0) < history[0] - 0.15).all()
    assert all(torch.equal(weight, before[name]) for name, weight in under_way._target.state_dict().items())
    embeddings = under_way._target.get_input_embeddings().weight
    assert torch.equal(under_way.module.embed_tokens.weight, embeddings)
    assert torch.equal(torch.get_rng_state(), random_state)


@pytest.mark.parametrize(
    ("recipe", "losses"),
    [(LONGER[0], (1, 0.6461, 4.3102, 0.4221, 4.1684)), (LONGER[1], (2, 3.5471, 3.5733, 3.0988, 3.1570))],
)
def test_the_results_of_a_recipe_change_with_its_version(recipe, losses):
    """Whatever changes these losses changes what is trained, and takes a new version of the recipe."""
    under_way = training(recipe)
    history = [under_way.step() for _ in range(8)]
    assert (recipe.version, *history[0], *history[-1]) == pytest.approx(losses, abs=2e-3)


@pytest.fixture
def command(tmp_path):
    """Trains a toy drafter by the command, in a process of its own."""
    save_tiny_pair(tmp_path, layers=3)
    lines = [json.dumps({"text": "abc def gh " * 4 + "abcdefgh"[index % 8]}) for index in range(8)]
    (tmp_path / "text.jsonl").write_text("\n".join(lines) + "\n")
    toy = [
        f"output={tmp_path}/drafter", "documents=8", "document_tokens=24", "recipe.steps=3",
        "recipe.warmup_steps=1", "pair=llama2_7b_chat__eagle", f"pair.target={tmp_path}/target",
        "dataset=jsonl", f"dataset.path={tmp_path}/text.jsonl", "device=cpu", "num_threads=1",
    ]  # fmt: skip
    return lambda *overrides: subprocess.run(
        [sys.executable, "-m", "experiments.train_eagle", *toy, *overrides],
        cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("recipe", "num_draftable"),
    [([], 64), (["recipe=eagle3", "recipe.num_draftable=40", "recipe.depth=2"], 40)],
)
def test_the_command_trains_a_drafter_that_loads(command, tmp_path, recipe, num_draftable):
    done = command(*recipe, "prompt_template='gh {text} abc'")
    assert done.returncode == 0 and "written:" in done.stdout, done.stderr
    pair = load_eagle_pair(str(tmp_path / "target"), str(tmp_path / "drafter"))
    assert pair.draft.num_draftable == num_draftable and bool(pair.draft.taps) == bool(recipe)
    result = Decoder(Eagle(chain(2)), get_verifier("standard")).generate(
        pair, [1, 2, 3], Sampling(1.0, 9, 64), torch.Generator().manual_seed(0)
    )
    assert len(result.tokens) == 9
    assert len(torch.load(tmp_path / "drafter" / CHECKPOINT, weights_only=True)["history"]) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("recipe=eagle3", "a drafter of 32000 tokens was asked for; its target has 64"),
        ("document_tokens=500", "document_tokens is 500; the target has 256 positions"),
        ("first_prompt=1", "9 prompts were asked for"),
    ],
)
def test_a_drafter_that_cannot_be_trained_is_refused_in_one_line(command, tmp_path, change, message):
    done = command("prompt_template=null", change)
    assert done.returncode == 1 and not (tmp_path / "drafter").exists()
    [line] = [line for line in done.stderr.splitlines() if line.strip()]
    assert line.startswith("error:") and message in line


def test_an_embedded_pair_is_named_by_its_drafter():
    for size in (1024, 2048):
        [cell] = cells_of(["pair=embedded_eagle3", f"pair.num_draftable={size}"])
        assert cell.config["pair"]["fingerprint"] == drafter_recipe("2m", size).key()
    assert len({drafter_recipe("2m", size).key() for size in (None, 1024, 2048)}) == 3
