"""Audits in processes of their own, so that a verifier that ends its process does not end the command."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cache
from multiprocessing import resource_tracker
from operator import methodcaller
from typing import Any, TypeVar

import torch
from tqdm import tqdm

from experiments.auditing.evidence import Audit, Candidate, audit
from experiments.auditing.material import Material, gather
from experiments.processes import follow_parent
from resispec.errors import InvalidInput
from resispec.verifiers import Draws

Item, Result = TypeVar("Item"), TypeVar("Result")


def audit_all(chosen: Sequence[Candidate], config: Mapping[str, Any], texts: Sequence[str]) -> list[Audit]:
    """Audit every verifier with all its kinds of draws in processes of their own: two on a CPU, one on a GPU.

    Raises InvalidInput, naming the verifier, for one that breaks the contract or ends its process. Whatever
    is raised here, an interrupt included, ends these processes at once.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["experiments.auditing.processes"])
    count = 2 if config["device"] == "cpu" else 1
    others = multiprocessing.active_children()
    pool = ProcessPoolExecutor(count, context, _prepare, (config, texts))
    try:
        supported = _each(pool, methodcaller("supported"), chosen, chosen)
        rows = [(one, draws) for one, found in zip(chosen, supported, strict=True) for draws in found]
        with tqdm(desc="audit", unit="row", total=len(rows), dynamic_ncols=True) as bar:
            return _each(pool, _audit_row, rows, [one for one, _ in rows], bar)
    except BaseException:
        for process in multiprocessing.active_children():
            if process not in others:
                process.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _each(
    pool: ProcessPoolExecutor,
    function: Callable[[Item], Result],
    items: Sequence[Item],
    whose: Sequence[Candidate],
    bar: tqdm | None = None,
) -> list[Result]:
    """`function` of every item, in the pool's processes. whose: the verifier that each item is about."""
    with _uninterrupted():
        futures = [pool.submit(function, item) for item in items]
    found = []
    for future, candidate in zip(futures, whose, strict=True):
        try:
            found.append(future.result())
        except BrokenProcessPool as error:
            who = f"verifier {candidate.name!r}, or one that was audited beside it"
            raise InvalidInput(f"{who}, ended its process") from error
        if bar is not None:
            bar.update()
    return found


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold signals to stop back while processes start, which inherit that: this process decides their end."""
    stops, caught = (signal.SIGINT, signal.SIGTERM), []
    # Blocked in this thread, a signal still reaches this process through a thread of PyTorch's.
    handlers = {stop: signal.signal(stop, lambda number, _: caught.append(number)) for stop in stops}
    resource_tracker.ensure_running()  # to start it unblocks the signals
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, stops)
        for stop, handler in handlers.items():
            signal.signal(stop, handler)
    if caught:
        signal.raise_signal(caught[0])


_SETTING: list[tuple[Mapping[str, Any], Sequence[str]]] = []


def _prepare(config: Mapping[str, Any], texts: Sequence[str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # the pool ends its processes with it
    follow_parent()
    torch.set_num_threads(1)
    _SETTING.append((config, texts))


@cache
def _material() -> Material:
    return gather(*_SETTING[0])


@torch.inference_mode()
def _audit_row(row: tuple[Candidate, Draws]) -> Audit:
    return audit(*row, _material())
