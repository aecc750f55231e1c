"""The lean body of a plain Llama: what the modules of transformers compute, but for rounding."""

import copy

import pytest
import torch
from transformers import LlamaForCausalLM

from resispec.models import TransformersModel, lean
from resispec.models.lean import LeanBody, is_plain
from resispec.models.linear import FORCED, PACKED, PLAIN, TRANSPOSED
from resispec.models.own_lm_head import follows_modules
from tests.models.toy_architectures import LLAMA, PROMPT, ROPE, TOPOLOGY, build, made

pytestmark = pytest.mark.numerics

KINDS = {
    "two query heads a key": {},
    "one query head a key": {"num_key_value_heads": 4},
    "one key-value head": {"num_key_value_heads": 1},
    "wide heads": {"head_dim": 16},
    "tied": {"tie_word_embeddings": True},
    "llama3": {"rope_parameters": ROPE},
    "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
    "yarn": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 4.0,
            "original_max_position_embeddings": 16,
        }
    },
}
NOT_PLAIN = {
    "attention bias": {"attention_bias": True},
    "MLP bias": {"mlp_bias": True},
    "activation": {"hidden_act": "gelu"},
    "changing frequencies": {
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
    },
}
ALLOWED = {torch.float32: 2e-5, torch.bfloat16: 0.06}


def features_of(model, taps=()):
    """Features of a prompt, a tree, what follows a path that was kept, and a row alone."""
    session = model.tapping(taps).session(40, drafted=TOPOLOGY.num_nodes)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(60, (TOPOLOGY.num_nodes,), generator=generator)
    path = TOPOLOGY.ancestors[-1].nonzero()[:, 0]
    found = [session.extend(torch.tensor(PROMPT))]
    found.append(session.forward(tokens, TOPOLOGY.depths, TOPOLOGY.ancestors))
    session.keep(path)
    found.append(session.extend(tokens[:2]))
    found.append(session.forward(tokens, TOPOLOGY.depths, TOPOLOGY.ancestors))
    session.keep(path[:2])
    found.append(session.forward(tokens[:1], TOPOLOGY.depths[:1], TOPOLOGY.ancestors[:1, :1]))
    return torch.cat(found)


def gap(found, expected):
    assert found.dtype == expected.dtype and found.shape == expected.shape
    difference = (found.double() - expected.double()).norm(dim=-1)
    return float((difference / expected.double().norm(dim=-1)).max())


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.float32) for name in KINDS),
        *((name, torch.bfloat16) for name in ("two query heads a key", "wide heads")),
    ],
)
def test_features_are_those_of_the_modules_but_for_rounding(name, dtype):
    model = TransformersModel(build("Llama", LLAMA | KINDS[name]).to(dtype))
    assert model.ways()["forward"] == "lean"
    for taps in ((), (0, 3, 2)):
        found, expected = features_of(model, taps), features_of(model.of_modules(), taps)
        assert gap(found, expected) < ALLOWED[dtype]


@pytest.mark.parametrize("way", (PLAIN, PACKED, TRANSPOSED))
def test_features_stay_whatever_the_way_of_its_matrices(way, monkeypatch):
    module = build("Llama", LLAMA)
    expected = features_of(TransformersModel(module).of_modules())
    monkeypatch.setenv(FORCED, way)
    model = TransformersModel(module)
    assert {*model.ways()["linear"].values()} == {way}
    assert gap(features_of(model), expected) < ALLOWED[torch.float32]
    found = model.head(expected[:3])
    assert torch.allclose(found, expected[:3] @ module.lm_head.weight.T, atol=1e-4)


@pytest.mark.parametrize("name", NOT_PLAIN)
def test_what_is_no_plain_llama_keeps_its_modules(name):
    assert not is_plain(build("Llama", LLAMA | NOT_PLAIN[name]))


class Doubled(torch.Tensor):
    """A tensor whose numbers are not those that torch reads, as of quantised weights."""


def test_other_kinds_and_changed_parts_keep_their_modules():
    for kind in ("Qwen3", "Mistral", "Mistral 0.1", "GPT2"):
        assert not is_plain(made(kind))
    eager = build("Llama", LLAMA)
    eager.set_attn_implementation("eager")
    hooked = build("Llama", LLAMA)
    hooked.model.layers[1].mlp.register_forward_hook(lambda *_: None)
    patched = build("Llama", LLAMA)
    patched.model.norm.forward = lambda rows: rows
    adapted = build("Llama", LLAMA)

    class Adapter(torch.nn.Linear):
        pass

    adapted.model.layers[0].self_attn.q_proj.__class__ = Adapter
    mixed = build("Llama", LLAMA)
    mixed.model.norm.double()
    quantised = build("Llama", LLAMA)
    weight = quantised.model.layers[0].mlp.down_proj.weight
    quantised.model.layers[0].mlp.down_proj.weight = torch.nn.Parameter(weight.as_subclass(Doubled))
    for module in (eager, hooked, patched, adapted, mixed, quantised):
        assert not is_plain(module)


