"""The file in which a device's costs are: measured once for each pair, at first use or by the bench.

`RESULTS/timing/DEVICE.json` has an entry for every pair that was timed on the device, named by what
determines its times. It imports no torch before something is measured or the device's name is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.cell import Cell
from experiments.costs.configuration import METHODS
from experiments.costs.model import CostModel, Timed
from resispec.errors import InvalidInput, first_line
from resispec.files import locked, read_json, write_json

if TYPE_CHECKING:
    from experiments.worker import Report

FORMAT = "resispec costs 1"
WHAT = "times of steps"


@dataclass(frozen=True)
class Costs:
    """Costs of a pair on a device.

    source: which entry, where and when, for the `about` of what is made from it.
    """

    model: CostModel
    source: dict[str, Any]


def file_of(config: Mapping[str, Any]) -> Path:
    """The file of the device that a cell's configuration names."""
    import torch

    from experiments.provenance import device_stem
    from resispec.models import check_device

    check_device(config["device"])

    return Path(config["results"]) / "timing" / f"{device_stem(torch.device(config['device']))}.json"


def key_of(config: Mapping[str, Any]) -> str:
    """16 hexadecimal digits that name a pair with whatever else its times depend on, but for the device.

    Which verifiers are timed is a part of it, so that times are taken again where one is new.
    """
    facts = {name: config[name] for name in ("pair", "num_threads", "compiled")}
    facts["num_threads"] = facts["num_threads"] or os.environ.get("OMP_NUM_THREADS")  # which torch heeds
    return Cell({}, facts | {"verifiers": METHODS}).cell_id


def costs_of(cell: Cell, report: Report, again: bool = False) -> Costs:
    """The costs of a cell's pair on its device, measured first where the file lacks them, or `again`.

    Only one process at a time measures. Raises InvalidInput for a file that is damaged.
    """
    path, key = file_of(cell.config), key_of(cell.config)
    entries = read(path)
    if again or key not in entries:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_name(f".{path.name}.measuring"), lambda: report(f"{WHAT}: waiting", 0, 1)):
            entries = read(path)  # another process may have measured meanwhile
            if again or key not in entries:
                entries = write(path, key, _measured(cell, report))
    return _costs(path, key, entries[key])


def known_costs(config: Mapping[str, Any], device: str, folders: Iterable[Path]) -> Costs | None:
    """The costs of a configuration's pair where a file in one of the folders has them; nothing is measured.

    device: the hardware's own name. A damaged file counts as none.
    """
    key = key_of(config)
    for path in (path for folder in folders for path in sorted(folder.glob("*.json"))):
        with suppress(InvalidInput):
            entry = read(path).get(key)
            if isinstance(entry, dict) and entry.get("device") == device:
                return _costs(path, key, entry)
    return None


def read(path: Path) -> dict[str, Any]:
    """The entries of a file by their names; none where there is no file.

    Raises InvalidInput, one line that names the file, when it is no such file.
    """
    if not path.exists():
        return {}
    try:
        content = read_json(path)
    except InvalidInput as error:
        raise InvalidInput(f"{error}; delete it, and costs are measured again") from error
    if content.get("format") != FORMAT or not isinstance(content.get("pairs"), dict):
        found = content.get("format")
        raise InvalidInput(
            f"{path} holds no costs: its format is {found!r}; allowed: {FORMAT!r}; delete it, and costs are "
            "measured again"
        )
    return dict(content["pairs"])


def write(path: Path, key: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Write one entry among those of the file; return all of them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_name(f".{path.name}.lock"), lambda: None):
        entries = read(path) | {key: dict(entry)}
        write_json(path, {"format": FORMAT, "device": entry.get("device", ""), "pairs": entries})
    return entries


def _costs(path: Path, key: str, entry: Any) -> Costs:
    try:
        model = CostModel.fitted([Timed.of(facts) for facts in entry["steps"]])
        source = {name: entry[name] for name in ("device", "git_commit", "started")}
    except (InvalidInput, LookupError, TypeError, ValueError, AttributeError) as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        message = f"{path}: entry {key} is damaged ({reason}); delete the file, and costs are measured again"
        raise InvalidInput(message) from error
    return Costs(model, {"file": str(Path(*path.parts[-2:])), "entry": key, **source})


def _measured(cell: Cell, report: Report) -> dict[str, Any]:
    """An entry: every step that was timed, and where and when that was."""
    from experiments.cell import build
    from experiments.costs.time_steps import ROUNDS, time_probes
    from experiments.provenance import provenance
    from experiments.worker import build_pair

    config = cell.config
    report(WHAT, 0, 1)
    pair = build_pair(config)
    documents = build(config["dataset"]).prompts(config["num_prompts"])
    text = [token for document in documents for token in pair.tokenizer.encode(document.text)]
    load = os.getloadavg()[0]
    rounds = ROUNDS[pair.target.device.type]
    steps = time_probes(pair, text, lambda done, count: report(WHAT, done, count), rounds)
    facts = provenance(pair.target.device)
    kept = ("device", "git_commit", "git_is_dirty", "started", "num_threads", "num_cores", "versions")
    return {
        "pair": str(cell.labels["pair"]),
        "dtype": config["dtype"],
        "num_rounds": rounds,
        "load_average": round(load, 2),
        **{name: facts[name] for name in kept},
        "steps": [one.facts for one in steps],
    }
