"""Measure cells prompt by prompt; each row is written as soon as it is known.

One process measures cells whose times are compared, in turns, so that other work of the machine
falls on all of them alike. It holds the locks of the cells' folders while it measures, so that two
runs never write to one cell. A cell that was stopped goes on after the prompts that it has; a
complete cell whose files are damaged is measured again, and so is one whose code has changed.
"""

import json
import logging
import os
import random
import signal
import time
import traceback
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any

import torch

from analysis.load import Status, changed_code, origins, read_status
from experiments.cell import (
    Cell,
    CellBusy,
    CellFailed,
    Reporter,
    build,
    check_task,
    prompts_of,
    sampling_of,
)
from experiments.configurations import chosen_elsewhere
from experiments.provenance import peak_memory, provenance
from experiments.store import PROVENANCE, CellStore, RowLog, lost_files, status_of
from experiments.tasks.base import Row, Task, Workload
from experiments.tasks.sampled_trees import is_misread
from resispec.audit.battery import shown_bias
from resispec.code_digest import check_loaded, code_digests, commit_digests, own_digests
from resispec.decode import Decoder
from resispec.errors import InvalidInput, first_line, set_log_levels
from resispec.files import read_json, write_json
from resispec.machine import checkout
from resispec.models import Pair

_log = logging.getLogger(__name__)
OWN_CODE = own_digests()
"""Digests of our own code as this process has loaded it; files may change while it measures."""
checkout()  # processes that are forked from this one have its code, whatever git says later


OWN_THREADS = torch.get_num_threads()
"""The number of threads of cells that name none; an earlier cell of this process may name one."""
MOST_COPIES = 0.05
"""The largest share of prompts that are copies of others, as a crawl may have them."""
KEPT = ("stale", "damaged")
"""States that stay if a cell fails before it begins: its old rows are still what they say."""
_KEPT: dict[str, Pair] = {}
"""The pair that `build_pair` has built last, by its configuration."""


