"""Uploads to W&B: a run for every complete cell, a report for every artefact, from the rows on disk.

Runs are derived from plans and cells' folders with the definitions of analysis, so that they can be made
again at any time. This is the only module that imports wandb; importing it here takes a second, so a sweep
that has nothing to measure does not.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import SLICE, audits, labels, metric_table, metrics
from analysis.load import IDENTITY, SETTING, Plan, Request, Results, load, read_plan
from analysis.stats import divide
from experiments.cell import Cell
from experiments.grid import AD_HOC
from experiments.schema import WandbConfig
from resispec.errors import InvalidInput, first_line
from resispec.files import read_json

NO_KEY = (
    "W&B: no key is known, so no dashboard is written; `wandb login`, WANDB_API_KEY or wandb.mode=offline "
    "turns it on, wandb.mode=disabled leaves out this line"
)
STEP = "prompt_index"
"""Horizontal axis of every curve."""
ANSWER_S, FINISH_S = 30.0, 60.0
"""Seconds that W&B may take to answer (WANDB_INIT_TIMEOUT changes them), and to take in a run."""
OF_ANOTHER_RUN = ("RUN_ID", "RESUME_FROM", "FORK_FROM", "SWEEP_ID", "SWEEP_PARAM_PATH", "SERVICE")
"""WANDB_... variables about a run of the process that started this one, which no argument overrides."""


class NotSent(RuntimeError):
    """W&B did not take a run; the message is one line with the reason."""


@dataclass(frozen=True)
class Destination:
    """Project and folder that runs go to.

    mode: online or offline. entity: a user or team, None for W&B's default one. results: W&B writes to its
    subfolder wandb/.
    """

    mode: str
    project: str
    entity: str | None
    results: Path

    def __str__(self) -> str:
        if self.mode == "online":
            return f"sent to project {self.project}"
        folder = f"{self.results}/wandb"
        return f"written to {folder}; `wandb sync {shlex.quote(folder)}/offline-run-*` uploads them"


@dataclass(frozen=True)
class Run:
    """Contents of one run. The same contents have the same run_id, so that sent twice they are one run.

    curves: one point a prompt, in order, each with STEP. counts: histograms of whole numbers, how often 1, 2,
    3, ... occurred. images: files.
    """

    run_id: str
    group: str
    job_type: str
    name: str
    tags: Sequence[str]
    config: Mapping[str, Any]
    notes: str = ""
    summary: Mapping[str, float | str] = field(default_factory=dict)
    curves: Sequence[Mapping[str, float]] = ()
    counts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    images: Mapping[str, Path] = field(default_factory=dict)


class Record:
    """Plans and cells of a profile in a results folder. Raises InvalidInput without a readable plan.

    artefacts: those that have a plan. A cell that several ask for is grouped under the first of them.
    """

    def __init__(self, results: Path, profile: str) -> None:
        self._tables, self._raw, self._profile = results / profile, results / "raw" / profile, profile
        self._folder = self._tables / "plans"
        stems = {path.stem for path in self._folder.glob("*") if path.name[0] != "."}
        if not stems:
            raise InvalidInput(f"{self._folder} holds no plan of a sweep; `make reproduce-table1` makes one")
        self.artefacts = sorted(stems, key=_rank)
        read: dict[str, Any] = {}  # whatever plan asks for a cell, it is read once
        self._plans = {name: replace(read_plan(name, profile, results), read=read) for name in self.artefacts}
        self._askers: dict[str, list[tuple[Plan, Request]]] = {}
        for plan in self._plans.values():
            for request in plan.requests:
                self._askers.setdefault(request.cell_id, []).append((plan, request))

    def cells(self, artefact: str) -> list[str]:
        """The ids of the cells that an artefact asks for. Raises InvalidInput for one without a plan."""
        if artefact not in self._plans:
            allowed = ", ".join(self._plans)
            raise InvalidInput(f"no plan asks for {artefact!r} in {self._folder}; allowed: {allowed}")
        return list(dict.fromkeys(request.cell_id for request in self._plans[artefact].requests))

    def settings(self, cell_ids: Collection[str]) -> list[list[str]]:
        """Cell ids, grouped by what must be the same for their numbers to be compared."""
        groups: dict[str, list[str]] = {}
        for cell_id in cell_ids:
            groups.setdefault(_setting(*self._askers[cell_id][0]), []).append(cell_id)
        return list(groups.values())

    def runs(self, cell_ids: Sequence[str]) -> Iterator[Run | InvalidInput]:
        """Runs of the cells that are done; an error for one that cannot be read.

        cell_ids: one of `settings`; their baselines and audits are read with them.
        """
        plan, first = self._askers[cell_ids[0]][0]
        comparable: dict[str, list[Request]] = {}
        for request in plan.requests:
            if _setting(plan, request) != _setting(plan, first):
                continue
            try:
                if plan.state(request.cell_id).status == "done":
                    prompts = plan.prompts(request.cell_id)[list(IDENTITY)].values.tolist()
                    task = self._config(request.cell_id)["task"]["_target_"]
                    comparable.setdefault(repr((task, prompts)), []).append(request)
            except InvalidInput as error:
                if request.cell_id in cell_ids:
                    yield error
        for requests in comparable.values():
            try:
                results = load(replace(plan, requests=tuple(requests)))
                numbers = _numbers(results)
            except InvalidInput as error:
                yield error
                continue
            for cell in results.cells.to_dict("records"):
                if cell["cell_id"] in cell_ids:
                    yield self._run(cell, results, numbers.get(cell["cell_id"], {}))

    def _config(self, cell_id: str) -> dict[str, Any]:
        return read_json(self._raw / cell_id / "cell.json")["config"]

    def _run(self, cell: Mapping[str, Any], results: Results, numbers: Mapping[str, Any]) -> Run:
        cell_id, config = cell["cell_id"], self._config(cell["cell_id"])
        rows, folder = results.rows[cell_id], self._raw / cell_id
        rows_sha256 = read_json(folder / "status.json")["files"]["rows.jsonl"]
        chosen = {key: cell[key] for key in (*SETTING, "decoder", "tree", "verifier", *results.more)}
        chosen = {key: value for key, value in chosen.items() if value != ""}
        counts = [sum(column) for column in zip_longest(*rows.get("histogram", ()), fillvalue=0)]
        artefacts = [plan.artefact for plan, _ in self._askers[cell_id]]
        words = [labels.text("dataset", cell["dataset"]), labels.method(cell["decoder"], cell["verifier"])]
        words += [labels.text("tree", cell["tree"])] if cell["tree"] else []
        words += [f"T={cell['temperature']:g}", f"seed={config['seed']}", labels.text("pair", cell["pair"])]
        words += [f"{key}={chosen[key]}" for key in results.more if key in chosen and key != "seed"]
        task = str(config["task"]["_target_"]).rpartition(".")[2].lower()
        return Run(
            run_id=f"{cell_id}-{rows_sha256[:8]}",
            group=artefacts[0],
            job_type="audit" if cell["is_audit"] else task.replace("decode", "bench"),
            name="/".join(words + ["audit"] * cell["is_audit"]),
            tags=tuple(dict.fromkeys([self._profile, *artefacts, *map(str, chosen.values())])),
            config={key: value for key, value in config.items() if key != "wandb"}
            | {"cell_id": cell_id, "labels": chosen}
            | {"provenance": read_json(folder / "provenance.json")},
            summary={"num_prompts": len(rows), **numbers},
            curves=_curves(rows, has_times=not cell["is_audit"]),
            counts={"accepted_length_histogram": counts} if "histogram" in rows else {},
            tables={"prompts": rows},
        )

    def report(self, artefact: str) -> Iterator[Run]:
        """The report of an artefact or a slice: tables, figures, verdicts and notes, where they are written.

        It has one id for all times: a later report takes its place.
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
        yield Run(
            run_id=f"report-{self._profile}-{artefact}",
            group=artefact,
            job_type="report",
            name=f"{artefact}/report",
            tags=(self._profile, artefact, "report"),
            config={"artefact": artefact, "profile": self._profile, "command": self._plans[artefact].command},
            notes="\n\n".join(part for part in parts if not part.lstrip().startswith("|")),
            summary={f"verdicts/{verdict}": count for verdict, count in sorted(counts.items())},
            tables=frames,
            images={f"figure/{path.stem}": path for path in files if path.suffix == ".png"},
        )


