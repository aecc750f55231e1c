"""Inflated Llamas: the law of a small one in every precision, at the cost of a large one."""

from __future__ import annotations

import copy
from dataclasses import asdict, replace

import pytest
import torch
from torch import Tensor
from toy_inflated import HEADS, LARGE, VOCAB, large_of, llama, pairs, tokens

from resispec.decode import Decoder, Sampling
from resispec.drafters import DraftModel
from resispec.errors import InvalidInput
from resispec.models import Pair, build_llama
from resispec.models.inflate import distance, inflate
from resispec.trees import complete
from resispec.verifiers import get_verifier


@torch.inference_mode()
def tree_laws(module, topology, prompt: Tensor) -> Tensor:
    """The law at every node of a tree of random tokens behind a prompt, by one forward under a mask."""
    count, past = topology.num_nodes, len(prompt)
    visible = torch.ones(past + count, past + count, dtype=torch.bool).tril()
    visible[past:, past:] = topology.ancestors
    positions = torch.cat((torch.arange(past), past + topology.depths))
    ids = torch.cat((prompt, tokens(count, seed=2)))
    logits = module(
        input_ids=ids[None], position_ids=positions[None], attention_mask=visible[None, None], use_cache=False
    ).logits[0, past:]
    return logits.float().softmax(-1)


@pytest.mark.parametrize("name", HEADS)
def test_the_law_is_the_small_models_on_chains_and_trees(name):
    heads, shape = HEADS[name]
    small = llama(*heads, tied=name == "32 in 64")
    large = large_of(small, shape)
    assert distance(small, large, tokens()) < 1e-5
    laws = [tree_laws(module, complete(4, 3), tokens(20)) for module in (small, large)]
    assert laws[0].amax() > 0.5  # laws that say something
    assert (laws[0] - laws[1][:, :VOCAB]).abs().max() < 1e-5
    assert (laws[1][:, VOCAB:] == 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["32 in 128", "in larger groups"])
def test_in_half_precision_it_is_as_near_as_the_small_models_own_copy(name, dtype):
    """Within 1.5 times the copy's mean total variation from the small model in float32."""
    heads, shape = HEADS[name]
    small = llama(*heads)
    own = copy.deepcopy(small).to(dtype)
    large = large_of(small, shape, dtype)
    assert {parameter.dtype for parameter in large.parameters()} == {dtype}
    exact = tree_laws(small, complete(5, 3), tokens(30))
    gaps = [(tree_laws(module, complete(5, 3), tokens(30))[:, :VOCAB] - exact).abs().sum(-1).mean() / 2
            for module in (own, large)]  # fmt: skip
    assert 0 < gaps[1] < 1.5 * gaps[0] < 0.03


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_padded_tokens_have_no_mass_and_are_read_as_others(dtype):
    large = large_of(llama(2, 2, 32), dtype=dtype)
    ids = torch.cat((tokens(200), torch.arange(VOCAB).roll(7)))[None]
    with torch.inference_mode():
        logits = large(input_ids=ids).logits[0]
        alias = large(input_ids=ids + VOCAB * (torch.arange(ids.shape[1]) % 2)).logits[0]
    assert logits.isfinite().all()
    for temperature in (0.1, 1.0, 5.0):
        assert (logits / temperature).softmax(-1)[:, VOCAB:].count_nonzero() == 0
        assert (logits.double() / temperature).softmax(-1)[:, VOCAB:].count_nonzero() == 0
    torch.testing.assert_close(alias, logits, rtol=0, atol=0)


def decoded(pair: Pair, seed: int, count: int, temperature: float):
    decoder = Decoder(DraftModel(complete(4, 2)), get_verifier("standard"))
    sampling = Sampling(temperature=temperature, max_new_tokens=count, max_length=250)
    return decoder.generate(pair, tokens(12, seed).tolist(), sampling, torch.Generator().manual_seed(seed))


def test_the_same_seed_gives_the_same_tokens_in_as_many_steps():
    small, large = pairs()
    for seed, temperature in enumerate((0.6, 1.0)):
        own, inflated = (decoded(pair, seed, 20, temperature) for pair in (small, large))
        assert inflated.tokens == own.tokens and inflated.num_emitted == own.num_emitted
        assert len(set(own.tokens)) > 5


def test_no_kernel_finds_anything_to_skip():
    """Zeros are in what would leak alone: embeddings, queries of small heads, output projections, gains."""
    large = large_of(llama(2, 2, 32))
    assert large.model.layers[2].self_attn.q_proj.weight.count_nonzero() == 384 * 384
    for name, weight in large.named_parameters():
        dense = any(part in name for part in ("k_proj", "v_proj", "gate_proj", "up_proj", "lm_head"))
        share = weight.count_nonzero() / weight.numel()
        assert not dense or share > 0.99, name
    for name in ("o_proj", "down_proj"):
        assert not any(
            weight.any() for key, weight in large.model.layers[2].named_parameters() if name in key
        )


REFUSED = [
    ({"hidden_size": 60}, "hidden_size is 60; allowed: from 65, to hold the small model"),
    ({"num_hidden_layers": 1}, "num_hidden_layers is 1; allowed: from 2, to hold the small model"),
    (
        {"hidden_size": 192, "num_attention_heads": 4, "num_key_value_heads": 4},
        "hidden_size 192 over num_attention_heads 4 makes heads of 48 dimensions; allowed: a multiple of "
        "the small model's 32, so that rotary frequencies are the same",
    ),
    (
        {"num_key_value_heads": 1},
        "num_key_value_heads is 1; allowed: from 2, to hold the small model",
    ),
]


def test_what_cannot_hold_the_small_model_or_is_no_plain_llama_is_refused_in_one_line():
    for changed, message in REFUSED:
        with pytest.raises(InvalidInput) as refused:
            large_of(llama(2, 2, 32), replace(LARGE, **changed))
        assert str(refused.value) == message
    scaled = {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}
    sizes = {"vocab_size": 60, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    for options, message in (
        ({"attention_bias": True}, "a model with attention_bias True cannot be inflated; allowed: False"),
        (scaled, "a model with rope_type 'linear' cannot be inflated; allowed: 'default'"),
    ):
        with pytest.raises(InvalidInput) as refused:
            large_of(build_llama(intermediate_size=48, **sizes, **options))
        assert str(refused.value) == message


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_large_one_is_made_on_the_device():
    small = llama(2, 1, 32)
    large = inflate(small, asdict(LARGE), torch.device("cuda"), torch.bfloat16)
    assert {parameter.device.type for parameter in large.parameters()} == {"cuda"}
    assert distance(small, large, tokens()) < 0.05
    assert (
        distance(small, inflate(small, asdict(LARGE), torch.device("cuda"), torch.float32), tokens()) < 1e-3
    )
