"""One sweep from its command line to its last line: plan, search for trees, run what is not done, sum up."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from experiments.cells import Cell
from experiments.configuration.build import build
from experiments.configuration.schema import CONF
from experiments.launcher import run_search
from experiments.plan import AD_HOC, Part, parts_of, write_plan
from experiments.store import CellStore
from resispec.errors import InvalidInput

Launch = Callable[[list[tuple[str, ...]], list[Cell], int], None]
"""Runs cells: gets their overrides, the cells, and how many the whole sweep has."""


def sweep(arguments: Sequence[str], config_name: str, launch: Launch) -> bool:
    """Do everything that a command line asks for; whether every cell is complete.

    Raises InvalidInput before anything is measured for what does not compose or cannot be right.
    """
    parts = parts_of(arguments, config_name)
    cells = [cell for part in parts for cell in part.cells]
    _check(cells)
    if not _find_trees(_missing_trees(cells)):
        return False
    for part in parts:
        write_plan(part, arguments)
    _say_what_is_ignored(arguments, cells)
    points = {}
    for part in parts:
        for cell, point in zip(part.cells, part.points, strict=True):
            points.setdefault(cell.cell_id, (cell, point))
    pending = []
    for cell, point in points.values():
        status = CellStore(cell.folder).status()
        if status.state == "damaged":
            sys.stderr.write(f"{cell}: its files are damaged ({status.reason}); it is measured again\n")
        if status.state != "done":
            pending.append((cell, point))
    if pending:
        launch([point for _, point in pending], [cell for cell, _ in pending], len(points))
    states = {cell.cell_id: CellStore(cell.folder).status().state for cell, _ in points.values()}
    _sum_up(parts, states, len(points) - len(pending))
    return set(states.values()) == {"done"}


def _check(cells: Sequence[Cell]) -> None:
    """Raise InvalidInput for a tree that is too large and a folder that cannot be written."""
    seen = []
    for cell in cells:
        tree = cell.config["tree"]
        is_topology = str(tree.get("_target_", "")).startswith("resispec.trees.") and "path" not in tree
        if "tree" in cell.labels and is_topology and tree not in seen:
            seen.append(tree)
            build(tree)
    folder = cells[0].folder.parent if not cells[0].tree_file else Path(cells[0].config["results"])
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"\0" * 4096)
            probe.flush()
    except OSError as error:
        reason = f"results folder {folder} cannot be written ({error.strerror}); give another: results=FOLDER"
        raise InvalidInput(reason) from error


def _missing_trees(cells: Sequence[Cell]) -> dict[Path, list[Cell]]:
    """The cells by the tree file that they need, where it is missing and can be searched for."""
    wanted: dict[Path, list[Cell]] = {}
    for cell in cells:
        path = cell.tree_file
        if path is not None and not path.is_file() and cell.config["search"] and path.suffix == ".json":
            wanted.setdefault(path, []).append(cell)
    for path, own in wanted.items():
        build(own[0].config["search"]).check(path, own)
    return wanted


def _find_trees(wanted: Mapping[Path, Sequence[Cell]]) -> bool:
    """Search for every tree file that is missing; whether all were found."""
    for path, own in wanted.items():
        sys.stderr.write(f"searching for the tree {path}\n")
        if not run_search(own[0].config["search"], path, own):
            return False
    return True


def _say_what_is_ignored(arguments: Sequence[str], cells: Sequence[Cell]) -> None:
    given = {argument.partition("=")[0].partition(".")[0] for argument in arguments}
    for name in ("tree", "verifier"):
        if name in given and not any(name in cell.labels for cell in cells):
            decoders = ", ".join(dict.fromkeys(cell.labels["decoder"] for cell in cells))
            sys.stderr.write(f"note: {name}=... changes nothing: decoder={decoders} has no {name}\n")


def _sum_up(parts: Sequence[Part], states: dict[str, str], num_before: int) -> None:
    """The last line of a run."""
    done = sum(state == "done" for state in states.values())
    config = parts[0].cells[0].config
    artefacts = dict.fromkeys(part.name.partition("/")[0] for part in parts if part.name != AD_HOC)
    written = [name for name in artefacts if any((CONF.parent / "analysis").glob(f"{name}*"))]
    table = f"; make {' '.join(written)} PROFILE={config['profile']} writes the table" if written else ""
    failed = f", {len(states) - done} not complete" if done < len(states) else ""
    where = f"{config['results']}/raw/{config['profile']}"
    sys.stderr.write(
        f"{len(states)} cells: {done} done ({num_before} before){failed}; results in {where}{table}\n"
    )
