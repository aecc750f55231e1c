"""Starts the process that sends cells to W&B beside a sweep, and waits for it when the sweep is over.

Imports neither wandb nor pandas: a sweep starts as fast as without dashboards.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any

from experiments.cells import Cell
from experiments.configuration.schema import WandbConfig
from experiments.dashboards.mode import decided
from experiments.dashboards.publisher import OVER

STALL_S = 60.0
"""How long the end of a sweep waits for the next run to be sent."""
COMPARED = ("decoder", "tree", "verifier", "audit")
"""Labels in which cells differ that are compared with each other."""
WANDB = asdict(WandbConfig())


@contextmanager
def published(cells: Sequence[Cell], artefacts: Sequence[str]) -> Iterator[None]:
    """Send the cells that are completed in the block to W&B, if `wandb.mode` says so.

    Afterwards one line says what was sent, or why not and how to send it later. Raises nothing of its own.

    cells: those that the block measures. artefacts: those that ask for them.
    """
    mode, said = decided(cells[0].config["wandb"]["mode"])
    if said:
        sys.stderr.write(f"{said}\n")
    if mode == "disabled":
        yield
        return
    publisher = _Publisher(cells, mode)
    try:
        yield
        publisher.wait()
    finally:
        publisher.end()
    sys.stderr.write(f"{publisher.said(artefacts)}\n")


class _Publisher:
    """The process, and what it has said."""

    def __init__(self, cells: Sequence[Cell], mode: str) -> None:
        self._config, self._mode = cells[0].config, mode
        self._sent: list[str] = []
        self._errors: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "experiments.dashboards.publisher"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            start_new_session=True,  # an interrupt from the keyboard is for the sweep
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        work = {name: self._config[name] for name in ("results", "profile")} | self._config["wandb"]
        self._tell(json.dumps(work | {"mode": mode, "settings": _settings(cells)}))

    def _read(self) -> None:
        for line in self._process.stdout or ():
            message = json.loads(line)
            self._sent += [message["sent"]] if "sent" in message else []
            self._errors += [message["error"]] if "error" in message else []

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # it has ended; its exit code is looked at later
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()

    def wait(self) -> None:
        """Say that the sweep is over and wait for the process while it sends runs."""
        self._tell(OVER)
        num_sent = -1
        while self._reader.is_alive() and num_sent < len(self._sent):
            num_sent = len(self._sent)
            self._reader.join(STALL_S)
        if self._reader.is_alive():
            self._errors.append(f"no answer for {STALL_S:g} s")
        else:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STALL_S)
        code = self.end()
        if code and not self._errors:
            self._errors.append(f"the process that sends them ended with exit code {code}")

    def end(self) -> int:
        """End the process, whatever it does; return its exit code."""
        self._process.kill()
        self._reader.join()
        return self._process.wait()

    def said(self, artefacts: Sequence[str]) -> str:
        """The line for people."""
        counted = f"W&B: {len(self._sent)} run{'' if len(self._sent) == 1 else 's'}"
        if self._errors:
            more = f" and {len(self._errors) - 1} more" if len(self._errors) > 1 else ""
            command = publish_command(artefacts, self._config)
            return f"{counted} sent, not all: {self._errors[0]}{more}; `{command}` sends them"
        return f"{counted} {place(self._mode, self._config)}"


def place(mode: str, config: Mapping[str, Any]) -> str:
    """Where runs went. config: with `results` and `wandb`."""
    if mode == "online":
        return f"sent to project {config['wandb']['project']}"
    folder = f"{config['results']}/wandb"
    return f"written to {folder}; `wandb sync {shlex.quote(folder)}/offline-run-*` uploads them"


def publish_command(artefacts: Sequence[str], config: Mapping[str, Any]) -> str:
    """What sends the runs of artefacts later."""
    given = {"experiment": ",".join(dict.fromkeys(artefacts)), "profile": config["profile"]}
    given |= {"results": config["results"]} if config["results"] != "results" else {}
    given |= {f"wandb.{name}": value for name, value in config["wandb"].items() if value != WANDB[name]}
    return f"python -m experiments.publish {shlex.join(f'{key}={value}' for key, value in given.items())}"


def _settings(cells: Sequence[Cell]) -> list[list[str]]:
    """The ids of cells, those together that are compared with each other."""
    found: dict[str, list[str]] = {}
    for cell in cells:
        setting = {name: value for name, value in cell.labels.items() if name not in COMPARED}
        found.setdefault(json.dumps(setting, sort_keys=True, default=str), []).append(cell.cell_id)
    return list(found.values())
