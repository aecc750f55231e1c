"""CUDA graphs of the pieces of a step whose shapes never change: units, each captured once.

A unit is a function of a generator and tensors. It keeps its state, like a cache, in tensors that it changes
in place, never in numbers of the host: where it is captured, Python runs it only once.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Generator, Tensor

Outputs = tuple[Tensor, ...]
Unit = Callable[..., Outputs]
"""Takes a generator, or None where nothing is drawn, then tensors; returns tensors."""


def as_unit(function: Unit, device: torch.device) -> Unit:
    """The function as a unit of a device, captured once for all calls where that saves time.

    A captured unit overwrites its result in its next call with inputs of the same shapes.
    """
    return KINDS[device.type](function) if device.type in KINDS else function


def upload(numbers: Sequence[int], device: torch.device) -> Tensor:
    """Whole numbers as an int64 tensor (K,) on a device, without waiting for the device."""
    return send(torch.tensor(numbers, dtype=torch.int64), device)


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """A processor's tensor on a device, without waiting for the device."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


class CudaGraphs:
    """A function as CUDA graphs, one for each combination of its inputs' shapes.

    The first call with new shapes runs the function as it is, which also prepares libraries and whatever the
    function caches. The second one captures it. All calls get the same generator.
    """

    def __init__(self, function: Unit) -> None:
        self._function = function
        self._seen: set[tuple[Any, ...]] = set()
        self._graphs: dict[tuple[Any, ...], tuple[torch.cuda.CUDAGraph, Outputs, Outputs]] = {}

    def __call__(self, generator: Generator | None, *inputs: Tensor) -> Outputs:
        """Run it. Returned tensors hold until the next call with these shapes."""
        key = tuple((value.shape, value.dtype) for value in inputs)
        if key not in self._seen:
            self._seen.add(key)
            return self._function(generator, *inputs)
        if key not in self._graphs:
            self._graphs[key] = self._capture(generator, inputs)
        graph, places, outputs = self._graphs[key]
        for place, value in zip(places, inputs, strict=True):
            if place.data_ptr() != value.data_ptr():
                place.copy_(value, non_blocking=True)
        graph.replay()
        return outputs

    def _capture(
        self, generator: Generator | None, inputs: Outputs
    ) -> tuple[torch.cuda.CUDAGraph, Outputs, Outputs]:
        """The graph, the tensors that it reads and those that it writes; nothing runs yet."""
        graph = torch.cuda.CUDAGraph()
        if generator is not None:
            graph.register_generator_state(generator)
        places = tuple(value.clone() for value in inputs)
        with torch.cuda.graph(graph, stream=_capturing_stream(places[0].device)):
            outputs = self._function(generator, *places)
        return graph, places, outputs


@cache
def _capturing_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all captures on a device, since libraries keep memory for every stream."""
    return torch.cuda.Stream(device)


KINDS: dict[str, Callable[[Unit], Unit]] = {"cuda": CudaGraphs}
"""Makers of units by the type of a device; elsewhere the function itself is one."""
