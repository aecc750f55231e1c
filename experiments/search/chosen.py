"""The file of `tree=fastest`: the configuration that was found, what it was compared with, and from what.

A cell with `tree=fastest` has `decoder=fastest`, which takes its draws, its verifier and its shape from the
file. What names the cell is the file's content but for `about` (experiments/cell.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.costs.configuration import Configuration
from resispec.errors import InvalidInput, first_line
from resispec.files import read_json, write_json

if TYPE_CHECKING:
    from resispec.decode import Decoder

FORMAT = "resispec fastest 1"
SETTINGS = ("num_threads", "compiled", "dtype")
"""Of a cell's configuration, what decides how fast a step is and is no part of the file's name."""


@dataclass(frozen=True)
class Chosen:
    """The fastest configuration of all, and the fastest of every kind and size.

    best: "iid", "without_replacement", "point_mass" and "chain" -> by rising number of nodes.
    """

    fastest: Configuration
    best: Mapping[str, Sequence[Configuration]]


def load(path: str | Path) -> Chosen:
    """Read such a file; a configuration can name this function. Raises InvalidInput, which names the file."""
    content = read_json(Path(path))
    try:
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']!r}; allowed: {FORMAT!r}")
        best = {name: [Configuration.of(one) for one in own] for name, own in content["best"].items()}
        return Chosen(Configuration.of(content["fastest"]), best)
    except (InvalidInput, LookupError, TypeError, ValueError, AttributeError) as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise InvalidInput(
            f"{path} is no file of tree=fastest ({reason}); delete it to search again"
        ) from error


def check_settings(path: Path, config: Mapping[str, Any]) -> None:
    """Refuse a file that was searched for with other settings than those of a cell. Raises InvalidInput."""
    about: Any = read_json(path).get("about")
    made = about.get("settings", {}) if isinstance(about, dict) else {}
    for name in SETTINGS:
        if name in made and made[name] != config[name]:
            raise InvalidInput(
                f"{path} was searched for with {name}={made[name]}; found {name}={config[name]}; "
                "delete the file to search again, or give tree.path=FILE"
            )


def save(chosen: Chosen, path: Path, about: Mapping[str, Any]) -> None:
    """Write such a file; folders are made. about: from what it was made, values that JSON can hold."""
    path.parent.mkdir(parents=True, exist_ok=True)
    best = {name: [one.facts for one in own] for name, own in chosen.best.items()}
    content = {"format": FORMAT, "fastest": chosen.fastest.facts, "best": best, "about": dict(about)}
    write_json(path, content)


def decoder(tree: Chosen) -> Decoder:
    """The fastest decoder; a configuration can name this function.

    Raises InvalidInput for a tree that does not say how it is drafted and verified.
    """
    if not isinstance(tree, Chosen):
        raise InvalidInput("decoder=fastest goes with tree=fastest, which says what drafts and verifies")
    return tree.fastest.decoder
