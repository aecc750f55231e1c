"""The EAGLE-1 and EAGLE-3 drafters as networks, and the target's layers that EAGLE-3 taps."""

import pytest
import torch
from toys import TableModel, ToyTokenizer, tiny_eagle, tiny_eagle3, tiny_llama

from resispec.errors import InvalidInput
from resispec.models import EagleModel, Pair, features_of, usual_taps

TOKENS = tuple(range(1, 64, 4))


def normed(rows, weight, eps=1e-6):
    """RMS norm of rows (K, H)."""
    return rows * (rows.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


def layer_output(module, prefix, hidden, read):
    """A Llama layer behind its first norm, in float64 by definition, on rows (K, H) that read (K, I).

    Every row sees itself alone, so that attention gives its values.
    """
    heads, shared = module.config.num_attention_heads, module.config.num_key_value_heads
    weights = {name: weight.double() for name, weight in module.state_dict().items()}
    values = (read @ weights[f"{prefix}.self_attn.v_proj.weight"].T).unflatten(1, (shared, -1))
    mixed = values.repeat_interleave(heads // shared, 1).flatten(1)
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
def test_a_row_alone_is_the_papers(module, reference, width):
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(64, (12,), generator=generator)
    features = torch.randn(12, width, generator=generator)
    expected = reference(module, tokens, features)
    with torch.inference_mode():
        found = module(tokens[:, None], features[:, None], torch.arange(12)[:, None])[:, 0]
    assert torch.allclose(found.double(), expected, atol=1e-4) and expected.std() > 0.3


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


def test_a_pair_says_what_kind_of_draft_it_has():
    target, drafter = tiny_llama(), EagleModel(tiny_eagle())
    for draft, ask, message in (
        (drafter, Pair.draft_model, "this pair's draft is an EAGLE drafter"),
        (target, Pair.eagle_model, "this pair has an independent draft model"),
        (None, Pair.eagle_model, "this pair has no draft"),
    ):
        with pytest.raises(InvalidInput, match=message):
            ask(Pair(target, draft, ToyTokenizer()))
    with pytest.raises(InvalidInput, match="share one vocabulary; found 5 and 64 tokens"):
        Pair(TableModel(torch.zeros(5, 5)), drafter, ToyTokenizer())
