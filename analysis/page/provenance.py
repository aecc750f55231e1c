"""The origin of the page's numbers: commits, devices, versions and times of all finished cells."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from analysis.load import Plan, commit_of, listed, origins
from resispec.errors import InvalidInput

FILE = "provenance.json"
"""Name of the file about the origin, in a cell's folder, beside the page and published tables."""
NAMES = {"device": "Device", "num_threads": "Threads", "platform": "Platform", "python": "Python"}


def facts(plans: Sequence[Plan]) -> dict[str, str]:
    """The known facts about the plans' cells: printed name -> distinct values in one text."""
    askers = {request.cell_id: plan for plan in plans for request in plan.requests}
    cells: list[dict[str, Any]] = []
    for cell_id in sorted(askers):
        plan = askers[cell_id]
        with suppress(InvalidInput):  # the artefact's section reports a damaged cell
            if plan.status(cell_id).state == "done":
                cells.append(plan.provenance(cell_id))
    cells = [cell for cell in cells if cell]
    runs = [run for cell in cells for run in origins(cell)]
    starts = sorted(str(run["started"]) for run in runs if run.get("started"))
    versions: dict[str, list[Any]] = {}
    for package, version in (pair for run in runs for pair in (run.get("versions") or {}).items()):
        versions.setdefault(package, []).append(version)
    rows = {"Cells measured": str(len(cells)), "Commit": listed(map(commit_of, runs))}
    rows |= {name: listed(run.get(key) for run in runs) for key, name in NAMES.items()}
    rows["Versions"] = ", ".join(
        f"{package} {listed(numbers)}" for package, numbers in versions.items()
    )
    rows["Measured"] = " to ".join(dict.fromkeys([*starts[:1], *starts[-1:]]))
    return {name: value for name, value in rows.items() if value}
