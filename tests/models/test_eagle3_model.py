"""The EAGLE-3 drafter as a network, and the target's layers that it taps."""

import pytest
import torch
from slow_llama import attended, fed_forward, normed, within
from toys import ToyTokenizer, eagle3_pair, tiny_eagle, tiny_eagle3, tiny_llama

from resispec.models import Eagle3Model, EagleModel, Pair, features_of, unrolled
from resispec.models import usual_taps as taps_of
from resispec.trees import from_child_counts

TOKENS = tuple(range(1, 64, 4))


def reference(module, tokens, hidden, positions, visible):
    """The layer written out in float64; hidden (K, H): `fc` of true states, or its own outputs."""
    layer, eps = within(module.state_dict(), "midlayer."), module.config.rms_norm_eps
    embedded = normed(
        module.embed_tokens.weight.detach().double()[tokens], layer["input_layernorm.weight"], eps
    )
    both = torch.cat((embedded, normed(hidden, layer["hidden_norm.weight"], eps)), -1)
    hidden = hidden + attended(module.config, within(layer, "self_attn."), both, positions, visible)
    read = normed(hidden, layer["post_attention_layernorm.weight"], eps)
    return hidden + fed_forward(within(layer, "mlp."), read)


def fused(module, features):
    """`fc` of the last three columns' states; the first one is the target's final hidden state."""
    return features[:, 32:].double() @ module.fc.weight.detach().double().T


def test_true_rows_a_tree_behind_them_and_the_next_true_rows_equal_the_slow_reference():
    module, shape = tiny_eagle3(TOKENS), from_child_counts([[2], [2, 1]])
    generator = torch.Generator().manual_seed(0)
    count = 9 + shape.num_nodes
    tokens = torch.randint(64, (12 + shape.num_nodes,), generator=generator)
    features = torch.randn(12, 4 * 32, generator=generator)
    predicted = torch.randn(shape.num_nodes, 32, generator=generator)
    session = Eagle3Model(module).session(64, drafted=shape.num_nodes)
    found = [session.extend(tokens[part], features[part]) for part in (slice(0, 4), slice(4, 5), slice(5, 9))]
    found.append(session.forward(tokens[9:count], predicted, shape.depths, shape.ancestors))
    visible = torch.zeros(count, count)
    visible[:9, :9], visible[9:, :9], visible[9:, 9:] = 1, 1, shape.ancestors
    visible[:9, :9] = visible[:9, :9].tril()
    hidden = torch.cat((fused(module, features[:9]), predicted.double()))
    positions = torch.cat((torch.arange(9), shape.depths + 9))
    expected = reference(module, tokens[:count], hidden, positions, visible)
    assert torch.allclose(torch.cat(found).double(), expected, atol=1e-4) and expected.std() > 0.3
    later = session.extend(tokens[9:12], features[9:])
    whole = reference(
        module, tokens[:12], fused(module, features), torch.arange(12), torch.ones(12, 12).tril()
    )
    assert torch.allclose(later.double(), whole[9:], atol=1e-4)


def test_the_head_gives_the_drafters_tokens_their_places_in_the_targets_vocabulary():
    module = tiny_eagle3(TOKENS)
    rows = torch.randn(5, 32, generator=torch.Generator().manual_seed(0))
    weights = {name: weight.detach().double() for name, weight in module.named_parameters()}
    own = normed(rows.double(), weights["norm.weight"], 1e-6) @ weights["lm_head.weight"].T
    found = Eagle3Model(module).head(rows)
    assert found.shape == (5, 64) and torch.allclose(found[:, list(TOKENS)].double(), own, atol=1e-4)
    outside = sorted(set(range(64)) - set(TOKENS))
    assert torch.equal(found[:, outside], torch.full((5, len(outside)), -torch.inf))


@torch.inference_mode()
def test_unrolled_rows_are_those_of_drafting():
    """Row t of step s: the last of s tokens drafted in a chain behind the true rows up to t."""
    module, generator = tiny_eagle3(TOKENS), torch.Generator().manual_seed(0)
    tokens, features = (
        torch.randint(64, (1, 7), generator=generator),
        torch.randn(1, 7, 128, generator=generator),
    )
    steps = list(unrolled(module, tokens, features, 3))
    assert [len(step[0]) for step in steps] == [6, 5, 4]
    for row in range(4):
        session = Eagle3Model(module).session(16, drafted=3)
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


@pytest.mark.parametrize(
    ("layers", "taps"), [(32, (2, 16, 29)), (7, (2, 3, 4)), (6, (3, 4, 5)), (4, (1, 2, 3)), (3, (0, 1, 2))]
)
def test_the_usual_taps_are_the_published_ones_where_those_rise(layers, taps):
    assert taps_of(layers) == taps


def test_a_pair_says_whose_head_reads_its_drafter():
    pair = eagle3_pair()
    assert pair.eagle_head() == pair.draft.head and pair.num_draftable == 22
    first = Pair(tiny_llama(), EagleModel(tiny_eagle()), ToyTokenizer())
    assert first.eagle_head() == first.target.head and first.num_draftable == 64
