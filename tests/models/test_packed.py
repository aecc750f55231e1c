"""Packed weights: the same law but for rounding, where they are faster,
and not under a compiler.
"""

import copy
import pickle

import pytest
import torch
from torch import nn

from resispec.models import eagle_files, load_pair, packed, save_eagle
from resispec.models.causal import compiled_pair
from resispec.models.packed import can_pack, pack
from tests.toys import save_tiny_pair, tiny_eagle, tiny_llama

pytestmark = pytest.mark.numerics

ROUNDING = {torch.float32: 2**-20, torch.bfloat16: 2**-6}
PRECISIONS = [
    pytest.param(
        dtype, marks=pytest.mark.skipif(not can_pack(dtype), reason=f"no packed {dtype} here")
    )
    for dtype in ROUNDING
]


def packed_layers(model):
    """How many linear layers of a model are packed, and of how many."""
    layers = [layer for layer in model.module.modules() if isinstance(layer, nn.Linear)]
    return sum("packed" in vars(layer) for layer in layers), len(layers)


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_packed_weights_give_the_same_logits_but_for_rounding(dtype):
    model, features = (
        tiny_llama(),
        torch.randn(3, 32, generator=torch.Generator().manual_seed(0)).to(dtype),
    )
    model.module.to(dtype)
    layers = model.module.model.layers[0].mlp, model.module.lm_head
    with torch.inference_mode():
        before = [layers[0](features), layers[1](features)]
        pack(model.module)
        after = [layers[0](features), layers[1](features)]
    for own, other in zip(before, after, strict=True):
        assert other.dtype == dtype
        assert (own - other).abs().max() <= ROUNDING[dtype] * own.abs().max()
    assert packed_layers(model) == (15, 15)


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_loaded_models_are_packed_where_it_is_faster_and_compiled_ones_are_not(
    dtype, tmp_path, monkeypatch
):
    save_tiny_pair(tmp_path)
    names = str(tmp_path / "target"), str(tmp_path / "draft")
    chosen = {"dtype": str(dtype).removeprefix("torch.")}
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    monkeypatch.setattr(packed, "processor_name", lambda: "AMD EPYC")
    # small layers are not, and none where the processor has longer vectors
    if dtype == torch.float32:
        assert packed_layers(load_pair(*names, **chosen).target) == (0, 15)
        monkeypatch.setattr(packed, "LEAST_FLOAT32", 1)
        others = (
            (torch.backends.cpu, "get_cpu_capability", lambda: "AVX512"),
            (packed, "processor_name", lambda: "Intel"),
            (packed, "memory_bytes", lambda: 1 << 16),
        )
        for other in others:
            with monkeypatch.context() as there:
                there.setattr(*other)
                assert packed_layers(load_pair(*names, **chosen).target) == (0, 15)
    pair = load_pair(*names, **chosen)
    assert packed_layers(pair.target) == packed_layers(pair.draft) == (15, 15)
    assert packed_layers(compiled_pair(pair).target) == (1, 15)  # the head, which is not compiled
    reduced = pair.target.drafting(torch.tensor([5, 2]))
    features = torch.randn(2, 32, dtype=dtype)
    with monkeypatch.context() as there:
        there.setattr(packed.PackedLinear, "forward", lambda *_: torch.full((2, 2), 7.0))
        assert reduced.head(features)[0, 5] == 7
    drafted, whole = reduced.head(features), pair.target.head(features)
    assert torch.allclose(drafted[:, [2, 5]], whole[:, [2, 5]], rtol=0, atol=ROUNDING[dtype])


@pytest.mark.parametrize("dtype", PRECISIONS[:1])
def test_layers_that_are_copied_moved_or_trained_are_plain_ones(dtype):
    """A copy of the weights that does not follow them would go on giving the old outputs."""
    layer, features = nn.Linear(4, 4, dtype=dtype), torch.ones(1, 4, dtype=dtype)
    pack(layer)
    assert layer(features).requires_grad  # by the weights themselves
    for plain in (
        copy.deepcopy(layer),
        pickle.loads(pickle.dumps(layer)),
        copy.deepcopy(layer).double(),
    ):
        assert "packed" not in vars(plain) and torch.equal(plain.weight, layer.weight)
    layer.load_state_dict(
        {name: torch.zeros_like(value) for name, value in layer.state_dict().items()}
    )
    with torch.inference_mode():
        assert not layer(features).any()


def test_eagle_drafters_are_packed_like_models(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(eagle_files, "pack_if_faster", asked.append)
    save_eagle(tiny_eagle(), tmp_path)
    assert asked == [eagle_files.load_eagle(str(tmp_path), tiny_llama()).module]
