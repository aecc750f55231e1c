"""Inflated Llamas: a small one's law at a large one's cost; named shapes, and the command."""

import copy
import json
from dataclasses import asdict, replace

import pytest
import torch

from experiments.cli import run_single
from recipes.embedded.recipe import DRAFTS, TARGETS, TEXT_RECIPE
from recipes.inflate import run_inflating
from resispec import embedded
from resispec.embedded.pairs import inflated_fingerprint
from resispec.embedded.shapes import PAIR_SHAPES, PairShape, Shape
from resispec.errors import InvalidInput
from resispec.models import Pair, TransformersModel, build_llama, load_pair
from resispec.models.inflate import distance, inflate
from tests.toys import ToyTokenizer, save_tiny_pair

pytestmark = pytest.mark.numerics

VOCAB = 60
HEADS = {
    "32 in 64": ((2, 2, 32), Shape(192, 100, 3, 3, 3, 200)),
    "32 in 128": ((2, 2, 32), Shape(384, 100, 2, 3, 3, 200)),
    "16 in 32, grouped in both": ((4, 2, 16), Shape(128, 64, 4, 4, 2, 200)),
    "grouped in the small one alone": ((4, 1, 16), Shape(160, 64, 2, 5, 5, 61)),
    "in larger groups": ((4, 2, 8), Shape(96, 64, 3, 12, 3, 200)),
    "in smaller groups": ((6, 1, 8), Shape(128, 64, 3, 8, 4, 60)),
}
"""By name, (query heads, key-value heads, dimensions of each) and what they are inflated to."""
LARGE = Shape(384, 100, 3, 3, 3, 200)
TOY = PairShape(Shape(384, 100, 3, 6, 6, 200), Shape(128, 64, 2, 4, 4, 200))


def llama(heads, shared, width, tied=False):
    """An untrained Llama whose laws are far from uniform and whose norms have their own gains."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = build_llama(
            vocab_size=VOCAB, hidden_size=heads * width, intermediate_size=48, num_hidden_layers=2,
            num_attention_heads=heads, num_key_value_heads=shared, max_position_embeddings=256,
            tie_word_embeddings=tied, eos_token_id=None,
        ).eval()  # fmt: skip
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                gain = 0.5 + torch.rand_like(parameter)
                parameter.mul_(gain if "norm" in name else 6 if "layers" in name else 20)
    return module


def large_of(small, shape=LARGE, dtype=torch.float32, device="cpu"):
    return inflate(small, asdict(shape), torch.device(device), dtype)


def tokens(count=100):
    return torch.randint(VOCAB, (count,), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", HEADS)
def test_the_law_is_the_small_models(name):
    heads, shape = HEADS[name]
    small = llama(*heads, tied=name == "32 in 64")
    assert distance(small, large_of(small, shape), tokens()) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_every_precision_is_as_near_as_a_copy_and_padded_tokens_have_no_mass(dtype):
    """Within 1.5 times the copy's mean total variation from the small model in float32."""
    for name in ("32 in 128", "in larger groups"):
        heads, shape = HEADS[name]
        small = llama(*heads)
        large = large_of(small, shape, dtype)
        assert {parameter.dtype for parameter in large.parameters()} == {dtype}
        if dtype != torch.float32:
            with torch.inference_mode():
                exact, own, inflated = (
                    module(input_ids=tokens(150)[None]).logits[0, :, :VOCAB].float().softmax(-1)
                    for module in (small, copy.deepcopy(small).to(dtype), large)
                )
            gaps = [(laws - exact).abs().sum(-1).mean() / 2 for laws in (own, inflated)]
            assert 0 < gaps[1] < 1.5 * gaps[0] < 0.03
        ids = torch.cat((tokens(200), torch.arange(VOCAB).roll(7)))[None]
        with torch.inference_mode():
            logits = large(input_ids=ids).logits[0]
            alias = large(input_ids=ids + VOCAB * (torch.arange(ids.shape[1]) % 2)).logits[0]
        assert logits.isfinite().all() and torch.equal(alias, logits)
        for temperature in (0.1, 1.0, 5.0):
            for scores in (logits, logits.double()):
                assert (scores / temperature).softmax(-1)[:, VOCAB:].count_nonzero() == 0


def test_no_kernel_finds_anything_to_skip():
    """Only what would leak is zero: embeddings, small heads' queries, output projections, gains."""
    large = large_of(llama(2, 2, 32))
    added = large.model.layers[2]
    assert added.self_attn.q_proj.weight.count_nonzero() == 384 * 384
    for name, weight in large.named_parameters():
        dense = any(
            part in name for part in ("k_proj", "v_proj", "gate_proj", "up_proj", "lm_head")
        )
        assert not dense or weight.count_nonzero() / weight.numel() > 0.99, name
    assert not added.self_attn.o_proj.weight.any() and not added.mlp.down_proj.weight.any()


