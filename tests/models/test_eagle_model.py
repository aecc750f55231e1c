"""The EAGLE drafter as a network, and as files in the published layout."""

import json
import pickle

import pytest
import torch
from safetensors.torch import save_file
from slow_llama import attended, fed_forward, normed, within
from toys import TableModel, ToyTokenizer, save_tiny_pair, tiny_eagle, tiny_llama

from resispec.errors import InvalidInput
from resispec.models import EagleModel, Pair, load_eagle_pair, save_eagle
from resispec.models.eagle_checkpoint import load_eagle
from resispec.trees import from_child_counts

LAYER = {
    "layers.0.self_attn.q_proj.weight", "layers.0.self_attn.k_proj.weight",
    "layers.0.self_attn.v_proj.weight", "layers.0.self_attn.o_proj.weight", "layers.0.mlp.gate_proj.weight",
    "layers.0.mlp.up_proj.weight", "layers.0.mlp.down_proj.weight",
    "layers.0.post_attention_layernorm.weight",
}  # fmt: skip
OFFICIAL = {"embed_tokens.weight", "fc.weight", "fc.bias", *LAYER}


def reference(module, tokens, features, positions, visible):
    """The drafter written out in float64, from the paper's description; (K, H)."""
    weights, layer = (within(module.state_dict(), prefix) for prefix in ("", "layers.0."))
    inputs = torch.cat((weights["embed_tokens.weight"][tokens], features.double()), -1)
    hidden = inputs @ weights["fc.weight"].T + weights.get("fc.bias", 0.0)
    hidden = hidden + attended(module.config, within(layer, "self_attn."), hidden, positions, visible)
    read = normed(hidden, layer["post_attention_layernorm.weight"], module.config.rms_norm_eps)
    return hidden + fed_forward(within(layer, "mlp."), read)


def rows(count, module, seed=0):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(module.config.vocab_size, (count,), generator=generator)
    return tokens, torch.randn(count, module.config.hidden_size, generator=generator)


@pytest.mark.parametrize("bias", [True, False])
def test_the_forward_equals_the_slow_reference(bias):
    module = tiny_eagle(bias=bias)
    tokens, features = rows(9, module)
    positions = torch.arange(9)
    expected = reference(module, tokens, features, positions, torch.ones(9, 9).tril())
    with torch.inference_mode():
        found = module(tokens[None], features[None], positions[None])[0]
    assert torch.allclose(found.double(), expected, atol=1e-4) and expected.std() > 0.3


def test_the_cached_forms_equal_the_uncached_one():
    """True rows in three pieces, a tree behind them, and after it is forgotten the next true rows."""
    module, shape = tiny_eagle(), from_child_counts([[2], [2, 1]])
    true, drafted = rows(12, module), rows(shape.num_nodes, module, seed=1)
    session = EagleModel(module).session(64, drafted=shape.num_nodes)
    pieces = [
        session.extend(true[0][part], true[1][part]) for part in (slice(0, 4), slice(4, 5), slice(5, 9))
    ]
    positions, causal = torch.arange(9), torch.ones(9, 9).tril()
    assert torch.allclose(
        torch.cat(pieces).double(), reference(module, *(t[:9] for t in true), positions, causal), atol=1e-4
    )

    visible = torch.cat((torch.ones(shape.num_nodes, 9, dtype=torch.bool), shape.ancestors), 1)
    found = session.forward(*drafted, shape.depths, shape.ancestors)
    everything = [torch.cat((before[:9], after)) for before, after in zip(true, drafted, strict=True)]
    mask = torch.cat((torch.cat((causal, torch.zeros(9, shape.num_nodes)), 1), visible.float()))
    expected = reference(module, *everything, torch.cat((positions, shape.depths + 9)), mask)
    assert torch.allclose(found.double(), expected[9:], atol=1e-4)

    later = session.extend(true[0][9:], true[1][9:])
    whole = reference(module, *true, torch.arange(12), torch.ones(12, 12).tril())
    assert torch.allclose(later.double(), whole[9:], atol=1e-4)


