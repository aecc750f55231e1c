"""The state of a module of torch, by which one sees that a program has changed it.

Decoding keeps what it made of a module: caches, captured graphs, packed copies of weights. Between
two prompts a program may train the module, load other weights, hook something to a layer, or put an
adapter around it or switch one.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from inspect import getattr_static
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules_of_torch

HOOKS = ("_forward_hooks", "_forward_pre_hooks")
GLOBAL_HOOKS = tuple(f"_global{name}" for name in HOOKS)
"""The hooks of all modules of a process, in `torch.nn.modules.module`."""
KNOWN = ("torch", "transformers", "resispec")
"""Packages whose functions are known, and whose parts keep settings in plain numbers and texts."""
_NO_SETTINGS = (*vars(nn.Module()), "max_seq_len_cached")
"""Attributes of parts that are no settings.

Those of every module are compared otherwise or are set by decoding; the last one is set by a
forward.
"""
MOVING = ("dynamic", "longrope")
"""Kinds of rotary frequencies that forwards change; a text may not cross where they do."""
PLAIN = (bool, int, float, str)
CONTAINERS = (list, tuple, dict, set, frozenset, deque)
SAMPLE = 4
"""The numbers of a parameter or buffer on a CPU that are compared."""


class ModuleState:
    """The state of a module, which can be compared with another.

    It holds the module's parts, their hooks, methods, settings and configurations, and the module's
    parameters and buffers.

    called: functions that its parts call by their names, and that a program may replace.

    A change in place counts by torch's own number of changes. A change through `Tensor.data` has
    none, so of tensors on a CPU the first numbers are compared, too; a GPU would have to be waited
    for. It holds on to what it compares, so that no other object takes its place in memory.
    """

    def __init__(self, module: nn.Module, called: Iterable[Any] = ()) -> None:
        parts = [*module.modules()]
        buffers = (
            buffer
            for part in parts
            if not str(getattr(part, "rope_type", "")).startswith(MOVING)
            for buffer in part.buffers(recurse=False)
        )
        tensors = [*module.parameters(), *buffers]
        hooks = [hook for part in parts for hook in _hooks(part)]
        methods = [vars(part).get("forward") for part in parts]
        classes = [getattr_static(kind, "forward") for kind in dict.fromkeys(map(type, parts))]
        functions = [*_global_hooks(), *methods, *classes, *called]
        self._objects = [*parts, *hooks, *functions, *tensors]
        configs = {id(part.config): part.config for part in parts if hasattr(part, "config")}
        told = map(_settings_of_config, configs.values())
        self._facts = [*told, *map(_settings, parts), *map(version, tensors)]
        self._sample = _sample(tensors)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ModuleState)
            and len(self._objects) == len(other._objects)
            and all(one is two for one, two in zip(self._objects, other._objects, strict=True))
            and self._facts == other._facts
            and torch.equal(self._sample, other._sample)
        )

    __hash__ = None  # type: ignore[assignment]


def version(tensor: Tensor) -> tuple[int, int | None]:
    """A tensor's place in memory and its number of changes in place.

    Tensors made in inference mode do not count changes: the number is None. The place of a tensor
    that wraps others is 0.
    """
    place = tensor.data_ptr() if is_simple(tensor) else 0
    return place, None if tensor.is_inference() else tensor._version


def runs_other_code(module: nn.Module) -> bool:
    """Whether a forward also runs what a program has put into the module's parts.

    That are hooks, and functions in the place of a part's `forward`, unless they are KNOWN. They
    may have a state of their own, which no comparison sees.
    """
    functions = _global_hooks()
    for part in module.modules():
        functions += _hooks(part)
        functions += [vars(part)["forward"]] if "forward" in vars(part) else []
    return not all(map(is_known, functions))


def is_untouched(part: Any) -> bool:
    """Whether a part of a module does what its class said when its package was installed.

    It must have no hooks, no `forward` of its own, and none that a program has put in the place of
    its class's.
    """
    return (
        "forward" not in vars(part)
        and not _hooks(part)
        and not _global_hooks()
        and is_known(type(part).forward)
    )


def is_known(function: Any) -> bool:
    """Whether the code of a function, and of all that it wraps, stands in files of KNOWN."""
    while function is not None:
        code = getattr(function, "__code__", None)
        if code is None or not code.co_filename.startswith(_roots()):
            return False
        function = getattr(function, "__wrapped__", None)
    return True


@cache
def _roots() -> tuple[str, ...]:
    """The beginnings of paths to files of KNOWN."""
    folders = (Path(str(import_module(name).__file__)).parent for name in KNOWN)
    return tuple(f"{folder}{os.sep}" for folder in folders)


def has_hooks(part: nn.Module) -> bool:
    """Whether a program has hooked something to a part of a module."""
    return bool(_hooks(part))


def _hooks(part: Any) -> list[Any]:
    return [hook for name in HOOKS for hook in getattr(part, name).values()]


def _global_hooks() -> list[Any]:
    return [hook for name in GLOBAL_HOOKS for hook in vars(modules_of_torch)[name].values()]


_TRAINED: dict[nn.Module, int] = {}
"""Parts that were in training mode, and how many blocks of `evaluating` want them otherwise."""
_TRAINED_LOCK = threading.Lock()


@contextmanager
def evaluating(modules: Iterable[Any]) -> Iterator[None]:
    """Modules are in evaluation mode in the block; afterwards each part is as it was.

    Several threads may be in blocks of one module; the last one to leave brings back its mode.
    """
    parts = [
        part for module in modules if isinstance(module, nn.Module) for part in module.modules()
    ]
    with _TRAINED_LOCK:
        trained = [part for part in parts if part.training or part in _TRAINED]
        for part in trained:
            _TRAINED[part] = _TRAINED.get(part, 0) + 1
            part.training = False
    try:
        yield
    finally:
        with _TRAINED_LOCK:
            for part in trained:
                _TRAINED[part] -= 1
                if not _TRAINED[part]:
                    del _TRAINED[part]
                    part.training = True


def is_simple(tensor: Tensor) -> bool:
    """Whether a tensor has its own data, and no operations of a subclass."""
    return type(tensor) in (Tensor, nn.Parameter)


def _package_of(part: Any) -> str:
    return type(part).__module__.partition(".")[0]


def settings_in(subject: object) -> list[Any]:
    """The settings of a verifier, or of any object, and of all that it holds, as pickle finds them.

    Two lists are equal if nothing has changed in between. What cannot be pickled may keep a state
    that nobody sees, so it is equal to nothing. What functions and classes keep is not looked at.
    """
    found: list[Any] = []
    pending, seen = [subject], dict[int, tuple[int, object]]()
    while pending:
        part = pending.pop()
        if part is None or type(part) in (*PLAIN, bytes):
            found.append(part)
        elif id(part) in seen:
            found.append(seen[id(part)][0])
        else:
            seen[id(part)] = len(seen), part  # no other object takes its place in memory
            if isinstance(part, Tensor):
                found.append(_Held(part, version(part)))
            elif isinstance(part, nn.Module):
                found.append(ModuleState(part))
            elif isinstance(part, type | FunctionType | ModuleType):
                found.append(part)
            else:
                parts = _parts(part)
                found.append((type(part), len(parts)))
                pending += parts
    return found


def _parts(subject: object) -> list[Any]:
    """The parts from which pickle would make an object; a NaN for one that cannot be pickled."""
    if type(subject) is dict:
        return [*subject.keys(), *subject.values()]
    if type(subject) in (list, tuple, set, frozenset):
        return [*subject]  # type: ignore[misc]
    try:
        reduced = subject.__reduce_ex__(2)
        if isinstance(reduced, str):
            return [reduced]
        return [[*part] if isinstance(part, Iterator) else part for part in reduced]
    except Exception:  # noqa: BLE001 - an object's code may raise anything
        return [float("nan")]  # a new object: lists compare those that are the same as equal


@dataclass(frozen=True, eq=False)
class _Held:
    """A tensor that is equal to itself alone, while it is unchanged; no other takes its place."""

    tensor: Tensor
    version: tuple[int, int | None]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Held):
            return False
        return self.tensor is other.tensor and self.version == other.version

    __hash__ = None  # type: ignore[assignment]


def _attributes(subject: object) -> dict[str, Any]:
    """The attributes of an object; none of a class, a function or a module of Python."""
    has_code = isinstance(subject, type | FunctionType | ModuleType)
    return {} if has_code else getattr(subject, "__dict__", {})


def _settings(part: object) -> list[tuple[str, Any]]:
    """The plain attributes of a part, as a scale, or those by which adapters are chosen.

    Of parts of other packages private ones count, too: an adapter's switch is one in PEFT.
    """
    is_known_part = _package_of(part) in KNOWN
    has_private = isinstance(part, nn.Module) and not is_known_part
    return _plain(
        (name, value)
        for name, value in _attributes(part).items()
        if has_private or not name.startswith("_")
        if type(value) in PLAIN or not is_known_part
    )


def _settings_of_config(config: object) -> list[tuple[str, Any]]:
    """The settings of a configuration, which forwards may read, such as a window or a scale."""
    attention = "_attn_implementation"  # a property, whose value is kept in a private attribute
    public = (item for item in _attributes(config).items() if not item[0].startswith("_"))
    return [(attention, getattr(config, attention, None)), *_plain(public)]


def _plain(attributes: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """The attributes that are plain values, or containers, as a text."""
    return [
        (name, value if type(value) in PLAIN else repr(value))
        for name, value in attributes
        if isinstance(value, (*PLAIN, *CONTAINERS)) and name not in _NO_SETTINGS
    ]


def _sample(tensors: Iterable[Tensor]) -> Tensor:
    values = [
        value.detach().as_strided((min(SAMPLE, value.numel()),), (1,))
        for value in tensors
        if value.device.type == "cpu" and is_simple(value)
    ]
    return torch.cat([value.double() for value in values]) if values else torch.empty(0)
