"""Dashboards on W&B: a run for every cell, live while it is measured,
and a report for every artefact.

Runs are derived from plans and cells' folders with the definitions of analysis, so that they can be
made again at any time. This is the only module that imports wandb. `experiments.publish` is its
command, which a sweep runs beside itself: the processes that measure neither run this code nor wait
for it.
"""

import hashlib
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import SLICE, audits, labels, metric_table, metrics
from analysis.load import (
    LABELS,
    Plan,
    Request,
    Results,
    Status,
    load,
    plan_names,
    read_plan,
    read_status,
)
from analysis.stats import divide
from experiments.cell import Cell, file_name
from experiments.grid import AD_HOC
from experiments.schema import leaves
from experiments.store import CELL, PROVENANCE, ROWS, STATUS, CellStore
from resispec.errors import InvalidInput
from resispec.files import read_json

NO_KEY = (
    "W&B: no key is known, so no dashboard is written; `wandb login`, WANDB_API_KEY or "
    "wandb.mode=offline turns it on, wandb.mode=disabled leaves out this line"
)
STEP = "prompt_index"
"""Horizontal axis of every curve."""
ANSWER_S, FINISH_S = 30.0, 60.0
"""Seconds that W&B may take to answer (WANDB_INIT_TIMEOUT changes them), and to take in a run."""
LONG_S = 60.0
"""A run that takes more than these seconds has W&B's system metrics."""
OF_ANOTHER_RUN = (
    "RUN_ID",
    "NOTES",
    "RESUME_FROM",
    "FORK_FROM",
    "SWEEP_ID",
    "SWEEP_PARAM_PATH",
    "SERVICE",
)
"""WANDB_... variables about a single run, which belong to the process that started this one."""


@dataclass(frozen=True)
class Run:
    """Contents of one run on W&B.

    about: its id and the other arguments of `wandb.init` about it. A measurement always has the
    same id, so that sent twice it is one run. points: one for each prompt, in order, each with
    STEP. counts: histograms, the numbers of times that 1, 2, 3, ... occurred. images, files: their
    paths. artifact: name of the artifact that holds `files`; its type is the name's first word.
    facts: the artifact's metadata.
    """

    about: Mapping[str, Any]
    artifact: str
    files: Sequence[Path] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, float | str] = field(default_factory=dict)
    points: Sequence[Mapping[str, float]] = ()
    counts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    images: Mapping[str, Path] = field(default_factory=dict)

    @property
    def run_id(self) -> str:
        """The id by which W&B knows the run."""
        return str(self.about["id"])


