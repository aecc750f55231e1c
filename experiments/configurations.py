"""Configurations that decode, and the file of `tree=fastest`, which holds the fastest of them.

A cell with `tree=fastest` has `decoder=fastest`, which takes its draws, its verifier and its shape
from the file. The cell's id depends on the file's content except for `about` (experiments/cell.py).
torch is imported only when a decoder is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resispec.errors import InvalidInput, first_line
from resispec.files import read_json, read_sealed, sealed, write_json
from resispec.trees import Topology, from_child_counts, root_only

if TYPE_CHECKING:
    from resispec.decode import Decoder
    from resispec.drafters import DraftModel

METHODS = {
    "iid": ("standard", "optimal", "traversal_optimal", "level_optimal"),
    "recycled": ("optimal", "traversal_optimal", "level_optimal"),
    "without_replacement": ("standard", "traversal"),
    "point_mass": ("naive",),
}
"""Kind of draws -> exact verifiers that are compared on trees with these draws."""
DRAWN_AS = {"recycled": "iid"}
"""Draws -> draws that differ only in the law: the same trees suit both."""
RECYCLED = 0.5
"""Share of the target's earlier laws in the law of recycled siblings, as for decoder=recycled."""
ON_CHAINS = ("block", "standard")
"""Verifiers that are compared on chains, with independent draws: a node has only one child."""
FORMAT = "resispec fastest 1"
SETTINGS = ("num_threads", "dtype")
"""Keys of a cell's configuration that decide a step's speed and are not in the file's name."""

TUNING = ("first_tuning_prompt", "max_tuning_prompts")
"""Keys that say on which documents a search chooses."""


@dataclass(frozen=True)
class Configuration:
    """Draws and verifier named as in METHODS, and a topology; a root alone does not speculate."""

    draws: str
    verifier: str
    topology: Topology

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Configuration:
        """The configuration of `facts`. Raises InvalidInput for child counts that are no tree."""
        return cls(
            str(facts["draws"]), str(facts["verifier"]), from_child_counts(facts["child_counts"])
        )

    @property
    def facts(self) -> dict[str, Any]:
        """Values for JSON that `of` reads; the last level has no children and is left out."""
        children = self.topology.children
        counts = [[len(children[node]) for node in level] for level in self.topology.levels[:-1]]
        return {"draws": self.draws, "verifier": self.verifier, "child_counts": counts}

    @property
    def drafter(self) -> DraftModel:
        """The pair's own draft with these draws and this topology.

        Raises InvalidInput for unknown draws.
        """
        from resispec.drafters import DraftModel

        if self.draws == "recycled":
            return DraftModel(self.topology, recycled=RECYCLED)
        return DraftModel(self.topology, self.draws)

    @property
    def decoder(self) -> Decoder:
        """A new decoder with the pair's own draft. Reuse it: it keeps CUDA graphs and caches.

        Raises InvalidInput for names that are not known.
        """
        from resispec.decode import Decoder
        from resispec.verifiers import get_verifier

        return Decoder(self.drafter, get_verifier(self.verifier))


ONE_TOKEN = Configuration("iid", "standard", root_only())
"""No speculation: the target writes one token a step."""


@dataclass(frozen=True)
class Chosen:
    """The fastest configuration, and the best of every kind and size, most of them by estimate.

    best: "chain" or draws, like "iid" -> the fastest configurations by rising number of nodes.
    """

    fastest: Configuration
    best: Mapping[str, Sequence[Configuration]]

    def save(self, path: Path, about: Mapping[str, Any]) -> None:
        """Write the file and missing folders.

        about: facts on how it was made, values that JSON can hold.
        """
        best = {
            kind: [configuration.facts for configuration in group]
            for kind, group in self.best.items()
        }
        content = {"format": FORMAT, "fastest": self.fastest.facts, "best": best, "about": about}
        write_json(path, sealed(content))


def load(path: str | Path) -> Chosen:
    """Read a file of `Chosen`; configurations name this function.

    Raises InvalidInput, which names the file, if it is damaged or holds something else.
    """
    content = read_sealed(Path(path))
    try:
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']!r}; allowed: {FORMAT!r}")
        best = {kind: list(map(Configuration.of, group)) for kind, group in content["best"].items()}
        return Chosen(Configuration.of(content["fastest"]), best)
    except (InvalidInput, LookupError, TypeError, ValueError, AttributeError) as error:
        why = f"{type(error).__name__}: {first_line(error)}"
        raise InvalidInput(
            f"{path} is no file of tree=fastest ({why}); delete it to search again"
        ) from error


def check_settings(path: Path, config: Mapping[str, Any]) -> None:
    """Refuse a file that was searched for with other settings than those of a cell.

    Raises InvalidInput.
    """
    about: Any = read_sealed(path).get("about")
    settings = about.get("settings", {}) if isinstance(about, dict) else {}
    for name in SETTINGS:
        if name in settings and settings[name] != config[name]:
            found = (
                f"{path} was searched for with {name}={settings[name]}; found {name}={config[name]}"
            )
            raise InvalidInput(f"{found}; delete the file to search again, or give tree.path=FILE")


def chosen_elsewhere(path: Path, device: str) -> str:
    """A line about a file of tree=fastest that was chosen by the times of another device, or "".

    device: the name of the present one. Other files, and those that cannot be read, have none.
    """
    with suppress(OSError, ValueError, InvalidInput):
        content = read_json(path)
        about = content.get("about", {})
        if content.get("format") == FORMAT and about.get("device", device) != device:
            return (
                f"{path} was chosen by times of {about['device']}, and this is {device}; to choose "
                f"by its own, delete the file and the cell {about.get('forwards_cell', '')}"
            )
    return ""


def decoder(tree: Chosen) -> Decoder:
    """The fastest decoder; configurations name this function.

    Raises InvalidInput for a tree that does not say how it is drafted and verified.
    """
    if not isinstance(tree, Chosen):
        raise InvalidInput(
            "decoder=fastest goes with tree=fastest, which says what drafts and verifies"
        )
    return tree.fastest.decoder
