"""The EAGLE-1 and EAGLE-3 drafters as networks, and the target's layers that EAGLE-3 taps."""

import pytest
import torch
from toys import TableModel, ToyTokenizer, eagle3_pair, tiny_eagle, tiny_eagle3, tiny_llama

from resispec.errors import InvalidInput
from resispec.models import EagleModel, Pair, features_of, usual_taps

TOKENS = tuple(range(1, 64, 4))


def normed(rows, weight, eps=1e-6):
    """RMS norm of rows (K, H)."""
    return rows * (rows.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


def layer_output(module, prefix, hidden, read):
    """A Llama layer behind its first norm, in float64 by definition, on rows (K, H) that read (K, I)."""
    config, count = module.config, len(hidden)
    width, num_keys = config.hidden_size // config.num_attention_heads, config.num_key_value_heads
    weights = {name: weight.double() for name, weight in module.state_dict().items()}
    queries, keys, values = (
        (read @ weights[f"{prefix}.self_attn.{kind}_proj.weight"].T).unflatten(1, (-1, width))
        for kind in "qkv"
    )
    frequencies = 10_000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.arange(count)[:, None, None] * frequencies
    turned = [
        torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1)
        for a, b in (rows.chunk(2, -1) for rows in (queries, keys))
    ]
    queries = turned[0].unflatten(1, (num_keys, -1))  # those that share a key, which follow each other
    scores = torch.einsum("qkgd,rkd->kgqr", queries, turned[1]) / width**0.5
    hidden_from = torch.ones(count, count, dtype=torch.bool).triu(1)
    shares = scores.masked_fill(hidden_from, -torch.inf).softmax(-1)
    mixed = torch.einsum("kgqr,rkd->qkgd", shares, values).flatten(1)
    hidden = hidden + mixed @ weights[f"{prefix}.self_attn.o_proj.weight"].T
    read = normed(hidden, weights[f"{prefix}.post_attention_layernorm.weight"])
    gate, up, down = (weights[f"{prefix}.mlp.{kind}_proj.weight"].T for kind in ("gate", "up", "down"))
    return hidden + (torch.nn.functional.silu(read @ gate) * (read @ up)) @ down


def eagle_reference(module, tokens, features):
    """EAGLE-1's drafter from the paper's description; (K, H)."""
    weights = {name: weight.double() for name, weight in module.state_dict().items()}
    inputs = torch.cat((weights["embed_tokens.weight"][tokens], features.double()), -1)
    hidden = inputs @ weights["fc.weight"].T + weights["fc.bias"]
    return layer_output(module, "layers.0", hidden, hidden)


def eagle3_reference(module, tokens, features):
    """EAGLE-3's layer on what enters the target's layers, whose last hidden state comes first."""
    weights = {name: weight.double() for name, weight in module.state_dict().items()}
    hidden = features[:, 32:].double() @ weights["fc.weight"].T
    both = (weights["embed_tokens.weight"][tokens], "input_layernorm"), (hidden, "hidden_norm")
    read = torch.cat([normed(rows, weights[f"midlayer.{name}.weight"]) for rows, name in both], -1)
    return layer_output(module, "midlayer", hidden, read)


@pytest.mark.parametrize(
    ("module", "reference", "width"),
    [(tiny_eagle(), eagle_reference, 32), (tiny_eagle3(TOKENS), eagle3_reference, 4 * 32)],
)
def test_true_rows_equal_the_slow_reference(module, reference, width):
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(64, (12,), generator=generator)
    features = torch.randn(12, width, generator=generator)
    expected = reference(module, tokens, features)
    with torch.inference_mode():
        found = module(tokens[None], features[None], torch.arange(12)[None])[0]
    assert torch.allclose(found.double(), expected, atol=1e-4) and expected.std() > 0.3


def test_the_head_gives_the_drafters_tokens_their_places_in_the_targets_vocabulary():
    module = tiny_eagle3(TOKENS)
    rows = torch.randn(5, 32, generator=torch.Generator().manual_seed(0))
    weights = {name: weight.detach().double() for name, weight in module.named_parameters()}
    own = normed(rows.double(), weights["norm.weight"]) @ weights["lm_head.weight"].T
    found = EagleModel(module).head(rows)
    assert found.shape == (5, 64) and torch.allclose(found[:, list(TOKENS)].double(), own, atol=1e-4)
    outside = sorted(set(range(64)) - set(TOKENS))
    assert torch.equal(found[:, outside], torch.full((5, len(outside)), -torch.inf))


def test_features_are_what_enters_the_tapped_layers_and_the_head_does_not_see_them():
    plain = tiny_llama(layers=4)
    tapped, tokens, seen = plain.tapping((1, 2, 3)), list(range(10, 20)), {}
    for number, layer in enumerate(plain.module.base_model.layers):
        layer.register_forward_pre_hook(
            lambda _, given, number=number: seen.__setitem__(number, given[0][0].clone())
        )
    features = features_of(tapped, tokens)
    assert features.shape == (10, 128)
    assert torch.equal(features[:, 32:], torch.cat([seen[number] for number in (1, 2, 3)], -1))
    own = features_of(plain, tokens)
    assert own.shape == (10, 32) and torch.equal(features[:, :32], own)
    assert torch.equal(tapped.head(features), plain.head(own))


def test_the_usual_taps_are_the_published_ones_where_those_rise():
    taps = {32: (2, 16, 29), 7: (2, 3, 4), 6: (3, 4, 5), 4: (1, 2, 3), 3: (0, 1, 2)}
    assert {layers: usual_taps(layers) for layers in taps} == taps


def test_a_pair_says_what_kind_of_draft_it_has_and_whose_head_reads_it():
    target, drafter = tiny_llama(), EagleModel(tiny_eagle())
    first, third = Pair(target, drafter, ToyTokenizer()), eagle3_pair()
    assert first.eagle_model() is drafter and Pair(target, target, ToyTokenizer()).draft_model() is target
    assert first.eagle_head() == target.head and first.draft.num_draftable == 64
    assert third.eagle_head() == third.draft.head and third.draft.num_draftable == 22
    for draft, ask, message in (
        (drafter, Pair.draft_model, "this pair's draft is an EAGLE drafter"),
        (target, Pair.eagle_model, "this pair has an independent draft model"),
        (None, Pair.eagle_model, "this pair has no draft"),
        (None, Pair.draft_model, "the pair has none; give pair.draft"),
    ):
        with pytest.raises(InvalidInput, match=message):
            ask(Pair(target, draft, ToyTokenizer()))
    with pytest.raises(InvalidInput, match="share one vocabulary; found 5 and 64 tokens"):
        Pair(TableModel(torch.zeros(5, 5)), drafter, ToyTokenizer())
