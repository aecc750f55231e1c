"""One sweep from its command line to its last line: plan, search for trees, run what is not done, sum up."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments.cells import Cell
from experiments.configuration.build import build
from experiments.configuration.schema import CONF
from experiments.dashboards.beside import published
from experiments.doctor import start
from experiments.launcher import run_searches
from experiments.plan import AD_HOC, Part, has_tree, parts_of, write_plan
from experiments.search.chosen import check_settings
from experiments.store import CellStore
from resispec.errors import InvalidInput

Launch = Callable[[list[tuple[str, ...]], list[Cell], int], None]
"""Runs cells: gets their overrides, the cells, and how many the whole sweep has."""


def sweep(arguments: Sequence[str], config_name: str, launch: Launch) -> bool:
    """Do everything that a command line asks for; whether every cell is complete.

    Raises InvalidInput before anything is measured for what does not compose or cannot be right.
    """
    parts = _possible(parts_of(arguments, config_name))
    cells = [cell for part in parts for cell in part.cells]
    _check(cells)
    wanted = _missing_trees(cells)
    _say_what_is_ignored(arguments, cells, bool(wanted))
    _write_plans(parts, arguments)
    if wanted:
        sys.stderr.write("".join(f"searching for the tree {path}\n" for path in wanted))
        run_searches(wanted)
        _write_plans(parts, arguments)  # cells have ids once their trees are there
    points, num_without_tree = {}, 0
    for part in parts:
        for cell, point in zip(part.cells, part.points, strict=True):
            if has_tree(cell):
                points.setdefault(cell.cell_id, (cell, point))
            else:
                num_without_tree += 1
    pending = []
    for cell, point in points.values():
        status = CellStore(cell.folder).status()
        if status.state == "damaged":
            sys.stderr.write(f"{cell}: its files are damaged ({status.reason}); it is measured again\n")
        if status.state != "done":
            pending.append((cell, point))
    if pending:
        unfinished = [cell for cell, _ in pending]
        start.check(unfinished)
        with published(unfinished, [part.artefact for part in parts]):
            launch([point for _, point in pending], unfinished, len(points))
    states = [CellStore(cell.folder).status().state for cell, _ in points.values()]
    states += ["missing"] * num_without_tree
    _sum_up(parts, states, len(points) - len(pending))
    return set(states) == {"done"}


def _possible(parts: Sequence[Part]) -> list[Part]:
    """The parts that have cells; one line for what the profile lacks for others.

    Raises InvalidInput when there is none.
    """
    left_out: dict[str, list[str]] = {}
    for part in parts:
        if part.lacks:
            left_out.setdefault(part.lacks, []).append(part.name)
    lines = [f"the profile gives no {key}: left out {', '.join(names)}" for key, names in left_out.items()]
    possible = [part for part in parts if part.cells]
    if not possible:
        raise InvalidInput("; ".join(lines))
    sys.stderr.write("".join(f"note: {line}\n" for line in lines))
    return possible


def _write_plans(parts: Sequence[Part], arguments: Sequence[str]) -> None:
    for part in parts:
        write_plan(part, arguments)


def _check(cells: Sequence[Cell]) -> None:
    """Raise InvalidInput for what needs no model to know: trees, files, a folder to write to."""
    _check_files(cells)
    folder = cells[0].folder.parent if not cells[0].tree_file else Path(cells[0].config["results"])
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"\0" * 4096)
            probe.flush()
    except OSError as error:
        reason = f"results folder {folder} cannot be written ({error.strerror}); give another: results=FOLDER"
        raise InvalidInput(reason) from error


def _check_files(cells: Sequence[Cell]) -> None:
    """Raise InvalidInput for a tree that is too large, and for files that are missing or useless."""
    seen: list[Any] = []
    for cell in cells:
        config = cell.config
        needed = {"dataset": config["dataset"], "count": config["first_prompt"] + config["num_prompts"]}
        kind = str(config["dataset"]["_target_"])
        is_small = kind.startswith("resispec.questions.") or (
            kind.startswith("resispec.data.") and config["dataset"]["path"]
        )
        if is_small and needed not in seen:
            seen.append(needed)
            build(config["dataset"]).prompts(needed["count"])
        rule, separator, _ = str(config["verifier"].get("name", "")).partition(".py:")
        if "verifier" in cell.labels and separator and not Path(f"{rule}.py").is_file():
            raise InvalidInput(f"verifier file {rule}.py does not exist; give path/to/file.py:Class")
        path, target = cell.tree_file, str(config["tree"].get("_target_", ""))
        is_there = path is None or (path.suffix == ".json" and path.is_file())
        is_ours = "tree" in cell.labels and target.startswith("resispec.trees.")  # made without torch
        if is_ours and is_there and config["tree"] not in seen:
            seen.append(config["tree"])
            build(config["tree"])
        if "tree" in cell.labels and target == "experiments.search.chosen.load" and path and path.is_file():
            check_settings(path, config)


def _missing_trees(cells: Sequence[Cell]) -> dict[Path, list[Cell]]:
    """The cells by the tree file that they need, where it is missing and can be searched for."""
    wanted: dict[Path, list[Cell]] = {}
    for cell in cells:
        path = cell.tree_file
        if path is not None and not path.is_file() and cell.config["search"] and path.suffix == ".json":
            wanted.setdefault(path, []).append(cell)
    for path, own in wanted.items():
        if any(cell.config["search"] != own[0].config["search"] for cell in own):
            raise InvalidInput(f"{path} is searched for in several ways; allowed: a tree.path for each")
        build(own[0].config["search"]).check(path, own)
    return wanted


def _say_what_is_ignored(arguments: Sequence[str], cells: Sequence[Cell], is_searching: bool) -> None:
    """Notes about overrides that change nothing, and about a plan that asks for less than its artefact."""
    given = {argument.partition("=")[0].partition(".")[0] for argument in arguments}
    for name in ("tree", "verifier"):
        if name in given and not any(name in cell.labels for cell in cells):
            decoders = ", ".join(dict.fromkeys(cell.labels["decoder"] for cell in cells))
            sys.stderr.write(f"note: {name}=... changes nothing: decoder={decoders} has no {name}\n")
    if "search" in given and not is_searching:
        sys.stderr.write(
            "note: search... changes nothing: no tree file is missing; delete it to search again\n"
        )
    usual = {"experiment", "profile", "results", "jobs", "wandb", "hydra", "hydra/launcher"}
    if "experiment" in given and given - usual:
        sys.stderr.write("note: the artefact's plan now asks for these cells only\n")


def _sum_up(parts: Sequence[Part], states: Sequence[str], num_before: int) -> None:
    """The last line of a run."""
    done = states.count("done")
    config = parts[0].cells[0].config
    artefacts = dict.fromkeys(part.artefact for part in parts if part.name != AD_HOC)
    scripts = CONF.parent / "analysis"
    written = [name for name in artefacts if (scripts / f"{name}.py").exists() or (scripts / name).is_dir()]
    tables = "the table" if len(written) == 1 else "the tables"
    table = f"; make {' '.join(written)} PROFILE={config['profile']} writes {tables}" if written else ""
    failed = f", {len(states) - done} not complete" if done < len(states) else ""
    where = f"{config['results']}/raw/{config['profile']}"
    counted = f"{len(states)} cell{'' if len(states) == 1 else 's'}"
    sys.stderr.write(f"{counted}: {done} done ({num_before} before){failed}; results in {where}{table}\n")
