"""Run one cell, or with `experiment=NAME` every cell of an artefact, each in a process of its own, one after another.

    python -m experiments.run pair=embedded dataset=embedded_code decoder=specinfer tree=d5b3 verifier=resispec temperature=1.0
    python -m experiments.run experiment=table1                      # the whole sweep; finished cells are skipped
    python -m experiments.run experiment=table1 dataset=embedded_code    # one slice of it
    python -m experiments.run -m verifier=standard,resispec          # a sweep of one's own (put -m first)

A cell's folder is results/raw/PROFILE/CELL; a failed cell is recorded there with its reason while the others go on. The exit
code is 0 only when every cell is complete.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import sys
import time
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from experiments.cells import CONF, Cell, cell_of, plan
from resispec.errors import InvalidInput
from resispec.record import read_status, write_json, write_status


class CellFailed(RuntimeError):
    """A cell did not complete; the message is its reason."""


def main() -> int:
    """Check the command line as a whole, then run what it asks for."""
    arguments = sys.argv[1:]
    if not any(argument.startswith("--") for argument in arguments):
        try:
            _PLAN.extend(plan([argument for argument in arguments if not argument.startswith("-")]))
            _writable(_PLAN[0].folder.parent)
        except InvalidInput as error:
            return _fail(str(error))
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises instead of printing a report
    signal.signal(signal.SIGTERM, _on_terminate)
    try:
        run_job()
    except KeyboardInterrupt:
        return _fail("stopped; finished cells stay, and the same command goes on with the others")
    incomplete = [cell for cell in _PLAN if read_status(cell.folder)["state"] != "done"]
    if len(_PLAN) > 1 and incomplete:
        _fail(f"{len(incomplete)} of {len(_PLAN)} cells did not complete")
    return 1 if incomplete else 0


# Every cell gets a process of its own, forked from a server that has imported what workers need and touched no device: starting
# one takes a tenth of a second in place of several.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["experiments.worker"])

_PLAN: list[Cell] = []
_SEEN: set[str] = set()  # points of a grid that differ only in what their decoder does not use are one cell


def _work(folder: str) -> None:
    from experiments import worker  # the coordinator itself never imports torch

    sys.exit(worker.main(Path(folder)))


def _start(worker: BaseProcess) -> None:
    """Start a process; a signal to stop waits until there is a process to take along."""
    forkserver.ensure_running()  # outside of the block, which the server's children would inherit
    stops = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    worker.start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, stops)


def _fail(message: str) -> int:
    sys.stderr.write(f"error: {message}\n")
    return 1


def _on_terminate(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe.{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InvalidInput(
            f"results folder {folder} cannot be written ({error.strerror}); give another: results=FOLDER"
        ) from error


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="run")
def run_job(config: DictConfig) -> None:
    """Run the cell of one composed configuration unless it is complete; report a failure and let the sweep go on."""
    cell = cell_of(config, dict(HydraConfig.get().runtime.choices))
    if cell.cell_id in _SEEN:
        return
    _SEEN.add(cell.cell_id)
    position = [planned.cell_id for planned in _PLAN].index(cell.cell_id) + 1 if _PLAN else 1
    heading = f"[{position}/{max(len(_PLAN), 1)}] {cell}"
    if read_status(cell.folder)["state"] == "done":
        sys.stderr.write(f"{heading}: done already ({cell.folder})\n")
        return
    sys.stderr.write(f"{heading}\n")
    try:
        run_cell(cell)
    except CellFailed as error:
        _fail(str(error))


def run_cell(cell: Cell) -> None:
    """Run a cell in a process of its own. Raises CellFailed with its reason."""
    cell.folder.mkdir(parents=True, exist_ok=True)
    with (cell.folder / ".lock").open(
        "w"
    ) as lock:  # the system lets go of it when this process ends, however it ends
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CellFailed(f"{cell}: another run is working on it; wait for that one") from error
        _run_locked(cell)


def _run_locked(cell: Cell) -> None:
    description = {"cell_id": cell.cell_id, "title": str(cell), "labels": cell.labels, "config": cell.config}
    write_json(cell.folder / "cell.json", description)
    write_status(cell.folder, "running", "", 0.0)
    started = time.perf_counter()
    worker = _PROCESSES.Process(target=_work, args=(str(cell.folder),))
    try:
        _start(worker)
        worker.join()
    except KeyboardInterrupt:
        if worker.pid is not None:  # it was started
            worker.terminate()
            worker.join()
        write_status(cell.folder, "interrupted", "stopped by the user", time.perf_counter() - started)
        raise
    code = worker.exitcode or 0
    if code == 0:
        return
    if read_status(cell.folder)["state"] != "failed":
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        write_status(cell.folder, "failed", f"the worker {how}", time.perf_counter() - started)
    raise CellFailed(f"{cell}: {read_status(cell.folder)['reason']}")


if __name__ == "__main__":
    sys.exit(main())
