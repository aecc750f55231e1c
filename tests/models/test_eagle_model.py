"""The EAGLE-1 and EAGLE-3 drafters as networks, and the target's layers that EAGLE-3 taps."""

import pytest
import torch
from toys import TableModel, ToyTokenizer, eagle3_pair, tiny_eagle, tiny_eagle3, tiny_llama

from resispec.errors import InvalidInput
from resispec.models import EagleModel, Pair, features_of, unrolled, usual_taps
from resispec.trees import from_child_counts

TOKENS = tuple(range(1, 64, 4))
SHAPE = from_child_counts([[2], [2, 1]])
TRUE = 9


def normed(rows, weight, eps=1e-6):
    """RMS norm of rows (K, H)."""
    return rows * (rows.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


def layer_output(module, prefix, hidden, read, positions, visible):
    """A Llama layer behind its first norm, in float64 by definition, on rows (K, H) that read (K, I)."""
    config = module.config
    width, num_keys = config.hidden_size // config.num_attention_heads, config.num_key_value_heads
    weights = {name: weight.double() for name, weight in module.state_dict().items()}
    queries, keys, values = (
        (read @ weights[f"{prefix}.self_attn.{kind}_proj.weight"].T).unflatten(1, (-1, width))
        for kind in "qkv"
    )
    angles = positions[:, None, None] / 10_000.0 ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    turned = [
        torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1)
        for a, b in (rows.chunk(2, -1) for rows in (queries, keys))
    ]
    queries = turned[0].unflatten(1, (num_keys, -1))  # those that share a key, which follow each other
    scores = torch.einsum("qkgd,rkd->kgqr", queries, turned[1]) / width**0.5
    shares = scores.masked_fill(~visible.bool(), -torch.inf).softmax(-1)
    mixed = torch.einsum("kgqr,rkd->qkgd", shares, values).flatten(1)
    hidden = hidden + mixed @ weights[f"{prefix}.self_attn.o_proj.weight"].T
    read = normed(hidden, weights[f"{prefix}.post_attention_layernorm.weight"])
    gate, up, down = (weights[f"{prefix}.mlp.{kind}_proj.weight"].T for kind in ("gate", "up", "down"))
    return hidden + (torch.nn.functional.silu(read @ gate) * (read @ up)) @ down


def eagle_reference(module, tokens, features, positions, visible):
    """EAGLE-1's drafter from the paper's description; (K, H)."""
    weights = {name: weight.double() for name, weight in module.state_dict().items()}
    inputs = torch.cat((weights["embed_tokens.weight"][tokens], features.double()), -1)
    hidden = inputs @ weights["fc.weight"].T + weights.get("fc.bias", 0.0)
    return layer_output(module, "layers.0", hidden, hidden, positions, visible)


def eagle3_reference(module, tokens, features, positions, visible):
    """EAGLE-3's layer; features: the target's, or its own outputs and zeros."""
    weights = {name: weight.double() for name, weight in module.state_dict().items()}
    is_true = (features[:, 32:] != 0).any(1, keepdim=True)
    hidden = torch.where(
        is_true, features[:, 32:].double() @ weights["fc.weight"].T, features[:, :32].double()
    )
    both = (weights["embed_tokens.weight"][tokens], "input_layernorm"), (hidden, "hidden_norm")
    read = torch.cat([normed(rows, weights[f"midlayer.{name}.weight"]) for rows, name in both], -1)
    return layer_output(module, "midlayer", hidden, read, positions, visible)


def drafter(kind):
    """A drafter, its session and reference, and the width of the target's features."""
    if kind == "eagle3":
        module = tiny_eagle3(TOKENS)
        return module, EagleModel(module).session(64, drafted=SHAPE.num_nodes), eagle3_reference, 4 * 32
    module = tiny_eagle(bias=kind == "eagle")
    return module, EagleModel(module).session(64, drafted=SHAPE.num_nodes), eagle_reference, 32


