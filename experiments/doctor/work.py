"""The sources of cells that are to run: models, repositories and files."""

from experiments.cell import Cell
from experiments.doctor.hub import Wanted


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
