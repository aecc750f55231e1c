"""Training an EAGLE drafter: the loss, resuming, and the command, on toy pairs."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from test_embedded import TARGET
from torch.nn import functional
from toys import save_tiny_pair, tiny_eagle, tiny_llama

from experiments import train_eagle
from resispec import embedded
from resispec.decode import Decoder, Sampling
from resispec.drafters import Eagle
from resispec.errors import InvalidInput
from resispec.models import Eagle3Model, load_eagle_pair
from resispec.training.base import Sequences
from resispec.training.eagle import EagleTraining, losses, new_drafter
from resispec.training.recipe import EagleRecipe
from resispec.trees import chain
from resispec.verifiers import get_verifier

RECIPE = EagleRecipe(steps=60, batch_size=4, learning_rate=2e-2, warmup_steps=5)
SEQUENCES = Sequences(
    [[start, *((start * 7 + 3 * step) % 64 for step in range(1, 14 + start % 3))] for start in range(30)]
)


def training(recipe=RECIPE, target=None):
    module = (target or tiny_llama()).module
    return EagleTraining(module, new_drafter(module, recipe.seed), SEQUENCES, recipe)


def test_the_loss_is_the_papers():
    """Row by row: feature t and token t + 1 in, feature t + 1 and the law of token t + 2 out; no padding."""
    module, head = tiny_eagle(), torch.randn(64, 32, generator=torch.Generator().manual_seed(0)) / 5
    generator = torch.Generator().manual_seed(1)
    tokens, lengths = torch.randint(64, (2, 6), generator=generator), (6, 4)
    true, noisy = (torch.randn(2, 6, 32, generator=generator) for _ in range(2))
    is_real = torch.arange(6) < torch.tensor(lengths)[:, None]
    regressions, laws = [], []
    for row, length in enumerate(lengths):
        predicted = module(
            tokens[row, 1:length][None], noisy[row, : length - 1][None], torch.arange(length - 1)[None]
        )[0]
        for place in range(length - 1):
            wanted = true[row, place + 1]
            regressions.append(functional.smooth_l1_loss(predicted[place], wanted))
            laws.append(
                -(torch.softmax(head @ wanted, 0) * torch.log_softmax(head @ predicted[place], 0)).sum()
            )
    found = losses(module, head, tokens, (true, noisy), is_real)
    assert torch.allclose(found[0], torch.stack(regressions).mean(), rtol=1e-4)
    assert torch.allclose(found[1], torch.stack(laws).mean(), rtol=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_training_lowers_both_losses_and_leaves_target_embeddings_and_random_state_alone(seed):
    target, random_state = tiny_llama(seed=seed), torch.get_rng_state()
    before = {name: weight.clone() for name, weight in target.module.state_dict().items()}
    under_way = training(target=target)
    history = [under_way.step() for _ in range(RECIPE.steps)]
    regression, law = torch.tensor(history[-5:]).mean(0).tolist()
    # an untrained target's entropy is 4.0 of 4.2 nats
    assert regression < 0.6 * history[0][0] and law < history[0][1] - 0.15
    assert all(torch.equal(weight, before[name]) for name, weight in target.module.state_dict().items())
    assert torch.equal(under_way.module.embed_tokens.weight, target.module.get_input_embeddings().weight)
    assert torch.equal(torch.get_rng_state(), random_state)


@pytest.mark.parametrize("seed", range(3))
def test_a_trained_drafter_is_accepted_more_often(seed):
    """The chance that one sampled candidate is accepted, sum of min(p, q), on held-out sequences."""
    target = tiny_llama(seed=seed)
    under_way = training(target=target)
    tokens = torch.tensor(
        [[start, *((start * 7 + 3 * step) % 64 for step in range(1, 12))] for start in range(30, 60)]
    )

    @torch.inference_mode()
    def acceptance(module):
        features = target.module.base_model(input_ids=tokens).last_hidden_state
        predicted = module(tokens[:, 1:], features[:, :-1], torch.arange(11)[None])
        p, q = (torch.softmax(target.head(rows) / 0.3, -1) for rows in (features[:, 1:], predicted))
        return float(torch.minimum(p, q).sum(-1).mean())

    untrained = acceptance(under_way.module)
    while under_way.done < RECIPE.steps:
        under_way.step()
    assert acceptance(under_way.module) > untrained + 0.1


def test_a_training_that_was_stopped_ends_as_one_that_was_not(tmp_path):
    whole = training()
    train_eagle.train(whole, RECIPE.steps, tmp_path / "whole", save_every=1000)
    stopped = training()
    train_eagle.train(stopped, 20, tmp_path / "stopped", save_every=10)
    again = training()
    assert again.done == 0
    train_eagle.train(again, RECIPE.steps, tmp_path / "stopped", save_every=7)
    assert again.done == RECIPE.steps
    weights = again.module.state_dict()
    assert all(torch.equal(weights[name], weight) for name, weight in whole.module.state_dict().items())
    assert (tmp_path / "whole" / "model.safetensors").read_bytes() == (
        tmp_path / "stopped" / "model.safetensors"
    ).read_bytes()
    before = (tmp_path / "whole" / "model.safetensors").read_bytes()
    train_eagle.train(training(), RECIPE.steps, tmp_path / "whole", save_every=1000)  # nothing is left to do
    assert (tmp_path / "whole" / "model.safetensors").read_bytes() == before
    other = training(dataclasses.replace(RECIPE, law_weight=1.0))
    with pytest.raises(InvalidInput, match="the checkpoint was made with .*'law_weight': 0.1"):
        train_eagle.train(other, RECIPE.steps, tmp_path / "whole", save_every=10)


@pytest.mark.parametrize("field", ["seed", "noise", "law_weight", "learning_rate"])
def test_the_result_depends_on_the_recipe(field):
    changed = dataclasses.replace(RECIPE, **{field: getattr(RECIPE, field) + 1})
    weights = []
    for recipe in (RECIPE, changed):
        under_way = training(recipe)
        under_way.step()
        under_way.step()
        weights.append(under_way.module.fc.weight)
    assert not torch.equal(*weights)


EAGLE3 = ["recipe=eagle3", "recipe.num_draftable=40", "recipe.depth=2"]


@pytest.fixture
def toy(tmp_path):
    """The overrides that train a toy drafter."""
    save_tiny_pair(tmp_path, layers=3)
    lines = [json.dumps({"text": "abc def gh " * 4 + "abcdefgh"[index % 8]}) for index in range(8)]
    (tmp_path / "text.jsonl").write_text("\n".join(lines) + "\n")
    return [
        f"output={tmp_path}/drafter", "documents=8", "document_tokens=24", "recipe.steps=3",
        "recipe.warmup_steps=1", "pair=llama2_7b_chat__eagle", f"pair.target={tmp_path}/target",
        "dataset=jsonl", f"dataset.path={tmp_path}/text.jsonl", "device=cpu", "num_threads=1",
    ]  # fmt: skip


def command(overrides):
    """Run the command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "experiments.train_eagle", *overrides],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(("recipe", "num_draftable"), [([], 64), (EAGLE3, 40)])
