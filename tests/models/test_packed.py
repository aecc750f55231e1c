"""Packed weights: the same law but for rounding, of loaded bfloat16 models, and not under a compiler."""

import pytest
import torch
from torch import nn
from toys import save_tiny_pair, tiny_llama

from resispec.models import load_pair
from resispec.models.causal import compiled_pair
from resispec.models.packed import can_pack, pack

pytestmark = pytest.mark.skipif(not can_pack(), reason="this processor has no bfloat16")


def packed_layers(model):
    """How many linear layers of a model are packed, and of how many."""
    layers = [layer for layer in model.module.modules() if isinstance(layer, nn.Linear)]
    return sum("forward" in vars(layer) for layer in layers), len(layers)


def test_packed_weights_give_the_same_logits_but_for_rounding():
    model, features = tiny_llama(), torch.randn(3, 32, generator=torch.Generator().manual_seed(0)).bfloat16()
    model.module.bfloat16()
    layers = model.module.model.layers[0].mlp, model.module.lm_head
    with torch.inference_mode():
        before = [layers[0](features), layers[1](features)]
        pack(model.module)
        after = [layers[0](features), layers[1](features)]
    for own, packed in zip(before, after, strict=True):
        assert packed.dtype == torch.bfloat16
        assert (own.float() - packed.float()).abs().max() <= 2**-6 * own.float().abs().max()
    assert packed_layers(model) == (15, 15)


def test_loaded_bfloat16_models_are_packed_and_compiled_ones_are_not(tmp_path):
    save_tiny_pair(tmp_path)
    names = str(tmp_path / "target"), str(tmp_path / "draft")
    assert packed_layers(load_pair(*names).target) == (0, 15)
    pair = load_pair(*names, dtype="bfloat16")
    assert packed_layers(pair.target) == packed_layers(pair.draft) == (15, 15)
    assert packed_layers(compiled_pair(pair).target) == (1, 15)  # the head, which is not compiled
