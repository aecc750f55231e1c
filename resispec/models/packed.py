"""Linear layers of bfloat16 models on a processor, with weights in the order in which its kernels read them.

oneDNN otherwise brings a weight into its own order in every call: docs/studies/few_rows.py has the times.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn


def pack_if_faster(module: Any) -> None:
    """Pack the weights of a model in bfloat16 on a processor that computes in it.

    Elsewhere, in float32 and for a torch without these operators, the model stays as it is.
    """
    if module.device.type == "cpu" and module.dtype == torch.bfloat16 and can_pack():
        pack(module)


def pack(module: nn.Module) -> None:
    """Pack the weights of linear layers. The weights stay beside what is packed, and may not change again."""
    for layer in module.modules():
        if type(layer) is nn.Linear:
            weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), None)
            vars(layer)["forward"] = partial(_linear, weight, layer.bias)


def _linear(weight: Tensor, bias: Tensor | None, inputs: Tensor) -> Tensor:
    """A linear layer's output, by operators that torch keeps for its compiler; `can_pack` asks for them."""
    return torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")


def unpack(module: nn.Module) -> None:
    """Undo `pack`: torch's compiler does not take what was packed."""
    for layer in module.modules():
        if getattr(vars(layer).get("forward"), "func", None) is _linear:
            del vars(layer)["forward"]


def can_pack() -> bool:
    """Whether torch has the operators here, and the processor bfloat16."""
    operators = torch.ops.mkldnn
    names = ("_is_mkldnn_bf16_supported", "_reorder_linear_weight", "_linear_pointwise")
    has_all = torch.backends.mkldnn.is_available() and all(hasattr(operators, name) for name in names)
    return has_all and bool(operators._is_mkldnn_bf16_supported())
