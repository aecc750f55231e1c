"""Make the dashboards of what was measured here: `python -m experiments.publish [KEY=VALUE ...]`.

    python -m experiments.publish experiment=table1   # its cells and its report, to W&B
    python -m experiments.publish experiment=table1,frontier profile=paper
    python -m experiments.publish wandb.mode=offline  # of every sweep, to results/wandb

experiment: artefacts, by default all that were run. cells: ids, by default those of all their
cells, or none. reports: names of the sweeps whose tables and figures are sent, by default all, or
none. name: the group of the cells, and a tag. profile and results: as in the sweep. wandb.mode:
auto, online, offline or disabled. wandb.project, wandb.entity: W&B's. Nothing is measured and no
table is made: the command shows existing rows and files. A run that is sent again stays one run.
The exit code is 0 only when everything was sent.
"""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from analysis.cli import DIALECTS, chosen_profile
from experiments.cell import Cell
from experiments.schema import WandbConfig, check_patterns, leaves
from resispec.errors import InvalidInput, fail, first_line, in_one_line

LIMIT_S = 60.0
"""Seconds that a sweep waits for W&B to take in what it sends at a time."""
SHARE = 0.1
"""The part of a sweep's time that sending may take; what is left is sent at its end."""
METHOD = ("decoder", "tree", "verifier", "audit")
"""Labels by which cells differ that are compared with each other."""
NONE = "none"


@dataclass
class PublishConfig:
    """Keys of the command: names and ids are joined by commas, and null is all of them."""

    experiment: str | None = None
    cells: str | None = None
    reports: str | None = None
    name: str | None = None
    profile: str | None = None
    results: str = "results"
    wandb: WandbConfig = field(default_factory=WandbConfig)


def publish(arguments: Sequence[str]) -> int:
    """Send the runs that a command line asks for; return 1 if a cell cannot be read, else 0.

    Raises InvalidInput for unknown or unreadable input, and whatever W&B or the network raises.
    """
    config = _read(arguments)
    from experiments.wandb_upload import Record, Run, chosen_mode, send  # a sweep does without

    mode, line = chosen_mode(config.wandb.mode)
    if config.wandb.mode == "online" and line:
        raise InvalidInput(line)
    if mode == "disabled":
        sys.stderr.write(f"{line or 'W&B: disabled, nothing is sent'}\n")
        return 0
    folder = _folder(config.results)
    Path(folder).mkdir(parents=True, exist_ok=True)  # W&B would take another folder
    to = {"mode": mode, "project": config.wandb.project, "entity": config.wandb.entity}
    to["dir"] = folder
    profile, artefacts = chosen_profile(config.profile or ""), _names(config.experiment) or []
    record = Record(Path(config.results), profile, artefacts, config.name)
    num_sent, errors = 0, list[str]()
    if config.cells != NONE:
        for run in record.runs(_names(config.cells)):
            if isinstance(run, Run):
                send(run, to)
                num_sent += 1
            elif str(run) not in errors:  # several plans may ask for the cell
                errors.append(str(run))
    if config.reports != NONE:
        everything = record.artefacts if artefacts else record.sweeps
        for report in map(record.report, _names(config.reports) or everything):
            if report is not None:
                send(report, to)
                num_sent += 1
    for error in errors:
        fail(error)
    noun = "run" if num_sent == 1 else "runs"
    where = _where(mode, config.wandb.project, folder)
    sys.stderr.write(f"W&B: {num_sent} {noun} {where}\n")
    return 1 if errors else 0


def _read(arguments: Sequence[str]) -> Any:
    """The configuration of a command line. Every value is text: an id may look like a number."""
    config = OmegaConf.structured(PublishConfig)
    try:
        for argument in arguments:
            key, equals, value = argument.partition("=")
            if not equals:
                raise InvalidInput(f"{argument!r} is no KEY=VALUE; like experiment=table1")
            OmegaConf.update(config, key, None if value == "null" else value)
        values: Any = OmegaConf.to_object(config)
    except OmegaConfBaseException as error:
        allowed = ", ".join(
            [*asdict(PublishConfig()), *(f"wandb.{name}" for name in asdict(WandbConfig()))]
        )
        raise InvalidInput(f"{first_line(error)}; allowed: {allowed}") from error
    check_patterns(leaves(asdict(values)))
    return values


def _names(text: str | None) -> list[str] | None:
    return text.split(",") if text else None


def _folder(results: str) -> str:
    """The folder of W&B's own folder."""
    return os.environ.get("WANDB_DIR") or results


def _where(mode: str, project: str, folder: str) -> str:
    """Words that say where runs went, and what to do next."""
    if mode == "online":
        return f"sent to project {project}"
    place = f"{folder}/wandb"
    return f"written to {place}; `wandb sync {shlex.quote(place)}/offline-run-*` uploads them"