@pytest.fixture
def folder(tmp_path):
    """A pair of model folders, and a drafter as its authors publish one: half precision, pickled."""
    save_tiny_pair(tmp_path)
    module = tiny_eagle(vocab=64)
    write(tmp_path / "eagle", {name: weight.half() for name, weight in module.state_dict().items()})
    return tmp_path


def write(folder, weights, safetensors=False, **changes):
    """config.json with the keys of the published one, and the weights."""
    folder.mkdir(exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
        "hidden_size": 32, "initializer_range": 0.02, "intermediate_size": 48, "max_position_embeddings": 256,
        "model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1,
        "pad_token_id": 0, "pretraining_tp": 1, "rms_norm_eps": 1e-06, "rope_scaling": None,
        "tie_word_embeddings": False, "torch_dtype": "float16", "transformers_version": "4.28.1",
        "use_cache": True, "vocab_size": 64,
    }  # fmt: skip
    changed = {key: value for key, value in (config | changes).items() if value != "absent"}
    (folder / "config.json").write_text(json.dumps(changed))
    if safetensors:
        save_file(weights, folder / "model.safetensors")
    else:
        torch.save(weights, folder / "pytorch_model.bin")


def load(folder, **options):
    return load_eagle_pair(str(folder / "target"), str(folder / "eagle"), **options)


def weights_of(folder):
    return torch.load(folder / "eagle" / "pytorch_model.bin", weights_only=True)


@pytest.mark.parametrize("safetensors", [False, True])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("embedded", [True, False])
def test_official_checkpoints_load(folder, safetensors, bias, embedded):
    module = tiny_eagle(vocab=64, bias=bias)
    weights = {name: weight.half() for name, weight in module.state_dict().items()}
    assert set(weights) == OFFICIAL - (set() if bias else {"fc.bias"})
    expected = weights if embedded else {k: v for k, v in weights.items() if k != "embed_tokens.weight"}
    (folder / "eagle" / "pytorch_model.bin").unlink()
    write(folder / "eagle", expected, safetensors)
    pair = load(folder)
    found = pair.draft.module.state_dict()
    assert set(found) == set(weights) and isinstance(pair.draft, EagleModel)
    for name, weight in expected.items():
        assert torch.equal(found[name], weight.float()), name
    if not embedded:
        assert torch.equal(found["embed_tokens.weight"], pair.target.module.get_input_embeddings().weight)
    assert (pair.draft.vocab_size, pair.draft.hidden_size, pair.draft.context) == (64, 32, 256)


def test_a_drafter_without_a_name_is_none(folder):
    assert load_eagle_pair(str(folder / "target"), None).draft is None


