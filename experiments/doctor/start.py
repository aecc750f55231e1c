"""The part of the doctor that concerns a sweep, before its first cell and before anything is downloaded."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from experiments.cells import Cell
from experiments.doctor import checks, device
from experiments.doctor.finding import problems
from experiments.doctor.needs import data_of, is_on_hub, pairs_of, repositories_of
from experiments.doctor.repositories import look_at
from resispec.errors import InvalidInput


def check(cells: Sequence[Cell]) -> None:
    """Say in a line that cells can run, or in one each what keeps some of them from it.

    Cells on a CPU that read nothing of a hub need no check: nothing is said of them, and no time is spent.
    Raises InvalidInput when the device is not there, or when none of the cells can run.
    """
    concerned = [cell for cell in cells if cell.config["device"] != "cpu" or is_on_hub(cell)]
    if not concerned:
        return
    pairs, data = pairs_of(concerned), data_of(concerned)
    found = look_at(repositories_of(pairs, data))
    own = device.ask(concerned[0].config["device"])
    if own.missing:
        raise InvalidInput(f"device {own.kind}: {own.missing}; `make doctor` says more")
    of_pair = {need.name: problems([checks.pair(need, found, own)]) for need in pairs}
    for need in pairs:
        of_pair[need.name] += problems(checks.model(found[one]) for one in need.models)
    of_data = {need.name: problems([checks.data(need, found)]) for need in data}
    lines = dict.fromkeys(one for own_lines in (*of_pair.values(), *of_data.values()) for one in own_lines)
    if all(of_pair[cell.labels["pair"]] or of_data[cell.labels["dataset"]] for cell in cells):
        first, *others = lines
        more = f" (and {len(others)} more; `make doctor` lists them)" if others else ""
        raise InvalidInput(f"{first.name}: {first.found}; to do: {first.todo}{more}")
    sys.stderr.write("".join(f"{one}\n" for one in lines))
    if not lines:
        fits = ", ".join(of_pair)
        sys.stderr.write(f"doctor: {fits} on {own.name}, {', '.join(of_data)}: all there, and large enough\n")
