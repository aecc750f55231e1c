"""Run cells: `resispec run [KEY=VALUE ...]`. See `--help`, and conf/ for the choices.

Cells that are complete are skipped. A cell's folder is results/raw/PROFILE/CELL; a failed cell is
recorded there with its reason while the others go on. The exit code is 0 only when every cell is
complete and the table of all is written.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from analysis.load import LABELS, changed_code, read_cell, recorded_code
from experiments import check, cli
from experiments.cell import Cell, is_drafting
from experiments.configurations import TUNING
from experiments.dashboard import Dashboard
from experiments.grid import EXPERIMENT, PART, Sweep, sweep_of
from experiments.launcher import launch_of
from experiments.overrides import unread
from experiments.result import show_table, sum_up
from experiments.scheduler import run_cells, run_searches
from experiments.schema import leaves
from experiments.store import CellStore, status_of, write_plans
from resispec.code_digest import ON_HUB, changed_files, code_digests
from resispec.errors import InvalidInput, first_line

TOLD_APART = "a comment in one of the files that tells them apart"
"""Remedy for files of one text that import other code."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    return cli.run_command(run, "run", arguments=arguments)


def run(line: cli.CommandLine) -> int:
    """Do everything that a command line asks for; 0 if it is all there in the end, else 1.

    The sweep is planned and checked, missing trees are searched for, the cells that are not done
    are run, and their table is shown. Raises InvalidInput, before anything is measured, for input
    that does not compose or cannot be right.
    """
    launch = launch_of(line.overrides)
    sweep = sweep_of(line.overrides)
    _note(sweep.notes)
    cells, again = sweep.cells, line.again
    trees = check.missing_trees(cells)
    complete, pending = _by_state(cells)
    searching = [cell for group in trees.values() for cell in group]
    check.check(pending, searching, is_here=launch is run_cells)
    _note(_ignored(line.overrides, cells, bool(trees)))
    _note(check.trees_found_otherwise(pending))
    _plan(sweep, again, is_needed=bool(pending or trees))
    if trees:
        complete, pending = _search(sweep, trees, again)
    num_before = len(complete)
    num_cells = num_before + len(pending) + sum(not cell.has_tree for cell in cells)
    config = cells[0].config
    shown = pending if config["wandb"]["mode"] == "auto" else [*complete, *pending]
    dashboard = Dashboard(config, sweep.name, shown)
    if pending:
        total = num_before + len(pending)
        launch(pending, total, complete.append, lambda: dashboard.send_ended(complete[num_before:]))
    has_table = show_table(sweep)
    dashboard.send_rest(complete, has_table)
    sum_up(sweep, again, num_cells, complete, num_before)
    return 0 if has_table and len(complete) == num_cells else 1


def _note(lines: Iterable[str]) -> None:
    """Print notes on stderr."""
    sys.stderr.write("".join(f"note: {line}\n" for line in lines))


def _plan(sweep: Sweep, again: Sequence[str], is_needed: bool) -> None:
    """Write a sweep's plans.

    is_needed: whether something is measured, so that a plan that cannot be written is an error.
    """
    if sweep.artefacts and not sweep.is_artefacts:
        names = ", ".join(sweep.artefacts)
        _note([f"sweep {sweep.name}, of your own; the plan of {names} stays"])
    try:
        write_plans(sweep, again)
    except OSError as error:
        if is_needed:
            raise
        _note([f"the plan stays as it is ({first_line(error)})"])


def _search(
    sweep: Sweep, trees: Mapping[Path, list[Cell]], again: Sequence[str]
) -> tuple[list[Cell], list[Cell]]:
    """Search for missing trees; return the cells by state, as `_by_state`."""
    sys.stderr.write("".join(f"searching for the tree {path}\n" for path in trees))
    run_searches(trees)
    write_plans(sweep, again)  # cells have ids once their trees are there
    return _by_state(sweep.cells)


