"""Run cells: `python -m experiments.run [KEY=VALUE ...]`. See `--help`, and conf/ for the choices.

Cells that are complete are skipped. A cell's folder is results/raw/PROFILE/CELL; a failed cell is
recorded there with its reason while the others go on. The exit code is 0 only when every cell is
complete.
"""

import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from hydra import compose
from hydra._internal.callbacks import Callbacks
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.utils import JobStatus
from hydra.types import HydraContext

from analysis.load import changed_code, elsewhere, read_plan, read_status
from experiments import cli
from experiments.cell import Cell, CellFailed, build
from experiments.dashboard import Dashboard
from experiments.doctor.needs import check_cells
from experiments.grid import AD_HOC, EXPERIMENT, Part, cells_of, digest, left_out, parts_of
from experiments.rehearsal import rehearse_cells
from experiments.scheduler import Progress, run_cells, run_searches
from experiments.schema import CONF, RunConfig
from experiments.store import CellStore, plan_path, status_of, write_plan
from resispec.errors import InvalidInput, first_line

OF_JOBS = (
    "hydra/launcher", "hydra.launcher.", "hydra.sweep.", "hydra.job.", "hydra.output_subdir",
    "hydra.verbose",
    "hydra/job_logging", "hydra.job_logging",
)  # fmt: skip
"""Beginnings of Hydra's keys that the jobs of a launcher obey."""


def main() -> int:
    """The command."""
    return cli.run_command(_run)


def _run() -> int:
    arguments = cli.arguments()
    overrides = arguments.overrides
    if cli.composes(arguments) and not any(word.startswith(f"{EXPERIMENT}=") for word in overrides):
        choices = cli.of_profile(overrides, "run")
        overrides, sys.argv = [*overrides, *choices], [*sys.argv, *choices]
    if not any(getattr(arguments, flag) for flag in cli.SHOWN):
        return 0 if sweep(overrides) else 1
    for place, word in enumerate(sys.argv):
        if word.startswith("experiment=") and "/" in word:  # Hydra knows only whole artefacts
            sys.argv[place : place + 1] = word.replace("/", " part=").split()
    cli.compose_and(lambda _: None, "run")
    return 0


def sweep(arguments: Sequence[str]) -> bool:
    """Do everything that a command line asks for; return whether every cell is complete.

    The function plans the sweep, searches for missing trees, runs the cells that are not done, and
    sums up. Raises InvalidInput, before anything is measured, for input that does not compose or
    cannot be right.
    """
    launch, command = _launcher(arguments), [*cli.added_flags(), *arguments]
    asked = parts_of(arguments)
    sys.stderr.write("".join(f"note: {line}\n" for line in left_out(asked)))
    parts = [part for part in asked if part.cells]
    cells = [cell for part in parts for cell in part.cells]
    trees = _missing_trees(cells)
    complete, pending = _by_state(cells)
    treeless_cells = [cell for group in trees.values() for cell in group]
    if waiting := [*pending, *treeless_cells]:
        check_cells(waiting if launch is run_cells else treeless_cells)  # jobs run elsewhere
        rehearse_cells(waiting)
    _say_what_is_ignored(arguments, cells, bool(trees))
    for plan, artefact in {part.plan: part.artefact for part in parts if part.digest}.items():
        sys.stderr.write(
            f"note: a slice of {artefact}, planned as {plan}; the plan of {artefact} stays\n"
        )
    try:
        for part in parts:
            write_plan(part, command)
    except OSError as error:
        if waiting:
            raise
        sys.stderr.write(f"note: the plan stays as it is ({first_line(error)})\n")
    if trees:
        sys.stderr.write("".join(f"searching for the tree {path}\n" for path in trees))
        run_searches(trees)
        for part in parts:
            write_plan(part, command)  # cells have ids once their trees are there
        complete, pending = _by_state(cells)
    num_before, num_asked = len(complete), len(complete) + len(pending)
    num_cells = num_asked + sum(not cell.has_tree for cell in cells)
    config = cells[0].config
    shown = pending if config["wandb"]["mode"] == "auto" else [*complete, *pending]
    dashboard = Dashboard(config, _name(parts), shown)
    if pending:
        launch(
            pending, num_asked, complete.append, lambda: dashboard.send_ended(complete[num_before:])
        )
    _show(parts, complete)
    dashboard.send_rest(complete)
    _sum_up(parts, command, num_cells, complete, num_before)
    return len(complete) == num_cells


