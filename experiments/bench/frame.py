"""The frame of every bench: command line, calls that take turns, memory that a call takes, and page."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import NoReturn

import pandas as pd
import torch
from torch.profiler import ProfilerActivity, profile
from tqdm import tqdm

from analysis.table import Table, markdown
from experiments.provenance import device_stem
from resispec.errors import fail
from resispec.files import write_atomically
from resispec.timing import now


class _BenchParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        sys.exit(fail(message))


def parse(description: str, device: str | None = "cpu", **counts: tuple[int, str]) -> argparse.Namespace:
    """The options of a bench; a wrong command line ends the process with one line.

    device: the default of --device; None for a bench without it. counts: name -> default and help of an
    option that is a number from 1.
    """
    parser = _BenchParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if device is not None:
        parser.add_argument("--device", type=_device, default=device, help="cpu, or cuda")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the results")
    for name, (default, text) in counts.items():
        parser.add_argument(f"--{name}", type=_count, default=default, help=text)
    options = parser.parse_args()
    options.device = torch.device(options.device if device is not None else "cpu")
    return options


def _device(text: str) -> str:
    if text == "cpu" or (text == "cuda" and torch.cuda.is_available()):
        return text
    allowed = "cpu, cuda" if torch.cuda.is_available() else "cpu, since this machine has no CUDA device"
    raise argparse.ArgumentTypeError(f"device {text!r}; allowed: {allowed}")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: a number from 1")
    return int(text)


def page_of(tables: Sequence[Table], *notes: str) -> str:
    """The page of a bench: its tables, and paragraphs below them."""
    return "\n".join([*map(markdown, tables), "\n\n".join(notes), ""])


def stem_of(name: str, results: Path, device: torch.device) -> Path:
    """Path of a bench's files without a suffix; the folder is made.

    On a CPU, as part of `make bench`, RESULTS/embedded/NAME; elsewhere RESULTS/timing/NAME_DEVICE.
    """
    place = f"embedded/{name}" if device.type == "cpu" else f"timing/{name}_{device_stem(device)}"
    stem = results / place
    stem.parent.mkdir(parents=True, exist_ok=True)
    return stem


def write_page(stem: Path, page: str, frame: pd.DataFrame | None = None) -> None:
    """Write a bench's page, and its numbers as a CSV where there are any; print the page and where it is."""
    if frame is not None:
        write_atomically(stem.with_suffix(".csv"), frame.to_csv(index=False))
    write_atomically(stem.with_suffix(".md"), page)
    sys.stdout.write(f"{page}\nwritten: {stem}.md\n")


@dataclass
class Contestant:
    """Calls that are timed in turn with those of others.

    labels: its name. calls: get the number of the round. seconds: of every call, a list for every round.
    """

    labels: tuple[str, ...]
    calls: Sequence[Callable[[int], object]]
    seconds: list[list[float]] = field(default_factory=list)

    @property
    def milliseconds(self) -> float:
        """The mean over the calls of their medians over the rounds."""
        return 1e3 * statistics.mean(statistics.median(turns) for turns in zip(*self.seconds, strict=True))


def take_turns(title: str, contestants: Sequence[Contestant], rounds: int, device: torch.device) -> None:
    """Time all in turn, round after round; the first round is played once more beforehand, to warm up.

    So a busy machine slows all alike. The order is drawn anew for every round, since a call leaves its heap
    and caches to the next one.
    """
    generator = torch.Generator().manual_seed(0)
    for turn in tqdm(range(-1, rounds), desc=title, unit="round"):
        for place in torch.randperm(len(contestants), generator=generator).tolist():
            seconds = []
            for call in contestants[place].calls:
                started = now(device)
                call(max(turn, 0))
                seconds.append(now(device) - started)
            if turn >= 0:
                contestants[place].seconds.append(seconds)


def peak_bytes(call: Callable[[], object], device: torch.device) -> int:
    """The most memory that a call holds at once beyond its input, by the allocator's own account."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        call()
        return torch.cuda.max_memory_allocated(device) - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    with tempfile.TemporaryDirectory() as folder:
        profiler.export_chrome_trace(f"{folder}/trace.json")
        events = json.loads(Path(folder, "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    ordered = sorted(events, key=lambda event: event["ts"])
    return max(accumulate(event["args"]["Bytes"] for event in ordered if event["name"] == "[memory]"))
