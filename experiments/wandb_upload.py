"""Runs on W&B, derived from plans and cells' folders: one for each cell, one for each sweep.

The numbers are those of `analysis.cells`, so that a run can be made again at any time. This is the
only module that imports wandb; `experiments.publish` is its command.
"""

import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import SWEEP, audits, labels, metrics
from analysis.cells import METRICS, tidy
from analysis.load import LABELS, SEALED, Plan, Request, plan_names, read_plan
from analysis.stats import divide
from experiments.cell import Cell, file_name
from experiments.schema import leaves
from resispec.errors import InvalidInput

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
    files: Sequence[Path]
    facts: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, float | str] = field(default_factory=dict)
    points: Sequence[Mapping[str, float]] = ()
    counts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    images: Mapping[str, Path] = field(default_factory=dict)


class Record:
    """Plans and cells of a profile in a results folder.

    artefacts: names of the plans that are read, by default of all. name: a sweep's name; it is the
    group of all cells, which otherwise have the first plan that asks for them. Raises InvalidInput
    without a readable plan.
    """

    def __init__(
        self, results: Path, profile: str, artefacts: Collection[str] = (), name: str | None = None
    ) -> None:
        self._tables, self._raw = results / profile, results / "raw" / profile
        self._profile, self._name = profile, name
        folder, names = self._tables / "plans", plan_names(profile, results)
        if not names:
            raise InvalidInput(
                f"{folder} holds no plan of a sweep; `make reproduce-table1` makes one"
            )
        allowed = sorted(names, key=lambda name: (name == SWEEP, "table" not in name, name))
        if unknown := [name for name in artefacts if name not in names]:
            raise InvalidInput(
                f"no plan asks for {unknown[0]!r} in {folder}; allowed: {', '.join(allowed)}"
            )
        self.artefacts = list(artefacts) or allowed
        self._plans = {name: read_plan(name, profile, results) for name in self.artefacts}

    @property
    def sweeps(self) -> list[str]:
        """Names of the plans that were read, and of all sweeps that have a table."""
        tables = sorted(path.stem for path in (self._tables / "sweeps").glob("*.csv"))
        return list(dict.fromkeys([*self.artefacts, *tables]))

    def runs(self, cell_ids: Collection[str] | None = None) -> Iterator[Run | InvalidInput]:
        """Runs of cells that are done; an error for each cell and plan that cannot be read.

        cell_ids: by default those of all cells. Numbers that compare cells or judge an audit need
        these cells, too.
        """
        sweeps: dict[str, list[str]] = {}
        asked: dict[str, tuple[Plan, Request]] = {}
        numbers: dict[str, dict[str, Any]] = {}
        for artefact, plan in self._plans.items():
            complete = []
            for request in plan.requests:
                if cell_ids and request.cell_id not in cell_ids:
                    continue
                try:
                    if plan.status(request.cell_id).state == "done":
                        complete.append(request)
                except InvalidInput as error:
                    yield error
            try:
                measured = _numbers(plan, complete)
            except InvalidInput as error:
                yield error
                continue
            for request in complete:
                name = request.part if artefact == SWEEP and request.part else artefact
                sweeps.setdefault(request.cell_id, []).append(self._name or name)
                sweeps[request.cell_id].append(name)
                asked.setdefault(request.cell_id, (plan, request))
            for cell_id, values in measured.items():
                numbers[cell_id] = values | numbers.get(cell_id, {})
        for cell_id, (plan, request) in asked.items():
            yield self._run(plan, request, sweeps[cell_id], numbers.get(cell_id, {}))

    def _run(
        self, plan: Plan, request: Request, sweeps: Sequence[str], numbers: Mapping[str, Any]
    ) -> Run:
        """The run of a complete cell.

        Its id depends on the first row, which has times, so that a new measurement is another run.
        sweeps: names of those that ask for the cell. numbers: its metrics in the tables.
        """
        cell_id, config = request.cell_id, plan.configuration(request.cell_id)
        folder, rows = self._raw / cell_id, plan.prompts(cell_id)
        texts = {name: value for name, value in request.texts.items() if value != ""}
        words = [labels.text("dataset", request.labels["dataset"])]
        words += [labels.method(request.labels["decoder"], request.labels["verifier"])]
        if "tree" in texts:
            words.append(labels.text("tree", request.labels["tree"]))
        words += [f"T={texts['temperature']:g}", f"seed={config['seed']}"]
        words += [labels.text("pair", request.labels["pair"])]
        words += [f"{key}={texts[key]}" for key in texts if key not in (*LABELS, "seed")]
        if request.is_audit:
            words.append("audit")
            numbers = audits.judged(cell_id, rows)
        tags = [f"profile:{self._profile}", *(f"sweep:{name}" for name in dict.fromkeys(sweeps))]
        cell = Cell(texts, config)
        values = {path.replace(".", "/"): value for path, value in leaves(cell.determining).items()}
        named = {name: value for name, value in texts.items() if name in LABELS}
        first_line = (folder / "rows.jsonl").read_text(encoding="utf-8").partition("\n")[0]
        digest = hashlib.sha256(json.dumps(json.loads(first_line)).encode()).hexdigest()
        about = {
            "id": f"{cell_id}-{digest[:8]}",
            "group": sweeps[0],
            "job_type": "audit" if request.is_audit else cell.task_name.lower(),
            "name": "/".join(words),
            "tags": [*tags, *(f"{name}:{value}" for name, value in texts.items())],
            "config": {"cell_id": cell_id} | named | values,
        }
        is_list = rows.map(lambda value: isinstance(value, list)).any()
        counts = [sum(column) for column in zip_longest(*rows.get("histogram", ()), fillvalue=0)]
        return Run(
            about,
            f"rows-{cell_id}",
            [folder / name for name in SEALED],
            facts=plan.provenance(cell_id),
            summary={"num_prompts": len(rows), **numbers},
            points=_points(rows, has_times=not request.is_audit),
            counts={"accepted_length_histogram": counts} if counts else {},
            tables={"prompts": rows.loc[:, ~is_list]},
        )

    def report(self, sweep: str) -> Run | None:
        """The run of a sweep: the table of its cells, and its artefact's tables, figures, verdicts
        and notes. None if nothing of it is written yet.

        Its id never changes, so that a later report takes its place.
        """
        stem, folder, cells = sweep, self._tables, self._tables / "sweeps" / f"{sweep}.csv"
        drawn = sorted((self._tables / "sweeps" / sweep).glob("*.md"))
        if drawn:  # an artefact's tables of a sweep of one's own
            stem, folder = drawn[0].stem, drawn[0].parent
        files = sorted([*folder.glob(f"{stem}.*"), *folder.glob(f"{stem}_*.*")])
        page = folder / f"{stem}.md"
        files = files if page in files else []
        frames = {path.stem: pd.read_csv(path) for path in files if path.suffix == ".csv"}
        if cells.is_file():
            frames["cells"] = pd.read_csv(cells)
            files.append(cells)
        if not files:
            return None
        notes = page.read_text(encoding="utf-8").strip().split("\n\n") if page in files else []
        frame = frames.get(stem, frames.get("cells", pd.DataFrame()))
        counts = Counter[str]()
        if {"cell_id", "verdict"} <= set(frame):
            counts.update(frame.drop_duplicates("cell_id").verdict.dropna())
        command = self._plans[sweep].command if sweep in self._plans else None
        if command is None:
            command = " && ".join(dict.fromkeys(frames["cells"].command))
        about = {
            "id": f"report-{self._profile}-{sweep}",
            "group": sweep,
            "job_type": "report",
            "name": f"{sweep}/report",
            "tags": [f"profile:{self._profile}", f"sweep:{sweep}"],
            "config": {"artefact": sweep, "command": command},
            "notes": "\n\n".join(part for part in notes if not part.lstrip().startswith("|")),
        }
        return Run(
            about,
            file_name(about["id"]),
            files,
            summary={f"verdicts/{verdict}": count for verdict, count in sorted(counts.items())},
            tables=frames,
            images={f"figure/{path.stem}": path for path in files if path.suffix == ".png"},
        )


