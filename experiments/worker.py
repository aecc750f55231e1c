"""Measure one cell: its prompts one after another, each row written as it is known.

Whoever measures holds the lock of the cell's folder, so that two runs never write to one cell. A cell that
was stopped goes on after the prompts that it has; a complete one whose files are damaged is measured again.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from experiments.cell import Cell, CellBusy, CellFailed, Report, build
from experiments.provenance import peak_memory, provenance
from experiments.schema import CHAT
from experiments.store import PROVENANCE, CellStore, RowLog, Status
from experiments.tasks.base import Row, Task, Workload
from resispec.decode import Decoder, Sampling
from resispec.errors import InvalidInput, first_line
from resispec.files import write_json
from resispec.models import Pair, TransformersTokenizer
from resispec.models.causal import compiled_pair


def measure(cell: Cell, report: Report, wait: bool = False) -> Task:
    """Measure a cell unless it is complete, in this process; return its task.

    wait: wait for another run that is measuring the cell; otherwise raise CellBusy.
    Raises CellFailed with the reason, which is also recorded as the cell's status.
    """
    store = CellStore(cell.folder)
    try:
        with store.locked((lambda: report(f"{cell}: waiting for another run", 0, 1)) if wait else None):
            if store.status().state != "done":
                _measure_locked(cell, store, report)
    except TimeoutError as error:
        raise CellBusy(str(cell)) from error
    return build(cell.config["task"])


def measured(cell: Cell, report: Report) -> list[Row]:
    """The rows of a cell, which is measured first, in this process, unless it is complete.

    Raises CellFailed with the reason.
    """
    task = measure(cell, report, wait=True)
    return CellStore(cell.folder).rows(task.row)


def _measure_locked(cell: Cell, store: CellStore, report: Report) -> None:
    started = time.perf_counter()
    try:
        store.begin(cell)
        _measure(cell, store.folder, report)
        store.write_status(Status("done", "", time.perf_counter() - started))
    except (Exception, SystemExit) as error:  # a rule of the user's may call sys.exit
        reason = _reason(error, cell.config)
        with suppress(OSError):  # a full disk must not hide it
            (store.folder / "log.txt").write_text(traceback.format_exc(), encoding="utf-8")
            store.write_status(Status("failed", reason, time.perf_counter() - started))
        raise CellFailed(f"{cell}: {reason}") from error
    except BaseException:  # a signal to stop
        with suppress(OSError):
            store.write_status(Status("interrupted", "stopped", time.perf_counter() - started))
        raise


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


def _measure(cell: Cell, folder: Path, report: Report) -> None:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    task: Task = build(cell.config["task"])
    workload = load_workload(cell.config)
    device = workload.pair.target.device
    origin = provenance(device) | {"dtype": cell.config["dtype"], "model_commits": workload.pair.commits()}
    write_json(folder / PROVENANCE, origin)
    log = RowLog(folder, task.row)
    count = len(workload.prompts)
    report(f"{cell}: starting", len(log.rows), count)
    if len(log.rows) < count:
        for index in _warmup_prompts(workload, cell.config):
            report(f"{cell}: warming up", len(log.rows), count)
            task(workload, index)
    for index in range(len(log.rows), count):
        log.append(task(workload, index))
        facts = ", ".join(f"{name} {value}" for name, value in task.progress(log.rows).items())
        report(f"{cell}: {facts}", len(log.rows), count)
    write_json(folder / PROVENANCE, origin | {"peak_memory_bytes": peak_memory(device)})
    log.finish()


def _warmup_prompts(workload: Workload, config: Mapping[str, Any]) -> list[int]:
    """The prompts that are decoded first and not recorded.

    Where forwards are compiled, which takes seconds for caches of every length, there is one of each.
    """
    prompts = [index % len(workload.prompts) for index in range(config["warmup_prompts"])]
    first: dict[int, int] = {}
    for index, (_, tokens) in enumerate(workload.prompts if config["compiled"] else ()):
        first.setdefault(workload.decoder.capacity(len(tokens), workload.sampling), index)
    return prompts + [index for index in first.values() if index not in prompts]


def load_workload(config: Mapping[str, Any]) -> Workload:
    """A cell's material: models, decoder and encoded prompts, checked to fit each other.

    config: a cell's. Raises InvalidInput for what the user can mend.
    """
    sampling = Sampling(temperature=config["temperature"], **config["sampling"])
    decoder: Decoder = build(config["decoder"])
    first = config["first_prompt"]
    prompts = build(config["dataset"]).prompts(first + config["num_prompts"])[first:]
    pair = build_pair(config)
    length, template = config["prompt_tokens"], config["prompt_template"]
    encoded = [(prompt.id, encode(pair.tokenizer, prompt.text, length, template)) for prompt in prompts]
    for _, tokens in encoded:
        decoder.check(pair, len(tokens), sampling)
    categories = {prompt.id: prompt.category for prompt in prompts if prompt.category is not None}
    return Workload(pair, decoder, sampling, encoded, config["seed"], categories)


def build_pair(config: Mapping[str, Any]) -> Pair:
    """The pair of a cell's configuration; its forwards run as the cell asks for, on so many threads.

    Raises InvalidInput as `build`.
    """
    if config["num_threads"] is not None:
        torch.set_num_threads(config["num_threads"])
    pair: Pair = build(config["pair"])
    return compiled_pair(pair) if config["compiled"] else pair


def encode(tokenizer: TransformersTokenizer, text: str, num_tokens: int, template: str | None) -> list[int]:
    """A document's first tokens; a template stands around them and is never cut itself.

    template: a text with {text} where the document stands, to which the tokenizer adds the special tokens
    that the model expects; or CHAT for the tokenizer's own chat template.
    """
    if template is None:
        return tokenizer.encode(text)[:num_tokens]
    beginning = tokenizer.beginning(text, num_tokens)
    if template == CHAT:
        return tokenizer.encode_chat(beginning)
    return tokenizer.encode(template.replace("{text}", beginning))