class _Measurement:
    """A cell that this process measures, with its seconds so far, and the reason if it failed."""

    def __init__(self, cell: Cell) -> None:
        self.cell, self.store = cell, CellStore(cell.folder)
        self.reason: str | None = None
        self.seconds = 0.0

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Run a block whose seconds count for this cell, and whose error fails this cell alone."""
        started, limit = time.perf_counter(), self.cell.config["cell_timeout_s"]
        try:
            with (
                _limited(limit - self.seconds, f"cell_timeout_s={limit}")
                if limit
                else nullcontext()
            ):
                yield
        except (Exception, SystemExit) as error:  # noqa: BLE001
            # a rule of the user's may raise or exit
            self.reason = _reason(error, self.cell.config)
            self.seconds += time.perf_counter() - started
            with suppress(OSError):  # a full disk must not hide the error
                (self.store.folder / "log.txt").write_text(traceback.format_exc(), encoding="utf-8")
                if read_status(self.store.folder, self.cell.config).state not in KEPT:
                    self.store.write_status(Status("failed", self.reason, self.seconds))
        else:
            self.seconds += time.perf_counter() - started

    def open(self, beside: Workload | None) -> None:
        """Begin the cell. beside: the material of another cell to share; None if there is none."""
        check_loaded(self.cell.config)
        self.cell.check_tree()  # another run may have found it since, for something else
        code = {
            name: OWN_CODE.get(name, now) for name, now in code_digests(self.cell.config).items()
        }
        # rows of other code stay until the models are loaded
        if not changed_code(self.store.folder, self.cell.config):
            self.store.begin(self.cell, code)
        self.task: Task = build(self.cell.config["task"])
        self.workload = load_workload(self.cell.config, beside)
        check_task(self.task, self.workload.decoder)  # a rehearsal may have ended without it
        self.cell.check_unchanged()  # a cell may wait for hours until it is read
        pair = self.workload.pair
        # a name on the hub may stand for other models than when the rows so far were measured
        self.store.begin(self.cell, code | commit_digests(pair.commits()))
        facts = {"dtype": self.cell.config["dtype"], "model_commits": pair.commits(), "code": code}
        facts["forwards"] = pair.ways()
        lost = lost_files(self.cell.config)
        self.log = RowLog(self.store.folder, self.task.row, self.workload, lost)
        path = self.store.folder / PROVENANCE
        self.is_resumed = bool(self.log.rows)
        runs = origins(read_json(path)) if self.is_resumed and path.is_file() else []
        self.origin = provenance(pair.target.device) | facts | ({"before": runs} if runs else {})
        if bias := _bias_of(self.workload):
            self.origin["shown_bias"] = bias
        tree = self.cell.tree_file
        if tree and (line := chosen_elsewhere(tree, self.origin["device"])):
            _log.warning("%s", line)
        write_json(path, self.origin)

    def close(self) -> None:
        """Complete the cell; the seconds of a resumed one, which lack some prompts, become 0."""
        memory = {"peak_memory_bytes": peak_memory(self.workload.pair.target.device)}
        write_json(self.store.folder / PROVENANCE, self.origin | memory)
        self.log.finish()
        self.store.write_status(Status("done", "", 0.0 if self.is_resumed else self.seconds))


def measure(cells: Sequence[Cell], report: Reporter, wait: bool = False) -> None:
    """Measure the cells that are not complete, in this process, in turns prompt by prompt.

    cells: equal except for their decoders, see `Cell.setting`. wait: wait for another run that is
    measuring one of them, instead of raising CellBusy.

    Raises CellFailed for cells that fail, once the others are done; their statuses also hold the
    reasons.
    """
    set_log_levels()
    total = sum(cell.config["num_prompts"] for cell in cells)
    if torch.cuda.is_initialized():  # a cell's peak is not that of one before it
        torch.cuda.reset_peak_memory_stats()
    with ExitStack() as locks:
        for cell in cells:
            line = f"{cell}: waiting for another run"
            on_wait = (lambda line=line: report(line, 0, total)) if wait else None
            try:
                locks.enter_context(CellStore(cell.folder).locked(on_wait))
            except TimeoutError as error:
                raise CellBusy(str(cell)) from error
        measurements = [_Measurement(cell) for cell in cells if status_of(cell).state != "done"]
        try:
            _take_turns(measurements, report)
        except BaseException:  # a signal to stop
            for measurement in measurements:
                with suppress(OSError):
                    if read_status(measurement.store.folder).state == "running":
                        measurement.store.write_status(
                            Status("interrupted", "stopped", measurement.seconds)
                        )
            raise
    if reasons := [f"{m.cell}: {m.reason}" for m in measurements if m.reason is not None]:
        raise CellFailed("\n".join(reasons))


def measured(cell: Cell, report: Reporter) -> list[Row]:
    """The rows of a cell, measured here first if it is not complete.

    Raises CellFailed with the reason.
    """
    measure([cell], report, wait=True)
    return CellStore(cell.folder).rows(build(cell.config["task"]).row)


def _take_turns(measurements: Sequence[_Measurement], report: Reporter) -> None:
    """Measure every prompt in all cells that lack it, in an order drawn anew for each prompt."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    workload, timed_by = None, uuid.uuid4().hex[:8]
    total = sum(measurement.cell.config["num_prompts"] for measurement in measurements)

    def running() -> list[_Measurement]:
        return [measurement for measurement in measurements if measurement.reason is None]

    def tell(measurement: _Measurement, what: str) -> None:
        report(
            f"{measurement.cell}: {what}", sum(len(other.log.rows) for other in running()), total
        )

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
    for index in range(
        max((len(measurement.workload.prompts) for measurement in running()), default=0)
    ):
        queue = [measurement for measurement in running() if len(measurement.log.rows) == index]
        random.Random(index).shuffle(queue)
        for turn, measurement in enumerate(queue):
            with measurement.attempt():
                row = measurement.task(measurement.workload, index)
                measurement.log.append(
                    replace(row, timed_by=timed_by, turn=turn) if len(queue) > 1 else row
                )
                facts = measurement.task.progress(measurement.log.rows).items()
                tell(measurement, ", ".join(f"{name} {value}" for name, value in facts))
    for measurement in running():
        with measurement.attempt():
            measurement.close()