def _rank(artefact: str) -> tuple[bool, bool, bool, str]:
    """Tables first, then figures; slices and sweeps without a name last."""
    is_part = artefact == AD_HOC or SLICE in artefact
    return is_part, not artefact.startswith("table"), not artefact.startswith("figure"), artefact


def _setting(plan: Plan, request: Request) -> str:
    """Artefact and labels that are the same for cells that are compared."""
    method = ("decoder", "tree", "verifier")
    alike = [(key, value) for key, value in request.labels.items() if key not in method]
    return repr((plan.artefact, sorted(alike)))


def _numbers(results: Results) -> dict[str, dict[str, Any]]:
    """Numbers of the tables by cell: metrics with their bounds, audits' verdicts; of other tasks none."""
    first = next(iter(results.rows.values()))
    if not set(metrics.fields()) <= set(first.columns):
        return {}
    numbers: dict[str, dict[str, Any]] = {cell_id: {} for cell_id in results.rows}
    for row in metric_table.measure(results).to_dict("records"):
        name = row["quantity"]
        numbers[row["cell_id"]] |= {name: row["value"], f"{name}_lower": row["lower"]}
        numbers[row["cell_id"]] |= {f"{name}_upper": row["upper"], "verdict": row["verdict"] or None}
    for cell_id in results.cells.cell_id[results.cells.is_audit]:
        numbers[cell_id] = audits.judged(cell_id, results.rows[cell_id])
    return {
        cell_id: {key: value for key, value in values.items() if not pd.isna(value)}
        for cell_id, values in numbers.items()
    }


