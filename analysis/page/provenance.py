"""Where the page's numbers come from: commits, devices, versions and commands of all finished cells."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis.load import Plan
from analysis.report import listed
from resispec.errors import InvalidInput
from resispec.files import read_json

NAMES = {
    "device": "Device",
    "num_threads": "Threads",
    "platform": "Platform",
    "python": "Python",
}


def facts(plans: Sequence[Plan], raw: Path) -> list[tuple[str, str]]:
    """What is known, a name and its distinct values each. raw: the folder of the profile's cells."""
    cells = {one.cell_id for plan in plans for one in plan.requests}
    found = [_read(raw / cell_id / "provenance.json") for cell_id in sorted(cells)]
    found = [one for one in found if one]
    started = sorted(str(one["started"]) for one in found if one.get("started"))
    versions: dict[str, list[Any]] = {}
    for one in found:
        for package, version in dict(one.get("versions") or {}).items():
            versions.setdefault(package, []).append(version)
    rows = [("Cells measured", str(len(found))), ("Commit", listed(_commit(one) for one in found))]
    rows += [(name, listed(one.get(key) for one in found)) for key, name in NAMES.items()]
    rows.append(("Versions", ", ".join(f"{package} {listed(seen)}" for package, seen in versions.items())))
    rows.append(("Measured", " to ".join(dict.fromkeys([*started[:1], *started[-1:]]))))
    return [(name, value) for name, value in rows if value]


def _read(path: Path) -> dict[str, Any]:
    """Empty where a cell was not measured; a damaged file is the cell's own section's to report."""
    try:
        return read_json(path) if path.is_file() else {}
    except InvalidInput:
        return {}


def _commit(one: dict[str, Any]) -> str:
    commit = str(one.get("git_commit") or "unknown")
    return f"{commit} (changed)" if one.get("git_is_dirty") else commit
