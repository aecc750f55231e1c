"""EAGLE-3 drafters as files in the published layout."""

import json

import pytest
import torch
from safetensors.torch import save_file
from toys import save_tiny_pair, tiny_eagle3

from resispec.errors import InvalidInput
from resispec.models import Eagle3Model, features_of, load_eagle_pair, save_eagle
from resispec.models.eagle_checkpoint import load_eagle

TOKENS = tuple(range(1, 64, 4))
OFFICIAL = {
    "midlayer.self_attn.q_proj.weight", "midlayer.self_attn.k_proj.weight",
    "midlayer.self_attn.v_proj.weight", "midlayer.self_attn.o_proj.weight", "midlayer.mlp.gate_proj.weight",
    "midlayer.mlp.up_proj.weight", "midlayer.mlp.down_proj.weight", "midlayer.hidden_norm.weight",
    "midlayer.input_layernorm.weight", "midlayer.post_attention_layernorm.weight", "norm.weight",
    "lm_head.weight", "fc.weight", "d2t", "t2d",
}  # fmt: skip
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
    "hidden_size": 32, "initializer_range": 0.02, "intermediate_size": 48, "max_position_embeddings": 256,
    "model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1,
    "pad_token_id": 0, "rms_norm_eps": 1e-06, "tie_word_embeddings": False, "torch_dtype": "float16",
    "transformers_version": "4.28.1", "use_cache": True, "vocab_size": 64, "draft_vocab_size": 16,
}  # fmt: skip
BOTH_TAPS = "eagle_aux_hidden_state_layer_ids"


def write(folder, weights, safetensors=False, **changes):
    """config.json with the keys of the published one, and the weights."""
    folder.mkdir(exist_ok=True)
    changed = {key: value for key, value in (CONFIG | changes).items() if value != "absent"}
    (folder / "config.json").write_text(json.dumps(changed))
    for name in ("pytorch_model.bin", "model.safetensors"):
        (folder / name).unlink(missing_ok=True)
    if safetensors:
        save_file(weights, folder / "model.safetensors")
    else:
        torch.save(weights, folder / "pytorch_model.bin")


@pytest.fixture
def folder(tmp_path):
    """A target of four layers, and a drafter as its authors publish one: no embeddings, half precision."""
    save_tiny_pair(tmp_path, ("target",), layers=4)
    write(tmp_path / "eagle", published())
    return tmp_path


def published(module=None):
    weights = dict((module or tiny_eagle3(TOKENS)).state_dict())
    del weights["embed_tokens.weight"]
    assert set(weights) == OFFICIAL
    return {name: weight.half() if weight.is_floating_point() else weight for name, weight in weights.items()}


def load(folder, **options):
    return load_eagle_pair(str(folder / "target"), str(folder / "eagle"), **options)


@pytest.mark.parametrize("safetensors", [False, True])
def test_an_official_checkpoint_loads(folder, safetensors):
    write(folder / "eagle", published(), safetensors)
    pair = load(folder)
    drafter = pair.eagle_model()
    assert isinstance(drafter, Eagle3Model) and drafter.taps == (1, 2, 3)
    assert (drafter.vocab_size, drafter.num_draftable, drafter.context) == (64, 16, 256)
    found = drafter.module.state_dict()
    for name, weight in published().items():
        assert torch.equal(found[name], weight.float() if weight.is_floating_point() else weight), name
    assert torch.equal(found["embed_tokens.weight"], pair.target.module.get_input_embeddings().weight)
    finite = pair.eagle_head()(torch.ones(1, 32)).isfinite()[0]
    assert finite.nonzero()[:, 0].tolist() == list(TOKENS) and pair.num_draftable == 16
    assert features_of(pair.target, [1, 2]).shape == (2, 128)


def test_half_precision_is_the_weights_alone(folder):
    drafter = load(folder, dtype="bfloat16").draft
    assert {weight.dtype for weight in drafter.module.parameters()} == {torch.bfloat16}
    assert (
        drafter.module.d2t.dtype == torch.int64 and drafter.module.rotary_emb.inv_freq.dtype == torch.float32
    )
    assert drafter.head(torch.ones(1, 32, dtype=torch.bfloat16)).isfinite().sum() == 16


def test_a_drafter_of_the_whole_vocabulary_reads_no_map(folder):
    """As its authors leave them: zeros."""
    weights = published(tiny_eagle3(tuple(range(64))))
    for maps in ({}, {"d2t": torch.zeros(64, dtype=torch.int64), "t2d": torch.zeros(64, dtype=torch.bool)}):
        rest = {name: weight for name, weight in weights.items() if name not in ("d2t", "t2d")}
        for size in (64, "absent"):
            write(folder / "eagle", rest | maps, draft_vocab_size=size)
            pair = load(folder)
            assert pair.num_draftable == 64 and pair.eagle_head()(torch.ones(1, 32)).isfinite().all()