def _launcher(
    arguments: Sequence[str],
) -> Callable[[Sequence[Cell], int, Callable[[Cell], None], Callable[[], None]], None]:
    """The function that runs cells: `run_cells`, or one for the launcher
    that the command line names.

    Raises InvalidInput for a launcher that does not exist, or does not know a value that it is
    given.
    """
    lines = [line for line in arguments if re.match(r"[+~]*hydra\b", line)]
    if not lines:
        return run_cells
    results = [line for line in arguments if line.startswith("results=")]
    with cli.hydra_here(), cli.explained():
        config = compose("run", [*lines, *results], return_hydra_config=True)
    is_basic = config.hydra.runtime.choices["hydra/launcher"] == "basic"
    for key in [line.lstrip("+~").partition("=")[0] for line in lines]:
        if key != "hydra/launcher" and is_basic:
            sys.stderr.write(
                f"note: {key}=... changes nothing without a launcher: hydra/launcher=NAME\n"
            )
        elif not key.startswith(OF_JOBS):
            sys.stderr.write(f"note: {key}=... changes nothing for the jobs of a launcher\n")
    if is_basic:
        return run_cells

    def launch(
        cells: Sequence[Cell], _total: int, done: Callable[[Cell], None], _untimed: object
    ) -> None:
        with cli.hydra_here():
            context = HydraContext(GlobalHydra.instance().config_loader(), Callbacks())
            launcher = Plugins.instance().instantiate_launcher(
                hydra_context=context, task_function=run_job, config=config
            )
            try:
                jobs = launcher.launch([list(cell.overrides) for cell in cells], initial_job_idx=0)
                reasons = [
                    first_line(job._return_value) for job in jobs if job.status == JobStatus.FAILED
                ]
            except Exception as error:  # noqa: BLE001
                # of one job; which cells are complete is read from their folders
                reasons = [f"{first_line(error)}; jobs that are submitted go on, see `make status`"]
        for reason in reasons:
            sys.stderr.write(f"error: a job of the launcher failed: {reason}\n")
        for cell in cells:
            if read_status(cell.folder).state == "done":
                done(cell)

    return launch


def run_job(_config: object) -> None:
    """Measure the cell that Hydra's overrides ask for, in this process:
    the work of a job on a cluster.

    A failed cell is no error of the job: the sweep reads the cell's status once all jobs have
    ended.
    """
    from experiments.worker import measure

    [cell] = cells_of(HydraConfig.get().overrides.task)
    progress = Progress(cell.config["num_prompts"], 1)
    try:
        measure([cell], progress.start(1, str(cell), cell.config["num_prompts"]), wait=True)
    except CellFailed as error:
        progress.say(f"error: {error}")
    finally:
        progress.close()


def _by_state(cells: Sequence[Cell]) -> tuple[list[Cell], list[Cell]]:
    """The complete cells and the others, each once; cells whose tree is missing are left out."""
    complete: list[Cell] = []
    pending: list[Cell] = []
    by_id: dict[str, Cell] = {}
    for cell in cells:
        if cell.has_tree:
            by_id.setdefault(cell.cell_id, cell)
    for cell in by_id.values():
        status = status_of(cell)
        if status.state == "damaged":
            sys.stderr.write(
                f"{cell}: its files are damaged ({status.reason}); it is measured again\n"
            )
        elif status.state == "stale":
            sys.stderr.write(f"{cell}: {status.reason}; it is measured again\n")
        elif status.state == "done" and status.reason:
            sys.stderr.write(f"note: {cell}: {status.reason}; it is kept, for reuse=true\n")
        elif CellStore(cell.folder).rows_so_far() and (
            changed := changed_code(cell.folder, cell.config)
        ):
            reason = f"its code has changed: {', '.join(changed)}"
            sys.stderr.write(f"{cell}: {reason}; its measured prompts are measured again\n")
        (complete if status.state == "done" else pending).append(cell)
    return complete, pending


def _missing_trees(cells: Sequence[Cell]) -> dict[Path, list[Cell]]:
    """Missing tree file -> the cells that need it.

    Raises InvalidInput if a file cannot be searched for.
    """
    trees: dict[Path, list[Cell]] = {}
    for cell in cells:
        if (path := cell.tree_file) is not None and not cell.has_tree:
            trees.setdefault(path, []).append(cell)
    for path, group in trees.items():
        search = group[0].config["search"]
        if path.exists() or not search:
            problem = "is no file" if path.exists() else "does not exist"
            raise InvalidInput(
                f"tree.path={path} {problem}; allowed: a file, or a tree that is searched for"
            )
        if any(cell.config["search"] != search for cell in group):
            raise InvalidInput(
                f"{path} is searched for in several ways; allowed: a tree.path for each"
            )
        build(search).check(path, group)
    return trees


