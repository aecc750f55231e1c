"""What a step asks of a device, counted without one: waits, captured units, operations outside of them.

On an accelerator a step that waits, or that starts many small operations, is slow whatever the operations do.
A step is decoded here as it is there: the verdict is drawn from the whole law, and units stand for one
operation each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pandas as pd
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from analysis.report import Table, plain
from resispec import capture
from resispec.capture import Outputs, Unit
from resispec.decode import Decoder, Sampling
from resispec.models import Pair

WAITING_CALLS = {"tolist", "numpy", "__array__", "cpu"}
"""Methods of a tensor that read it without being seen as an operation."""
WAITING_OPERATIONS = {
    "_local_scalar_dense",
    "item",
    "is_nonzero",
    "nonzero",
    "masked_select",
    "_unique2",
    "equal",
}
"""Operations that read a number, or whose result has a shape that depends on data."""


@dataclass
class Counts:
    """What a step asked for.

    operations: outside of units. units: calls of captured units. waits: for the device, anywhere.
    inside: operations within units, which a graph starts together.
    """

    operations: int = 0
    units: int = 0
    waits: int = 0
    inside: int = 0


class _Calls(TorchFunctionMode):
    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self._counts = counts

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self._counts.waits += getattr(func, "__name__", "") in WAITING_CALLS
        return func(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):
    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self._counts, self.is_inside = counts, False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self._counts.waits += func.overloadpacket.__name__ in WAITING_OPERATIONS
        if self.is_inside:
            self._counts.inside += 1
        else:
            self._counts.operations += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def counting() -> Iterator[Counts]:
    """Count what is decoded inside by decoders that have not decoded before, as if on an accelerator."""
    counts = Counts()
    operations = _Operations(counts)

    def as_counted(function: Unit) -> Unit:
        def unit(generator: torch.Generator | None, *inputs: Tensor) -> Outputs:
            counts.units += 1
            operations.is_inside = True
            try:
                return function(generator, *inputs)
            finally:
                operations.is_inside = False

        return unit

    with (
        patch.dict(capture.KINDS, {"cpu": as_counted}),
        patch("resispec.step.reading_is_free", lambda _: False),
        _Calls(counts),
        operations,
    ):
        yield counts


def counts_of(decoder: Decoder, pair: Pair, prompt: list[int], sampling: Sampling) -> list[Counts]:
    """What every step of one prompt asked for but the first, after which all shapes have been seen."""
    seen: list[Counts] = []
    with counting() as counts:

        def mark(_: object) -> None:
            seen.append(Counts(**vars(counts)))

        decoder.generate(pair, prompt, sampling, torch.Generator().manual_seed(0), on_step=mark)
    names = vars(counts)
    return [
        Counts(**{name: getattr(after, name) - getattr(before, name) for name in names})
        for before, after in zip(seen, seen[1:], strict=False)
    ]


def table_of(counted: Sequence[tuple[str, Sequence[Counts]]]) -> Table:
    """The most that a step of each decoder asked for."""
    rows = [
        {
            "decoder": name,
            "waits": max(step.waits for step in steps),
            "units": max(step.units for step in steps),
            "operations outside": max(step.operations for step in steps),
            "operations inside": max(step.inside for step in steps),
        }
        for name, steps in counted
    ]
    caption = "What a step asks of an accelerator at most, counted on a processor."
    return plain("bench_counts", pd.DataFrame(rows), caption)