def test_stored_rotary_frequencies_are_passed_over(folder):
    write(folder / "eagle", weights_of(folder) | {"layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)})
    assert load(folder).draft.module.rotary_emb.inv_freq[1] != 1


def test_the_rotary_base_is_the_configurations(folder):
    frequency = load(folder).draft.module.rotary_emb.inv_freq[1]
    for change in ({"rope_theta": 500.0}, {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}):
        write(folder / "eagle", weights_of(folder), **change)
        assert load(folder).draft.module.rotary_emb.inv_freq[1] > 2 * frequency


def test_half_precision_keeps_the_rotary_frequencies(folder):
    pair = load(folder, dtype="bfloat16")
    module = pair.draft.module
    assert {weight.dtype for weight in module.parameters()} == {torch.bfloat16}
    assert module.rotary_emb.inv_freq.dtype == torch.float32
    tokens, features = rows(40, module)
    found = pair.draft.session(64).extend(tokens, features)
    expected = reference(module, tokens, features, torch.arange(40), torch.ones(40, 40).tril())
    assert (found.double() - expected).abs().max() < 0.1 * expected.abs().max()


def test_a_saved_drafter_has_the_published_layout_and_comes_back(folder):
    module = load(folder).draft.module
    save_eagle(module, folder / "again")
    assert sorted(path.name for path in (folder / "again").iterdir()) == ["config.json", "model.safetensors"]
    published = json.loads((folder / "eagle" / "config.json").read_text())
    saved = json.loads((folder / "again" / "config.json").read_text())
    same = (
        "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers",
        "vocab_size", "rms_norm_eps", "max_position_embeddings", "hidden_act", "model_type", "architectures",
        "rope_scaling",
    )  # fmt: skip
    assert {key: saved[key] for key in same} == {key: published[key] for key in same}
    assert saved["bias"] is True and saved["rope_theta"] == 10_000.0
    again = load_eagle(str(folder / "again"), load(folder).target).module.state_dict()
    assert set(again) == OFFICIAL and all(
        torch.equal(again[name], weight) for name, weight in module.state_dict().items()
    )


BAD_WEIGHTS = {
    "missing": (lambda w: w.pop("fc.weight"), "lacks fc.weight; it holds embed_tokens.weight, fc.weight"),
    "extra": (lambda w: w.update({"lm_head.weight": torch.ones(64, 32)}), "has unknown lm_head.weight"),
    "shape": (
        lambda w: w.update({"fc.weight": torch.ones(32, 32)}),
        r"fc.weight is \(32, 32\); its sizes ask for \(32, 64\)",
    ),
    "no tensors": (
        lambda w: w.update({"fc.weight": [1.0]}),
        "is no EAGLE checkpoint; expected tensors by name",
    ),
}


@pytest.mark.parametrize("name", BAD_WEIGHTS)
def test_wrong_weights_are_refused_in_one_line(folder, name):
    change, message = BAD_WEIGHTS[name]
    weights = weights_of(folder)
    change(weights)
    write(folder / "eagle", weights)
    with pytest.raises(InvalidInput, match=message) as caught:
        load(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 64}, "has hidden_size 64; its target has 32"),
        ({"vocab_size": 50}, "has vocab_size 50; its target has 64"),
        ({"intermediate_size": 24}, r"mlp.gate_proj.weight is \(48, 32\); its sizes ask for \(24, 32\)"),
        ({"num_hidden_layers": 2}, "num_hidden_layers 2; an EAGLE drafter has 1"),
        ({"hidden_size": "absent", "vocab_size": "absent"}, "lacks hidden_size, vocab_size"),
        ({"hidden_act": "nothing"}, "describes no Llama layer"),
    ],
)
def test_a_wrong_configuration_is_refused_in_one_line(folder, changes, message):
    write(folder / "eagle", weights_of(folder), **changes)
    with pytest.raises(InvalidInput, match=message) as caught:
        load(folder)
    assert "\n" not in str(caught.value)


class Malicious:
    def __reduce__(self):
        return (print, ("this must not run",))


def test_damaged_or_missing_files_are_refused_in_one_line(folder, capsys):
    eagle = folder / "eagle"
    plain, pickled, config = (
        eagle / name for name in ("model.safetensors", "pytorch_model.bin", "config.json")
    )
    damages = [
        (lambda: pickled.write_bytes(pickle.dumps(Malicious(), 2)), "cannot be read: .*none of it was run"),
        (lambda: pickled.write_bytes(b""), "pytorch_model.bin cannot be read: ."),
        (lambda: plain.write_bytes(b"broken"), "model.safetensors cannot be read: ."),
        (lambda: [path.unlink() for path in (plain, pickled)], "has no weights; expected"),
        (lambda: config.write_text("{"), "config.json cannot be read"),
        (lambda: config.write_text("[]"), "config.json holds a list"),
        (lambda: config.unlink(), "config.json cannot be read"),
        (lambda: eagle.rename(folder / "moved"), "model folder .* does not exist"),
    ]  # fmt: skip
    for damage, message in damages:
        damage()
        with pytest.raises(InvalidInput, match=message) as caught:
            load(folder)
        assert "\n" not in str(caught.value)
    with pytest.raises(InvalidInput, match="ways out"):
        load_eagle_pair(str(folder / "target"), "owner/unreachable")
    assert "must not run" not in capsys.readouterr().out


def test_a_pair_says_what_kind_of_draft_it_has():
    target, drafter = tiny_llama(), EagleModel(tiny_eagle())
    assert Pair(target, drafter, ToyTokenizer()).eagle_model() is drafter
    assert Pair(target, target, ToyTokenizer()).draft_model() is target
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
