"""Facts about cells that are to run: the things that they read, and their time."""

from collections.abc import Sequence
from pathlib import Path

from experiments.cell import Cell
from experiments.doctor.hub import Wanted
from experiments.scheduler import jobs_of
from experiments.status import elapsed, planned_cell, time_left
from experiments.store import entry_of

START_S = 15.0
"""Seconds that a cell's process takes to start and to read its models, if no cell was measured."""
TOKENS_PER_S = 56.48
"""The lowest speed of the standard rule on d5b3 in the paper's Table 1, on an RTX 3090."""
RACES = {"Race": 36}
"""Task -> number of times that it decodes each prompt, if that is not 1."""


def models_of(cell: Cell) -> tuple[Wanted, ...]:
    """Models that a cell's pair reads; none for a pair that is made here,
    which has a fingerprint instead.
    """
    pair = cell.config["pair"]
    roles = (
        [] if "fingerprint" in pair else [role for role in ("target", "draft") if pair.get(role)]
    )
    return tuple(Wanted("model", str(pair[role]), pair.get(f"{role}_revision")) for role in roles)


def data_set_of(cell: Cell) -> Wanted | None:
    """The repository or the file of a cell's data set; None for text that is made here."""
    data = cell.config["dataset"]
    place = data.get("path") or data.get("repo")  # a path takes the repository's place
    folder = f"{data['config']}/" if data.get("config") else ""
    return Wanted("dataset", str(place), data.get("revision"), folder) if place else None


def read_by(cell: Cell) -> list[Wanted]:
    """All repositories and local paths that a cell reads."""
    return [wanted for wanted in (*models_of(cell), data_set_of(cell)) if wanted]


def seconds_left(cells: Sequence[Cell], raw: Path) -> tuple[float, int]:
    """Seconds that the rest of cells takes, and the number of done cells that the estimate is from.

    The number is 0 if it is from the slowest speed in the paper. raw: the folder of the cells'
    folders.
    """
    workers, planned = (
        jobs_of(cells[0].config),
        [planned_cell(entry_of(cell), raw) for cell in cells],
    )
    seconds = time_left(planned, planned, workers)
    if seconds is None:
        return elapsed([(_paper_s(cell), cell.is_timed) for cell in cells], workers), 0
    return seconds, sum(cell.status.state == "done" for cell in planned)


def _paper_s(cell: Cell) -> float:
    """Seconds that a cell takes at the slowest speed in the paper."""
    config = cell.config
    num_prompts = RACES.get(cell.task_name, 1) * (config["num_prompts"] + config["warmup_prompts"])
    return START_S + num_prompts * config["sampling"]["max_new_tokens"] / TOKENS_PER_S