def _numbers(plan: Plan, requests: Sequence[Request]) -> dict[str, dict[str, Any]]:
    """Cell id -> its numbers in the tables, where these requests alone are compared.

    Raises InvalidInput for a cell that is not what its plan says.
    """
    ids = {request.cell_id for request in requests}
    numbers: dict[str, dict[str, Any]] = {}
    for row in tidy([plan.only(lambda request: request.cell_id in ids)]).to_dict("records"):
        known = {name: row[name] for name in (*METRICS, *audits.QUANTITIES, "verdict")}
        known = {name: value for name, value in known.items() if not pd.isna(value)}
        numbers[row["cell_id"]] = known | numbers.get(row["cell_id"], {})
    return numbers


def _points(rows: pd.DataFrame, has_times: bool) -> list[dict[str, float]]:
    """Every prompt's numbers, and metrics of it alone and of all prompts up to it.

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


def send(run: Run, to: Mapping[str, Any]) -> None:
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
    tags = [*run.about["tags"], *os.environ.get("WANDB_TAGS", "").split(",")]
    about = {**run.about, "tags": [tag[:64] for tag in dict.fromkeys(tags) if tag]}
    about["group"] = os.environ.get("WANDB_RUN_GROUP") or about["group"]
    live = wandb.init(**about, **to, resume="allow", settings=settings)
    live.define_metric(STEP, summary="none", hidden=True)
    live.define_metric("prompt/*", step_metric=STEP, summary="none")
    for metric in metrics.METRICS:
        live.define_metric(metric.name, step_metric=STEP)
    for point in run.points:
        live.log(dict(point), step=int(point[STEP]))
    media: dict[str, Any] = {name: wandb.Image(str(path)) for name, path in run.images.items()}
    for name, frame in run.tables.items():
        values = frame.astype(object).where(frame.notna(), None).values.tolist()
        columns = list(frame.columns)
        media[name] = wandb.Table(columns=columns, data=values, allow_mixed_types=True)
    for name, counts in run.counts.items():
        edges = [place + 0.5 for place in range(len(counts) + 1)]
        media[name] = wandb.Histogram(np_histogram=(list(counts), edges))
    live.log(media)
    kind = run.artifact.partition("-")[0]
    artifact = wandb.Artifact(run.artifact, type=kind, metadata=dict(run.facts))
    for path in run.files:
        # read in place, without a copy
        artifact.add_file(str(path), policy="immutable", skip_cache=True)
    live.log_artifact(artifact)
    live.summary.update(dict(run.summary))
    folder = Path(live.settings.sync_dir)
    live.finish()
    if live.offline:
        for earlier in folder.parent.glob(f"offline-run-*-{live.id}"):
            if earlier != folder:
                shutil.rmtree(earlier)