class Record:
    """Plans and cells of a profile in a results folder.

    artefacts: names of the chosen ones, by default of all that have a plan. A cell that several ask
    for is grouped under the first of them. cells: their ids. Raises InvalidInput without a readable
    plan.
    """

    def __init__(self, results: Path, profile: str, artefacts: Collection[str] = ()) -> None:
        self._tables, self._raw, self._profile = (
            results / profile,
            results / "raw" / profile,
            profile,
        )
        folder, names = self._tables / "plans", plan_names(profile, results)
        if not names:
            raise InvalidInput(
                f"{folder} holds no plan of a sweep; `make reproduce-table1` makes one"
            )
        allowed = sorted(
            names, key=lambda name: (name == AD_HOC or SLICE in name, "table" not in name, name)
        )
        if unknown := [name for name in artefacts if name not in names]:
            raise InvalidInput(
                f"no plan asks for {unknown[0]!r} in {folder}; allowed: {', '.join(allowed)}"
            )
        self.artefacts = list(artefacts) or allowed
        memo: dict[str, Any] = {}  # whatever plan asks for a cell, it is read once
        self._plans = {
            name: replace(read_plan(name, profile, results), read=memo) for name in self.artefacts
        }
        self._askers: dict[str, list[tuple[Plan, Request]]] = {}
        for plan in self._plans.values():
            for request in plan.requests:
                self._askers.setdefault(request.cell_id, []).append((plan, request))
        self.cells = list(self._askers)

    def changing(self, since: float) -> list[str]:
        """Ids of the cells whose setting was not done before an instant,
        given in seconds since 1970.
        """

        def was_done(cell_id: str) -> bool:
            status = self._raw / cell_id / STATUS
            return self.status(cell_id).state == "done" and status.stat().st_mtime < since

        settings = [
            setting for setting in self.settings(self.cells) if not all(map(was_done, setting))
        ]
        return list(chain.from_iterable(settings))

    def settings(self, cell_ids: Collection[str]) -> list[list[str]]:
        """Cell ids, grouped by the facts that must be equal for their numbers to be compared."""
        groups: dict[str, list[str]] = {}
        for cell_id in cell_ids:
            groups.setdefault(_setting(*self._askers[cell_id][0]), []).append(cell_id)
        return list(groups.values())

    def runs(self, cell_ids: Sequence[str]) -> Iterator[Run | InvalidInput]:
        """Runs of the cells that are done; an error for a cell that cannot be read.

        cell_ids: one group of `settings`; their baselines and audits are read with them.
        """
        plan, first = self._askers[cell_ids[0]][0]
        requests = []
        for request in plan.requests:
            try:
                is_alike = _setting(plan, request) == _setting(plan, first)
                if is_alike and plan.status(request.cell_id).state == "done":
                    requests.append(request)
            except InvalidInput as error:
                if request.cell_id in cell_ids:
                    yield error
        try:
            results = load(replace(plan, requests=tuple(requests)))
            numbers = _numbers(results)
        except InvalidInput as error:
            yield error
            return
        for cell_id in cell_ids:
            if cell_id in results.rows:
                yield self._complete(cell_id, results.rows[cell_id], numbers.get(cell_id, {}))

    def status(self, cell_id: str) -> Status:
        """The status of a cell now; it is "done" only if the files are sound."""
        return read_status(self._raw / cell_id)

    def is_long(self, cell_id: str, num_done: int) -> bool:
        """Whether a cell that is being measured will take longer than LONG_S,
        at its pace so far.
        """
        seconds = time.time() - (self._raw / cell_id / STATUS).stat().st_mtime
        return bool(seconds / num_done * self._config(cell_id)["num_prompts"] > LONG_S)

    def _config(self, cell_id: str) -> dict[str, Any]:
        return read_json(self._raw / cell_id / CELL)["config"]

    def begun(self, cell_id: str) -> Run | None:
        """The run of a cell with the points so far; None before its first prompt.

        The id depends on the first row, which has times, so that a new measurement is another run.
        """
        rows = CellStore(self._raw / cell_id).rows_so_far()
        if not rows:
            return None
        config, request = self._config(cell_id), self._askers[cell_id][0][1]
        texts = {name: value for name, value in request.texts.items() if value != ""}
        extras = [
            f"{name}={value}" for name, value in texts.items() if name not in (*LABELS, "seed")
        ]
        words = [labels.text("dataset", request.labels["dataset"])]
        words += [labels.method(request.labels["decoder"], request.labels["verifier"])]
        if "tree" in texts:
            words.append(labels.text("tree", request.labels["tree"]))
        words += [f"T={texts['temperature']:g}", f"seed={config['seed']}"]
        words += [labels.text("pair", request.labels["pair"]), *extras]
        if request.is_audit:
            words.append("audit")
        artefacts = [plan.artefact for plan, _ in self._askers[cell_id]]
        tags = [
            f"profile:{self._profile}",
            *(f"sweep:{artefact}" for artefact in dict.fromkeys(artefacts)),
        ]
        named = {name: value for name, value in texts.items() if name in LABELS}
        cell = Cell(texts, config)
        values = leaves(cell.determining)
        determining = {path.replace(".", "/"): value for path, value in values.items()}
        about = {
            "id": f"{cell_id}-{hashlib.sha256(json.dumps(rows[0]).encode()).hexdigest()[:8]}",
            "group": artefacts[0],
            "job_type": "audit" if request.is_audit else cell.task_name.lower(),
            "name": "/".join(words),
            "tags": [*tags, *(f"{name}:{value}" for name, value in texts.items())],
            "config": {"cell_id": cell_id} | named | determining,
        }
        points = _points(pd.DataFrame(rows), has_times=not request.is_audit)
        return Run(about, f"rows-{cell_id}", points=points)

    def _complete(self, cell_id: str, rows: pd.DataFrame, numbers: Mapping[str, Any]) -> Run:
        folder, run = self._raw / cell_id, self.begun(cell_id)
        assert run is not None
        counts = [sum(column) for column in zip_longest(*rows.get("histogram", ()), fillvalue=0)]
        is_list = rows.map(lambda value: isinstance(value, list)).any()
        return replace(
            run,
            files=[folder / name for name in (ROWS, CELL, PROVENANCE)],
            facts=read_json(folder / PROVENANCE),
            summary={"num_prompts": len(rows), **numbers},
            counts={"accepted_length_histogram": counts} if "histogram" in rows else {},
            tables={"prompts": rows.loc[:, ~is_list]},
        )

    def report(self, artefact: str) -> Iterator[Run]:
        """The report of an artefact or a slice: tables, figures, verdicts and notes,
        if they are written.

        Its id never changes, so that a later report takes its place.
        """
        stem, _, digest = artefact.partition(SLICE)
        folder = self._tables / (artefact if digest else "")
        page = folder / f"{stem}.md"
        if not page.is_file():
            return
        files = sorted([*folder.glob(f"{stem}.*"), *folder.glob(f"{stem}_*.*")])
        frames = {path.stem: pd.read_csv(path) for path in files if path.suffix == ".csv"}
        parts = page.read_text(encoding="utf-8").strip().split("\n\n")
        counts, frame = Counter[str](), frames.get(stem, pd.DataFrame())
        if {"cell_id", "verdict"} <= set(frame):
            counts.update(frame.drop_duplicates("cell_id").verdict.dropna())
        about = {
            "id": f"report-{self._profile}-{artefact}",
            "group": artefact,
            "job_type": "report",
            "name": f"{artefact}/report",
            "tags": [f"profile:{self._profile}", f"sweep:{artefact}"],
            "config": {"artefact": artefact, "command": self._plans[artefact].command},
            "notes": "\n\n".join(part for part in parts if not part.lstrip().startswith("|")),
        }
        yield Run(
            about,
            file_name(about["id"]),
            files,
            summary={f"verdicts/{verdict}": count for verdict, count in sorted(counts.items())},
            tables=frames,
            images={f"figure/{path.stem}": path for path in files if path.suffix == ".png"},
        )