class Dashboard:
    """The runs on W&B of a sweep's cells, sent while no cell is timed.

    The command above sends them, in a process that the sweep waits for. So nothing of W&B is left
    when a cell begins, and what W&B does ends with the process, after LIMIT_S at the latest. After
    a failure nothing more is sent. Cells that are compared with each other are sent together, so
    that a gain has its baseline and a row its audit.

    plans: names of those that ask for the cells. cells: all of the sweep whose trees are there.
    pending: those of them that are measured now.
    """

    def __init__(
        self, plans: Sequence[str], cells: Sequence[Cell], pending: Sequence[Cell]
    ) -> None:
        config = cells[0].config
        self._wandb, self._results = config["wandb"], config["results"]
        self._mode, self._line = self._wandb["mode"], ""
        if self._mode == "auto" and os.environ.get("WANDB_MODE") == "disabled":
            self._mode = "disabled"
        values = {"experiment": ",".join(dict.fromkeys(plans)), "name": config["name"]}
        values |= {name: config[name] for name in ("profile", "results")}
        defaults = OmegaConf.structured(WandbConfig)
        values |= {
            f"wandb.{name}": value for name, value in self._wandb.items() if value != defaults[name]
        }
        self._values = {key: value for key, value in values.items() if value is not None}
        self._begun, self._spent_s, self._num_sent = time.monotonic(), 0.0, 0
        groups: dict[str, set[str]] = {}
        for cell in cells:
            groups.setdefault(_compared(cell), set()).add(cell.cell_id)
        pending_ids = {cell.cell_id for cell in pending}
        self._waiting = [group for group in groups.values() if group & pending_ids]

    def send_complete(self, complete: Sequence[Cell]) -> None:
        """Send cells that are compared with complete cells alone, if sending may take more time."""
        ids = {cell.cell_id for cell in complete}
        ready = [group for group in self._waiting if group <= ids]
        if ready and self._spent_s <= SHARE * (time.monotonic() - self._begun):
            self._waiting = [group for group in self._waiting if group not in ready]
            self._send(set().union(*ready), NONE)

    def send_rest(self, complete: Sequence[Cell], name: str) -> None:
        """Send the other complete cells and the sweep's table, and print one line about all."""
        ids = {cell.cell_id for cell in complete}
        self._send(ids.intersection(set().union(*self._waiting)), name)
        if self._mode != "disabled":
            noun = "cell" if self._num_sent == 1 else "cells"
            where = _where(self._mode, self._wandb["project"], _folder(self._results))
            self._line = f"W&B: {self._num_sent} {noun} {where}"
        if self._line:
            sys.stderr.write(f"{self._line}\n")

    def _send(self, cell_ids: Collection[str], report: str) -> None:
        """Run the command for cells, and for the report of a sweep or NONE."""
        begun = time.monotonic()
        if self._mode == "auto":
            from experiments.wandb_upload import chosen_mode  # needs pandas

            try:
                self._mode, self._line = chosen_mode("auto")
            except Exception as error:  # noqa: BLE001
                # such as W&B's settings file, which is damaged
                self._mode, self._line = "disabled", f"W&B: {first_line(error)}"
        if self._mode == "disabled":
            return
        cells = ",".join(sorted(cell_ids)) or NONE
        chosen = {"wandb.mode": self._mode, "cells": cells, "reports": report}
        if problem := _problem(_command(self._values | chosen)):
            self._mode = "disabled"
            self._line = f"{problem}; `{shlex.join(_command(self._values))}` sends what is missing"
        self._num_sent += len(cell_ids)
        self._spent_s += time.monotonic() - begun


def _compared(cell: Cell) -> str:
    """The facts that are equal for cells whose numbers are compared, as text."""
    named = {name: str(value) for name, value in cell.labels.items() if name not in METHOD}
    return repr((sorted(named.items()), cell.config["num_prompts"]))


def _command(values: Mapping[str, str]) -> list[str]:
    return ["python", "-m", "experiments.publish", *(f"{key}={values[key]}" for key in values)]


def _problem(command: Sequence[str]) -> str:
    """The reason why a command failed, in one line, or "" if it did not."""
    try:
        done = subprocess.run(
            [sys.executable, *command[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
            start_new_session=True,  # Ctrl-C is the sweep's
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"W&B: not all was taken in within {LIMIT_S:g} s"
    except OSError as error:
        return f"W&B: its process did not start ({error.strerror})"
    if not done.returncode:
        return ""
    lines = [line.removeprefix("error: ") for line in done.stderr.splitlines()]
    return "; ".join(lines) or f"W&B: its process ended with exit code {done.returncode}"


@in_one_line("stopped; the same command sends all again")
def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    words = sys.argv[1:] if arguments is None else arguments
    if {"-h", "--help"} & set(words):
        sys.stdout.write(f"{__doc__}\n{DIALECTS}\n")
        return 0
    try:
        return publish(words)
    except InvalidInput:
        raise
    except Exception as error:  # noqa: BLE001
        # whatever W&B and the network do: the rows are the record
        return fail(f"W&B did not take a run ({type(error).__name__}: {first_line(error)})")


if __name__ == "__main__":
    sys.exit(main())