@pytest.mark.parametrize("kind", ["eagle", "eagle without bias", "eagle3"])
def test_true_rows_a_tree_behind_them_and_the_next_true_rows_equal_the_slow_reference(kind):
    module, session, reference, width = drafter(kind)
    generator, count = torch.Generator().manual_seed(0), TRUE + SHAPE.num_nodes
    tokens = torch.randint(64, (12 + SHAPE.num_nodes,), generator=generator)
    features = torch.randn(12, width, generator=generator)
    predicted = torch.randn(SHAPE.num_nodes, 32, generator=generator)
    found = [session.extend(tokens[part], features[part]) for part in (slice(0, 4), slice(4, 5), slice(5, 9))]
    found.append(session.forward(tokens[TRUE:count], predicted, SHAPE.depths, SHAPE.ancestors))
    visible = torch.ones(count, count).tril()
    visible[TRUE:, TRUE:] = SHAPE.ancestors
    read = torch.cat((features[:TRUE], torch.nn.functional.pad(predicted, (0, width - 32))))
    positions = torch.cat((torch.arange(TRUE), SHAPE.depths + TRUE))
    expected = reference(module, tokens[:count], read, positions, visible)
    assert torch.allclose(torch.cat(found).double(), expected, atol=1e-4) and expected.std() > 0.3
    later = session.extend(tokens[TRUE:12], features[TRUE:])
    causal = torch.ones(12, 12).tril()
    whole = reference(module, tokens[:12], features, torch.arange(12), causal)
    assert torch.allclose(later.double(), whole[TRUE:], atol=1e-4)
    with torch.inference_mode():
        uncached = module(tokens[None, :12], features[None], torch.arange(12)[None])[0]
    assert torch.allclose(uncached.double(), whole, atol=1e-4)


def test_the_head_gives_the_drafters_tokens_their_places_in_the_targets_vocabulary():
    module = tiny_eagle3(TOKENS)
    rows = torch.randn(5, 32, generator=torch.Generator().manual_seed(0))
    weights = {name: weight.detach().double() for name, weight in module.named_parameters()}
    own = normed(rows.double(), weights["norm.weight"]) @ weights["lm_head.weight"].T
    found = EagleModel(module).head(rows)
    assert found.shape == (5, 64) and torch.allclose(found[:, list(TOKENS)].double(), own, atol=1e-4)
    outside = sorted(set(range(64)) - set(TOKENS))
    assert torch.equal(found[:, outside], torch.full((5, len(outside)), -torch.inf))


@torch.inference_mode()
def test_unrolled_rows_are_those_of_drafting():
    """Row t of step s: the last of s tokens drafted in a chain behind the true rows up to t."""
    module, generator = tiny_eagle3(TOKENS), torch.Generator().manual_seed(0)
    tokens = torch.randint(64, (1, 7), generator=generator)
    features = torch.randn(1, 7, 128, generator=generator)
    steps = list(unrolled(module, tokens, features, 3))
    assert [len(step[0]) for step in steps] == [6, 5, 4]
    for row in range(4):
        session = EagleModel(module).session(16, drafted=3)
        found = session.extend(tokens[0, 1 : row + 2], features[0, : row + 1])[-1:]
        assert torch.allclose(steps[0][0, row], found[0], atol=1e-5)
        for depth in (1, 2):
            visible = torch.ones(1, depth, dtype=torch.bool)
            token = tokens[0, row + 1 + depth][None]
            found = session.forward(token, found, torch.tensor([depth - 1]), visible)
            assert torch.allclose(steps[depth][0, row], found[0], atol=1e-5)


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
    shape, session = from_child_counts([[2], [1, 1]]), tapped.session(16, drafted=5)
    session.extend(torch.tensor(tokens[:8]))
    path = [0, 1, 3]
    drafted = session.forward(torch.arange(20, 25), shape.depths, shape.ancestors)[path]
    alone = features_of(tapped, [*tokens[:8], *(20 + node for node in path)])[8:]
    assert torch.allclose(drafted, alone, atol=1e-4)


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
