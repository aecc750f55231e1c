"""Hydra's flags, what they show, and its launchers: all for which Hydra has no public way."""

import os
import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from typing import Any

from hydra import compose
from hydra._internal.callbacks import Callbacks
from hydra._internal.utils import _run_hydra, get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.utils import JobStatus
from hydra.types import HydraContext

from analysis.load import read_status
from experiments.cell import Cell, CellFailed
from experiments.grid import cells_of
from experiments.scheduler import Launch, Progress, run_cells
from experiments.schema import CONF
from resispec.errors import first_line

OF_JOBS = (
    "hydra/launcher", "hydra.launcher.", "hydra.sweep.", "hydra.job.", "hydra.output_subdir",
    "hydra.verbose",
    "hydra/job_logging", "hydra.job_logging",
)  # fmt: skip
"""Beginnings of Hydra's keys that the jobs of a launcher obey."""


def parser() -> ArgumentParser:
    """The parser of Hydra's own flags and of overrides."""
    return get_args_parser()


def show(config_name: str, flags: Namespace, overrides: Sequence[str]) -> None:
    """Let Hydra show what a flag asks for; --help ends the process.

    flags: as `parser` reads them. overrides: those of the configuration that is shown.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises instead of printing a report
    words = [_whole_artefact(word) for word in overrides]
    shown = Namespace(**vars(flags) | {"overrides": [part for word in words for part in word]})
    _run_hydra(shown, parser(), lambda _: None, str(CONF), config_name)


def _whole_artefact(word: str) -> list[str]:
    """An override in which experiment=ARTEFACT/PART is two, since Hydra knows only the first."""
    if word.startswith("experiment="):
        return word.replace("/", " part=").split()
    return [word]


def launch_of(overrides: Sequence[str]) -> Launch:
    """The function that runs cells: `run_cells`, or one for the launcher
    that overrides name.

    Notes on stderr name Hydra's keys that change nothing. Raises Hydra's errors for a launcher that
    does not exist, or does not know a value that it is given.
    """
    lines = [line for line in overrides if re.match(r"[+~]*hydra\b", line)]
    if not lines:
        return run_cells
    results = [line for line in overrides if line.startswith("results=")]
    config = compose("run", [*lines, *results], return_hydra_config=True)
    is_basic = config.hydra.runtime.choices["hydra/launcher"] == "basic"
    for key in [line.lstrip("+~").partition("=")[0] for line in lines]:
        if key != "hydra/launcher" and is_basic:
            sys.stderr.write(
                f"note: {key}=... changes nothing without a launcher: hydra/launcher=NAME\n"
            )
        elif not key.startswith(OF_JOBS):
            sys.stderr.write(f"note: {key}=... changes nothing for the jobs of a launcher\n")
    if is_basic:
        return run_cells

    def launch(
        cells: Sequence[Cell], _total: int, done: Callable[[Cell], None], _untimed: object
    ) -> None:
        for reason in _failures(config, cells):
            sys.stderr.write(f"error: a job of the launcher failed: {reason}\n")
        for cell in cells:
            if read_status(cell.folder).state == "done":
                done(cell)

    return launch


def _failures(config: Any, cells: Sequence[Cell]) -> list[str]:
    """Run a job for each cell by the launcher of a configuration; the reasons of those
    that failed.
    """
    context = HydraContext(GlobalHydra.instance().config_loader(), Callbacks())
    launcher = Plugins.instance().instantiate_launcher(
        hydra_context=context, task_function=_run_job, config=config
    )
    try:
        jobs = launcher.launch([list(cell.overrides) for cell in cells], initial_job_idx=0)
    except Exception as error:  # noqa: BLE001
        # of one job; which cells are complete is read from their folders
        return [f"{first_line(error)}; jobs that are submitted go on, see `make status`"]
    return [first_line(job._return_value) for job in jobs if job.status == JobStatus.FAILED]


def _run_job(_config: object) -> None:
    """Measure the cell that Hydra's overrides ask for, in this process:
    the work of a job on a cluster.

    A failed cell is no error of the job: the sweep reads the cell's status once all jobs have
    ended.
    """
    from experiments.worker import measure

    [cell] = cells_of(HydraConfig.get().overrides.task)
    progress = Progress(cell.config["num_prompts"], 1)
    try:
        measure([cell], progress.start(1, str(cell), cell.config["num_prompts"]), wait=True)
    except CellFailed as error:
        progress.say(f"error: {error}")
    finally:
        progress.close()
