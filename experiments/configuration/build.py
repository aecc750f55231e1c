"""From a node of the configuration to the object that it describes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate

from resispec.errors import InvalidInput, first_line

if TYPE_CHECKING:
    from resispec.models import Pair


def build(node: Any) -> Any:
    """Instantiate a node; what is wrong with the user's input is raised as such, not as Hydra wraps it.

    Raises InvalidInput, in one line with the cause, for a target that is not there or refuses its values.
    """
    try:
        return instantiate(node)
    except InstantiationException as error:
        cause: BaseException = error
        while cause.__cause__ is not None and not isinstance(cause, InvalidInput):
            cause = cause.__cause__
        if isinstance(cause, InvalidInput):
            raise cause from error
        target = node.get("_target_", "?") if isinstance(node, Mapping) else "?"
        raise InvalidInput(f"{target} cannot be made: {type(cause).__name__}: {first_line(cause)}") from error


def build_pair(config: Mapping[str, Any]) -> Pair:
    """The pair of a cell's configuration; its forwards run as the cell asks for, on so many threads.

    Raises InvalidInput as `build`.
    """
    import torch

    from resispec.models.compiled import compiled_pair

    if config["num_threads"] is not None:
        torch.set_num_threads(config["num_threads"])
    pair: Pair = build(config["pair"])
    return compiled_pair(pair) if config["compiled"] else pair