ONE_LAYER = {"vocab_size": 60, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
SCALED = {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}


@pytest.mark.parametrize(
    ("of_small", "of_large", "message"),
    [
        (
            {},
            {"num_key_value_heads": 1},
            "num_key_value_heads is 1; allowed: from 2, to hold the small model",
        ),
        (
            {},
            {"num_attention_heads": 8, "num_key_value_heads": 8},
            "makes heads of 48 dimensions; allowed: a mul",
        ),
        (
            {"attention_bias": True},
            {},
            "a model with attention_bias True cannot be inflated; allowed: False",
        ),
        (SCALED, {}, "a model with rope_type 'linear' cannot be inflated; allowed: 'default'"),
    ],
)
def test_what_cannot_be_inflated_is_refused(of_small, of_large, message):
    small = build_llama(intermediate_size=48, **ONE_LAYER, **of_small)
    with pytest.raises(InvalidInput, match=message):
        large_of(small, replace(LARGE, **of_large))


@pytest.mark.cuda
def test_a_large_one_is_made_on_the_device():
    small = llama(2, 1, 32)
    for dtype, most in ((torch.bfloat16, 0.05), (torch.float32, 1e-3)):
        large = large_of(small, LARGE, dtype, "cuda")
        assert {parameter.device.type for parameter in large.parameters()} == {"cuda"}
        assert distance(small, large, tokens()) < most


def test_a_named_shape_holds_the_embedded_pairs():
    shape = PAIR_SHAPES["cpu_74m__6m"]
    for sizes, large in ((TARGETS["2m"].sizes, shape.target), (DRAFTS["80k"], shape.draft)):
        small = build_llama(vocab_size=TEXT_RECIPE.vocab_size, **asdict(sizes)).eval()
        assert distance(small, large_of(small, large), tokens(20)) < 1e-5


@pytest.fixture
def toy_shape(monkeypatch):
    monkeypatch.setitem(PAIR_SHAPES, "toy", TOY)


@pytest.mark.usefixtures("toy_shape")
def test_an_embedded_pair_is_inflated_in_memory(monkeypatch):
    small = Pair(*(TransformersModel(llama(heads, 1, 32)) for heads in (2, 1)), ToyTokenizer())
    asked = []
    monkeypatch.setattr(
        "resispec.embedded.pairs.load_pair", lambda *names: asked.append(names) or small
    )
    expected = inflated_fingerprint("toy", "800k", "80k")
    found = embedded.load_inflated_pair("toy", "800k", "80k", "cpu", "bfloat16", expected)
    assert asked == [("800k", "80k")] and found.tokenizer is small.tokenizer
    assert {ways["forward"] for ways in found.ways().values()} == {"lean"}
    for one, own in ((found.target, small.target), (found.draft, small.draft)):
        assert one.module.dtype == torch.bfloat16 and one.vocab_size == 200 and one.context == 256
        assert distance(own.module, one.module, tokens()) < 0.1
    with pytest.raises(InvalidInput, match="were asked for; this installation makes"):
        embedded.load_inflated_pair("toy", "2m", "80k", fingerprint=expected)


def inflate_command(*arguments):
    return run_single(run_inflating, "inflate", (), arguments)


@pytest.mark.usefixtures("toy_shape")
def test_the_command_writes_folders_that_load_as_a_pair(tmp_path, capsys):
    save_tiny_pair(tmp_path)
    own = [f"pair.{role}={tmp_path / role}" for role in ("target", "draft")]
    output = tmp_path / "new" / "inflated"
    arguments = ["pair=llama2_7b__jf68m", *own, "shape=toy", f"output={output}"]
    assert inflate_command(*arguments) == 0
    written = capsys.readouterr().out
    assert (
        written.startswith(f"written: {output}, inflated: target of ") and written.count("\n") == 1
    )
    small, large = (
        load_pair(str(folder / "target"), str(folder / "draft")) for folder in (tmp_path, output)
    )
    for one, other in ((small.target, large.target), (small.draft, large.draft)):
        assert distance(one.module, other.module, tokens()) < 1e-5
        assert other.vocab_size == 200
    assert large.tokenizer.encode("abc gh") == small.tokenizer.encode("abc gh")
    assert (
        json.loads((output / "target" / "config.json").read_text())["inflated"]["hidden_size"] == 32
    )
    card = (output / "draft" / "README.md").read_text()
    assert "# An inflated draft" in card and "within a total variation of" in card
    # and nothing half-written
    assert sorted(path.name for path in output.parent.iterdir()) == ["inflated"]
    for wrong, message in (
        (arguments, f"output is '{output}', which exists; allowed: a new folder\n"),
        (["shape=cpu_74m__6m"], "output must be given, like output=OUTPUT\n"),
        (
            ["shape=7b", "output=x"],
            "unknown shape '7b'; allowed: llama2_7b__jf68m, cpu_74m__6m, toy\n",
        ),
        (["shape=cpu_74m__6m", "output=x", "dtype=int2"], "dtype is 'int2'; allowed: "),
        ([*arguments[:-1], f"output={tmp_path / 'x'}", "dtype=int8"], "unknown dtype 'int8'; "),
    ):
        assert inflate_command(*wrong) == 1
        line = capsys.readouterr().err
        assert line.startswith(f"error: {message}") and line.count("\n") == 1
