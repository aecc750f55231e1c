"""Seconds of the two models' forwards, from which searches estimate the time of a step.

Every forward is one of `Decoder.generate`, so that it is timed as decoding runs it: with its cached
text, its packed weights and its CUDA graphs.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import ClassVar

import torch

from experiments.configurations import Configuration
from experiments.tasks.base import Row, Task, Workload, identity
from resispec.decode import Decoder
from resispec.timing import Stopwatch, measuring
from resispec.trees import from_widths

NEW_TOKENS = 32
"""Tokens that are decoded for a time: several steps of every tree that is timed."""
LEVEL_WIDTH, NUM_LEVELS = 16, 3
"""Nodes of a level below the root, and the number of such levels, of the tree for the draft."""


@dataclass(frozen=True)
class ForwardsRow(Row):
    """Seconds of forwards behind one prompt, medians over the steps of a call.

    target_s: of the target over each of the task's sizes, head and laws included. draft_s: of the
    draft for a level, its draws included.
    """

    target_s: list[float]
    draft_s: float


@dataclass(frozen=True)
class Forwards(Task):
    """Task that times forwards behind every prompt, in an order drawn anew for each prompt.

    sizes: numbers of positions of a forward of the target. The cell's decoder is not used.
    """

    row: ClassVar[type[ForwardsRow]] = ForwardsRow
    sizes: Sequence[int]

    @cached_property
    def _decoders(self) -> list[Decoder]:
        """A decoder for each size, whose draft fills a star, and one for the draft."""
        stars = [(size - 1,) for size in self.sizes]
        trees = [from_widths(widths) for widths in [*stars, (LEVEL_WIDTH,) * NUM_LEVELS]]
        configurations = [Configuration("iid", "standard", tree) for tree in trees]
        return [configuration.decoder for configuration in configurations]

    def __call__(self, workload: Workload, index: int) -> ForwardsRow:
        """See `Task`."""
        order = torch.Generator().manual_seed(workload.seed + index)
        seconds = {}
        for place in torch.randperm(len(self._decoders), generator=order).tolist():
            part = "target" if place < len(self.sizes) else "draft"
            seconds[place] = _seconds(self._decoders[place], workload, index, part)
        return ForwardsRow(
            **identity(workload, index),
            target_s=[seconds[place] for place in range(len(self.sizes))],
            draft_s=seconds[len(self.sizes)] / NUM_LEVELS,
        )

    def progress(self, rows: Sequence[ForwardsRow]) -> dict[str, str]:
        """Milliseconds of the target's smallest forward."""
        return {"target_ms": f"{1e3 * statistics.median(row.target_s[0] for row in rows):.2f}"}


def _seconds(decoder: Decoder, workload: Workload, index: int, part: str) -> float:
    """The median seconds of a part of the steps after a prompt."""
    watch, marks = Stopwatch(workload.pair.target.device, looks_inside=False), [0.0]
    sampling = replace(workload.sampling, max_new_tokens=NEW_TOKENS, ignore_eos=True)
    with measuring(watch):
        decoder.generate(
            workload.pair,
            workload.prompts[index][1],
            sampling,
            workload.generator(index),
            on_step=lambda _: marks.append(watch.seconds[part]),
        )
    return statistics.median(end - start for start, end in pairwise(marks))
