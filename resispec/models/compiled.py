"""Forwards on a processor by `torch.compile`, for the shapes for which that was measured to be faster.

Compiling takes seconds for every shape, in every process, so nothing is compiled unless it is asked for. The
first time that a shape is met, forwards as they are and compiled are timed in turn, and what is faster is
written down, so that later processes compile what pays and nothing else. Without a C++ compiler everything
stays as it is. A compiled forward rounds differently: tokens may differ where a rounding decides.
"""

from __future__ import annotations

import hashlib
import logging
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers

from resispec.errors import InvalidInput, first_line
from resispec.files import cache_root, locked, read_json, write_json
from resispec.machine import cpp_compiler, processor_name
from resispec.models.causal import TransformersModel
from resispec.models.pair import Pair

LEAST_GAIN = 1.05
"""A shape is compiled when that makes its forward at least so many times as fast."""
ROUNDS = 15
_log = logging.getLogger(__name__)


def compiled_pair(pair: Pair, root: Path | None = None) -> Pair:
    """The same pair, whose forwards of a step are compiled where that is faster.

    root: the folder of the file with what was measured, by default that of everything that is made at first
    use. EAGLE drafters stay as they are. Raises InvalidInput for a pair that is not on a processor.
    """
    if pair.target.device.type != "cpu":
        raise InvalidInput(
            f"forwards are compiled on a processor only; the pair is on {pair.target.device}, "
            "where steps are captured as graphs"
        )
    if cpp_compiler() is None:
        _log.warning("no C++ compiler was found (CXX, g++, clang++), so forwards stay as they are")
        return pair
    file = (root or cache_root()) / "compiled.json"

    def faster(model: Any) -> Any:
        is_own = isinstance(model, TransformersModel)
        return model.stepping(WhereFaster(model.module.base_model, file)) if is_own else model

    return replace(pair, target=faster(pair.target), draft=faster(pair.draft))


class WhereFaster:
    """A model's body: as it is, or compiled, by the shape of the call.

    file: what was measured of all bodies on all processors, in seconds of a forward.
    """

    def __init__(self, body: Any, file: Path) -> None:
        # Every shape has code of its own; torch's limits are for shapes that change all the time.
        torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 4096
        self._body, self._compiled = body, torch.compile(body, dynamic=False)
        self._file, self._key = file, _key(body)
        self._chosen: dict[str, Callable[..., Any]] = {}

    def __call__(self, **arguments: Any) -> Any:
        """The body's output. attention_mask: (1, 1, K, places), or one of each kind of layers."""
        mask = arguments["attention_mask"]
        count, places = (next(iter(mask.values())) if isinstance(mask, dict) else mask).shape[2:]
        shape = f"{count} behind {places}"
        if shape not in self._chosen:
            self._chosen[shape] = self._faster(shape, arguments)
        return self._chosen[shape](**arguments)

    def _faster(self, shape: str, arguments: dict[str, Any]) -> Callable[..., Any]:
        found = _read(self._file).get(self._key, {}).get(shape)
        try:
            is_new = found is None
            if found is None:
                found = self._measured(arguments)
                _write(self._file, self._key, shape, found)
            pays = found["plain_s"] >= LEAST_GAIN * found["compiled_s"]
            if pays and not is_new:
                self._compiled(**arguments)  # compiles, which may fail here though it did not before
        except (RuntimeError, OSError, InvalidInput) as error:  # a compiler that is there may still fail
            _log.warning("a forward of %s stays as it is: %s", shape, first_line(error))
            pays = False
        return self._compiled if pays else self._body

    def _measured(self, arguments: dict[str, Any]) -> dict[str, float]:
        """Medians of forwards in turn, after one of each; repeated, a forward writes the same rows again."""
        seconds: dict[str, list[float]] = {"plain_s": [], "compiled_s": []}
        calls = dict(zip(seconds, (self._body, self._compiled), strict=True))
        for turn in range(ROUNDS + 1):
            for name, call in calls.items():
                started = time.perf_counter()
                call(**arguments)
                if turn:
                    seconds[name].append(time.perf_counter() - started)
        return {name: float(f"{statistics.median(own):.4g}") for name, own in seconds.items()}


def _key(body: Any) -> str:
    """16 hexadecimal digits of what the seconds of a body's forwards depend on."""
    facts = [
        *(body.config.to_json_string(use_diff=False), str(body.dtype), torch.get_num_threads()),
        *(torch.__version__, transformers.__version__, processor_name()),
        torch.backends.cpu.get_cpu_capability(),
    ]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _read(file: Path) -> dict[str, Any]:
    """What was measured of all bodies. Raises InvalidInput for a damaged file."""
    try:
        return read_json(file) if file.exists() else {}
    except InvalidInput as error:
        raise InvalidInput(f"{error}; delete it, and forwards are timed again") from error


def _write(file: Path, key: str, shape: str, found: dict[str, float]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with locked(file.with_name(f".{file.name}.lock"), lambda: None):
        content = _read(file)
        content.setdefault(key, {})[shape] = found
        write_json(file, content)
