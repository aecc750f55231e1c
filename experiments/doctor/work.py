"""Facts about cells that are to run: the things that they read, the nodes of their trees, and their time."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from analysis.load import readable_plans
from experiments.cell import Cell, build
from experiments.configurations import METHODS, ONE_TOKEN, Configuration
from experiments.costs import CostModel, known_costs
from experiments.doctor.hub import Wanted
from experiments.scheduler import jobs_of
from experiments.schema import CONF
from experiments.status import elapsed, planned_cell, time_left
from experiments.store import entry_of
from resispec.errors import InvalidInput
from resispec.trees import Topology, complete

NODES = 128
"""Verified positions assumed for a tree that is still to be searched for; no artefact has more."""
START_S = 15.0
"""Seconds that a cell's process takes to start and to read its models, if no cell was measured."""
TOKENS_A_STEP, TOKENS_PER_S = 2.5, 56.48
"""The lowest numbers of the standard rule on d5b3 in the paper's Table 1, on an RTX 3090."""
RACES = {"Race": 36}
"""Task -> number of times that it decodes each prompt, if that is not 1."""


def models_of(cell: Cell) -> tuple[Wanted, ...]:
    """Models that a cell's pair reads; none for a pair that is made here, which has a fingerprint instead."""
    pair = cell.config["pair"]
    roles = [] if "fingerprint" in pair else [role for role in ("target", "draft") if pair.get(role)]
    return tuple(Wanted("model", str(pair[role]), pair.get(f"{role}_revision")) for role in roles)


def trained_of(cell: Cell) -> list[str]:
    """The names of the folders of a pair that is trained here: its fingerprint is these names, joined."""
    pair = cell.config["pair"]
    return [] if "shape" in pair else list(filter(None, str(pair.get("fingerprint") or "").split("-")))


def data_set_of(cell: Cell) -> Wanted | None:
    """The repository or the file of a cell's data set; None for text that is made here."""
    data = cell.config["dataset"]
    place = data.get("path") or data.get("repo")  # a path takes the repository's place
    folder = f"{data['config']}/" if data.get("config") else ""
    return Wanted("dataset", str(place), data.get("revision"), folder) if place else None


def read_by(cell: Cell) -> list[Wanted]:
    """All repositories and local paths that a cell reads."""
    return [wanted for wanted in (*models_of(cell), data_set_of(cell)) if wanted]


def _topology(cell: Cell) -> Topology | None:
    """A cell's fixed tree; None for a tree that is dynamic or still to be searched for."""
    with suppress(InvalidInput):
        tree = build(cell.config["tree"])
        return tree if isinstance(tree, Topology) else None


def nodes_of(cell: Cell) -> int:
    """Verified positions of a cell's tree; NODES if the tree is still to be searched for."""
    if "tree" not in cell.labels:
        return 1
    if count := cell.config["tree"].get("num_nodes") or cell.config["tree"].get("total_token"):
        return int(count)
    topology = _topology(cell)
    return topology.num_nodes if topology else NODES


def seconds_left(cells: Sequence[Cell], profile: str, results: Path, device: str) -> tuple[float, str]:
    """Seconds that the rest of a profile's cells take, and the estimate's source, "" for the paper alone.

    device: the name of the hardware whose costs are looked for.
    """
    raw, workers = results / "raw" / profile, jobs_of(cells[0].config)
    plans = readable_plans(profile, results)  # `make status` reports a damaged plan
    planned = (planned_cell(request.entry, raw) for plan in plans for request in plan.requests)
    done = {cell.key: cell for cell in planned if cell.status.state == "done"}.values()
    if spent := sum(cell.status.seconds for cell in done):
        profile_cells = [planned_cell(entry_of(cell) | {"cell_id": "no-tree"}, raw) for cell in cells]
        seconds = (time_left(profile_cells, done, workers) or 0.0) - spent / workers
        return max(0.0, seconds), f"by the {len(done)} cells that are done"
    folders = [folder / "timing" for folder in (results, CONF.parent / "results" / "published")]
    pairs = {cell.labels["pair"]: cell.config for cell in cells}
    costs = next(filter(None, (known_costs(config, device, folders) for config in pairs.values())), None)
    times = [(_seconds(cell, costs), cell.is_timed) for cell in cells]
    source = "by what steps cost on this device and 2.5 tokens a step; no cell is measured yet"
    return elapsed(times, workers), source if costs else ""


def _seconds(cell: Cell, costs: CostModel | None) -> float:
    """Seconds of a cell that was not measured. costs: None takes the slowest speed in the paper.

    An unknown tree counts as d5b3, and a verifier whose costs are not known as standard.
    """
    config, task = cell.config, str(cell.config["task"].get("_target_", "")).rpartition(".")[2]
    new_tokens = config["sampling"]["max_new_tokens"]
    num_tokens = RACES.get(task, 1) * (config["num_prompts"] + config["warmup_prompts"]) * new_tokens
    if costs is None:
        return START_S + num_tokens / TOKENS_PER_S
    configuration = ONE_TOKEN
    if "tree" in cell.labels:
        draws = str((config["decoder"].get("drafter") or {}).get("draws", "iid"))
        verifier, verifiers = str(cell.labels.get("verifier", "")), METHODS.get(draws, ())
        method = (draws if verifiers else "iid", verifier if verifier in verifiers else "standard")
        configuration = Configuration(*method, _topology(cell) or complete(5, 3))
    rate = min(TOKENS_A_STEP, configuration.topology.num_levels)
    length = config["prompt_tokens"] + new_tokens / 2
    return START_S + num_tokens / rate * costs.step_s(configuration, length)
