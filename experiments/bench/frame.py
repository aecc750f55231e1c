"""The frame of every bench: command line, page, prompts, calls in turn, the memory of a call."""

import argparse
import gc
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import pandas as pd
import torch
from torch.profiler import ProfilerActivity, profile

from analysis.cli import DIALECTS
from analysis.table import Table, markdown
from analysis.terminal import printed
from experiments.provenance import device_name, device_stem
from referee.inputs import count
from resispec.embedded import EmbeddedDataset
from resispec.errors import CommandParser, in_one_line
from resispec.files import write_atomically
from resispec.models import Pair, check_device
from resispec.progress import progress_bar
from resispec.timing import now

PROMPT_TOKENS = 64
Name = TypeVar("Name")
Measured = tuple[Sequence[Table], Sequence[str], "pd.DataFrame | None"]
"""Tables of a bench, the paragraphs below them, and the frame for its CSV, where it has one."""


def run_bench(
    name: str,
    description: str,
    measure: Callable[[argparse.Namespace], Measured],
    device: str | None = "cpu",
    folder: str = "embedded",
    **counts: tuple[int, str],
) -> None:
    """A bench's command: measure, print its page, and write it with its frame, NAME.{md,csv}.

    measure: gets the options, with `device`. device: the default of --device; None for a bench
    without it. folder: folder in RESULTS for the files of a CPU; those of other devices go to
    timing, and their names end with the device's. counts: name -> default and help of an option
    that is a number from 1.
    """
    layout = argparse.RawDescriptionHelpFormatter
    parser = CommandParser(description=description, formatter_class=layout, epilog=DIALECTS)
    if device is not None:
        parser.add_argument(
            "--device", choices=("cpu", "cuda"), default=device, help="cpu, or cuda"
        )
    parser.add_argument(
        "--results", type=Path, default=Path("results"), help="folder of the results"
    )
    for option, (default, text) in counts.items():
        parser.add_argument(f"--{option}", type=count, default=default, help=text)
    options = parser.parse_args()
    options.device = torch.device(options.device if device is not None else "cpu")
    if folder == "embedded":
        torch.set_num_threads(1)  # as decoding on a CPU: see conf/profile/embedded.yaml

    @in_one_line("stopped; nothing is written")
    def work() -> None:
        check_device(str(options.device))
        place = folder if options.device.type == "cpu" else "timing"
        file = name if place == "embedded" else f"{name}_{device_stem(options.device)}"
        stem = options.results / place / file
        stem.parent.mkdir(parents=True, exist_ok=True)
        # a folder that cannot be written to is refused first
        tempfile.TemporaryFile(dir=stem.parent).close()
        tables, notes, frame = measure(options)
        page, shown = (
            "\n".join([*map(form, tables), "\n\n".join(notes), ""]) for form in (markdown, printed)
        )
        if frame is not None:
            write_atomically(stem.with_suffix(".csv"), frame.to_csv(index=False))
        write_atomically(stem.with_suffix(".md"), page)
        sys.stdout.write(f"{shown}\nwritten: {stem}.md\n")

    sys.exit(work())


def origin(module: str, device: torch.device) -> str:
    """The command of a bench and the machine, the beginning of the last paragraph of its page."""
    command = f"`python -m experiments.bench.{module} --device {device.type}`"
    return f"{command} on {device_name(device)}, torch {torch.__version__}"


def embedded_prompts(pair: Pair, count: int) -> list[list[int]]:
    """The first PROMPT_TOKENS tokens of each of so many embedded documents."""
    texts = EmbeddedDataset("embedded_reference").prompts(count)
    return [pair.tokenizer.encode(prompt.text)[:PROMPT_TOKENS] for prompt in texts]


def take_turns(
    title: str,
    calls: Mapping[Name, Sequence[Callable[[int], object]]],
    rounds: int,
    device: torch.device,
) -> dict[Name, float]:
    """Milliseconds by name: the mean over a name's calls of each call's median over the rounds.

    All take turns, round after round, so that a busy machine slows all alike. Calls get the number
    of the round; the first round is played once more beforehand, to warm up. The order is drawn
    anew for every round, since a call leaves its heap and caches to the next one.
    """
    generator, names = torch.Generator().manual_seed(0), list(calls)
    seconds: dict[Name, list[list[float]]] = {name: [] for name in names}
    for turn in progress_bar(range(-1, rounds), desc=title, unit="round"):
        for place in torch.randperm(len(names), generator=generator).tolist():
            durations = []
            for call in calls[names[place]]:
                started = now(device)
                call(max(turn, 0))
                durations.append(now(device) - started)
            if turn >= 0:
                seconds[names[place]].append(durations)
    return {name: 1e3 * float(np.median(turns, 0).mean()) for name, turns in seconds.items()}


def peak_bytes(call: Callable[[], object], device: torch.device) -> int:
    """The most memory that a call holds at once beyond its input, as the allocator counts."""
    if device.type == "cuda":
        baseline = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        call()
        return torch.cuda.max_memory_allocated(device) - baseline
    gc.collect()  # what others left behind must not be freed during the call
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    with tempfile.TemporaryDirectory() as folder:
        profiler.export_chrome_trace(f"{folder}/trace.json")
        events = json.loads(Path(folder, "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    changes = [event["args"] for event in events if event["name"] == "[memory]"]
    return _peak(sorted(changes, key=lambda change: change["Ev Idx"]))


def _peak(changes: Iterable[Mapping[str, int]]) -> int:
    """The most bytes that are held at once, of a profiler's changes of memory in their order.

    A block that was there before counts nowhere. The profiler counts its end where an earlier
    profile had a block at the same address.
    """
    held: dict[int, int] = {}
    total = most = 0
    for change in changes:
        address, size = change["Addr"], change["Bytes"]
        if size > 0:
            held[address] = size
            total += size
        else:
            total -= held.pop(address, 0)
        most = max(most, total)
    return most
