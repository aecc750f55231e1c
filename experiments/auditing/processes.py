"""Audits in processes of their own, so that a verifier that ends its process does not end the
command.
"""

import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from multiprocessing import forkserver
from operator import methodcaller
from typing import Any

import torch

from experiments.auditing.evidence import PARTS, Candidate, JudgedVerifier, Part, judged, measure
from experiments.auditing.material import Material, gather
from experiments.scheduler import PROCESSES, follow_parent, unstopped
from resispec.audit.verdict import Evidence
from resispec.data import Prompt
from resispec.errors import InvalidInput
from resispec.progress import LINES_S, progress_bar
from resispec.verifiers import DrawsKind

_SETTING: list[Any] = []
"""The arguments with which a process calls `gather`."""


def audit_all(
    chosen: Sequence[Candidate], config: Mapping[str, Any], documents: Sequence[Prompt]
) -> list[JudgedVerifier]:
    """Audit every verifier with all its kinds of draws in processes of their own:
    two on a CPU, one on a GPU.

    A part of a row's evidence at a time, so that one row is shared, too.

    Raises InvalidInput, naming the verifier, for one that breaks the contract or ends its process.
    Whatever is raised here, an interrupt included, ends these processes at once.
    """
    with unstopped():
        forkserver.ensure_running()
    num_processes = 2 if config["device"] == "cpu" else 1
    pool = ProcessPoolExecutor(num_processes, PROCESSES, _prepare, (config, documents))
    try:
        kinds = [*_each(pool, methodcaller("supported"), [(candidate,) for candidate in chosen])]
        rows = [
            (candidate, draws)
            for candidate, group in zip(chosen, kinds, strict=True)
            for draws in group
        ]
        work = [(*row, part) for row in rows for part in PARTS]
        found = list[Evidence]()
        with progress_bar(desc="audit", unit="part", total=len(work)) as bar:
            for evidence in _each(pool, _measure, work, while_waiting=bar.refresh):
                found.append(evidence)
                bar.update()
        parts = zip(*[iter(found)] * len(PARTS), strict=True)
        return [judged(*row, evidence) for row, evidence in zip(rows, parts, strict=True)]
    except BaseException:
        for process in multiprocessing.active_children():
            process.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _each(
    pool: ProcessPoolExecutor,
    function: Callable[..., Any],
    work: Sequence[tuple[Any, ...]],
    while_waiting: Callable[[], object] = bool,
) -> Iterator[Any]:
    """Results of a function in the pool's processes.

    work: the arguments of each call, a candidate first.

    while_waiting: called each LINES_S seconds in which there is no result.
    """
    for (candidate, *_), future in [(item, pool.submit(function, *item)) for item in work]:
        while not wait([future], LINES_S).done:
            while_waiting()
        try:
            yield future.result()
        except BrokenProcessPool as error:
            who = f"verifier {candidate.name!r}, or one that was audited beside it"
            raise InvalidInput(f"{who}, ended its process") from error


def _prepare(config: Mapping[str, Any], documents: Sequence[Prompt]) -> None:
    follow_parent()
    torch.set_num_threads(1)
    _SETTING[:] = config, documents


@cache
def _material() -> Material:
    return gather(*_SETTING)


@torch.inference_mode()
def _measure(candidate: Candidate, draws: DrawsKind, part: Part) -> Evidence:
    return measure(part, candidate, draws, _material())