def test_the_command_trains_a_drafter_that_loads(toy, tmp_path, recipe, num_draftable):
    done = command([*toy, *recipe, "prompt_template='gh {text} abc'"])
    assert done.returncode == 0 and "written:" in done.stdout, done.stderr
    pair = load_eagle_pair(str(tmp_path / "target"), str(tmp_path / "drafter"))
    assert pair.num_draftable == num_draftable and isinstance(pair.draft, Eagle3Model) == bool(recipe)
    result = Decoder(Eagle(chain(2)), get_verifier("standard")).generate(
        pair, [1, 2, 3], Sampling(1.0, 9, 64), torch.Generator().manual_seed(0)
    )
    assert len(result.tokens) == 9
    assert torch.load(tmp_path / "drafter" / "checkpoint.pt", weights_only=True)["done"] == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("recipe.steps=0", "steps and batch_size are at least 1"),
        ("recipe=eagle3", "a drafter of 32000 tokens was asked for; its target has 64"),
        ("document_tokens=2", "document_tokens is 2; allowed: from 3"),
        ("document_tokens=500", "document_tokens is 500; the target has 256 positions"),
        ("documents=9", "9 prompts were asked for"),
        ("first_prompt=1", "9 prompts were asked for"),
        ("dataset=nope", "unknown dataset 'nope'"),
    ],
)
def test_what_cannot_be_trained_is_refused_in_one_line(toy, tmp_path, change, message):
    done = command([*toy, "prompt_template=null", change])
    assert done.returncode == 1 and not (tmp_path / "drafter").exists()
    [line] = [line for line in done.stderr.splitlines() if line.strip()]
    assert line.startswith("error:") and message in line


def test_too_short_sequences_are_refused():
    for tokens in ([], [[1, 2, 3], [1, 2]]):
        with pytest.raises(InvalidInput, match="at least three tokens"):
            Sequences(tokens)


def test_only_llamas_are_taught():
    from transformers import GPT2Config, GPT2LMHeadModel

    with pytest.raises(InvalidInput, match="made for Llama targets; found 'gpt2'"):
        new_drafter(GPT2LMHeadModel(GPT2Config(vocab_size=8, n_embd=8, n_layer=1, n_head=1)), 0)


def test_the_embedded_drafter_is_trained_once_and_named_by_what_decides_it(tmp_path, monkeypatch):
    recipe = EagleRecipe(steps=3, batch_size=2, learning_rate=1e-3, warmup_steps=1)
    threads = torch.get_num_threads()
    folder = embedded.ensure_eagle(TARGET, recipe, tmp_path)
    target_folder = embedded.ensure_model(TARGET, cache_root=tmp_path)
    assert folder.name == embedded.eagle_fingerprint(TARGET, recipe) != target_folder.name
    assert torch.get_num_threads() == threads
    pair = load_eagle_pair(str(target_folder), str(folder))
    assert pair.draft.vocab_size == TARGET.text.vocab_size
    with monkeypatch.context() as patch:
        # the cache is opened, nothing is trained
        patch.setattr("resispec.embedded.eagle.train_drafter", None)
        assert embedded.ensure_eagle(TARGET, recipe, tmp_path) == folder
    again = embedded.ensure_eagle(TARGET, recipe, tmp_path / "again")
    assert (again / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    others = {
        embedded.eagle_fingerprint(TARGET, dataclasses.replace(recipe, seed=1)),
        embedded.eagle_fingerprint(dataclasses.replace(TARGET, seed=1), recipe),
    }
    assert len(others | {folder.name}) == 3
