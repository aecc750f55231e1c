"""What W&B is shown of the local record: a run for every complete cell.

Everything is derived from the plans and the cells' folders, with the definitions of analysis, so that it can
be made again at any time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import audits, decoded, labels, metrics
from analysis.load import IDENTITY, SETTING, Plan, Request, Results, load, read_plan, read_state
from analysis.stats import divide
from experiments.dashboards.report import grid, report
from experiments.plan import AD_HOC
from experiments.tracking import STEP, Run
from resispec.errors import InvalidInput
from resispec.files import read_json

DECODING = "Decode"
"""The task whose cells have the metrics of `analysis.metrics`."""
FIRST = ("table", "figure")
"""A cell that several artefacts ask for is in the group of a table, else of a figure."""


@dataclass(frozen=True)
class Home:
    """The artefact that a cell is grouped under, and how this artefact asks for it."""

    plan: Plan
    request: Request

    @property
    def setting(self) -> tuple[Any, ...]:
        """What cells have in common that are compared."""
        own = self.request.labels
        more = sorted(
            (key, value) for key, value in own.items() if key not in ("decoder", "tree", "verifier")
        )
        return (self.plan.artefact, *more)


class Record:
    """What a results folder holds of one profile. Raises InvalidInput without a plan that can be read."""

    def __init__(self, results: Path, profile: str) -> None:
        self._results, self._profile = results, profile
        self._folder_of_plans = results / profile / "plans"
        found = {path.stem for path in self._folder_of_plans.glob("*") if path.name[0] != "."}
        if not found:
            raise InvalidInput(
                f"{self._folder_of_plans} holds no plan of a sweep; `make reproduce-table1` makes one"
            )
        self.artefacts = sorted(found, key=_rank)
        self._plans = {name: read_plan(name, profile, results) for name in self.artefacts}
        self._homes: dict[str, Home] = {}
        self._askers: dict[str, list[str]] = {}
        for name, plan in self._plans.items():
            for request in plan.requests:
                self._homes.setdefault(request.cell_id, Home(plan, request))
                askers = self._askers.setdefault(request.cell_id, [])
                askers += [name] * (name not in askers)

    def cells(self, artefact: str) -> list[str]:
        """The ids of the cells that an artefact asks for. Raises InvalidInput for one without a plan."""
        if artefact not in self._plans:
            allowed = ", ".join(self.artefacts)
            raise InvalidInput(
                f"no plan asks for {artefact!r} in {self._folder_of_plans}; allowed: {allowed}"
            )
        return list(dict.fromkeys(request.cell_id for request in self._plans[artefact].requests))

    def settings(self, cell_ids: Sequence[str]) -> list[list[str]]:
        """Cells that are compared with each other, together."""
        found: dict[tuple[Any, ...], list[str]] = {}
        for cell_id in cell_ids:
            found.setdefault(self._homes[cell_id].setting, []).append(cell_id)
        return list(found.values())

    def runs(self, cell_ids: Sequence[str]) -> Iterator[Run | InvalidInput]:
        """The runs of cells, without those that are not done; an error for one that cannot be read.

        cell_ids: one of `settings`, so that what they are compared with is read once.
        """
        home, done = self._homes[cell_ids[0]], {}
        for request in home.plan.requests:
            if Home(home.plan, request).setting == home.setting:
                try:
                    if read_state(self._folder(request.cell_id))["status"] == "done":
                        done[request.cell_id] = load(replace(home.plan, requests=(request,)), ())
                except InvalidInput as error:
                    if request.cell_id in cell_ids:
                        yield error
        for results in self._comparable(list(done.values())):
            try:
                measured = _measured(results)
            except InvalidInput as error:
                yield error
                continue
            for cell in results.cells.to_dict("records"):
                if cell["cell_id"] in cell_ids:
                    yield self._run(cell, results.rows[cell["cell_id"]], measured, results.more)

    def _comparable(self, loaded: Sequence[Results]) -> Iterator[Results]:
        """The cells of one setting, in groups that measured the same prompts with the same task.

        loaded: one cell each.
        """
        keys = tuple(dict.fromkeys(key for one in loaded for key in one.keys))
        groups: dict[str, list[Results]] = {}
        for one in loaded:
            [(cell_id, rows)] = one.rows.items()
            task = _task(read_json(self._folder(cell_id) / "cell.json")["config"])
            groups.setdefault(repr((task, rows[list(IDENTITY)].values.tolist())), []).append(one)
        for group in groups.values():
            cells = pd.concat([one.cells for one in group], ignore_index=True)
            cells[list(keys)] = cells.reindex(columns=keys).astype(object).fillna("")
            yield Results(cells, {name: rows for one in group for name, rows in one.rows.items()}, keys)

    def _run(
        self, cell: Mapping[str, Any], rows: pd.DataFrame, measured: Mapping[str, Any], more: Sequence[str]
    ) -> Run:
        folder = self._folder(cell["cell_id"])
        config = read_json(folder / "cell.json")["config"]
        provenance = read_json(folder / "provenance.json")
        rows_sha256 = hashlib.sha256((folder / "rows.jsonl").read_bytes()).hexdigest()
        job_type = "audit" if cell["is_audit"] else _task(config)
        job_type = "bench" if job_type == DECODING else job_type.lower()
        own = {key: cell[key] for key in (*SETTING, "decoder", "tree", "verifier", *more) if cell[key] != ""}
        tags = (self._profile, *self._askers[cell["cell_id"]], *(str(value) for value in own.values()))
        return Run(
            run_id=f"{cell['cell_id']}-{rows_sha256[:8]}",
            group=self._homes[cell["cell_id"]].plan.artefact,
            job_type=job_type,
            name=_name(cell, own, more, config["seed"]),
            tags=tuple(dict.fromkeys(tags)),
            config={key: value for key, value in config.items() if key != "wandb"}
            | {"cell_id": cell["cell_id"], "labels": own, "provenance": provenance},
            summary={"num_prompts": len(rows)} | measured.get(cell["cell_id"], {}),
            curves=_curves(rows, has_times=not cell["is_audit"]),
            counts=_counts(rows),
            tables={"prompts": grid(rows)},
        )

    def report(self, artefact: str) -> Run | None:
        """See `experiments.dashboards.report`."""
        return report(self._results, self._profile, artefact, self._plans[artefact].command)

    def _folder(self, cell_id: str) -> Path:
        return self._results / "raw" / self._profile / cell_id


def _rank(artefact: str) -> tuple[bool, int, str]:
    kinds = [number for number, kind in enumerate(FIRST) if artefact.startswith(kind)]
    return (artefact == AD_HOC, kinds[0] if kinds else len(FIRST), artefact)


def _task(config: Mapping[str, Any]) -> str:
    """The class of a cell's task."""
    return str(config["task"]["_target_"]).rpartition(".")[2]


