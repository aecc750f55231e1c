"""Measure cells: prompt by prompt, each row written as it is known.

Cells whose times are compared are measured by one process in turns, so that whatever else the machine does
falls on all of them alike. Whoever measures holds the locks of the cells' folders, so that two runs never
write to one cell. A cell that was stopped goes on after the prompts that it has; a complete one whose files
are damaged is measured again.
"""

import os
import random
import signal
import time
import traceback
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any

import torch

from analysis.load import Status
from experiments.cell import Cell, CellBusy, CellFailed, Report, build
from experiments.provenance import peak_memory, provenance
from experiments.store import PROVENANCE, CellStore, RowLog
from experiments.tasks.base import Row, Task, Workload
from resispec.decode import Decoder, Sampling
from resispec.errors import InvalidInput, first_line
from resispec.files import write_json
from resispec.models import Pair
from resispec.models.causal import compiled_pair


class _Measurement:
    """A cell as this process measures it: why it failed, if it did, and the seconds that it has taken."""

    def __init__(self, cell: Cell) -> None:
        self.cell, self.store = cell, CellStore(cell.folder)
        self.reason: str | None = None
        self.seconds = 0.0

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Work for this cell: its seconds are the cell's, and what fails fails the cell and no other."""
        started, limit = time.perf_counter(), self.cell.config["cell_timeout_s"]
        try:
            with _limited(None if limit is None else limit - self.seconds, f"cell_timeout_s={limit}"):
                yield
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a rule of the user's may raise or exit
            self.reason = _reason(error, self.cell.config)
            self.seconds += time.perf_counter() - started
            with suppress(OSError):  # a full disk must not hide it
                log = self.store.folder / "log.txt"
                log.write_text(traceback.format_exc(), encoding="utf-8")
                self.store.write_status(Status("failed", self.reason, self.seconds))
        else:
            self.seconds += time.perf_counter() - started

    def open(self, beside: Workload | None) -> None:
        """Begin, with the material of another cell beside it where there is one."""
        self.store.begin(self.cell)
        self.task: Task = build(self.cell.config["task"])
        self.workload = load_workload(self.cell.config, beside)
        pair = self.workload.pair
        facts = {"dtype": self.cell.config["dtype"], "model_commits": pair.commits()}
        self.origin = provenance(pair.target.device) | facts
        write_json(self.store.folder / PROVENANCE, self.origin)
        self.log = RowLog(self.store.folder, self.task.row)

    def close(self) -> None:
        """Complete the cell."""
        memory = {"peak_memory_bytes": peak_memory(self.workload.pair.target.device)}
        write_json(self.store.folder / PROVENANCE, self.origin | memory)
        self.log.finish()
        self.store.write_status(Status("done", "", self.seconds))


def measure(cells: Sequence[Cell], report: Report, wait: bool = False) -> None:
    """Measure the cells that are not complete, in this process, in turns prompt by prompt.

    cells: alike but for their decoders, see `Cell.setting`. wait: wait for another run that is measuring
    one; otherwise raise CellBusy.
    Raises CellFailed for those that fail, whose reasons are also recorded as their statuses, once the others
    are done.
    """
    with ExitStack() as locks:
        for cell in cells:
            line = f"{cell}: waiting for another run"
            on_wait = (lambda line=line: report(line, 0, _num_prompts(cells))) if wait else None
            try:
                locks.enter_context(CellStore(cell.folder).locked(on_wait))
            except TimeoutError as error:
                raise CellBusy(str(cell)) from error
        measurements = [m for m in map(_Measurement, cells) if m.store.status().state != "done"]
        try:
            _take_turns(measurements, report)
        except BaseException:  # a signal to stop
            for measurement in measurements:
                with suppress(OSError):
                    if measurement.store.status().state == "running":
                        measurement.store.write_status(Status("interrupted", "stopped", measurement.seconds))
            raise
    if reasons := [f"{m.cell}: {m.reason}" for m in measurements if m.reason is not None]:
        raise CellFailed("\n".join(reasons))


def measured(cell: Cell, report: Report) -> list[Row]:
    """The rows of a cell, measured here first unless it is complete. Raises CellFailed with the reason."""
    measure([cell], report, wait=True)
    return CellStore(cell.folder).rows(build(cell.config["task"]).row)


def _num_prompts(cells: Iterable[Cell]) -> int:
    return sum(cell.config["num_prompts"] for cell in cells)