def _setting(plan: Plan, request: Request) -> str:
    """Facts that compared cells share, as text: artefact, task, prompts,
    and all labels but the method's.
    """
    method = ("decoder", "tree", "verifier")
    alike = [(key, str(value)) for key, value in request.labels.items() if key not in method]
    return repr(
        (plan.artefact, request.entry.get("task"), request.entry.get("num_prompts"), sorted(alike))
    )


def _numbers(results: Results) -> dict[str, dict[str, Any]]:
    """A cell's numbers in the tables: metrics with bounds, or an audit's verdict;
    none for other tasks.
    """
    first = next(iter(results.rows.values()), pd.DataFrame())
    if not set(metrics.fields()) <= set(first.columns):
        return {}
    numbers: dict[str, dict[str, Any]] = {cell_id: {} for cell_id in results.rows}
    for row in metric_table.measure(results).to_dict("records"):
        name = row["quantity"]
        numbers[row["cell_id"]] |= {name: row["value"], f"{name}_lower": row["lower"]}
        numbers[row["cell_id"]] |= {
            f"{name}_upper": row["upper"],
            "verdict": row["verdict"] or None,
        }
    for cell_id in results.cells.cell_id[results.cells.is_audit]:
        numbers[cell_id] = audits.judged(cell_id, results.rows[cell_id])
    return {
        cell_id: {key: value for key, value in values.items() if not pd.isna(value)}
        for cell_id, values in numbers.items()
    }


def _points(rows: pd.DataFrame, has_times: bool) -> list[dict[str, float]]:
    """Every prompt's numbers, and metrics of it alone and of all so far.

    has_times: whether times count.
    """
    values: dict[str, Any] = {}
    rows = rows if has_times else rows.filter(regex="(?<!_s)$")
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


