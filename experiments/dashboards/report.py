"""What W&B is shown of an artefact: its tables, its figures, its verdicts and its notes, in one run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pandas as pd

from experiments.tracking import Grid, Run


def report(results: Path, profile: str, artefact: str, command: str) -> Run | None:
    """The report of an artefact; None before its script has written it. command: what makes the artefact.

    It has one id for all times: what the artefact holds later takes its place.
    """
    folder = results / profile
    page = folder / f"{artefact}.md"
    if not page.is_file():
        return None
    files = sorted([*folder.glob(f"{artefact}.*"), *folder.glob(f"{artefact}_*.*")])
    frames = {path.stem: pd.read_csv(path) for path in files if path.suffix == ".csv"}
    return Run(
        run_id=f"report-{profile}-{artefact}",
        group=artefact,
        job_type="report",
        name=f"{artefact}/report",
        tags=(profile, artefact, "report"),
        config={"artefact": artefact, "profile": profile, "command": command},
        notes=_notes(page.read_text(encoding="utf-8")),
        summary=_verdicts(frames[artefact]) if artefact in frames else {},
        tables={name: grid(frame) for name, frame in frames.items()},
        images={f"figure/{path.stem}": path for path in files if path.suffix == ".png"},
    )


def grid(frame: pd.DataFrame) -> Grid:
    """A table with the values of a data frame; an empty field is None."""
    return Grid(list(frame.columns), frame.astype(object).where(frame.notna(), None).values.tolist())


def _notes(page: str) -> str:
    """A page without its tables."""
    return "\n\n".join(part for part in page.strip().split("\n\n") if not part.lstrip().startswith("|"))


def _verdicts(frame: pd.DataFrame) -> dict[str, float | str]:
    """How many cells have each verdict."""
    if not {"cell_id", "verdict"} <= set(frame.columns):
        return {}
    verdicts = Counter(frame.drop_duplicates("cell_id").verdict.dropna())
    return {f"verdicts/{name}": count for name, count in sorted(verdicts.items())}
