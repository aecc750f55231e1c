"""Audits in processes of their own, so that a verifier that ends its process does not end the command."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from typing import Any, TypeVar

import torch
from tqdm import tqdm

from experiments.auditing.evidence import Audit, Candidate, Material, audit, gather
from resispec.errors import InvalidInput
from resispec.verifiers import Draws

Item, Result = TypeVar("Item"), TypeVar("Result")


def audit_all(chosen: Sequence[Candidate], config: Mapping[str, Any], texts: Sequence[str]) -> list[Audit]:
    """Audit every verifier with all its kinds of draws in processes of their own: two on a CPU, one on a GPU.

    Raises InvalidInput, naming the verifier, for one that breaks the contract or ends its process.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["experiments.auditing.processes"])
    count = 2 if config["device"] == "cpu" else 1
    with ProcessPoolExecutor(count, context, _prepare, (config, texts)) as pool:
        supported = _each(pool, Candidate.supported, chosen, chosen)
        rows = [(one, draws) for one, found in zip(chosen, supported, strict=True) for draws in found]
        bar = tqdm(desc="audit", unit="row", total=len(rows), dynamic_ncols=True)
        with bar:
            return _each(pool, _audit_row, rows, [one for one, _ in rows], bar)


def _each(
    pool: ProcessPoolExecutor,
    function: Callable[[Item], Result],
    items: Sequence[Item],
    whose: Sequence[Candidate],
    bar: tqdm | None = None,
) -> list[Result]:
    """`function` of every item, in the pool's processes. whose: the verifier that each item is about."""
    futures, found = [pool.submit(function, item) for item in items], []
    for future, candidate in zip(futures, whose, strict=True):
        try:
            found.append(future.result())
        except BrokenProcessPool as error:
            who = f"verifier {candidate.name!r}, or one that was audited beside it"
            raise InvalidInput(f"{who}, ended its process") from error
        except InvalidInput:
            pool.shutdown(cancel_futures=True)
            raise
        if bar is not None:
            bar.update()
    return found


_SETTING: list[tuple[Mapping[str, Any], Sequence[str]]] = []


def _prepare(config: Mapping[str, Any], texts: Sequence[str]) -> None:
    torch.set_num_threads(1)
    _SETTING.append((config, texts))


@cache
def _material() -> Material:
    return gather(*_SETTING[0])


@torch.inference_mode()
def _audit_row(row: tuple[Candidate, Draws]) -> Audit:
    return audit(*row, _material())
