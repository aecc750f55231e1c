"""Training of EAGLE drafters and distilled drafts: losses, checkpoints, checks of the command."""

import dataclasses

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from experiments.cell import build
from experiments.schema import CONF, unlabelled
from recipes import train_eagle
from recipes.embedded.recipe import ModelRecipe
from recipes.training import checkpoints, drafters
from recipes.training.drafters import Sequences
from recipes.training.recipe import Eagle3Recipe, EagleRecipe
from resispec.errors import InvalidInput
from resispec.files import locked
from resispec.kept import CHECKPOINT
from tests.models.toy_eagle import EAGLE, EAGLE3, TOKENS, training
from tests.toys import save_tiny_pair, tiny_eagle3, tiny_llama


@torch.inference_mode()
def test_the_loss_of_eagle3_is_the_papers():
    """Row by row: the law of the token after s own outputs, if the likeliest can be drafted."""
    module = tiny_eagle3(tuple(range(0, 64, 2)))
    generator = torch.Generator().manual_seed(1)
    tokens, lengths = torch.randint(64, (2, 6), generator=generator), (6, 4)  # two of padding
    is_real = torch.arange(6) < torch.tensor(lengths)[:, None]
    features = torch.randn(2, 6, 96, generator=generator)
    logits = 3 * torch.randn(2, 6, 64, generator=generator)
    expected = [[], [], []]
    for row, length in enumerate(lengths):
        for start in range(length - 1):
            read, fused = tokens[row, 1 : start + 2].tolist(), module.fc(features[row, : start + 1])
            for step, place in enumerate(range(start + 1, min(start + 4, length))):
                out = module(torch.tensor([read]), fused[None], torch.arange(len(read))[None])[
                    0, -1:
                ]
                wanted = logits[row, place]
                if int(wanted.argmax()) % 2 == 0:
                    drafted = torch.log_softmax(module.draft_logits(out)[0], 0)
                    expected[step].append(-(torch.softmax(wanted[::2], 0) * drafted).sum())
                if place + 1 < length:
                    read.append(int(tokens[row, place + 1]))
                    fused = torch.cat((fused, out))
    assert [len(of_step) > 1 for of_step in expected] == [True] * 3
    counts = is_real & (logits.argmax(-1) % 2 == 0)
    losses = drafters.eagle3_losses(
        module, tokens, features, logits[counts][:, ::2].softmax(-1), counts, 3
    )
    for of_step, loss in zip(expected, losses, strict=True):
        assert torch.allclose(torch.stack(of_step).mean(), loss, rtol=1e-4)


def test_the_target_reads_a_sequence_once_while_there_is_room(monkeypatch):
    read = []
    for room in (1 << 20, 0):
        monkeypatch.setattr(drafters, "_REMEMBERED_BYTES", room)
        under_way = training(EAGLE3)
        network = under_way._target.base_model
        hook = network.register_forward_hook(lambda *_: read.append(room))  # noqa: B023
        losses = [under_way._losses([4, 2, 4])[0] for _ in range(2)]
        assert torch.equal(*losses)
        hook.remove()
    assert [read.count(room) for room in (1 << 20, 0)] == [2, 6]


def test_the_vocabulary_of_eagle3_is_the_most_frequent_tokens():
    tokens = [[5, 5, 2, 2], [7, 7, 7, 7, 7, 1]]
    sequences, alike = Sequences(tokens, torch.tensor([3.0, 1.0])), Sequences(tokens, torch.ones(2))
    # drawn 6 times each; 7 only 5 times
    assert drafters.frequent_tokens(sequences, 8, 2).tolist() == [2, 5]
    assert drafters.frequent_tokens(alike, 8, 1).tolist() == [7]
    with pytest.raises(InvalidInput, match="a drafter of 9 tokens was asked for; its target has 8"):
        drafters.frequent_tokens(sequences, 8, 9)


def test_targets_and_text_that_teach_nothing_are_refused():
    from transformers import GPT2Config, GPT2LMHeadModel

    with pytest.raises(InvalidInput, match="made for Llama targets; found 'gpt2'"):
        drafters.new_eagle(
            GPT2LMHeadModel(GPT2Config(vocab_size=8, n_embd=8, n_layer=1, n_head=1)), 0
        )
    with pytest.raises(InvalidInput, match="read 3 layers of their target; found 2"):
        drafters.new_eagle3(tiny_llama(layers=2).module, Sequences(TOKENS, torch.ones(30)), EAGLE3)
    for tokens in ([], [[1, 2, 3], [1, 2]]):
        with pytest.raises(InvalidInput, match="at least three tokens"):
            Sequences(tokens, torch.ones(len(tokens)))


# Checkpoints


