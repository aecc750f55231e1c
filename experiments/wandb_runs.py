"""Runs on W&B: one for each cell of a sweep, and one with the sweep's table and figure.

A sweep starts this module as a process, see `experiments.dashboard`, and gives it cells as JSON. It
reads rows and tables and measures nothing. This is the only module that imports wandb.
"""

import json
import math
import os
import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from analysis import audits, metrics
from analysis.load import Plan, Request
from analysis.stats import divide
from analysis.sweep_figure import draw
from experiments.cell import Cell
from experiments.dashboard import UNREAD
from experiments.schema import leaves
from resispec.errors import InvalidInput, fail, first_line, in_one_line
from resispec.files import checksums

NO_KEY = (
    "W&B: no key is known, so no dashboard is written; `wandb login`, WANDB_API_KEY or "
    "wandb.mode=offline turns it on, wandb.mode=disabled leaves out this line"
)
STEP = "prompt_index"
"""Horizontal axis of every curve."""
ANSWER_S, FINISH_S = 30.0, 60.0
"""Seconds that W&B may take to answer (WANDB_INIT_TIMEOUT changes them), and to take in a run."""
OF_ANOTHER_RUN = ("RUN_ID", "NOTES", "RESUME_FROM", "FORK_FROM", "SWEEP_ID", "SWEEP_PARAM_PATH")
OF_ANOTHER_RUN += ("SERVICE",)
"""WANDB_... variables about a single run, which belong to the process that started this one."""


@dataclass(frozen=True)
class DashboardRun:
    """A run on W&B.

    about: its id and the other arguments of `wandb.init` about it. A measurement always has the
    same id, so that sent twice it is one run. table: its name and rows. points: one for each
    prompt, in order, each with STEP. figure: of a sweep whose cells decoded.
    """

    about: Mapping[str, Any]
    summary: Mapping[str, Any]
    table: tuple[str, pd.DataFrame]
    points: Sequence[Mapping[str, float]] = ()
    figure: Figure | None = None


def of_cell(plan: Plan, request: Request) -> DashboardRun:
    """The run of a complete cell. plan: that of its sweep, which has the sweep's name.

    Its id depends on the rows, which have times, so that a new measurement is another run. Raises
    InvalidInput for a damaged cell.
    """
    cell_id = request.cell_id
    plan.status(cell_id)
    rows, config = plan.prompts(cell_id), plan.configuration(cell_id)
    texts = {name: value for name, value in request.texts.items() if value != ""}
    cell = Cell(texts | {"audit": True} if request.is_audit else texts, config)
    values = {path.replace(".", "/"): value for path, value in leaves(cell.determining).items()}
    sums = checksums(plan.results / "raw" / plan.profile / cell_id, ["rows.jsonl"])
    tags = [f"profile:{plan.profile}", f"sweep:{plan.artefact}"]
    about = {
        "id": f"{cell_id}-{sums['rows.jsonl'][:8]}",
        "group": plan.artefact,
        "job_type": "audit" if request.is_audit else str(request.entry["task"]).lower(),
        "name": str(cell),
        "tags": [*tags, *(f"{name}:{value}" for name, value in texts.items())],
        "config": {"cell_id": cell_id} | texts | values,
    }
    bias = plan.provenance(cell_id).get("shown_bias")
    summary = {"num_prompts": len(rows)} | _numbers(request, rows, bias)
    if bias:
        summary["shown_bias"] = bias
    is_list = rows.map(lambda value: isinstance(value, list)).any()
    points = _points(rows)
    return DashboardRun(about, summary, ("prompts", rows.loc[:, ~is_list]), points)


def _numbers(request: Request, rows: pd.DataFrame, bias: str | None) -> dict[str, Any]:
    """The numbers of a cell that need no other cell: an audit's, or metrics with their intervals.

    bias: see `audits.with_bias`.
    """
    if request.is_audit:
        return audits.with_bias(audits.judged(request.cell_id, rows), bias)
    if not metrics.decoded({request.cell_id: rows}):
        return {}
    numbers: dict[str, Any] = {}
    for metric in metrics.METRICS:
        if not metric.over and metric.is_in(rows):
            interval = metric.of(rows)
            if math.isnan(interval.value):  # of times that do not count
                continue
            numbers[metric.name] = interval.value
            if not math.isnan(interval.lower):  # of few prompts
                numbers[f"{metric.name}_lower"] = interval.lower
                numbers[f"{metric.name}_upper"] = interval.upper
    return numbers


def _points(rows: pd.DataFrame) -> list[dict[str, float]]:
    """Every prompt's numbers, and metrics of it alone and of all prompts up to it."""
    values: dict[str, Any] = {}
    for metric in metrics.METRICS:
        fields = (metric.numerator, metric.denominator)
        if not metric.over and {*fields} <= {*rows.columns}:
            numerator, denominator = (rows[name] for name in fields)
            values[f"prompt/{metric.name}"] = divide(numerator, denominator)
            values[metric.name] = divide(numerator.cumsum(), denominator.cumsum())
    scalars = rows.select_dtypes("number").drop(columns=[STEP, "seed"])
    values |= {f"prompt/{name}": scalars[name] for name in scalars}
    points = pd.DataFrame(values).assign(**{STEP: rows[STEP]}).to_dict("records")
    return [
        {str(key): value for key, value in point.items() if not pd.isna(value)} for point in points
    ]