def _wandb() -> Any:
    """The package wandb, silent, without the variables of the environment about another run."""
    for name in OF_ANOTHER_RUN:
        os.environ.pop(f"WANDB_{name}", None)
    # before it prints a line
    os.environ |= {"WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}
    import wandb

    return wandb


def chosen_mode(mode: str) -> tuple[str, str]:
    """ "online", "offline" or "disabled", and a line for people
    if W&B would be used but has no key.

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


class Live:
    """A run that is open on W&B. Every method raises whatever W&B or the network raises.

    A run that was sent before is resumed: W&B leaves out the steps that it has.

    to: where runs go, as `wandb.init`'s mode, project, entity and dir. has_stats: record system
    metrics of this machine, and of the parent process with all its children.
    """

    def __init__(self, run: Run, to: Mapping[str, Any], has_stats: bool = False) -> None:
        self._wandb, self._num_drawn = _wandb(), 0
        settings = self._wandb.Settings(
            silent=True, console="off", x_disable_stats=not has_stats, x_disable_meta=True,
            disable_git=True,
            disable_code=True, x_save_requirements=False, finish_timeout=FINISH_S,
            finish_timeout_raises=True,
            init_timeout=float(os.environ.get("WANDB_INIT_TIMEOUT", ANSWER_S)), reinit="create_new",
            x_stats_pid=os.getppid(), x_stats_track_process_tree=True,
        )  # fmt: skip
        tags = [*run.about["tags"], *os.environ.get("WANDB_TAGS", "").split(",")]
        options = {"tags": [tag[:64] for tag in dict.fromkeys(tags) if tag]}
        if group := os.environ.get("WANDB_RUN_GROUP"):
            options["group"] = group
        self._run = self._wandb.init(**run.about | options, **to, resume="allow", settings=settings)
        self._run.define_metric(STEP, summary="none", hidden=True)
        self._run.define_metric("prompt/*", step_metric=STEP, summary="none")
        for metric in metrics.METRICS:
            self._run.define_metric(metric.name, step_metric=STEP)

    def draw(self, points: Sequence[Mapping[str, float]]) -> None:
        """Add the points that the run lacks. points: all points so far."""
        for point in points[self._num_drawn :]:
            self._run.log(dict(point), step=int(point[STEP]))
        self._num_drawn = max(self._num_drawn, len(points))

    def finish(self, run: Run) -> None:
        """Add all that a complete run holds, and wait until W&B has it."""
        self.draw(run.points)
        media: dict[str, Any] = {
            name: self._wandb.Image(str(path)) for name, path in run.images.items()
        }
        for name, frame in run.tables.items():
            values = frame.astype(object).where(frame.notna(), None).values.tolist()
            media[name] = self._wandb.Table(
                columns=list(frame.columns), data=values, allow_mixed_types=True
            )
        for name, counts in run.counts.items():
            edges = [place + 0.5 for place in range(len(counts) + 1)]
            media[name] = self._wandb.Histogram(np_histogram=(list(counts), edges))
        self._run.log(media)
        kind = run.artifact.partition("-")[0]
        artifact = self._wandb.Artifact(run.artifact, type=kind, metadata=dict(run.facts))
        for path in run.files:
            # read in place, without a copy
            artifact.add_file(str(path), policy="immutable", skip_cache=True)
        self._run.log_artifact(artifact)
        self._run.summary.update(dict(run.summary))
        self._close()

    def fail(self, reason: str) -> None:
        """Close a run that is not complete; it goes on when its cell does."""
        self._run.summary["reason"] = reason
        self._close(exit_code=1)

    def _close(self, exit_code: int = 0) -> None:
        """Close the run.

        Offline, its earlier folders are removed, since the last one holds everything.
        """
        folder = Path(self._run.settings.sync_dir)
        self._run.finish(exit_code=exit_code)
        for earlier in (
            folder.parent.glob(f"offline-run-*-{self._run.id}") if self._run.offline else ()
        ):
            if earlier != folder:
                shutil.rmtree(earlier)


def follow(
    record: Record, cell_ids: Collection[str], to: Mapping[str, Any], is_over: Callable[[], bool]
) -> tuple[int, list[InvalidInput]]:
    """Show cells while they are measured; return the number of completed runs and errors of cells.

    Runs are completed once all cells of their setting are done, so that a gain has its baseline and
    a row its audit, or once nothing more is measured; runs of cells that are not done then fail.
    Raises whatever W&B or the network raises.

    to: see `Live`. is_over: waits a while, and says whether nothing more is measured.
    """
    settings, over = record.settings(cell_ids), False
    open_runs, done, num_sent, errors = dict[str, Live](), set[str](), 0, list[InvalidInput]()
    while settings and not over:
        over = is_over()
        for setting in [*settings]:
            for cell_id in [cell_id for cell_id in setting if cell_id not in done]:
                state = record.status(cell_id).state
                if state == "done":
                    done.add(cell_id)
                elif state == "running" and not over and (run := record.begun(cell_id)):
                    if run.run_id not in open_runs:
                        open_runs[run.run_id] = Live(
                            run, to, record.is_long(cell_id, len(run.points))
                        )
                    open_runs[run.run_id].draw(run.points)
            if over or done.issuperset(setting):
                settings.remove(setting)
                for outcome in record.runs(setting):
                    if isinstance(outcome, Run):
                        (open_runs.pop(outcome.run_id, None) or Live(outcome, to)).finish(outcome)
                        num_sent += 1
                    else:
                        errors.append(outcome)
    for run_id, open_run in open_runs.items():
        cell_id = run_id.rpartition("-")[0]
        if run := record.begun(cell_id):
            open_run.draw(run.points)
        open_run.fail(record.status(cell_id).reason)
    return num_sent, errors