@pytest.mark.parametrize("recipe", [EAGLE, dataclasses.replace(EAGLE3, optimizer="muon")])
def test_a_training_that_was_stopped_ends_as_one_that_was_not(recipe, tmp_path, monkeypatch):
    whole = training(recipe)
    train_eagle.train(whole, tmp_path / "whole")
    step = checkpoints.Training.step

    def stopped(under_way):
        if under_way.done in (2, 4):
            raise KeyboardInterrupt
        return step(under_way)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "_SAVE_EVERY_S", 0.0)
        patch.setattr(checkpoints, "_SAVING_SHARE", 1e9)
        patch.setattr(checkpoints.Training, "step", stopped)
        with pytest.raises(KeyboardInterrupt):
            train_eagle.train(training(recipe), tmp_path / "stopped")
        train_eagle.train(training(recipe), tmp_path / "whole")  # nothing is left to do
    again = training(recipe)
    train_eagle.train(again, tmp_path / "stopped")
    assert again.history == whole.history and len(whole.history) == 4
    written = [tmp_path / folder / "model.safetensors" for folder in ("whole", "stopped")]
    assert written[0].read_bytes() == written[1].read_bytes()


def test_a_training_that_diverges_is_refused_and_writes_nothing(tmp_path):
    recipe = dataclasses.replace(EAGLE, learning_rate=1e30)
    with pytest.raises(
        InvalidInput, match="^the training diverges: weights are no numbers after step"
    ):
        train_eagle.train(training(recipe), tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.stat().st_size]


def test_another_trainings_checkpoint_a_damaged_one_and_one_in_use_are_refused(tmp_path):
    train_eagle.train(training(), tmp_path)
    checkpoint = tmp_path / CHECKPOINT
    for changed, difference in (
        (
            training(dataclasses.replace(EAGLE, law_weight=1.0)),
            "EagleRecipe.law_weight was 0.1, is 1.0",
        ),
        (training(seed=1), "target was [0-9a-f]{16}, is [0-9a-f]{16}"),
        (training(tokens=TOKENS[1:]), "data was [0-9a-f]{16}, is [0-9a-f]{16}"),
    ):
        message = rf"^checkpoint .* another training's \({difference}\); remove"
        with pytest.raises(InvalidInput, match=message):
            train_eagle.train(changed, tmp_path)
    content = checkpoint.read_bytes()
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    for damaged in (content[:middle], flipped):
        checkpoint.write_bytes(damaged)
        with pytest.raises(
            InvalidInput, match=rf"^checkpoint {checkpoint} is damaged: .*; remove it.*$"
        ):
            train_eagle.train(training(), tmp_path)
    with (
        locked(tmp_path / ".lock"),
        pytest.raises(InvalidInput, match="another process is training there$"),
    ):
        train_eagle.train(training(), tmp_path)


# The checks of the command before it loads a model


def composed(line):
    """The configuration of a command line of the embedded profile."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("train_eagle", line.split())
        unlabelled(config)
        return OmegaConf.to_container(config, resolve=True)


def test_a_target_is_taken_from_an_embedded_pair_without_its_draft(tmp_path, monkeypatch):
    save_tiny_pair(tmp_path, ("target",))
    folder_of = {True: tmp_path / "target"}  # of a draft there is none
    monkeypatch.setattr(ModelRecipe, "folder", lambda it: folder_of[it.teacher is None])
    config = composed("pair=embedded output=x")
    train_eagle.checked(config)
    assert build(config["pair"]).draft is None


@pytest.mark.parametrize(("name", "kind"), [("eagle", EagleRecipe), ("eagle3", Eagle3Recipe)])
def test_a_recipes_file_has_its_defaults(name, kind):
    values = OmegaConf.to_container(OmegaConf.load(CONF / "recipe" / f"{name}.yaml"))
    values.pop("_target_")
    assert values == {name: value for name, value in vars(kind()).items() if name != "version"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("output=???", "output must be given"),
        ("~pair", "pair must be given"),
        ("documents=0", "documents is 0; allowed: from 1"),
        ("document_tokens=2", "document_tokens is 2; allowed: from 3"),
        ("recipe.steps=many", "recipe.steps: .* found 'many'"),
        ("recipe=eagle3 recipe.depth=0", "depth is 0; allowed: positive and finite"),
        ("recipe.noise=inf", "noise is inf; allowed: not negative and finite"),
        (
            "recipe=eagle3 recipe.optimizer=sgd",
            "recipe.optimizer: .* 'adamw' or 'muon'; found 'sgd'",
        ),
        ("recipe._target_=os.system", "recipe is a os.system; allowed: .*EagleRecipe, .*Eagle3Rec"),
        ("device=abacus", "device is 'abacus'"),
    ],
)
def test_wrong_values_are_refused_in_one_line(line, message):
    with pytest.raises(InvalidInput, match=f"{message}.*$"):
        train_eagle.checked(
            composed(f"output=x {'' if 'pair' in line else 'pair=embedded '}{line}")
        )


def test_a_drafter_is_not_written_over_its_target(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    line = f"pair=local pair.target={tmp_path} output={tmp_path}/"
    with pytest.raises(InvalidInput, match="is read by this command, which would write over it.*$"):
        train_eagle.checked(composed(line))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "pytorch_model.bin"])
def test_a_drafter_is_not_written_over_a_model_of_another_origin(name, tmp_path):
    """Defect: a drafter that was downloaded to ./draft was replaced."""
    (tmp_path / name).write_text("{}")
    config = composed(f"pair=embedded output={tmp_path}")
    with pytest.raises(InvalidInput, match=f"holds {name}, and no checkpoint.pt of a training"):
        train_eagle.checked(config)
    (tmp_path / CHECKPOINT).write_text("")  # its own, which goes on
    train_eagle.checked(config)
