"""EAGLE-1 and EAGLE-3 drafters: published files, networks, and what they read of a target."""

import json
import pickle

import pytest
import torch
from safetensors.torch import save_file

from resispec.errors import InvalidInput
from resispec.models import (
    EagleModel,
    Pair,
    TransformersModel,
    eagle_files,
    features_of,
    load_eagle_pair,
    load_pair,
    save_eagle,
    usual_taps,
)
from resispec.models.eagle_files import load_eagle
from resispec.models.linear import FORCED, PACKED
from tests.models.toy_architectures import made
from tests.models.toy_layouts import LLAMA, OLD
from tests.toys import (
    MakesFolder,
    TableModel,
    ToyTokenizer,
    save_tiny_pair,
    tiny_eagle,
    tiny_eagle3,
    tiny_llama,
)

pytestmark = pytest.mark.numerics

TOKENS = tuple(range(1, 64, 4))
TAPS = "eagle_aux_hidden_state_layer_ids"
PARTS = ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj")
LAYER = {f"self_attn.{name}.weight" for name in PARTS[0]} | {
    f"mlp.{name}.weight" for name in PARTS[1]
}
LAYER |= {"post_attention_layernorm.weight"}
# By the name of the drafter, the published keys without the embeddings.
OFFICIAL = {
    "eagle": {"fc.weight", "fc.bias", *(f"layers.0.{name}" for name in LAYER)},
    "eagle3": {
        *("fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d"),
        *(f"midlayer.{name}" for name in LAYER | {"hidden_norm.weight", "input_layernorm.weight"}),
    },
}
CONFIG = LLAMA | OLD | {"num_hidden_layers": 1}
SIZES = {"eagle": {}, "eagle3": {"draft_vocab_size": len(TOKENS)}}


def published(kind, module=None):
    """A drafter's weights as published: in half precision; EAGLE-3 without embeddings."""
    module = module or (tiny_eagle(vocab=64) if kind == "eagle" else tiny_eagle3(TOKENS))
    weights = dict(module.state_dict())
    if kind == "eagle3":
        del weights["embed_tokens.weight"]
    return {
        name: weight.half() if weight.is_floating_point() else weight
        for name, weight in weights.items()
    }


def write(folder, kind, weights=None, safetensors=False, **changes):
    """config.json with the keys of the published one, and the weights."""
    folder.mkdir(exist_ok=True)
    config = CONFIG | SIZES[kind] | changes
    (folder / "config.json").write_text(
        json.dumps({key: value for key, value in config.items() if value != "absent"})
    )
    for name in ("pytorch_model.bin", "model.safetensors"):
        (folder / name).unlink(missing_ok=True)
    weights = published(kind) if weights is None else weights
    if safetensors:
        save_file(weights, folder / "model.safetensors")
    else:
        torch.save(weights, folder / "pytorch_model.bin")


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """A target of four layers, for all drafters."""
    folder = tmp_path_factory.mktemp("models")
    save_tiny_pair(folder, ("target",), layers=4)
    return str(folder / "target")


@pytest.fixture(scope="module")
def target_model(target):
    return load_pair(target, None).target


@pytest.fixture
def load(target, tmp_path):
    return lambda **options: load_eagle_pair(target, str(tmp_path / "drafter"), **options)


@pytest.mark.parametrize("safetensors", [False, True])
@pytest.mark.parametrize("kind", OFFICIAL)
def test_official_checkpoints_load(load, tmp_path, kind, safetensors):
    weights = published(kind)
    assert set(weights) - {"embed_tokens.weight"} == OFFICIAL[kind]
    write(tmp_path / "drafter", kind, weights, safetensors)
    pair = load()
    found = pair.draft.module.state_dict()
    assert set(found) == OFFICIAL[kind] | {"embed_tokens.weight"} and isinstance(
        pair.draft, EagleModel
    )
    for name, weight in weights.items():
        assert torch.equal(found[name], weight.float() if weight.is_floating_point() else weight), (
            name
        )
    assert (pair.draft.vocab_size, pair.draft.context) == (64, 256)
    if kind == "eagle3":
        assert pair.draft.taps == (1, 2, 3)
        finite = pair.eagle_head()(torch.ones(1, 32)).isfinite()[0]
        assert finite.nonzero()[:, 0].tolist() == list(TOKENS) and pair.draft.num_draftable == 16
        assert features_of(pair.target, [1, 2]).shape == (2, 128)


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_the_number_of_layers_is_that_of_the_weights(load, tmp_path, kind):
    """A published drafter for Vicuna has one layer and gives its target's 40."""
    write(tmp_path / "drafter", kind, num_hidden_layers=40)
    assert load().draft.module.config.num_hidden_layers == 1


