"""What the benches' command lines share: what is wrong with one is said in one line."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from experiments.commands import fail
from resispec.files import write_atomically

if TYPE_CHECKING:
    import pandas as pd
    import torch


class Options(argparse.ArgumentParser):
    """A parser of a bench's command line, with `--results`, and `--device` where there is a choice."""

    def __init__(self, description: str | None, device: str | None) -> None:
        super().__init__(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
        if device is not None:
            self.add_argument("--device", type=device_of, default=device, help="cpu, or cuda")
        self.add_argument("--results", type=Path, default=Path("results"), help="folder of the results")

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and end with exit code 1."""
        sys.exit(fail(message))


def device_of(text: str) -> str:
    """A device that this machine has. Raises argparse.ArgumentTypeError for another."""
    import torch

    if text == "cpu" or (text == "cuda" and torch.cuda.is_available()):
        return text
    allowed = "cpu, cuda" if torch.cuda.is_available() else "cpu, since this machine has no CUDA device"
    raise argparse.ArgumentTypeError(f"device {text!r}; allowed: {allowed}")


def count(text: str) -> int:
    """A number from 1. Raises argparse.ArgumentTypeError for another."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: a number from 1")
    return int(text)


def write_page(stem: Path, page: str, frame: pd.DataFrame | None = None) -> None:
    """Write a bench's page, and its figures as a CSV where there are any; print the page and where it is."""
    if frame is not None:
        write_atomically(stem.with_suffix(".csv"), frame.to_csv(index=False))
    write_atomically(stem.with_suffix(".md"), page)
    sys.stdout.write(f"{page}\nwritten: {stem}.md\n")


def stem_of(name: str, results: Path, device: torch.device) -> Path:
    """Where a bench writes, without a suffix; the folder is made.

    On a CPU, as part of `make bench`, RESULTS/embedded/NAME; elsewhere RESULTS/timing/NAME_DEVICE.
    """
    from experiments.provenance import device_stem

    is_cpu = device.type == "cpu"
    stem = (
        results / ("embedded" if is_cpu else "timing") / (name if is_cpu else f"{name}_{device_stem(device)}")
    )
    stem.parent.mkdir(parents=True, exist_ok=True)
    return stem
