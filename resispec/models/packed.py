"""Linear layers on a CPU, with weights in the order in which the CPU's kernels read them.

Otherwise oneDNN brings a weight into its own order in every call, and in float32 torch calls MKL,
which is slow on AMD's processors: docs/speed.md has the times.
"""

from typing import Any

import torch
from torch import Tensor, nn

from resispec.machine import memory_bytes, processor_name

LEAST_FLOAT32 = 2**19
"""The number of weights from which on packing a float32 layer pays:
a packed layer takes longer to call.
"""


class PackedLinear(nn.Linear):
    """A linear layer with a second copy of its weight, `packed`, for calls that need no gradient.

    Loading a weight, moving the layer or copying it drops `packed`, and the layer works as a plain
    one again.
    """

    packed: Tensor | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        """The layer's output, by operators that torch keeps for its compiler;
        `can_pack` looks for them.
        """
        if self.packed is None or torch.is_grad_enabled():
            return super().forward(inputs)
        return torch.ops.mkldnn._linear_pointwise(inputs, self.packed, self.bias, "none", [], "")

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "packed"}

    def _apply(self, *arguments: Any, **options: Any) -> Any:
        vars(self).pop("packed", None)
        return super()._apply(*arguments, **options)

    def _load_from_state_dict(self, *arguments: Any, **options: Any) -> None:
        vars(self).pop("packed", None)
        super()._load_from_state_dict(*arguments, **options)


def pack_if_faster(module: nn.Module) -> None:
    """Pack the weights of the linear layers for which packing was measured to pay.

    These are bfloat16 layers on a CPU that computes in bfloat16, and large float32 layers on an AMD
    CPU whose kernels are those for AVX2. Packed weights take twice the memory, so a model whose
    copies would need more than a quarter of the machine's memory stays as it is.
    """
    layers = [layer for layer in _linear_layers(module) if _is_faster(layer.weight)]
    if sum(layer.weight.nbytes for layer in layers) <= memory_bytes() / 4:
        for layer in layers:
            pack(layer)


def pack(module: nn.Module) -> None:
    """Pack the weights of all linear layers."""
    for layer in _linear_layers(module):
        layer.__class__ = PackedLinear
        # Not a buffer: it is no part of the model's state.
        layer.packed = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), None)


def _linear_layers(module: nn.Module) -> list[Any]:
    return [layer for layer in module.modules() if type(layer) in (nn.Linear, PackedLinear)]


def unpack(module: nn.Module) -> None:
    """Undo `pack`, since torch's compiler does not take packed layers."""
    for layer in _linear_layers(module):
        vars(layer).pop("packed", None)
        layer.__class__ = nn.Linear


def _is_faster(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or not can_pack(weight.dtype):
        return False
    if weight.dtype == torch.bfloat16:
        return True
    is_slow_with_mkl = (
        torch.backends.cpu.get_cpu_capability() == "AVX2" and "AMD" in processor_name()
    )
    return weight.numel() >= LEAST_FLOAT32 and is_slow_with_mkl


def can_pack(dtype: torch.dtype) -> bool:
    """Whether torch has the operators for packing on this machine and for this precision."""
    operators = torch.ops.mkldnn
    names = ("_is_mkldnn_bf16_supported", "_reorder_linear_weight", "_linear_pointwise")
    if not (
        torch.backends.mkldnn.is_available() and all(hasattr(operators, name) for name in names)
    ):
        return False
    return dtype == torch.float32 or (
        dtype == torch.bfloat16 and bool(operators._is_mkldnn_bf16_supported())
    )