def _curves(rows: pd.DataFrame, has_times: bool) -> list[dict[str, float]]:
    """Every number of each prompt, and the metrics of the prompt alone; no times where none count."""
    values: dict[str, Any] = {
        metric.name: divide(rows[metric.numerator], rows[metric.denominator])
        for metric in metrics.METRICS
        if not metric.over and {metric.numerator, metric.denominator} <= set(rows.columns)
        if has_times or not metric.denominator.endswith("_s")
    }
    scalars = rows.select_dtypes("number").drop(columns=[STEP, "seed"])
    values |= {str(name): scalars[name] for name in scalars if has_times or not str(name).endswith("_s")}
    points = pd.DataFrame(values).add_prefix("prompt/").assign(**{STEP: rows[STEP]}).to_dict("records")
    return [{str(key): value for key, value in point.items() if not pd.isna(value)} for point in points]


def _wandb() -> Any:
    """The package, silent, and without what the environment says of another run."""
    for name in OF_ANOTHER_RUN:
        os.environ.pop(f"WANDB_{name}", None)
    os.environ |= {"WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}  # before its first line
    import wandb

    return wandb


def chosen_mode(mode: str) -> tuple[str, str]:
    """ "online", "offline" or "disabled", and a line for people where nobody chose it.

    mode: `wandb.mode`. "auto" follows WANDB_MODE and W&B's settings files, and is online only with a key.
    """
    if mode != "auto":
        return mode, ""
    settings = _wandb().sdk.wandb_setup.singleton().settings
    if settings._noop or settings._offline:
        return ("disabled" if settings._noop else "offline"), ""
    return ("online", "") if has_key() else ("disabled", NO_KEY)


def has_key() -> bool:
    """Whether W&B finds a key: in the environment, its settings files or the user's netrc file."""
    try:
        return bool(_wandb().login(prompt=False, verify=False))
    except Exception:  # noqa: BLE001 - a key of the wrong form: W&B says so when a run is sent
        return True


def send(run: Run, to: Destination) -> None:
    """Send a run and wait until W&B has it.

    A run that was sent before is resumed: W&B leaves out the steps that it has. Offline the earlier folder of
    the run is removed.
    Raises NotSent for whatever W&B or the network does.
    """
    try:
        to.results.mkdir(parents=True, exist_ok=True)
        wandb = _wandb()
        settings = wandb.Settings(
            silent=True, console="off", x_disable_stats=True, x_disable_meta=True, disable_git=True,
            disable_code=True, x_save_requirements=False, finish_timeout=FINISH_S, finish_timeout_raises=True,
            init_timeout=float(os.environ.get("WANDB_INIT_TIMEOUT", ANSWER_S)),
        )  # fmt: skip
        with wandb.init(
            id=run.run_id, group=run.group, job_type=run.job_type, name=run.name, notes=run.notes,
            tags=[tag[:64] for tag in run.tags], config=dict(run.config), resume="allow", mode=to.mode,
            project=to.project, entity=to.entity, dir=to.results, settings=settings,
        ) as live:  # fmt: skip
            live.define_metric(STEP, summary="none", hidden=True)
            live.define_metric("prompt/*", step_metric=STEP, summary="none")
            for step, point in enumerate(run.curves):
                live.log(dict(point), step=step)
            if media := _media(wandb, run):  # beside the last prompt; without prompts it gets a new step
                live.log(media, step=len(run.curves) - 1 if run.curves else None)
            live.summary.update(dict(run.summary))
            folder = Path(live.settings.sync_dir)
        for earlier in folder.parent.glob(f"offline-run-*-{run.run_id}") if to.mode == "offline" else ():
            if earlier != folder:
                shutil.rmtree(earlier)
    except Exception as error:  # whatever it is: the local rows are the record
        raise NotSent(f"{type(error).__name__}: {first_line(error)}") from error


def _media(wandb: Any, run: Run) -> dict[str, Any]:
    """Tables, histograms and images of a run by their names."""
    media: dict[str, Any] = {}
    for name, frame in run.tables.items():
        values = frame.astype(object).where(frame.notna(), None).values.tolist()
        media[name] = wandb.Table(columns=list(frame.columns), data=values, allow_mixed_types=True)
    for name, counts in run.counts.items():
        edges = [place + 0.5 for place in range(len(counts) + 1)]
        media[name] = wandb.Histogram(np_histogram=(list(counts), edges))
    return media | {name: wandb.Image(str(path)) for name, path in run.images.items()}


@contextmanager
def uploads(cells: Sequence[Cell], artefacts: Sequence[str]) -> Iterator[Callable[[Cell], None]]:
    """Send cells to W&B while a sweep measures them, if `wandb.mode` says so.

    Yields a function to call with every cell that is complete. It sends the cells of a setting once all of
    them are, so that a gain has its baseline and a row its audit; when the block ends, those that remain
    follow. Nothing raises: after the first run that W&B does not take, nothing more is sent. One line says
    what was sent, or why not all of it and how to send it later.

    cells: those that the block measures. artefacts: those that ask for them.
    """
    config = cells[0].config
    mode, line = chosen_mode(config["wandb"]["mode"])
    if line:
        sys.stderr.write(f"{line}\n")
    if mode == "disabled":
        yield lambda _: None
        return
    to = Destination(mode, config["wandb"]["project"], config["wandb"]["entity"], Path(config["results"]))
    waiting: list[set[str]] = []
    complete, num_sent, errors = set[str](), 0, list[str]()
    try:
        record = Record(to.results, config["profile"])
        waiting += map(set, record.settings([cell.cell_id for cell in cells]))
    except InvalidInput as error:
        errors.append(first_line(error))

    def send_settings(ready: Collection[set[str]]) -> None:
        nonlocal num_sent
        try:
            for setting in [setting for setting in waiting if setting in ready]:
                waiting.remove(setting)
                for run in record.runs(list(setting)):
                    if isinstance(run, InvalidInput):
                        errors.append(str(run))
                    else:
                        send(run, to)
                        num_sent += 1
        except Exception as error:  # noqa: BLE001 - whatever it is, it does not end a sweep
            errors.append(first_line(error))
            waiting.clear()

    def is_complete(cell: Cell) -> None:
        complete.add(cell.cell_id)
        send_settings([setting for setting in waiting if setting <= complete])

    yield is_complete
    send_settings(waiting)
    counted = f"W&B: {num_sent} run{'s' * (num_sent != 1)}"
    if not errors:
        sys.stderr.write(f"{counted} {to}\n")
        return
    values = {"experiment": ",".join(dict.fromkeys(artefacts)), "profile": config["profile"]}
    values |= {"results": config["results"]} if config["results"] != "results" else {}
    usual = asdict(WandbConfig())
    values |= {f"wandb.{name}": value for name, value in config["wandb"].items() if value != usual[name]}
    command = f"python -m experiments.publish {shlex.join(f'{key}={value}' for key, value in values.items())}"
    more = f" and {len(errors) - 1} more" if len(errors) > 1 else ""
    sys.stderr.write(f"{counted} sent, not all: {errors[0]}{more}; `{command}` sends them\n")
