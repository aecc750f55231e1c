"""Units: pieces of a decoding step whose shapes never change, each captured once as a CUDA graph.

A unit is a function of a generator and tensors. It keeps its state, such as a cache, in tensors
that it changes in place, never in Python numbers, since the replay of a captured graph runs no
Python.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any
from weakref import WeakMethod

import torch
from torch import Generator, Tensor

Outputs = tuple[Tensor, ...]
Unit = Callable[..., Outputs]
"""A function of a generator, None if nothing is drawn, and of tensors, that returns tensors."""


def as_unit(function: Unit, device: torch.device) -> Unit:
    """Make a function a unit for a device: as CUDA graphs on a CUDA device, elsewhere as it is.

    A captured unit overwrites its result in its next call with inputs of the same shapes.
    """
    return KINDS[device.type](function) if device.type in KINDS else function


def own_unit(method: Unit, device: torch.device, *first: Any) -> Unit:
    """`as_unit` of a method for its own object to hold.

    first: inputs of every call before the generator.

    The unit refers to the object weakly. Otherwise the two would hold each other, and caches and
    graphs of one prompt length would stay beside those of the next until the garbage collector
    comes.
    """
    reference = WeakMethod(method)

    def function(*inputs: Any) -> Outputs:
        return reference()(*first, *inputs)  # type: ignore[misc]  # the object is there: it calls

    return as_unit(function, device)


def upload(numbers: Sequence[int], device: torch.device) -> Tensor:
    """Whole numbers as an int64 tensor (K,) on a device, without waiting for the device."""
    # a program may have set a GPU as the default device
    return send(torch.tensor(numbers, dtype=torch.int64, device="cpu"), device)


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device; one on the CPU without waiting for the device."""
    if device.type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


class CudaGraphs:
    """A function captured as CUDA graphs, one for each combination of input shapes and dtypes.

    The first call with new shapes runs the function without capture, which also prepares libraries
    and the function's own caches. The second call captures the function. All calls must pass the
    same generator.
    """

    def __init__(self, function: Unit) -> None:
        self._function = function
        self._seen: set[tuple[Any, ...]] = set()
        self._graphs: dict[tuple[Any, ...], tuple[torch.cuda.CUDAGraph, Outputs, Outputs]] = {}

    def __call__(self, generator: Generator | None, *inputs: Tensor) -> Outputs:
        """Run the function.

        The returned tensors are valid until the next call with the same shapes.
        """
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
        """Capture a graph; returns it, the tensors it reads and the tensors it writes.

        Nothing runs yet.
        """
        graph = torch.cuda.CUDAGraph()
        if generator is not None:
            graph.register_generator_state(generator)
        places = tuple(value.clone() for value in inputs)
        with uncollected(), torch.cuda.graph(graph, stream=_capturing_stream(places[0].device)):
            outputs = self._function(generator, *places)
        return graph, places, outputs


@contextmanager
def uncollected() -> Iterator[None]:
    """Pause the garbage collector: if it deletes an older graph, CUDA breaks off the capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@cache
def _capturing_stream(device: torch.device) -> torch.cuda.Stream:
    """The one stream for all captures on a device, since libraries keep memory for every stream."""
    return torch.cuda.Stream(device)


KINDS: dict[str, Callable[[Unit], Unit]] = {"cuda": CudaGraphs}
"""Makers of units by device type; on other devices a function is a unit as it is."""
