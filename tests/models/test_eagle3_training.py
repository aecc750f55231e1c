"""Training an EAGLE-3 drafter: its vocabulary, the loss with training-time test, resuming, and the cache."""

import dataclasses

import pytest
import torch
from test_eagle_training import SEQUENCES
from test_embedded import TARGET
from toys import tiny_eagle3, tiny_llama

from resispec import embedded
from resispec.errors import InvalidInput
from resispec.models import load_eagle_pair
from resispec.training.base import Sequences
from resispec.training.eagle3 import Eagle3Training, frequent_tokens, law_losses, new_eagle3
from resispec.training.recipe import Eagle3Recipe

RECIPE = Eagle3Recipe(24, depth=3, steps=40, batch_size=4, learning_rate=2e-2, warmup_steps=5)


def training(recipe=RECIPE):
    module = tiny_llama(layers=4).module
    return Eagle3Training(module, new_eagle3(module, SEQUENCES, recipe), SEQUENCES, recipe)


def test_the_vocabulary_is_what_is_drawn_most_often():
    sequences = Sequences([[5, 5, 2, 2], [7, 7, 7, 7, 7, 1]], torch.tensor([3.0, 1.0]))
    assert frequent_tokens(sequences, 8, 3).tolist() == [2, 5, 7]  # drawn 6, 6 and 5 times
    assert frequent_tokens(dataclasses.replace(sequences, weights=None), 8, 1).tolist() == [7]
    with pytest.raises(InvalidInput, match="a drafter of 9 tokens was asked for; its target has 8"):
        frequent_tokens(sequences, 8, 9)


@torch.inference_mode()
def test_the_loss_is_the_papers():
    """Row by row: after s tokens on its own outputs the law of the token behind them; unlikely ones apart."""
    module, generator = tiny_eagle3(tuple(range(0, 64, 2))), torch.Generator().manual_seed(1)
    tokens, lengths = torch.randint(64, (2, 6), generator=generator), (6, 4)
    features = torch.randn(2, 6, 96, generator=generator)
    logits = 3 * torch.randn(2, 6, 64, generator=generator)
    is_real = torch.arange(6) < torch.tensor(lengths)[:, None]
    expected = [[], [], []]
    for row, length in enumerate(lengths):
        for start in range(length - 1):
            hidden = features[row, : start + 1]
            read = tokens[row, 1 : start + 2].tolist()
            fused = module.fc(hidden)
            for step in range(3):
                place = start + 1 + step
                if place >= length:
                    break
                positions = torch.arange(len(read))[None]
                out = module(torch.tensor([read]), fused[None], positions)[0, -1:]
                wanted = logits[row, place]
                if int(wanted.argmax()) % 2 == 0:
                    drafted = torch.log_softmax(module.draft_logits(out)[0], 0)
                    expected[step].append(-(torch.softmax(wanted[::2], 0) * drafted).sum())
                if place + 1 < length:
                    read.append(int(tokens[row, place + 1]))
                    fused = torch.cat((fused, out))
    found = law_losses(module, tokens, features, logits, is_real, 3)
    assert [len(losses) > 1 for losses in expected] == [True] * 3
    for losses, loss in zip(expected, found, strict=True):
        assert torch.allclose(torch.stack(losses).mean(), loss, rtol=1e-4)


def test_training_lowers_every_step_s_loss_and_leaves_target_and_embeddings_alone():
    under_way, random_state = training(), torch.get_rng_state()
    target = {name: weight.clone() for name, weight in under_way._target.state_dict().items()}
    history = torch.tensor([under_way.step() for _ in range(RECIPE.steps)])
    assert (history[-5:].mean(0) < history[0] - 0.15).all()
    assert all(torch.equal(weight, target[name]) for name, weight in under_way._target.state_dict().items())
    embeddings = under_way._target.get_input_embeddings().weight
    assert torch.equal(under_way.module.embed_tokens.weight, embeddings)
    assert torch.equal(torch.get_rng_state(), random_state)


def test_a_training_that_goes_on_ends_as_one_that_was_not_stopped():
    whole, first, second = training(), training(), training()
    for _ in range(6):
        whole.step()
    for _ in range(3):
        first.step()
    second.restore(first.state())
    for _ in range(3):
        second.step()
    for name, weight in whole.module.state_dict().items():
        assert torch.equal(second.module.state_dict()[name], weight), name


@pytest.mark.parametrize("field", ["seed", "decay", "depth", "learning_rate"])
def test_the_result_depends_on_the_recipe(field):
    weights = []
    for recipe in (RECIPE, dataclasses.replace(RECIPE, **{field: getattr(RECIPE, field) + 1})):
        under_way = training(recipe)
        with torch.no_grad():  # from the same weights
            under_way.module.fc.weight.fill_(0.01)
        under_way.step()
        under_way.step()
        weights.append(under_way.module.fc.weight)
    assert not torch.equal(*weights)


def test_a_target_of_too_few_layers_is_refused():
    with pytest.raises(InvalidInput, match="read 3 layers of their target; found 2"):
        new_eagle3(tiny_llama(layers=2).module, SEQUENCES, RECIPE)


def test_the_embedded_drafter_is_trained_once_and_named_by_what_decides_it(tmp_path, monkeypatch):
    recipe = Eagle3Recipe(100, depth=2, steps=3, batch_size=2, learning_rate=1e-3, warmup_steps=1)
    target = dataclasses.replace(TARGET, sizes=dataclasses.replace(TARGET.sizes, num_hidden_layers=4))
    folder = embedded.ensure_eagle(target, recipe, tmp_path)
    target_folder = embedded.ensure_model(target, cache_root=tmp_path)
    pair = load_eagle_pair(str(target_folder), str(folder))
    assert pair.num_draftable == 100 and pair.draft.taps == (1, 2, 3)
    with monkeypatch.context() as patch:  # the cache is opened, nothing is trained
        patch.setattr("resispec.embedded.eagle.train_drafter", None)
        assert embedded.ensure_eagle(target, recipe, tmp_path) == folder
    again = embedded.ensure_eagle(target, recipe, tmp_path / "again")
    assert (again / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    others = {
        embedded.eagle_fingerprint(target, dataclasses.replace(recipe, num_draftable=99)),
        embedded.eagle_fingerprint(dataclasses.replace(target, seed=1), recipe),
        embedded.eagle_fingerprint(target),
    }
    assert len(others | {folder.name}) == 4


def test_sizes_that_train_nothing_are_refused():
    for change in ({"num_draftable": 0}, {"depth": 0}, {"decay": 0.0}):
        with pytest.raises(InvalidInput, match="are at least 1"):
            dataclasses.replace(RECIPE, **change)


def test_the_pair_is_named_by_its_drafter():
    from experiments.plan import cells_of

    found = {
        size: cells_of(["pair=embedded_eagle3", f"pair.num_draftable={size}"])[0].config["pair"][
            "fingerprint"
        ]
        for size in (1024, 2048)
    }
    target = embedded.target_recipe("2m")
    assert found == {
        size: embedded.eagle_fingerprint(target, embedded.eagle_recipe(size)) for size in (1024, 2048)
    }
    assert len({*found.values(), embedded.eagle_fingerprint(target)}) == 3
    [official] = cells_of(["pair=llama3.1_8b__eagle3", "decoder=eagle_sampled", "tree=eagle1"])
    assert official.config["pair"]["draft"] == "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"