def test_a_drafter_may_be_narrower_than_its_target_and_then_has_its_own_embeddings(folder):
    module = tiny_eagle3(TOKENS, hidden=16)
    weights = published(module)
    changes = {
        "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 1,
        "target_hidden_size": 32,
    }  # fmt: skip
    write(folder / "eagle", weights | {"embed_tokens.weight": torch.ones(64, 16)}, **changes)
    assert load(folder).draft.module.fc.weight.shape == (16, 96)
    write(folder / "eagle", weights, **changes)
    with pytest.raises(InvalidInput, match=r"lacks embed_tokens.weight; it holds"):
        load(folder)
    write(folder / "eagle", weights, **changes | {"target_hidden_size": 48})
    with pytest.raises(InvalidInput, match="has target_hidden_size 48; its target has 32"):
        load(folder)


@pytest.mark.parametrize(
    ("changes", "taps"),
    [({BOTH_TAPS: [0, 1, 3]}, (0, 1, 3)), ({"eagle_config": {BOTH_TAPS: [-1, 0, 2]}}, (0, 1, 3))],
)
def test_the_tapped_layers_are_the_configurations(folder, changes, taps):
    write(folder / "eagle", published(), **changes)
    assert load(folder).draft.taps == taps


def test_a_saved_drafter_has_the_published_layout_and_comes_back(folder):
    write(folder / "eagle", published(), **{BOTH_TAPS: [0, 1, 3]})
    module = load(folder).draft.module
    save_eagle(module, folder / "again")
    saved = json.loads((folder / "again" / "config.json").read_text())
    same = CONFIG.keys() & saved.keys() - {"architectures", "torch_dtype", "transformers_version"}
    assert {key: saved[key] for key in same} == {key: CONFIG[key] for key in same} and len(same) > 10
    again = load_eagle(str(folder / "again"), load(folder).target)
    assert again.taps == (0, 1, 3) and set(again.module.state_dict()) == OFFICIAL | {"embed_tokens.weight"}
    for name, weight in module.state_dict().items():
        assert torch.equal(again.module.state_dict()[name], weight), name


def changed(name, place, value):
    def change(weights):
        weights[name] = weights[name].clone()
        weights[name][place] = value

    return change


BAD_WEIGHTS = {
    "missing": (lambda w: w.pop("fc.weight"), "lacks fc.weight; it holds"),
    "extra": (lambda w: w.update({"layers.0.x": torch.ones(1)}), "has unknown layers.0.x"),
    "shape": (lambda w: w.update({"fc.weight": torch.ones(32, 64)}), r"its sizes ask for \(32, 96\)"),
    "no map": (lambda w: w.pop("d2t"), "lacks d2t, with 16 of 64 tokens"),
    "floats": (lambda w: w.update({"d2t": torch.zeros(16)}), r"d2t is \(16,\) torch.float32; allowed"),
    "size": (lambda w: w.update({"d2t": torch.zeros(9, dtype=torch.int64)}), r"d2t is \(9,\) torch.int64"),
    "high": (changed("d2t", 3, 61), "d2t maps token 3 to 64; the target's tokens are 0 to 63"),
    "low": (changed("d2t", 3, -4), "d2t maps token 3 to -1; the target's tokens are 0 to 63"),
    "twice": (changed("d2t", 3, 2), "d2t maps 2 tokens to 5; allowed: one"),
    "mask": (changed("t2d", 2, True), "t2d says True of token 2, d2t the opposite"),
    "mask size": (lambda w: w.update({"t2d": torch.ones(9)}), r"t2d is \(9,\); allowed: \(64,\)"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_WEIGHTS)
def test_wrong_weights_are_refused_in_one_line(folder, name):
    change, message = BAD_WEIGHTS[name]
    weights = published()
    change(weights)
    write(folder / "eagle", weights)
    with pytest.raises(InvalidInput, match=f"^EAGLE drafter .*{message}") as caught:
        load(folder)
    assert "\n" not in str(caught.value)


def test_a_missing_mask_follows_from_the_map(folder):
    weights = published()
    del weights["t2d"]
    write(folder / "eagle", weights)
    assert load(folder).draft.module.t2d.nonzero()[:, 0].tolist() == list(TOKENS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 64}, "has hidden_size 64; its target has 32"),
        ({"vocab_size": 50}, "has vocab_size 50; its target has 64"),
        ({"draft_vocab_size": 65}, "has draft_vocab_size 65; allowed: whole numbers from 1 to 64"),
        ({"draft_vocab_size": 8}, r"d2t is \(16,\) torch.int64; allowed: \(8,\) whole numbers"),
        ({"norm_before_residual": True}, "has norm_before_residual True; allowed: false"),
        ({BOTH_TAPS: [0, 1]}, r"reads layers \[0, 1\] of a target with 4; allowed: 3 numbers from 0 to 3"),
        ({BOTH_TAPS: [0, 1, 4]}, "allowed: 3 numbers from 0 to 3"),
        ({BOTH_TAPS: "all"}, "reads layers 'all' of a target with 4"),
        ({"eagle_config": {BOTH_TAPS: [0, 1, 3]}}, "allowed: 3 numbers from -1 to 2"),
    ],
)
def test_a_wrong_configuration_is_refused_in_one_line(folder, changes, message):
    write(folder / "eagle", published(), **changes)
    with pytest.raises(InvalidInput, match=f"^EAGLE drafter .*{message}") as caught:
        load(folder)
    assert "\n" not in str(caught.value)
