"""Clocks that wait for the device, and a split of a step's time."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable

import torch


def now(device: torch.device) -> float:
    """Seconds on a monotonic clock, once the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


class Stopwatch:
    """Adds up seconds by component.

    Every lap synchronises the device, so profiling runs stay apart from throughput runs.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._last = 0.0
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def begin(self) -> Callable[[str], None]:
        """Start the clock; the result ends a lap of the given name and begins the next."""
        self._last = now(self._device)
        return self._lap

    def _lap(self, name: str) -> None:
        instant = now(self._device)
        self.seconds[name] += instant - self._last
        self._last = instant
