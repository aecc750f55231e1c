"""The dashboard of a sweep on W&B: each cell when it has ended, and at the end the sweep's table.

The sweep sends them itself, while no cell is timed, by way of a process that it waits for, see
`experiments.wandb_runs`: so nothing of W&B runs when a cell begins, and what W&B does ends with
that process. Only the mode is chosen here, which asks wandb for its settings.
"""

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.cell import Cell
from experiments.store import entry_of
from resispec.errors import first_line

LIMIT_S, CELL_S = 60.0, 6.0
"""Seconds that a sweep waits for W&B to take in what it sends at a time, and more for each cell."""
UNREAD = 3
"""The exit code of that process when cells could not be read; what could be was sent."""
SHARE = 0.1
"""The part of a sweep's time that sending may take; what is left is sent at its end."""


class Dashboard:
    """The runs on W&B of a sweep.

    After a failure of W&B nothing more is sent. config: the configuration of any of its cells.
    name: the sweep's, for its table, and the group and a tag of its runs. cells: those to send once
    they are complete.
    """

    def __init__(self, config: Mapping[str, Any], name: str, cells: Sequence[Cell]) -> None:
        self._sweep = {"name": name} | {key: config[key] for key in ("profile", "results")}
        self._wandb, self._folder = dict(config["wandb"]), folder_of(config["results"])
        self._waiting = {cell.cell_id: cell for cell in cells}
        self._num_sent, self._problem = 0, ""
        self._begun, self._spent_s = time.monotonic(), 0.0

    def send_ended(self, complete: Sequence[Cell]) -> None:
        """Send the complete cells that wait, if sending may take more of the sweep's time."""
        ended = [cell for cell in complete if cell.cell_id in self._waiting]
        if ended and self._spent_s <= SHARE * (time.monotonic() - self._begun):
            self._send(ended, has_table=False)

    def send_rest(self, complete: Sequence[Cell], has_table: bool) -> None:
        """Send the other complete cells and the sweep's table, and print one line about all.

        has_table: whether the table of this run is written.
        """
        ended = [cell for cell in complete if cell.cell_id in self._waiting]
        if ended or self._num_sent:
            self._send(ended, has_table)
        if self._problem:
            sys.stderr.write(f"{self._problem}\n")
        elif self._num_sent and self._wandb["mode"] != "disabled":
            noun = "cell" if self._num_sent == 1 else "cells"
            sys.stderr.write(
                f"W&B: {self._num_sent} {noun} and the sweep's table {self._where()}\n"
            )

    def _send(self, cells: Sequence[Cell], has_table: bool) -> None:
        begun = time.monotonic()
        if self._wandb["mode"] in ("auto", "online"):
            self._wandb["mode"], self._problem = _chosen_mode(self._wandb["mode"])
        if self._wandb["mode"] == "disabled":
            return
        work = self._sweep | {"to": self._wandb | {"dir": self._folder}, "has_table": has_table}
        work["cells"] = [entry_of(cell) for cell in cells]
        code, problem = _taken_in(work, LIMIT_S + CELL_S * len(cells))
        if code:
            again = "the same command with wandb.mode=online or offline sends all cells again"
            self._problem = f"{problem}; {again}"
        if code not in (0, UNREAD):
            self._wandb["mode"] = "disabled"
        for cell in cells:
            del self._waiting[cell.cell_id]
        self._num_sent += len(cells)
        self._spent_s += time.monotonic() - begun

    def _where(self) -> str:
        """Words that say where runs went, and what to do next."""
        if self._wandb["mode"] == "online":
            return f"sent to project {self._wandb['project']}"
        place = f"{self._folder}/wandb"
        return f"written to {place}; `wandb sync {shlex.quote(place)}/offline-run-*` uploads them"


def folder_of(results: str) -> str:
    """The folder that holds W&B's own folder, `wandb`."""
    return os.environ.get("WANDB_DIR") or results


def _chosen_mode(mode: str) -> tuple[str, str]:
    """The mode of `wandb_runs.chosen_mode`, or "disabled" with the reason why W&B cannot say it."""
    if mode == "auto" and os.environ.get("WANDB_MODE") == "disabled":
        return "disabled", ""
    try:
        from experiments.wandb_runs import chosen_mode  # needs pandas, for which no cell is to wait

        return chosen_mode(mode)
    except Exception as error:  # noqa: BLE001
        # such as W&B's settings file, which is damaged
        return "disabled", f"W&B: {first_line(error)}"


def _taken_in(work: Mapping[str, Any], limit_s: float) -> tuple[int, str]:
    """Let W&B take in runs; 0 and "" if it did, else an exit code and the reason in one line."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "experiments.wandb_runs"],
            input=json.dumps(work),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            start_new_session=True,  # Ctrl-C is the sweep's
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 1, f"W&B: not all was taken in within {limit_s:g} s"
    except OSError as error:
        return 1, f"W&B: its process did not start ({error.strerror})"
    if not done.returncode:
        return 0, ""
    lines = [line.removeprefix("error: ") for line in done.stderr.splitlines()]
    how = f"W&B: its process ended with exit code {done.returncode}"
    return done.returncode, "; ".join(lines) or how