def test_a_module_that_is_hooked_later_is_called_from_then_on():
    module, calls = build("Llama", LLAMA), []
    model = TransformersModel(module)
    features_of(model)
    module.model.layers[0].register_forward_hook(lambda *_: calls.append(1))
    features_of(model)
    assert calls and model.ways()["forward"] == "modules of transformers"


@pytest.mark.parametrize("fault", ["position", "mask", "cache", "raises"])
def test_a_body_that_differs_from_the_modules_is_not_used(fault, monkeypatch):
    own = LeanBody.forward

    def wrong(self, tokens, positions, mask, rows, taps=()):
        if fault == "raises":
            raise RuntimeError("an operator that this device lacks")
        if fault == "position":
            positions = positions.clamp_max(8)
        if fault == "mask":
            mask = torch.zeros_like(mask)
        features = own(self, tokens, positions, mask, rows, taps)
        if fault == "cache" and len(tokens) > 4:
            rows.values[1].zero_()
        return features

    monkeypatch.setattr(LeanBody, "forward", wrong)
    model = TransformersModel(build("Llama", LLAMA))
    assert model.ways()["forward"] == "modules of transformers"


def test_the_check_sees_an_error_of_a_thousandth(monkeypatch):
    model = TransformersModel(build("Llama", LLAMA))
    assert follows_modules(model, model.of_modules())
    norm = model._lean._norm
    monkeypatch.setattr(model._lean, "_norm", lambda rows, gain: 1.001 * norm(rows, gain))
    assert not follows_modules(model, model.of_modules())


@pytest.mark.parametrize("way", (PLAIN, PACKED, TRANSPOSED))
def test_weights_are_shared_and_changes_of_them_are_followed(way, monkeypatch, tmp_path):
    monkeypatch.setenv(FORCED, way)
    module = build("Llama", LLAMA)
    state = {name: value.clone() for name, value in module.state_dict().items()}
    size = sum(value.untyped_storage().nbytes() for value in module.parameters())
    model = TransformersModel(module)
    attention = module.model.layers[0].self_attn
    first, last = attention.q_proj.weight, attention.v_proj.weight
    assert first.untyped_storage().data_ptr() == last.untyped_storage().data_ptr()
    held = {value.untyped_storage().data_ptr(): value for value in module.parameters()}
    assert sum(value.untyped_storage().nbytes() for value in held.values()) == size
    assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())
    again = TransformersModel(module)  # finds the matrices fused
    assert attention.q_proj.weight.data_ptr() == first.data_ptr()
    before = features_of(again)
    assert torch.equal(features_of(model), before)
    with torch.no_grad():  # as training does
        attention.v_proj.weight.mul_(2)
        module.lm_head.weight.mul_(2)
    changed = features_of(model)
    assert gap(changed, before) > 0.01
    assert gap(changed, features_of(model.of_modules())) < ALLOWED[torch.float32]
    assert torch.allclose(
        model.head(changed), changed @ module.lm_head.weight.T, rtol=1e-4, atol=1e-4
    )
    module.double()  # gives every parameter memory of its own
    assert model.ways()["forward"] == "modules of transformers"
    module.load_state_dict(state)
    module.float()
    assert model.ways()["forward"] == "lean"
    assert gap(features_of(model), before) < ALLOWED[torch.float32]
    module.save_pretrained(tmp_path)
    saved = LlamaForCausalLM.from_pretrained(tmp_path)
    assert all(torch.equal(value, state[name]) for name, value in saved.state_dict().items())
    copied = copy.deepcopy(module)
    assert not lean._fused([copied.model.layers[0].mlp.gate_proj]).requires_grad


def test_nothing_waits_and_shapes_and_addresses_stay():
    """As a captured graph needs it: the operations of a step are the same whatever is cached."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            shape = tuple(result.shape) if isinstance(result, torch.Tensor) else None
            seen.append((str(function), shape))
            return result

    model = TransformersModel(build("Llama", LLAMA))
    session = model.session(40, drafted=TOPOLOGY.num_nodes)
    runs = []
    for count in (5, 3, 9):  # the first one warms up
        session.clear()
        session.extend(torch.tensor(PROMPT[:count]))
        seen = []
        with Watch():
            session.forward(torch.arange(TOPOLOGY.num_nodes), TOPOLOGY.depths, TOPOLOGY.ancestors)
        runs.append(seen)
    assert runs[1] == runs[2] and len(runs[1]) > 40
    assert not any("_local_scalar" in name or "nonzero" in name for name, _ in runs[1])