def _take_turns(measurements: Sequence[_Measurement], report: Report) -> None:
    """Measure every prompt by all cells that lack it, in an order that is drawn anew for each prompt."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    workload, timed_by = None, uuid.uuid4().hex[:8]
    total = _num_prompts(measurement.cell for measurement in measurements)

    def running() -> list[_Measurement]:
        return [measurement for measurement in measurements if measurement.reason is None]

    def tell(measurement: _Measurement, what: str) -> None:
        report(f"{measurement.cell}: {what}", sum(len(other.log.rows) for other in running()), total)

    for measurement in measurements:
        with measurement.attempt():
            measurement.open(workload)
            workload = measurement.workload
    for measurement in running():
        tell(measurement, "starting")
        if len(measurement.log.rows) < len(measurement.workload.prompts):
            with measurement.attempt():
                for index in _warmup_prompts(measurement.workload, measurement.cell.config):
                    tell(measurement, "warming up")
                    measurement.task(measurement.workload, index)
    for index in range(max((len(measurement.workload.prompts) for measurement in running()), default=0)):
        queue = [measurement for measurement in running() if len(measurement.log.rows) == index]
        random.Random(index).shuffle(queue)
        for turn, measurement in enumerate(queue):
            with measurement.attempt():
                row = measurement.task(measurement.workload, index)
                measurement.log.append(replace(row, timed_by=timed_by, turn=turn) if len(queue) > 1 else row)
                facts = measurement.task.progress(measurement.log.rows).items()
                tell(measurement, ", ".join(f"{name} {value}" for name, value in facts))
    for measurement in running():
        with measurement.attempt():
            measurement.close()


@contextmanager
def _limited(seconds: float | None, name: str) -> Iterator[None]:
    """Raise InvalidInput within what took so long; None for no limit. name: of the limit."""
    if seconds is None:
        yield
        return

    def stop(*_: object) -> None:
        raise InvalidInput(f"took longer than {name}")

    handler = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3), 1.0)  # again, where somebody caught it
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)


def _reason(error: BaseException, config: Mapping[str, Any]) -> str:
    """Why a cell failed, in one line; what a rule did wrong comes with the verifier's name."""
    if isinstance(error, InvalidInput):
        return first_line(error)
    if isinstance(error, SystemExit):
        return f"the code ended the process: sys.exit({error.code!r})"
    if isinstance(error, OSError):
        return f"{error.strerror or first_line(error)}{f' ({error.filename})' if error.filename else ''}"
    verifier = str(config["verifier"].get("name"))
    return f"{type(error).__name__}: {first_line(error)}" + f" (verifier {verifier})" * (".py:" in verifier)


def _warmup_prompts(workload: Workload, config: Mapping[str, Any]) -> list[int]:
    """The prompts that are decoded first and not recorded.

    Where forwards are compiled, which takes seconds for caches of every length, there is one of each.
    """
    prompts = [index % len(workload.prompts) for index in range(config["warmup_prompts"])]
    by_capacity: dict[int, int] = {}
    for index, (_, tokens) in enumerate(workload.prompts if config["compiled"] else ()):
        by_capacity.setdefault(workload.decoder.capacity(len(tokens), workload.sampling), index)
    return prompts + [index for index in by_capacity.values() if index not in prompts]


def load_workload(config: Mapping[str, Any], beside: Workload | None = None) -> Workload:
    """A cell's material: models, decoder and encoded prompts, checked to fit each other.

    config: a cell's. beside: of another cell that differs in its decoder alone, whose models and prompts are
    shared. Raises InvalidInput for what the user can mend.
    """
    decoder: Decoder = build(config["decoder"])
    workload = replace(beside, decoder=decoder) if beside else _material(config, decoder)
    for _, tokens in workload.prompts:
        decoder.check(workload.pair, len(tokens), workload.sampling)
    return workload


def _material(config: Mapping[str, Any], decoder: Decoder) -> Workload:
    sampling = Sampling(temperature=config["temperature"], **config["sampling"])
    first = config["first_prompt"]
    prompts = build(config["dataset"]).prompts(first + config["num_prompts"])[first:]
    pair = build_pair(config)
    length, template = config["prompt_tokens"], config["prompt_template"]
    encoded = [(prompt.id, pair.tokenizer.encode_prompt(prompt, length, template)) for prompt in prompts]
    categories = {prompt.id: prompt.category for prompt in prompts if prompt.category is not None}
    return Workload(pair, decoder, sampling, encoded, config["seed"], categories)


def build_pair(config: Mapping[str, Any]) -> Pair:
    """A cell's pair, compiled where it asks for it, on its threads. Raises InvalidInput as `build`."""
    if config["num_threads"] is not None:
        torch.set_num_threads(config["num_threads"])
    pair: Pair = build(config["pair"])
    return compiled_pair(pair) if config["compiled"] else pair
