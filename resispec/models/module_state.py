"""The state of a module of torch, by which one sees that a program has changed it.

Decoding keeps what it made of a module: caches, captured graphs, packed copies of weights. Between
two prompts a program may train the module, load other weights, hook something to a layer or put an
adapter around it.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

HOOKS = ("_forward_hooks", "_forward_pre_hooks")
SAMPLE = 4
"""The numbers of a parameter on a CPU that are compared."""


class ModuleState:
    """A module's parts, their hooks and own methods, and its parameters; states can be compared.

    A change in place counts by torch's own number of changes. A change through `Tensor.data` has
    none, so of parameters on a CPU the first numbers are compared, too; a GPU would have to be
    waited for. It holds on to what it compares, so that no other object takes its place in memory.
    """

    def __init__(self, module: nn.Module) -> None:
        parts, parameters = [*module.modules()], [*module.parameters()]
        hooks = [hook for part in parts for name in HOOKS for hook in getattr(part, name).values()]
        methods = [vars(part).get("forward") for part in parts]
        self._objects = [*parts, *hooks, *methods, *parameters]
        self._facts = [
            getattr(getattr(module, "config", None), "_attn_implementation", None),
            *map(version, parameters),
            *map(_sample, parameters),
        ]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ModuleState)
            and len(self._objects) == len(other._objects)
            and all(one is two for one, two in zip(self._objects, other._objects, strict=True))
            and self._facts == other._facts
        )

    __hash__ = None  # type: ignore[assignment]


def version(tensor: Tensor) -> tuple[int, int | None]:
    """A tensor's place in memory and its number of changes in place, which those that were made in
    inference mode do not count.
    """
    return tensor.data_ptr(), None if tensor.is_inference() else tensor._version


def is_untouched(part: Any) -> bool:
    """Whether a part of a module does what its class says: no hooks, and no own `forward`."""
    return "forward" not in vars(part) and not any(getattr(part, hooks) for hooks in HOOKS)


def _sample(parameter: Tensor) -> list[Any]:
    if parameter.device.type != "cpu":
        return []
    row = parameter.detach()
    while row.dim() > 1 and len(row):
        row = row[0]
    return row.reshape(-1)[:SAMPLE].tolist()
