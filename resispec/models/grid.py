"""Weights of eight or four bits: whole numbers on a grid, and torch's products with them.

A weight that is rounded to a grid is another weight, so its model has another law, as one in
bfloat16 has. The law is that of the rounded numbers in bfloat16, whichever way multiplies them;
few rows are multiplied fastest by reading the whole numbers alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from resispec.errors import InvalidInput

GROUP = 32
"""Numbers of a row that share a scale and a least value, in four bits."""
BITS = {"int8": 8, "int4": 4}
"""Bits of the numbers of each precision; activations and scales are in bfloat16."""
MIDDLE = 8
"""The number of four bits that the kernel of torch takes for 0."""


@dataclass(frozen=True)
class Grid:
    """The whole numbers of a weight (out, in), and their scales in bfloat16.

    Eight bits: numbers from -127 to 127 (int8), scales (out,); a weight is number * scale.
    Four bits: numbers from 0 to 15 (uint8), scales (in / GROUP, out, 2), which hold the step of a
    group and the weight of MIDDLE.
    """

    bits: int
    numbers: Tensor
    scales: Tensor

    def dense(self) -> Tensor:
        """The weight (out, in) in bfloat16."""
        numbers, scales = self.numbers.float(), self.scales.float()
        if self.bits == 8:
            return numbers.mul_(scales[:, None]).bfloat16()
        step, middle = scales.transpose(0, 1).unbind(-1)
        groups = numbers.sub_(MIDDLE).unflatten(1, (-1, GROUP))
        return groups.mul_(step[..., None]).add_(middle[..., None]).flatten(1).bfloat16()

    def rows(self, chosen: Tensor | slice) -> Grid:
        """The grid of some rows of the weight."""
        scales = self.scales[chosen] if self.bits == 8 else self.scales[:, chosen]
        return Grid(self.bits, self.numbers[chosen], scales.contiguous())

    def multiply(self, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
        """The function from inputs (..., in) to outputs (..., out), by torch's kernel.

        Raises whatever torch raises where it has none for this shape.
        """
        operators: Any = torch.ops.aten
        if self.bits == 8:
            product, weight = operators._weight_int8pack_mm, self.numbers
            last: tuple[Any, ...] = (self.scales,)
        else:
            product = operators._weight_int4pack_mm_for_cpu
            last = GROUP, self.scales
            weight = operators._convert_weight_to_int4pack_for_cpu(self.numbers.int(), 1)
        width, height = self.numbers.shape[1], len(self.numbers)

        def multiplied(inputs: Tensor) -> Tensor:
            outputs = product(inputs.reshape(-1, width), weight, *last)
            outputs = outputs.view(*inputs.shape[:-1], height)
            return outputs if bias is None else outputs + bias

        return multiplied


def joined(grids: Sequence[Grid | None]) -> Grid | None:
    """The grid of weights one below the other; None unless all have grids of as many bits."""
    known = [grid for grid in grids if grid is not None]
    if len(known) < len(grids) or len({grid.bits for grid in known}) > 1:
        return None
    scales = torch.cat([grid.scales for grid in known], 0 if known[0].bits == 8 else 1)
    return Grid(known[0].bits, torch.cat([grid.numbers for grid in known]), scales)


def rounded(weight: Tensor, bits: int) -> Grid:
    """The grid of a weight (out, in) of float32.

    Eight bits: the largest of a row is 127. Four bits: the least of a group is 0 and its largest
    15, which is the rule of the format Q4_1 of llama.cpp, so the groups of a weight that was in
    this format are found again.
    """
    if bits == 8:
        scales = (weight.abs().amax(1) / 127).clamp_min(1e-30).bfloat16()
        numbers = (weight / scales.float()[:, None]).round_().clamp_(-127, 127)
        return Grid(8, numbers.to(torch.int8), scales)
    groups = weight.unflatten(1, (-1, GROUP))
    least, largest = groups.amin(-1), groups.amax(-1)
    step = ((largest - least) / 15).clamp_min(1e-30)
    numbers = ((groups - least[..., None]) / step[..., None]).round_()
    scales = torch.stack((step, least + MIDDLE * step), -1).transpose(0, 1).bfloat16()
    return Grid(4, numbers.to(torch.uint8).flatten(1), scales.contiguous())


def in_precision(module: nn.Module, dtype: torch.dtype) -> None:
    """Convert a module's parameters, not its buffers: rotary frequencies need their digits."""
    for parameter in module.parameters():
        parameter.data = parameter.data.to(dtype)


@torch.no_grad()
def put_on_grids(module: Any, name: str) -> Any:
    """The module (in float32) in bfloat16, its linear layers rounded to the grids of a precision.

    name: of `BITS`. Each layer keeps its grid as its attribute `grid`. The output layer has eight
    bits in either precision, as files of four bits have it, too; so have the embeddings if they are
    its weight. Raises InvalidInput for a model that has other matrices besides embeddings, as those
    of experts are, or linear layers that are not a multiple of GROUP wide.
    """
    head = module.get_output_embeddings()
    grids: dict[nn.Linear, Grid] = {}
    for place, layer in module.named_modules():
        if not isinstance(layer, nn.Linear):
            continue
        bits = 8 if layer is head else BITS[name]
        if bits == 4 and layer.in_features % GROUP:
            raise InvalidInput(
                f"dtype is {name}, and {place} is {layer.in_features} wide; allowed: multiples of "
                f"{GROUP}"
            )
        grids[layer] = rounded(layer.weight, bits)
        layer.weight.data = grids[layer].dense()
    for place, layer in module.get_decoder().named_modules():
        for key, weight in layer.named_parameters(recurse=False):
            if weight.ndim > 1 and layer not in grids and not isinstance(layer, nn.Embedding):
                raise InvalidInput(
                    f"dtype is {name}, and {place}.{key} is no linear layer's; allowed: models "
                    "whose matrices are linear layers and embeddings"
                )
    in_precision(module, torch.bfloat16)
    for layer, grid in grids.items():
        vars(layer)["grid"] = grid
    return module


def precision_of(module: Any) -> str:
    """The name of the precision that a module was loaded in, like "float16" or "int4"."""
    bits = [grid.bits for layer in module.modules() if (grid := _kept(layer)) is not None]
    return f"int{min(bits)}" if bits else str(module.dtype).removeprefix("torch.")


def grid_of(layer: Any) -> Grid | None:
    """The grid of a linear layer; None if it has none, or if its weight has changed since."""
    grid = _kept(layer)
    return grid if grid is not None and torch.equal(grid.dense(), layer.weight) else None


def _kept(layer: Any) -> Grid | None:
    """The grid that a layer keeps; None if it has none, or was moved or converted since."""
    grid: Grid | None = vars(layer).get("grid")
    if grid is None or layer.weight.dtype != torch.bfloat16:
        return None
    return grid if layer.weight.device == grid.numbers.device else None