def test_a_bias_the_embeddings_and_the_drafter_may_be_absent(load, target, tmp_path):
    assert load_eagle_pair(target, None).draft is None
    weights = published("eagle", tiny_eagle(vocab=64, bias=False))
    del weights["embed_tokens.weight"]
    write(tmp_path / "drafter", "eagle", weights)
    pair = load()
    found = pair.draft.module.state_dict()
    assert set(found) == OFFICIAL["eagle"] - {"fc.bias"} | {"embed_tokens.weight"}
    assert torch.equal(
        found["embed_tokens.weight"], pair.target.module.get_input_embeddings().weight
    )


def test_the_rotary_frequencies_are_the_configurations_in_full_precision(load, tmp_path):
    stored = published("eagle") | {"layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    write(tmp_path / "drafter", "eagle", stored)
    frequency = load().draft.module.rotary_emb.inv_freq[1]
    assert frequency != 1
    for change in (
        {"rope_theta": 500.0},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    ):
        write(tmp_path / "drafter", "eagle", **change)
        assert load().draft.module.rotary_emb.inv_freq[1] > 2 * frequency
    for kind in OFFICIAL:
        write(tmp_path / "drafter", kind)
        module = load(dtype="bfloat16").draft.module
        assert {weight.dtype for weight in module.parameters()} == {torch.bfloat16}
        assert module.rotary_emb.inv_freq.dtype == torch.float32


@pytest.mark.parametrize("kind", OFFICIAL)
def test_a_target_may_read_images_too(tmp_path, kind):
    """The sizes are those of the part that reads text."""
    write(tmp_path, kind)
    target = TransformersModel(made("Gemma 3 with images"))
    assert load_eagle(str(tmp_path), target).vocab_size == target.vocab_size


def test_a_drafter_of_the_whole_vocabulary_reads_no_map(load, tmp_path):
    """As its authors leave them: zeros."""
    weights = published("eagle3", tiny_eagle3(tuple(range(64))))
    rest = {name: weight for name, weight in weights.items() if name not in ("d2t", "t2d")}
    zeros = {"d2t": torch.zeros(64, dtype=torch.int64), "t2d": torch.zeros(64, dtype=torch.bool)}
    for maps, size in (({}, "absent"), (zeros, 64), (zeros, None)):
        write(tmp_path / "drafter", "eagle3", rest | maps, draft_vocab_size=size)
        pair = load()
        assert (
            pair.draft.num_draftable == 64 and pair.eagle_head()(torch.ones(1, 32)).isfinite().all()
        )


def test_a_drafter_may_be_narrower_than_its_target_and_then_has_its_own_embeddings(load, tmp_path):
    weights = published("eagle3", tiny_eagle3(TOKENS, hidden=16))
    changes = {
        "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "target_hidden_size": 32,
    }  # fmt: skip
    write(
        tmp_path / "drafter",
        "eagle3",
        weights | {"embed_tokens.weight": torch.ones(64, 16)},
        **changes,
    )
    assert load().draft.module.fc.weight.shape == (16, 96)
    write(tmp_path / "drafter", "eagle3", weights, **changes)
    with pytest.raises(InvalidInput, match='Missing key.s. in state_dict: "embed_tokens.weight"'):
        load()


def test_the_tapped_layers_are_the_configurations_and_a_mask_follows_from_the_map(load, tmp_path):
    weights = published("eagle3")
    del weights["t2d"]
    for changes in ({TAPS: [0, 1, 3]}, {"eagle_config": {TAPS: [-1, 0, 2]}}):
        write(tmp_path / "drafter", "eagle3", weights, **changes)
        drafter = load().draft
        assert drafter.taps == (0, 1, 3)
        assert drafter.module.t2d.nonzero()[:, 0].tolist() == list(TOKENS)


def test_weights_that_are_written_through_data_are_packed_anew(load, tmp_path, monkeypatch):
    """Defect: as an average of weights is copied in; the drafter went on with half of the old."""
    monkeypatch.setenv(FORCED, PACKED)
    write(tmp_path / "drafter", "eagle")
    drafter = load().draft
    layer = drafter.module.fc
    layer.weight.data.neg_()
    drafter.state()
    inputs = torch.ones(1, layer.in_features)
    with torch.inference_mode():
        expected = torch.nn.functional.linear(inputs, layer.weight, layer.bias)
        assert torch.allclose(layer(inputs), expected, atol=1e-5)


@pytest.mark.parametrize("kind", OFFICIAL)
def test_a_saved_drafter_has_the_published_layout_and_comes_back(load, tmp_path, kind):
    write(tmp_path / "drafter", kind, **({TAPS: [0, 1, 3]} if kind == "eagle3" else {}))
    pair, again = load(), tmp_path / "again"
    save_eagle(pair.draft.module, again)
    assert {path.name for path in again.iterdir()} == {"config.json", "model.safetensors"}
    saved = json.loads((again / "config.json").read_text())
    same = {
        key: CONFIG[key]
        for key in (saved.keys() & CONFIG.keys()) - {"architectures", "torch_dtype"}
    }
    assert len(same) > 10 and saved | same == saved and saved["rope_theta"] == 10_000.0
    assert saved.get("bias") is (True if kind == "eagle" else None)
    assert saved.get("draft_vocab_size") == SIZES[kind].get("draft_vocab_size")
    loaded = load_eagle(str(again), pair.target)
    assert (
        loaded.taps == pair.draft.taps
        and loaded.module.state_dict().keys() == pair.draft.module.state_dict().keys()
    )


def changed(name, place, value):
    return lambda weights: weights[name].__setitem__(place, value)


WRONG_WEIGHTS = [
    ("eagle", lambda w: w.pop("fc.weight"), 'Missing key.s. in state_dict: "fc.weight"'),
    (
        "eagle",
        lambda w: w.update({"lm_head.weight": torch.ones(64, 32)}),
        "Unexpected .* .lm_head.weight",
    ),
    (
        "eagle",
        lambda w: w.update({"layers.1.mlp.up_proj.weight": w["fc.weight"]}),
        "2 layers in its weights",
    ),
    (
        "eagle",
        lambda w: w.update({"fc.weight": [1.0]}),
        "is no EAGLE checkpoint; expected tensors by name",
    ),
    ("eagle3", lambda w: w.pop("d2t"), r"d2t is \(0,\) torch.float32; allowed: \(16,\) whole"),
    (
        "eagle3",
        lambda w: w.update({"d2t": torch.zeros(16)}),
        r"d2t is \(16,\) torch.float32; allowed",
    ),
    (
        "eagle3",
        changed("d2t", 3, 61),
        "d2t maps its tokens to 1 to 64, .*; allowed: .* from 0 to 63",
    ),
    ("eagle3", changed("d2t", 3, -4), "d2t maps its tokens to -1 to 61"),
    ("eagle3", changed("d2t", 3, 2), "15 of 16 different; allowed: different ones"),
    ("eagle3", changed("t2d", 2, True), "t2d is not the mask of the tokens that d2t reaches"),
]
WRONG_CONFIG = [
    ("eagle", {"hidden_size": 64}, "has hidden_size 64; its target has 32"),
    ("eagle", {"intermediate_size": 24}, "mismatch for .*gate_proj.weight: .*48, 32.*24, 32"),
    ("eagle", {"hidden_size": "absent", "vocab_size": "absent"}, "lacks hidden_size, vocab_size"),
    ("eagle", {"hidden_act": "nothing"}, "describes no Llama layer"),
    (
        "eagle3",
        {"draft_vocab_size": 65},
        "draft_vocab_size 65; allowed: whole numbers from 1 to 64",
    ),
    ("eagle3", {"target_hidden_size": 48}, "has target_hidden_size 48; its target has 32"),
    ("eagle3", {"norm_before_residual": True}, "has norm_before_residual True; allowed: false"),
    ("eagle3", {TAPS: [0, 1, 4]}, "allowed: 3 numbers from 0 to 3"),
    ("eagle3", {TAPS: "all"}, "reads layers 'all' of a target with 4"),
    ("eagle3", {"eagle_config": {TAPS: [0, 1, 3]}}, "allowed: 3 numbers from -1 to 2"),
]


@pytest.mark.parametrize(("kind", "change", "message"), [*WRONG_WEIGHTS, *WRONG_CONFIG])
def test_wrong_weights_and_configurations_are_refused_in_one_line(
    target_model, tmp_path, kind, change, message
):
    weights, changes = {name: tensor.clone() for name, tensor in published(kind).items()}, {}
    if callable(change):
        change(weights)
    else:
        changes = change
    write(tmp_path / "drafter", kind, weights, **changes)
    with pytest.raises(InvalidInput, match=f"^.*{message}.*$"):
        load_eagle(str(tmp_path / "drafter"), target_model)


def test_damaged_or_missing_files_are_refused_in_one_line(target_model, tmp_path):
    write(tmp_path / "drafter", "eagle")
    plain, pickled, config = (
        tmp_path / "drafter" / name
        for name in ("model.safetensors", "pytorch_model.bin", "config.json")
    )
    trap = MakesFolder(tmp_path / "trap")
    for damage, message in (
        (
            lambda: pickled.write_bytes(pickle.dumps(trap, 2)),
            "cannot be read: .*none of it was run",
        ),
        (lambda: plain.write_bytes(b"broken"), "model.safetensors cannot be read: ."),
        (lambda: [path.unlink() for path in (plain, pickled)], "has no weights; expected"),
        (lambda: config.write_text("{"), "config.json cannot be read"),
    ):
        damage()
        with pytest.raises(InvalidInput, match=f"^.*{message}.*$"):
            load_eagle(str(tmp_path / "drafter"), target_model)
    assert not (tmp_path / "trap").exists()


# Networks, and the layers of a target that EAGLE-3 taps


def normed(rows, weight):
    """RMS norm of rows (K, H)."""
    return rows * (rows.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight


def test_a_row_alone_of_eagle3_is_the_papers():
    """In float64 by definition; a row that sees itself alone attends to its own values."""
    module, generator = tiny_eagle3(TOKENS), torch.Generator().manual_seed(0)
    tokens = torch.randint(64, (12, 1), generator=generator)
    # the last hidden state, and three taps
    features = torch.randn(12, 1, 4 * 32, generator=generator)
    with torch.inference_mode():
        found = module(tokens, features, torch.arange(12)[:, None])[:, 0]
    weights = {name: weight.double() for name, weight in module.state_dict().items()}
    layer = {name.removeprefix("midlayer."): weight for name, weight in weights.items()}
    hidden = features[:, 0, 32:].double() @ weights["fc.weight"].T
    embeddings = weights["embed_tokens.weight"][tokens[:, 0]]
    read = torch.cat(
        (
            normed(embeddings, layer["input_layernorm.weight"]),
            normed(hidden, layer["hidden_norm.weight"]),
        ),
        1,
    )
    values = (read @ layer["self_attn.v_proj.weight"].T).unflatten(
        1, (module.config.num_key_value_heads, -1)
    )
    mixed = values.repeat_interleave(module.midlayer.self_attn.num_key_value_groups, 1).flatten(1)
    hidden = hidden + mixed @ layer["self_attn.o_proj.weight"].T
    read = normed(hidden, layer["post_attention_layernorm.weight"])
    gate, up, down = (layer[f"mlp.{kind}_proj.weight"].T for kind in ("gate", "up", "down"))
    expected = hidden + (torch.nn.functional.silu(read @ gate) * (read @ up)) @ down
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


def test_a_drafter_that_cannot_be_written_leaves_what_was_there(tmp_path, monkeypatch):
    save_eagle(tiny_eagle(), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(before) == {"config.json", "model.safetensors"}

    def half(_, path):
        path.write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(eagle_files, "save_file", half)
    with pytest.raises(OSError, match="no space"):
        save_eagle(tiny_eagle3(TOKENS), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
