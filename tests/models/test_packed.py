"""Packed weights: the same law but for rounding, where they are faster, and not under a compiler."""

import pytest
import torch
from torch import nn
from toys import save_tiny_pair, tiny_llama

from resispec.models import load_pair, packed
from resispec.models.causal import compiled_pair
from resispec.models.packed import can_pack, pack

ROUNDING = {torch.float32: 2**-20, torch.bfloat16: 2**-6}
PRECISIONS = [
    pytest.param(dtype, marks=pytest.mark.skipif(not can_pack(dtype), reason=f"no packed {dtype} here"))
    for dtype in ROUNDING
]


def packed_layers(model):
    """How many linear layers of a model are packed, and of how many."""
    layers = [layer for layer in model.module.modules() if isinstance(layer, nn.Linear)]
    return sum("forward" in vars(layer) for layer in layers), len(layers)


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_packed_weights_give_the_same_logits_but_for_rounding(dtype):
    model, features = tiny_llama(), torch.randn(3, 32, generator=torch.Generator().manual_seed(0)).to(dtype)
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
def test_loaded_models_are_packed_where_it_is_faster_and_compiled_ones_are_not(dtype, tmp_path, monkeypatch):
    save_tiny_pair(tmp_path)
    names = str(tmp_path / "target"), str(tmp_path / "draft")
    chosen = {"dtype": str(dtype).removeprefix("torch.")}
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    if dtype == torch.float32:  # small layers are not, and none where the processor has longer vectors
        assert packed_layers(load_pair(*names, **chosen).target) == (0, 15)
        monkeypatch.setattr(packed, "LEAST_FLOAT32", 1)
        with monkeypatch.context() as other:
            other.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
            assert packed_layers(load_pair(*names, **chosen).target) == (0, 15)
    pair = load_pair(*names, **chosen)
    assert packed_layers(pair.target) == packed_layers(pair.draft) == (15, 15)
    assert packed_layers(compiled_pair(pair).target) == (1, 15)  # the head, which is not compiled
    features = torch.randn(2, 32, dtype=dtype)
    drafted, whole = pair.target.drafting(torch.tensor([5, 2])).head(features), pair.target.head(features)
    assert torch.allclose(drafted[:, [2, 5]], whole[:, [2, 5]], rtol=0, atol=ROUNDING[dtype])
