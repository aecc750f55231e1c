"""Sends runs to W&B: the only module that imports wandb.

What a run holds is decided in `experiments.dashboards.runs`, from the local rows; here it is only written.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resispec.errors import first_line

STEP = "prompt_index"
"""What curves are drawn against."""
INIT_S = 30.0
"""How long W&B's server may take to answer; WANDB_INIT_TIMEOUT changes it."""
# Variables that describe a run of the process that started this one, which is none of ours.
OF_ANOTHER_RUN = (
    "RUN_ID", "RUN_NAME", "NAME", "RUN_GROUP", "JOB_TYPE", "RUN_JOB_TYPE", "TAGS", "RUN_TAGS", "NOTES",
    "RUN_NOTES", "RESUME", "RESUME_FROM", "FORK_FROM", "SWEEP_ID", "SWEEP_PARAM_PATH", "SERVICE", "MODE",
    "DIR",
)  # fmt: skip


class NotSent(RuntimeError):
    """W&B did not take a run; the message is one line with the reason."""


@dataclass(frozen=True)
class Grid:
    """A table of a run; every row has a value for every column."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Run:
    """What one run of W&B holds.

    run_id: the same content has the same id, so that it is one run however often it is sent.
    curves: one point a prompt, in order, each with STEP. counts: histograms of whole numbers, how often 1, 2,
    3, ... occurred. images: files.
    """

    run_id: str
    group: str
    job_type: str
    name: str
    tags: Sequence[str]
    config: Mapping[str, Any]
    notes: str = ""
    summary: Mapping[str, float | str] = field(default_factory=dict)
    curves: Sequence[Mapping[str, float]] = ()
    counts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    tables: Mapping[str, Grid] = field(default_factory=dict)
    images: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True)
class Destination:
    """Where runs go. mode: online or offline. folder: W&B writes to its subfolder wandb/.

    entity: a user or team, None for W&B's default one.
    """

    mode: str
    project: str
    entity: str | None
    folder: Path


def send(run: Run, to: Destination) -> str:
    """Send a run and wait until W&B has it; return its address, or offline its folder.

    A run that was sent before is resumed: W&B leaves out the steps that it has. Offline the earlier folder of
    the run is removed.
    Raises NotSent for whatever W&B or the network does.
    """
    for name in OF_ANOTHER_RUN:
        os.environ.pop(f"WANDB_{name}", None)
    try:
        to.folder.mkdir(parents=True, exist_ok=True)
        return _send(run, to)
    except Exception as error:  # whatever it is: the local rows are the record
        raise NotSent(f"{type(error).__name__}: {first_line(error)}") from error


def _send(run: Run, to: Destination) -> str:
    os.environ |= {"WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}  # from before its first line
    import wandb

    described = {
        "id": run.run_id, "group": run.group, "job_type": run.job_type, "name": run.name, "notes": run.notes,
        "tags": [tag[:64] for tag in run.tags], "config": dict(run.config), "resume": "allow",
    }  # fmt: skip
    where = {"mode": to.mode, "project": to.project, "entity": to.entity, "dir": to.folder}
    with wandb.init(**described, **where, settings=_settings(wandb)) as live:
        _write(wandb, live, run)
        folder = Path(live.settings.sync_dir)
        address = live.url if to.mode == "online" else None
    for earlier in folder.parent.glob(f"offline-run-*-{run.run_id}") if to.mode == "offline" else ():
        if earlier != folder:
            shutil.rmtree(earlier)
    return address or str(folder)


def _settings(wandb: Any) -> Any:
    """Nothing of this process is of interest: no console, no load of the machine, no git state."""
    settings = wandb.Settings(
        silent=True, console="off", x_disable_stats=True, x_disable_meta=True, disable_git=True,
        disable_code=True, x_save_requirements=False,
    )  # fmt: skip
    if "WANDB_INIT_TIMEOUT" not in os.environ:
        settings.init_timeout = INIT_S
    return settings


def _write(wandb: Any, live: Any, run: Run) -> None:
    live.define_metric(STEP, summary="none", hidden=True)
    live.define_metric("prompt/*", step_metric=STEP, summary="none")
    for step, point in enumerate(run.curves):
        live.log(dict(point), step=step)
    media: dict[str, Any] = {
        name: wandb.Table(
            columns=list(grid.columns), data=[list(row) for row in grid.rows], allow_mixed_types=True
        )
        for name, grid in run.tables.items()
    }
    for name, counts in run.counts.items():
        edges = [place + 0.5 for place in range(len(counts) + 1)]
        media[name] = wandb.Histogram(np_histogram=(list(counts), edges))
    media |= {name: wandb.Image(str(path)) for name, path in run.images.items()}
    if media:  # beside the last prompt; what has no prompts may change and gets a new step each time
        live.log(media, step=len(run.curves) - 1 if run.curves else None)
    live.summary.update(dict(run.summary))