def _measured(results: Results) -> dict[str, dict[str, Any]]:
    """What the tables say of cells that decode: every metric with its bounds, and the audit's verdict."""
    first = next(iter(results.rows.values()))
    if not set(metrics.fields()) <= set(first.columns):
        return {}
    found: dict[str, dict[str, Any]] = {cell_id: {} for cell_id in results.rows}
    for row in decoded.measure(results).to_dict("records"):
        name = row["quantity"]
        numbers = {name: row["value"], f"{name}_lower": row["lower"], f"{name}_upper": row["upper"]}
        found[row["cell_id"]] |= {key: value for key, value in numbers.items() if not pd.isna(value)}
        found[row["cell_id"]] |= {"verdict": row["verdict"]} if row["verdict"] else {}
    for cell_id in results.cells.cell_id[results.cells.is_audit]:
        judged = audits.judged(cell_id, results.rows[cell_id])
        found[cell_id] = {key: value for key, value in judged.items() if not pd.isna(value)}
    return found


def _name(cell: Mapping[str, Any], own: Mapping[str, Any], more: Sequence[str], seed: int) -> str:
    """Readable and unlike that of every other cell of its artefact: data set, method, T, seed, the rest."""
    words = [labels.text("dataset", cell["dataset"]), labels.method(cell["decoder"], cell["verifier"])]
    words += [labels.text("tree", cell["tree"])] if cell["tree"] else []
    words += [f"T={cell['temperature']:g}", f"seed={seed}", labels.text("pair", cell["pair"])]
    words += [f"{key}={own[key]}" for key in more if key in own and key != "seed"]
    return "/".join(words + ["audit"] * cell["is_audit"])


def _curves(rows: pd.DataFrame, has_times: bool) -> list[dict[str, float]]:
    """Every number that each prompt has, and the metrics of the prompt alone; no times where none count."""
    found = {
        metric.name: divide(rows[metric.numerator], rows[metric.denominator])
        for metric in metrics.METRICS
        if not metric.over and {metric.numerator, metric.denominator} <= set(rows.columns)
        if has_times or not metric.denominator.endswith("_s")
    }
    scalars = rows.select_dtypes("number").drop(columns=[STEP, "seed"])
    found |= {name: scalars[name] for name in scalars if has_times or not str(name).endswith("_s")}
    points = pd.DataFrame(found).add_prefix("prompt/").assign(**{STEP: rows[STEP]})
    return [
        {key: value for key, value in point.items() if not pd.isna(value)}
        for point in points.to_dict("records")
    ]


def _counts(rows: pd.DataFrame) -> dict[str, list[int]]:
    """How many steps emitted 1, 2, 3, ... tokens."""
    if "histogram" not in rows:
        return {}
    return {
        "accepted_length_histogram": [sum(column) for column in zip_longest(*rows.histogram, fillvalue=0)]
    }
