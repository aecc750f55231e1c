"""The end of a run: the table of its cells, and the next command."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from analysis import SWEEP
from analysis.load import elsewhere, read_plan
from experiments.cell import Cell, build
from experiments.grid import Sweep
from experiments.schema import CONF
from experiments.show import has_text
from experiments.store import CellStore, plans_of
from resispec.errors import InvalidInput, first_line


def show_table(sweep: Sweep) -> bool:
    """Write a sweep's table, results/PROFILE/sweeps/NAME.csv, and print it.

    If there is none, a line on stderr says why. Returns whether there is one.
    """
    from analysis.sweep import table_of, written  # need pandas, for which no cell is to wait

    config, name = sweep.cells[0].config, sweep.name
    profile, results = config["profile"], Path(config["results"])
    cells = {cell.cell_id: cell for cell in sweep.cells if cell.has_tree}
    files: dict[str, list[Path]] = {}
    for path, [part, *_] in plans_of(sweep).items():
        files.setdefault(part.artefact if sweep.is_artefacts else SWEEP, []).append(path)
    try:
        plans = [read_plan(plan, profile, results, paths) for plan, paths in files.items()]
        table = table_of(plans, name, lambda cell_id: _report(cells[cell_id]))
        sys.stdout.write(f"\n{written(table, results / profile / 'sweeps')}")
        sys.stdout.flush()
    except (InvalidInput, OSError) as error:
        sys.stderr.write(f"error: no table of {name}: {first_line(error)}\n")
        return False
    return True


def _report(cell: Cell) -> str:
    """The facts that a task gives about the rows of a complete cell, as text."""
    task = build(cell.config["task"])
    facts = task.progress(CellStore(cell.folder).rows(task.row))
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def sum_up(
    sweep: Sweep, again: Sequence[str], num_cells: int, complete: Sequence[Cell], num_before: int
) -> None:
    """Print the last line of a run, which names the next command.

    again: the words of this command line. num_cells: of the whole sweep, of which num_before were
    complete before the run.
    """
    config, num_done = sweep.cells[0].config, len(complete)
    counts = (
        f"{num_cells} cell{'s' if num_cells != 1 else ''}: {num_done} done ({num_before} before)"
    )
    failed = f", {num_cells - num_done} not complete" if num_done < num_cells else ""
    following = shlex.join(["resispec", "run", *again]) if failed else _next(sweep, complete)
    where = f"{config['results']}/raw/{config['profile']}"
    sys.stderr.write(f"{counts}{failed}; results in {where}; next: {following}\n")


def _next(sweep: Sweep, complete: Sequence[Cell]) -> str:
    """The command that shows what a complete sweep measured."""
    config = sweep.cells[0].config
    profile, results = config["profile"], config["results"]
    where = f"--profile {profile} --results {shlex.quote(results)}"
    drawn = [name for name in sweep.artefacts if (CONF.parent / "analysis" / f"{name}.py").exists()]
    if drawn and sweep.is_artefacts:
        return f"make {' '.join(drawn)} PROFILE={profile}{elsewhere(Path(results))}"
    if drawn:
        return " && ".join(f"resispec table {name} {where} --plan {sweep.name}" for name in drawn)
    for cell in complete:
        if any(has_text(row) for row in CellStore(cell.folder).rows_so_far()[:1]):
            return f"resispec show {cell.cell_id} {where}"
    return f"resispec table cells {SWEEP} {where}"
