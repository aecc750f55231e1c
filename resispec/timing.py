"""Clocks that wait for the device, and a split of time into named, nested parts.

Code marks its parts with `part`, which does next to nothing outside of a block in which `measuring`
times.
"""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

import torch


def now(device: torch.device) -> float:
    """Seconds on a monotonic clock, once the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


_NOTHING = nullcontext()


class Stopwatch:
    """A stopwatch that adds up seconds by part.

    It waits for the device at both ends of each part, so profiling runs stay apart from throughput
    runs.

    looks_inside: whether parts inside of parts are timed, too; timing them takes some time itself.
    seconds: by path, as "verify" and "verify/shaping". A part's seconds include those of the parts
    inside it. num_timed: how often any part was timed. open_parts: names of parts being timed, the
    outermost first.
    """

    def __init__(self, device: torch.device, looks_inside: bool = True) -> None:
        self.device, self.looks_inside = device, looks_inside
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.num_timed = 0
        self.open_parts: list[str] = []

    def part(self, name: str) -> AbstractContextManager[None]:
        """Time a block as a part, inside of the part that is being timed, if any."""
        return _NOTHING if self.open_parts and not self.looks_inside else self._timed(name)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        self.open_parts.append(name)
        start = now(self.device)
        try:
            yield
        finally:
            end = now(self.device)
            self.seconds["/".join(self.open_parts)] += end - start
            self.num_timed += 1
            self.open_parts.pop()


_running: ContextVar[Stopwatch | None] = ContextVar("_running", default=None)


@contextmanager
def measuring(stopwatch: Stopwatch | None) -> Iterator[None]:
    """Time every `part` of a block with this stopwatch; None times nothing."""
    token = _running.set(stopwatch)
    try:
        yield
    finally:
        _running.reset(token)


def looks_inside() -> bool:
    """Whether a stopwatch runs that times parts inside of parts, which captured work lacks."""
    stopwatch = _running.get()
    return stopwatch is not None and stopwatch.looks_inside


def part(name: str) -> AbstractContextManager[None]:
    """Mark a block as a named part for the running stopwatch.

    Nothing is timed, and nothing waits for the device, if no stopwatch runs, or if the device's
    work is being captured in a graph.
    """
    stopwatch = _running.get()
    if stopwatch is None or (
        stopwatch.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    ):
        return _NOTHING
    return stopwatch.part(name)


def clock_seconds(device: torch.device, count: int) -> float:
    """Seconds that `count` empty parts take, which a stopwatch adds by timing that many parts."""
    stopwatch = Stopwatch(device)
    start = now(device)
    with measuring(stopwatch):
        for _ in range(count):
            with part("empty"):
                pass
    return now(device) - start