@contextmanager
def _limited(seconds: float, name: str) -> Iterator[None]:
    """Raise InvalidInput within the block after so many seconds. name: of the limit."""

    def stop(*_: object) -> None:
        raise InvalidInput(f"took longer than {name}")

    handler = signal.signal(signal.SIGALRM, stop)
    # again, if the block caught the error
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3), 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)


def _reason(error: BaseException, config: Mapping[str, Any]) -> str:
    """The reason why a cell failed, in one line; that of a rule in a file names the verifier."""
    if isinstance(error, InvalidInput):
        return first_line(error)
    if isinstance(error, SystemExit):
        return f"the code ended the process: sys.exit({error.code!r})"
    verifier = str(config["verifier"].get("name"))
    reason = f"{type(error).__name__}: {first_line(error)}"
    return f"{reason} (verifier {verifier})" if ".py:" in verifier else reason


def _warmup_prompts(workload: Workload, config: Mapping[str, Any]) -> list[int]:
    """The prompts that are decoded first and not recorded."""
    return [index % len(workload.prompts) for index in range(config["warmup_prompts"])]


def _bias_of(workload: Workload) -> str | None:
    """The bias that enumeration shows of a cell's verifier; None where nothing is drafted."""
    drafter, verifier = workload.decoder.drafter, workload.decoder.verifier
    if drafter.topology.num_nodes == 1:
        return None
    is_greedy = workload.sampling.temperature == 0
    return shown_bias(verifier, drafter.draws, is_greedy, is_misread(drafter))


def load_workload(config: Mapping[str, Any], beside: Workload | None) -> Workload:
    """A cell's material: models, decoder and encoded prompts, checked to fit each other.

    config: a cell's configuration. beside: the material of another cell that differs only in its
    decoder; its models and prompts are shared. Raises InvalidInput for errors that the user can
    mend.
    """
    decoder: Decoder = build(config["decoder"])
    workload = replace(beside, decoder=decoder) if beside else _material(config, decoder)
    for _, tokens in workload.prompts:
        decoder.check(workload.pair, len(tokens), workload.sampling)
    return workload


def _material(config: Mapping[str, Any], decoder: Decoder) -> Workload:
    sampling = sampling_of(config)
    prompts = prompts_of(config)
    pair = build_pair(config)
    length, template = config["prompt_tokens"], config["prompt_template"]
    encoded = [
        (prompt.id, pair.tokenizer.encode_prompt(prompt, length, template)) for prompt in prompts
    ]
    _check_different(encoded, length)
    categories = {prompt.id: prompt.category for prompt in prompts if prompt.category is not None}
    return Workload(pair, decoder, sampling, encoded, config["seed"], categories)


def _check_different(encoded: Sequence[tuple[str, list[int]]], length: int) -> None:
    """Raise InvalidInput if many prompts are the same tokens, and warn of a few.

    Intervals over prompts count them as several. encoded: ids and tokens of prompts. length: the
    number of tokens to which they were cut.
    """
    owners: dict[tuple[int, ...], str] = {}
    copies = [
        (name, owner)
        for name, tokens in encoded
        if (owner := owners.setdefault(tuple(tokens), name)) != name
    ]
    if not copies:
        return
    name, owner = copies[0]
    line = (
        f"{len(copies)} of {len(encoded)} prompts are another one after the cut to {length} tokens "
        f"(the first: {name} is {owner}), so they are no prompts of their own"
    )
    if len(copies) > MOST_COPIES * len(encoded):
        raise InvalidInput(
            f"{line}; allowed: a share of {MOST_COPIES:g}, or a larger prompt_tokens that shows "
            "where they differ"
        )
    _log.warning("%s", line)


def build_pair(config: Mapping[str, Any]) -> Pair:
    """A cell's pair; sets torch's threads.

    The last pair of this process is kept, for cells of the same pair that follow. Raises
    InvalidInput as `build`.
    """
    torch.set_num_threads(config["num_threads"] or OWN_THREADS)
    key = json.dumps([config["pair"], config["num_threads"]], sort_keys=True)
    if key not in _KEPT:
        _KEPT.clear()  # its memory is needed
        _KEPT[key] = build(config["pair"])
    return _KEPT[key]
