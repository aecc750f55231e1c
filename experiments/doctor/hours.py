"""How long a profile takes: by cells that are measured, by the device's costs, or at the paper's speed."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

from experiments.cells import Cell
from experiments.configuration.build import build
from experiments.configuration.schema import CONF
from experiments.costs.configuration import METHODS, ONE_TOKEN, Configuration
from experiments.costs.model import CostModel
from experiments.costs.record import known_costs
from experiments.doctor.device import Device
from experiments.doctor.finding import Finding, note, ok
from experiments.doctor.work import Work
from experiments.launcher import jobs_of
from experiments.plan import entry_of
from experiments.planned import Estimate, PlannedCell, elapsed, planned_cell
from experiments.status import duration
from resispec.errors import InvalidInput
from resispec.files import read_json
from resispec.trees import Topology, complete

RESULTS = CONF.parent / "results"
START_S = 15.0
"""What a cell's process takes to start and to read its models, where no cell was measured."""
TOKENS_A_STEP = 2.5
"""The least that the standard rule emits on d5b3 in the paper's Table 1."""
RACES = {"Race": 36}
"""How often a task decodes a prompt, where it is not once."""


def finding(work: Work, device: Device, profile: str, results: Path) -> Finding:
    """How long the rest of a profile takes, and what says so."""
    if not work.cells:
        return note("takes", "nothing")
    cells = [(cell, len(points)) for cell, points in work.cells.values()]
    workers = jobs_of(cells[0][0].config)
    done = measured(results / profile / "plans", results / "raw" / profile)
    spent = sum(cell.status.seconds for cell in done)
    if spent:
        raw = results / "raw" / profile
        asked = [planned_cell(entry_of(cell) | {"cell_id": "no-tree"}, raw) for cell, _ in cells]
        every = [one for one, (_, count) in zip(asked, cells, strict=True) for _ in range(count)]
        seconds = (Estimate(done).seconds(every, workers) or 0.0) - spent / workers
        return ok(
            "takes", f"about {duration(max(0.0, seconds))} more, by the {len(done)} cells that are done"
        )
    if (model := _costs(work, device, results)) is not None:
        seconds = elapsed(((_expected(cell, model) * count, cell.is_timed) for cell, count in cells), workers)
        said = "by what steps cost on this device and 2.5 tokens a step; no cell is measured yet"
        return ok("takes", f"about {duration(seconds)}, {said}")
    seconds = elapsed(((_as_in_the_paper(cell) * count, cell.is_timed) for cell, count in cells), workers)
    todo = f"`python -m experiments.bench.costs profile={profile}` times steps here, in minutes"
    said = f"not known for this device; {duration(seconds)} at the speed of the paper's RTX 3090"
    return note("takes", said, todo)


def measured(plans: Path, raw: Path) -> list[PlannedCell]:
    """The cells of all plans that are done, each once; a damaged plan is `make status`'s to report."""
    found: dict[str, PlannedCell] = {}
    for path in sorted(plans.rglob("*.json")) if plans.is_dir() else ():
        try:
            cells = [planned_cell(entry, raw) for entry in read_json(path)["cells"]]
        except (InvalidInput, LookupError, TypeError, ValueError):
            continue
        found |= {cell.key: cell for cell in cells if cell.status.state == "done"}
    return list(found.values())


def _costs(work: Work, device: Device, results: Path) -> CostModel | None:
    """The costs of the first pair that was timed on the device."""
    folders = [folder / "timing" for folder in (results, RESULTS / "published")]
    for cell in {cell.labels["pair"]: cell for cell, _ in work.cells.values()}.values():
        if (found := known_costs(cell.config, device.name, folders)) is not None:
            return found.model
    return None


def _expected(cell: Cell, model: CostModel) -> float:
    """Seconds of a cell by the device's costs."""
    config = cell.config
    configuration = _configuration(cell)
    tokens = min(TOKENS_A_STEP, configuration.topology.num_levels)
    length = config["prompt_tokens"] + config["sampling"]["max_new_tokens"] / 2
    try:
        step_s = model.step_s(configuration, length)
    except InvalidInput:  # its draws or its verifier were not timed
        step_s = model.step_s(Configuration("iid", "standard", configuration.topology), length)
    return START_S + _num_decoded(cell) * config["sampling"]["max_new_tokens"] / tokens * step_s


def _as_in_the_paper(cell: Cell) -> float:
    """Seconds of a cell at the tokens a second of the paper's slower decoder."""
    tokens = _num_decoded(cell) * cell.config["sampling"]["max_new_tokens"]
    return START_S + tokens / _slowest_in_the_paper()


@cache
def _slowest_in_the_paper() -> float:
    with (RESULTS / "reference" / "table1.csv").open(encoding="utf-8") as file:
        return min(float(row["specinfer_tokens_per_s"]) for row in csv.DictReader(file))


def _num_decoded(cell: Cell) -> int:
    task = str(cell.config["task"].get("_target_", "")).rpartition(".")[2]
    return RACES.get(task, 1) * (cell.config["num_prompts"] + cell.config["warmup_prompts"])


def _configuration(cell: Cell) -> Configuration:
    """What a cell decodes with; the standard rule on d5b3 stands for what is not known before it runs."""
    if "tree" not in cell.labels:
        return ONE_TOKEN
    drafter = cell.config["decoder"].get("drafter") or {}
    draws, verifier = str(drafter.get("draws", "iid")), str(cell.labels.get("verifier", ""))
    try:
        topology = build(cell.config["tree"])
    except InvalidInput:  # it is searched for
        topology = None
    known = topology if isinstance(topology, Topology) else complete(5, 3)
    return Configuration(draws, verifier if verifier in METHODS.get(draws, ()) else "standard", known)