def of_sweep(table: Path, profile: str) -> DashboardRun:
    """The run of a sweep: its table, with every number of every cell, and its figure.

    Its id never changes, so that a later table takes its place.
    """
    name, frame = table.stem, pd.read_csv(table)
    verdicts = Counter(frame.drop_duplicates("cell_id").verdict.dropna())
    about = {
        "id": f"report-{profile}-{name}",
        "group": name,
        "job_type": "report",
        "name": f"{name}/report",
        "tags": [f"profile:{profile}", f"sweep:{name}"],
        "config": {"command": " && ".join(dict.fromkeys(frame.command))},
    }
    # a run that goes on keeps what is not written, as the verdict of an audit that had failed
    names = [*audits.VERDICTS, *sorted(verdicts.keys() - set(audits.VERDICTS))]
    counts = {f"verdicts/{verdict}": verdicts[verdict] for verdict in names}
    summary = {"num_cells": len(frame)} | counts
    return DashboardRun(about, summary, ("cells", frame), figure=draw(frame))


def _wandb() -> Any:
    """The package wandb, silent, without the variables of the environment about another run."""
    for name in OF_ANOTHER_RUN:
        os.environ.pop(f"WANDB_{name}", None)
    # before it prints a line
    os.environ |= {"WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}
    import wandb

    return wandb


def chosen_mode(mode: str) -> tuple[str, str]:
    """The mode "online", "offline" or "disabled", and a line if W&B would be used but has no key.

    mode: `wandb.mode`. "auto" follows WANDB_MODE and W&B's settings files.
    """
    settings = _wandb().sdk.wandb_setup.singleton().settings
    if mode != "auto":
        settings.update_from_dict({"mode": mode})
    mode = "disabled" if settings._noop else "offline" if settings._offline else "online"
    return ("disabled", NO_KEY) if mode == "online" and not _has_key() else (mode, "")


def _has_key() -> bool:
    """Whether W&B finds a key: in the environment, its settings files or the user's netrc file."""
    try:
        return bool(_wandb().login(prompt=False, verify=False))
    except Exception:  # noqa: BLE001 - a key of the wrong form: W&B says so when a run is sent
        return True


def send(run: DashboardRun, to: Mapping[str, Any]) -> None:
    """Send a run, and wait until W&B has it. Raises whatever W&B or the network raises.

    A run that was sent before is continued: W&B leaves out the steps that it has. Offline, its
    earlier folders are removed.

    to: where runs go, as `wandb.init`'s mode, project, entity and dir.
    """
    wandb = _wandb()
    settings = wandb.Settings(
        silent=True,
        console="off",
        x_disable_stats=True,
        x_disable_meta=True,
        x_save_requirements=False,
        disable_git=True,
        disable_code=True,
        init_timeout=float(os.environ.get("WANDB_INIT_TIMEOUT", ANSWER_S)),
        finish_timeout=FINISH_S,
        finish_timeout_raises=True,
        reinit="create_new",
    )
    about = dict(run.about) | {"tags": [tag[:64] for tag in run.about["tags"]]}  # W&B's limit
    live = wandb.init(**about, **to, resume="allow", settings=settings)
    live.define_metric(STEP, summary="none", hidden=True)
    live.define_metric("prompt/*", step_metric=STEP, summary="none")
    for metric in metrics.METRICS:
        live.define_metric(metric.name, step_metric=STEP)
    for point in run.points:
        live.log(dict(point), step=int(point[STEP]))
    name, frame = run.table
    values = frame.astype(object).where(frame.notna(), None).values.tolist()
    live.log({name: wandb.Table(columns=list(frame), data=values, allow_mixed_types=True)})
    if run.figure:
        with NamedTemporaryFile(suffix=".png") as file:
            run.figure.savefig(file.name, dpi=150)
            live.log({"figure": wandb.Image(file.name)})
    live.summary.update(dict(run.summary))
    folder = Path(live.settings.sync_dir)
    live.finish()
    if live.offline:
        for earlier in folder.parent.glob(f"offline-run-*-{live.id}"):
            if earlier != folder:
                shutil.rmtree(earlier)


def publish(work: Mapping[str, Any]) -> int:
    """Send the runs of a sweep; return UNREAD if a cell cannot be read, else 0.

    work: the sweep's name, profile and results, the plan's entries of its `cells`, whether it
    `has_table`, and `to`, see `send`. Raises whatever W&B or the network raises.
    """
    profile, results, errors = work["profile"], Path(work["results"]), list[str]()
    plan = Plan(
        work["name"], profile, results, tuple(map(Request.read, work["cells"])), "", stale=()
    )
    Path(work["to"]["dir"]).mkdir(parents=True, exist_ok=True)  # W&B would take another folder
    for request in plan.requests:
        try:
            run = of_cell(plan, request)
        except InvalidInput as error:
            errors.append(str(error))
        else:
            send(run, work["to"])
    table = results / profile / "sweeps" / f"{work['name']}.csv"
    if work["has_table"] and table.is_file():
        send(of_sweep(table, profile), work["to"])
    for error in errors:
        fail(error)
    return UNREAD if errors else 0


@in_one_line()
def main() -> int:
    """The process: reads its work as JSON from stdin."""
    try:
        return publish(json.load(sys.stdin))
    except Exception as error:  # noqa: BLE001
        # whatever W&B and the network do: the rows are the record
        return fail(f"W&B did not take a run ({type(error).__name__}: {first_line(error)})")


if __name__ == "__main__":
    sys.exit(main())
