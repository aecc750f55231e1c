"""From a node of the configuration to the object that it describes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate

from resispec.errors import InvalidInput, first_line


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
