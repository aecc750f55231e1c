"""Linear layers on a processor, with weights in the order in which its kernels read them.

oneDNN otherwise brings a weight into its own order in every call, and in float32 torch calls MKL, which is
slow on some processors: docs/studies/few_rows.py has the times.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

LEAST_FLOAT32 = 2**19
"""Weights of a float32 layer from which on packing pays: a packed layer takes longer to call."""


def pack_if_faster(module: nn.Module) -> None:
    """Pack the weights of linear layers for which it was measured to pay; all others stay as they are.

    These are layers in bfloat16 on a processor that computes in it, and large ones in float32 on one whose
    kernels are those for AVX2.
    """
    pack(module, _is_faster)


def pack(module: nn.Module, chosen: Callable[[Tensor], bool] = lambda weight: True) -> None:
    """Pack the weights of linear layers that are `chosen`.

    The weights stay beside what is packed, and may not change again.
    """
    for layer in module.modules():
        if type(layer) is nn.Linear and chosen(layer.weight):
            weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), None)
            vars(layer)["forward"] = partial(_linear, weight, layer.bias)


def _is_faster(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or not can_pack(weight.dtype):
        return False
    is_large = weight.numel() >= LEAST_FLOAT32
    return weight.dtype == torch.bfloat16 or (is_large and torch.backends.cpu.get_cpu_capability() == "AVX2")


def _linear(weight: Tensor, bias: Tensor | None, inputs: Tensor) -> Tensor:
    """A linear layer's output, by operators that torch keeps for its compiler; `can_pack` asks for them."""
    return torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")


def unpack(module: nn.Module) -> None:
    """Undo `pack`: torch's compiler does not take what was packed."""
    for layer in module.modules():
        if getattr(vars(layer).get("forward"), "func", None) is _linear:
            del vars(layer)["forward"]


def can_pack(dtype: torch.dtype) -> bool:
    """Whether torch has the operators here, and for this precision."""
    operators = torch.ops.mkldnn
    names = ("_is_mkldnn_bf16_supported", "_reorder_linear_weight", "_linear_pointwise")
    if not (torch.backends.mkldnn.is_available() and all(hasattr(operators, name) for name in names)):
        return False
    is_bfloat16 = dtype == torch.bfloat16
    return dtype == torch.float32 or (is_bfloat16 and bool(operators._is_mkldnn_bf16_supported()))
