"""A contest: calls that take turns, so that a busy machine slows all of them alike, and medians count."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Generator
from tqdm import tqdm

from resispec.timing import now


@dataclass
class Timed:
    """A contestant.

    labels: what names it. calls: what it is timed on; a call gets the number of the round.
    seconds: of every call, a list for every round.
    """

    labels: tuple[str, ...]
    calls: Sequence[Callable[[int], object]]
    seconds: list[list[float]] = field(default_factory=list)

    @property
    def milliseconds(self) -> float:
        """The mean over the calls of their medians over the rounds."""
        return 1e3 * statistics.mean(statistics.median(turns) for turns in zip(*self.seconds, strict=True))


def contest(title: str, contestants: Sequence[Timed], rounds: int, device: torch.device) -> None:
    """Everyone in turn, round after round; the first round is played once more beforehand, to warm up.

    The order is drawn anew for every round, since a call leaves its heap and caches to the next one.
    """
    generator = Generator().manual_seed(0)
    for turn in tqdm(range(-1, rounds), desc=title, unit="round"):
        for place in torch.randperm(len(contestants), generator=generator).tolist():
            contestant, seconds = contestants[place], []
            for call in contestant.calls:
                started = now(device)
                call(max(turn, 0))
                seconds.append(now(device) - started)
            if turn >= 0:
                contestant.seconds.append(seconds)


def captured(call: Callable[[], object]) -> Callable[[], None]:
    """A call as a CUDA graph to replay; capturing asks for a first call on a stream of its own."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay
