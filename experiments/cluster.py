"""Cells as jobs of a cluster: submitted by submitit, followed, and summed up when they end.

A job measures several cells of one pair, whose models it loads once. It goes on from the rows that
are there, so a job that is preempted, or runs out of time, is simply sent again.
"""

import json
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from experiments.cell import Cell, CellBusy, CellFailed
from experiments.processes import how_it_ended
from experiments.scheduler import Progress, given_up, groups_of, outcome
from experiments.store import CellStore
from resispec.errors import InvalidInput, first_line, printable
from resispec.progress import LINES_S, progress_bar

CLUSTERS = {"submitit_local": "local", "submitit_slurm": "slurm"}
"""Launchers -> submitit's names of their executors."""
GPU_KEYS = ("gpus_per_node", "gpus_per_task", "gres")
"""Keys of a launcher, one of which gives its jobs GPUs."""
TELLING = re.compile("error|killed|cancelled", re.IGNORECASE)
"""Found in those lines of a log that may say why a job has ended."""
POLL_S = 1.0

Groups = list[list[Cell]]


class Preempted(BaseException):
    """The cluster wants a job to end, and not for a failure of its cells."""


class MeasuringJob:
    """The work of a job, which submitit pickles and calls."""

    def __call__(self, groups: Groups) -> list[str]:
        """Measure groups of cells, one after another; returns the reasons of those that failed.

        The signal before a timeout or a preemption ends the measurement in good order; then
        submitit sends the job again, or raises if it may not.
        """
        from submitit import JobEnvironment

        number = getattr(signal, f"SIG{JobEnvironment.USR_SIG}")
        send_again: Any = signal.signal(number, _preempt)
        try:
            return _measure_all(groups)
        except Preempted:
            send_again(number, None)
            raise

    def checkpoint(self, groups: Groups) -> Any:
        """The work of the job that is sent again: the same, since rows that are there stay."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, groups)


def _preempt(number: int, _frame: object) -> None:
    signal.signal(number, signal.SIG_IGN)  # once is enough
    raise Preempted


def _measure_all(groups: Groups) -> list[str]:
    """Measure groups of cells; those that another run is measuring are waited for at the end."""
    from experiments.worker import measure

    sizes = [sum(cell.config["num_prompts"] for cell in group) for group in groups]
    progress = Progress(sum(sizes), len(groups))
    waiting = [*enumerate(groups)]
    reasons: list[str] = []
    for wait in (False, True):
        given, waiting = waiting, []
        for place, group in given:
            report = progress.start(place + 1, str(group[0]), sizes[place])
            try:
                measure(group, report, wait)
            except CellBusy:
                waiting.append((place, group))
            except CellFailed as error:
                reasons += str(error).splitlines()
            except Exception as error:  # noqa: BLE001 - the other groups are to be measured
                reason = f"{type(error).__name__}: {first_line(error)}"
                reasons += [f"{cell}: {reason}" for cell in group]
            progress.finish(place + 1, sizes[place], is_over=(place, group) not in waiting)
    progress.close()
    return reasons


def jobs_for(cells: Iterable[Cell], most: int) -> list[Groups]:
    """The groups of cells of each job: of one pair, at most so many cells, in their order.

    A group whose times are compared stays together, even if it has more, unless each cell is to be
    a job.
    """
    jobs: list[Groups] = []
    open_jobs: dict[str, Groups] = {}
    for group in groups_of(cells):
        pair = json.dumps(group[0].config["pair"], sort_keys=True)
        for part in [[cell] for cell in group] if most == 1 else [group]:
            job = open_jobs.get(pair)
            if job is None or sum(map(len, job)) + len(part) > most:
                job = open_jobs[pair] = []
                jobs.append(job)
            job.append(part)
    return jobs


def run_on_cluster(
    launcher: str,
    options: Mapping[str, Any],
    cells: Sequence[Cell],
    _total: int,
    done: Callable[[Cell], None],
    _untimed: object,
) -> None:
    """Run cells as jobs, and wait for them.

    A failure prints one line and is recorded, and the reason why a job ended becomes that of its
    cells. launcher: of CLUSTERS. options: the values of `hydra.launcher`. The other arguments are
    those of `run_cells`. Raises InvalidInput when nothing can be submitted.
    """
    jobs = jobs_for(cells, cells[0].config["cells_per_job"])
    executor = _executor(launcher, dict(options), cells[0].config)
    try:
        submitted = executor.map_array(MeasuringJob(), jobs)
    except Exception as error:  # of a command of the cluster's
        raise InvalidInput(f"hydra/launcher={launcher}: {first_line(error)}") from error
    ids = [job.job_id for job in submitted]
    names = f"job {ids[0]}" if len(ids) == 1 else f"{len(ids)} jobs, {ids[0]} to {ids[-1]},"
    logs = Path(str(options["submitit_folder"]).partition("%")[0])
    _note(f"{names} submitted for {len(cells)} cells; logs in {logs}")
    try:
        _follow(dict(zip(submitted, jobs, strict=True)), cells, done)
    except KeyboardInterrupt:
        stop = f"; to end them: scancel {ids[0].partition('_')[0]}"
        is_slurm = CLUSTERS[launcher] == "slurm"
        _note(f"jobs that are submitted go on{stop if is_slurm else ''}")
        raise


def _num_gpus(value: str) -> int:
    """The GPUs of a launcher's value: "4", or of generic resources those of "nvme:1,gpu:h100:4"."""
    parts = [part for part in value.split(",") if part.isdecimal() or part.startswith("gpu")]
    counts = [part.rpartition(":")[2] for part in parts]
    return sum(int(count) if count.isdecimal() else 1 for count in counts)


def _executor(launcher: str, options: dict[str, Any], config: Mapping[str, Any]) -> Any:
    """submitit's executor with the options of its launcher, as Hydra's plug-in makes it."""
    from hydra_plugins.hydra_submitit_launcher.config import BaseQueueConf
    from submitit import AutoExecutor

    if config["devices"]:
        _note("devices=... is for searches on this machine; each job sees the GPU that it is given")
    if config["device"] != "cpu":
        if not any(options.get(key) for key in (*GPU_KEYS, "additional_parameters")):
            options["gpus_per_node"] = 1
            _note(f"hydra.launcher.gpus_per_node=1, for device={config['device']}")
        for key in GPU_KEYS:
            if _num_gpus(str(options.get(key) or "")) > 1:
                ways_out = "1, or a job of your own that runs this command with devices=[0,1,...]"
                raise InvalidInput(f"hydra.launcher.{key} is {options[key]}; allowed: {ways_out}")
    cluster, folder = CLUSTERS[launcher], options.pop("submitit_folder")
    if cluster == "local":
        _note("jobs run beside each other on this machine; their times are not to be compared")
    own = {key: options.pop(key) for key in ("max_num_timeout",) if key in options}
    options.pop("_target_", None)
    try:
        executor = AutoExecutor(
            folder, cluster=cluster, **{f"{cluster}_{key}": own[key] for key in own}
        )
        common = BaseQueueConf.__dataclass_fields__
        executor.update_parameters(
            **{key if key in common else f"{cluster}_{key}": options[key] for key in options}
        )
    except Exception as error:  # as without Slurm
        raise InvalidInput(f"hydra/launcher={launcher}: {first_line(error)}") from error
    return executor


def _note(line: str) -> None:
    sys.stderr.write(f"note: {line}\n")


def _follow(jobs: dict[Any, Groups], cells: Sequence[Cell], done: Callable[[Cell], None]) -> None:
    """Wait for jobs, with a bar of measured prompts; settle the cells of each that ends."""
    num_jobs, interval = len(jobs), POLL_S if sys.stderr.isatty() else LINES_S
    shown = time.monotonic()
    total = sum(cell.config["num_prompts"] for cell in cells)
    with progress_bar(desc="jobs", unit="prompt", total=total, initial=_measured(cells)) as bar:
        while jobs:
            time.sleep(POLL_S)
            for job in [job for job in jobs if job.done()]:
                for line in _settle(job, sum(jobs.pop(job), []), done):
                    bar.write(line, file=sys.stderr)
            if not jobs or time.monotonic() - shown >= interval:
                shown, bar.n = time.monotonic(), _measured(cells)
                bar.set_postfix_str(f"{len(jobs)} of {num_jobs} jobs left", refresh=bool(jobs))


def _measured(cells: Iterable[Cell]) -> int:
    """The number of prompts that cells have rows of."""
    return sum(len(CellStore(cell.folder).rows_so_far()) for cell in cells)


def _settle(job: Any, cells: Sequence[Cell], done: Callable[[Cell], None]) -> list[str]:
    """Lines about the cells of a job that has ended."""
    reasons, why = [], ""
    if job.exception() is None:
        reasons = job.result()
    else:
        log = [line for line in (job.stderr() or "").splitlines() if TELLING.search(line)]
        last = printable(log[-1].strip()) if log else f"see its log {job.paths.stderr.name}"
        why = f"job {job.job_id} ended in state {job.state}: {last}"
    for cell in cells:
        with suppress(OSError):  # so that NFS forgets what it knew of the folder
            cell.folder.chmod(cell.folder.stat().st_mode)
    lines, silent, how = outcome(cells, reasons, done, is_well=not why)
    return lines + given_up(silent, how or why or how_it_ended(0))
