"""The paper's numbers, in results/reference/, one CSV per table of the paper."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from resispec.errors import InvalidInput

FOLDER = Path(__file__).resolve().parent.parent / "results" / "reference"


def read(table: str, columns: tuple[str, ...], folder: Path = FOLDER) -> pd.DataFrame:
    """A table of the paper.

    Raises:
        InvalidInput: when the file is missing or lacks one of `columns`.
    """
    path = folder / f"{table}.csv"
    if not path.is_file():
        raise InvalidInput(f"the paper's numbers {path} are missing; they are part of the repository")
    frame = pd.read_csv(path)
    missing = [column for column in columns if column not in frame]
    if missing:
        raise InvalidInput(f"the paper's numbers {path} lack columns {missing}; found {list(frame)}")
    return frame
