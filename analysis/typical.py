"""Which prefix stands for all: the one that is nearest to the medians."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd


@dataclass(frozen=True)
class Place:
    """A prefix of a cell. row: of its prompt, among the cell's rows. prefix: among those of the prompt."""

    row: int
    prefix: int


def typical(rows: pd.DataFrame, fields: Sequence[str]) -> Place:
    """The prefix whose numbers are nearest to their medians over all prefixes, in Euclidean distance.

    rows: of one cell; every field holds one list of numbers a prefix. Of equals the first is taken.
    """
    places = [Place(row, prefix) for row, count in enumerate(rows.num_prefixes) for prefix in range(count)]
    numbers = np.array([
        [value for field in fields for value in rows[field].iloc[place.row][place.prefix]] for place in places
    ])  # fmt: skip
    distances = np.linalg.norm(numbers - np.median(numbers, axis=0), axis=1)
    return places[int(distances.argmin())]