def _by_state(cells: Sequence[Cell]) -> tuple[list[Cell], list[Cell]]:
    """The complete cells and the others, each once; cells whose tree is missing are left out.

    Raises InvalidInput for a cell that other code has the id of, see `_check_twin` and
    `_check_owner`.
    """
    complete: list[Cell] = []
    pending: list[Cell] = []
    by_id: dict[str, Cell] = {}
    for cell in cells:
        if cell.has_tree:
            _check_twin(cell, by_id.setdefault(cell.cell_id, cell))
    for cell in by_id.values():
        status = status_of(cell)
        if status.state == "damaged":
            sys.stderr.write(
                f"{cell}: its files are damaged ({status.reason}); it is measured again\n"
            )
        elif status.state == "stale":
            _check_owner(cell)
            sys.stderr.write(f"{cell}: {status.reason}; it is measured again\n")
        elif status.state == "missing" and status.reason:
            sys.stderr.write(f"{cell}: {status.reason}; it is measured again\n")
        elif status.state == "done" and status.reason:
            _check_owner(cell)
            _note([f"{cell}: {status.reason}; it is kept, for reuse=true"])
        elif CellStore(cell.folder).rows_so_far() and (
            changed := changed_code(cell.folder, cell.config)
        ):
            _check_owner(cell)
            reason = f"its code has changed: {', '.join(changed)}"
            sys.stderr.write(f"{cell}: {reason}; its measured prompts are measured again\n")
        (complete if status.state == "done" else pending).append(cell)
    return complete, pending


def _check_twin(cell: Cell, twin: Cell) -> None:
    """Raise InvalidInput if two cells of one id have other code.

    An id has the text of a user's file, and nothing of the modules beside it.
    """
    if cell.determining == twin.determining:
        return
    code, other = (code_digests(one.config) for one in (cell, twin))
    if names := sorted({name for name, _ in code.items() ^ other.items()}):
        raise InvalidInput(
            f"{twin} and {cell} would be one cell: their files have the same text, and what "
            f"differs is beside them: {', '.join(names)}; allowed: {TOLD_APART}"
        )


def _check_owner(cell: Cell) -> None:
    """Raise InvalidInput if a cell was measured with other code from files that are still there.

    They have other paths and the same text, and the table of their sweep would show the rows that
    are measured now.
    """
    try:
        owner = Cell({}, read_cell(cell.folder).get("config") or {})
    except InvalidInput:  # it is written anew
        return
    recorded, present = recorded_code(cell.folder), code_digests(owner.config)
    gone = {name for name in recorded if name not in present and not name.endswith(ON_HUB)}
    if gone or changed_files(recorded, present):
        return
    own, others = leaves(cell.determining), leaves(owner.determining)
    places = [f"{key}={others[key]}" for key in others if others[key] != own.get(key)]
    names = ", ".join(changed_files(recorded, code_digests(cell.config)))
    raise InvalidInput(
        f"{cell}: cell {cell.cell_id} is that of {', '.join(places)}, of the same text, and what "
        f"differs is beside it: {names}; allowed: {TOLD_APART}, or another results=FOLDER"
    )


def _ignored(overrides: Sequence[str], cells: Sequence[Cell], is_searching: bool) -> Iterator[str]:
    """Notes about overrides that change nothing."""
    typed = [(line.partition("=")[0].lstrip("+~"), line) for line in overrides]
    last = dict(typed)
    for key, line in typed:
        # a setting is typed again to change it, an axis perhaps to sweep over it
        if key in (EXPERIMENT, PART, *LABELS) and (later := last[key]) != line:
            yield f"{line} changes nothing: {later} comes later; several values: a,b"
    keys = {key.partition(".")[0] for key in last}
    # What a decoder must have for an override to matter.
    decoders = ", ".join(dict.fromkeys(str(cell.labels["decoder"]) for cell in cells))
    for key in ("tree", "verifier"):
        if key in keys and not any(key in cell.labels for cell in cells):
            yield f"{key}=... changes nothing: decoder={decoders} has no {key}"
    if "audit" in keys and not any(is_drafting(cell.config["decoder"]) for cell in cells):
        yield f"audit=... changes nothing: decoder={decoders} drafts nothing"
    for key in unread(overrides):
        yield f"{key}=... changes nothing but names of cells: nothing refers to {key}"
    for key in ("search", *TUNING):
        is_refusing = last.get(key) == "search=null"  # it takes a file as it is
        if key in keys and not is_searching and not is_refusing:
            yield f"{key}... changes nothing: no tree file is missing; delete it to search again"


if __name__ == "__main__":
    sys.exit(main())
