"""The part of the doctor that concerns a sweep, before its first cell and before anything is downloaded."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.cell import Cell
from experiments.doctor.checks import PROBLEM, Patient, data_set, problems_of_pair
from experiments.doctor.work import read_by
from resispec.errors import InvalidInput


def check(cells: Sequence[Cell]) -> None:
    """Say in a line that cells can run, or in one each what keeps some of them from it.

    Cells on a CPU that read nothing of a hub need no check: nothing is said of them, and no time is spent.
    Raises InvalidInput when the device is not there, or when none of the cells can run.
    """

    def is_concerned(cell: Cell) -> bool:
        return cell.config["device"] != "cpu" or not all(wanted.is_local for wanted in read_by(cell))

    if not (concerned := list(filter(is_concerned, cells))):
        return
    patient = Patient("", Path(), concerned)
    device = patient.device
    if device.missing:
        raise InvalidInput(f"device {device.kind}: {device.missing}; `make doctor` says more")
    of_pair = {name: problems_of_pair(cell, patient) for name, cell in patient.pairs.items()}
    data = {name: data_set(cell, patient) for name, cell in patient.data.items()}
    of_data = {name: [line] * (line.state == PROBLEM) for name, line in data.items()}
    lines = dict.fromkeys(line for own in (*of_pair.values(), *of_data.values()) for line in own)
    if all(of_pair[cell.labels["pair"]] or of_data[cell.labels["dataset"]] for cell in cells):
        first, *others = lines
        more = f" (and {len(others)} more; `make doctor` lists them)" if others else ""
        raise InvalidInput(f"{first.name}: {first.found}; to do: {first.todo}{more}")
    sys.stderr.write("".join(f"{line}\n" for line in lines))
    if not lines:
        fits, read = ", ".join(of_pair), ", ".join(of_data)
        sys.stderr.write(f"doctor: {fits} on {device.name}, {read}: all there, and large enough\n")