def _say_what_is_ignored(
    arguments: Sequence[str], cells: Sequence[Cell], is_searching: bool
) -> None:
    """Notes about overrides that change nothing."""
    keys = {argument.partition("=")[0].partition(".")[0] for argument in arguments}
    for name in ("tree", "verifier"):
        if name in keys and not any(name in cell.labels for cell in cells):
            decoders = ", ".join(dict.fromkeys(str(cell.labels["decoder"]) for cell in cells))
            sys.stderr.write(
                f"note: {name}=... changes nothing: decoder={decoders} has no {name}\n"
            )
    known = {"hydra", *RunConfig.__dataclass_fields__}
    for line in (argument for argument in arguments if argument.startswith("+")):
        key = line.lstrip("+").partition("=")[0]
        if key.partition(".")[0] not in known and not any(
            f"${{{key}" in other for other in arguments
        ):
            sys.stderr.write(
                f"note: {key}=... changes nothing but names of cells: nothing refers to {key}\n"
            )
    if "search" in keys and not is_searching:
        reason = "no tree file is missing; delete it to search again"
        sys.stderr.write(f"note: search... changes nothing: {reason}\n")


def _show(parts: Sequence[Part], complete: Sequence[Cell]) -> None:
    """Write a sweep's table, results/PROFILE/sweeps/NAME.csv, and print it,
    or say why there is none.
    """
    from analysis import sweep  # needs pandas, for which no cell is to wait

    config, name = parts[0].cells[0].config, _name(parts)
    profile, results = config["profile"], Path(config["results"])
    names = dict.fromkeys(part.plan for part in parts)
    files = {plan: [plan_path(part) for part in parts if part.plan == plan] for plan in names}
    try:
        plans = [read_plan(plan, profile, results, paths) for plan, paths in files.items()]
        reports = {cell.cell_id: _report(cell) for cell in complete if cell.task_name != "Decode"}
        table = sweep.table_of(plans, name, reports)
        sys.stdout.write(f"\n{sweep.written(table, results / profile / 'sweeps')}")
        sys.stdout.flush()
    except (InvalidInput, OSError) as error:
        sys.stderr.write(f"error: no table of {name}: {first_line(error)}\n")


def _name(parts: Sequence[Part]) -> str:
    """Name of a sweep's files: the given name, the artefact's or its part's,
    or a digest of the cells.
    """
    first, artefacts = parts[0], {part.plan for part in parts}
    if name := first.cells[0].config["name"]:
        return str(name)
    if len(parts) == 1 and first.plan_part:
        return f"{first.plan}-{first.plan_part}"
    return (
        first.plan
        if len(artefacts) == 1
        else digest([cell for part in parts for cell in part.cells])
    )


def _report(cell: Cell) -> str:
    """The facts that a task gives about the rows of a complete cell, as text."""
    task = build(cell.config["task"])
    facts = task.progress(CellStore(cell.folder).rows(task.row))
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def _sum_up(
    parts: Sequence[Part],
    arguments: Sequence[str],
    num_cells: int,
    complete: Sequence[Cell],
    num_before: int,
) -> None:
    """Print the last line of a run, which names the next command."""
    config, num_done = parts[0].cells[0].config, len(complete)
    profile, results = config["profile"], config["results"]
    where = f"--profile {profile} --results {shlex.quote(results)}"
    by_plan = {
        part.plan: part
        for part in parts
        if part.is_named and (CONF.parent / "analysis" / f"{part.artefact}.py").exists()
    }
    names = [name for name, part in by_plan.items() if not part.digest]
    commands = (
        [f"make {' '.join(names)} PROFILE={profile}{elsewhere(Path(results))}"] if names else []
    )
    slices = [part for part in by_plan.values() if part.digest]
    commands += [
        f"python -m analysis.{part.artefact} {where} --slice {part.digest}" for part in slices
    ]
    if num_done < num_cells:
        commands = [shlex.join(["python", "-m", "experiments.run", *arguments])]
    elif not commands and (decoded := [cell for cell in complete if cell.task_name == "Decode"]):
        commands = [f"python -m experiments.show {decoded[0].cell_id} {where}"]
    elif not commands:
        commands = [f"python -m analysis.cells {AD_HOC} {where}"]
    failed = f", {num_cells - num_done} not complete" if num_done < num_cells else ""
    counts = (
        f"{num_cells} cell{'s' if num_cells != 1 else ''}: {num_done} done ({num_before} before)"
    )
    sys.stderr.write(
        f"{counts}{failed}; results in {results}/raw/{profile}; next: {' && '.join(commands)}\n"
    )


if __name__ == "__main__":
    sys.exit(main())
