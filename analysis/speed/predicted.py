"""How well the cost model predicted what was then measured: `speed_costs`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import labels
from analysis.load import Plan
from analysis.report import Table
from analysis.speed.words import entry_text
from resispec.errors import InvalidInput
from resispec.files import read_json

GOAL = 0.10
QUANTITIES = ("decoded_per_s", "step_ms", "accepted_length")
COLUMNS = (
    *("cell_id", "pair", "dataset", "temperature", "entry", "draws", "verifier", "num_nodes", "num_levels"),
    *("quantity", "expected", "measured", "lower", "upper", "expected_over_measured"),
)
HEADER = (
    "Verifier",
    "Positions",
    "Tokens/s",
    "expected",
    "ratio",
    "ms a step",
    "expected",
    "Tokens a step",
    "expected",
)
NOTES = (
    "Tokens/s here: emitted tokens over decoding seconds, without the prompt's forward. Expected ms a step: "
    "by the cost model of the device (`python -m experiments.bench.costs`), timed by itself. Expected tokens "
    "a step: from laws of drafted trees in text that the target wrote, on documents that are not "
    "measured here. Ratio: expected over measured. Over one token at a time a machine that was busier during "
    "one of the two measurements matters less.",
)


def read(path: Path) -> list[dict[str, Any]]:
    """What a file of `tree=fastest` says of every configuration that was compared last.

    Raises InvalidInput when it cannot be read.
    """
    about = read_json(path).get("about", {})
    if not isinstance(about, dict) or not isinstance(about.get("expected"), list):
        raise InvalidInput(f"{path} does not say what was expected; delete it to search again")
    return list(about["expected"])


def compare(frame: pd.DataFrame, plan: Plan) -> pd.DataFrame:
    """One row for every entry that was expected to do something, and each of QUANTITIES.

    frame: of `measured.measure`. Files that are not there any more expect nothing.
    """
    rows = []
    for one in plan.requests:
        if one.tree_file is None or not one.tree_file.is_file():
            continue
        expected = read(one.tree_file)
        own = frame[(frame.cell_id == one.cell_id) & frame.value.notna()]
        for _, entry in own.groupby("entry", sort=False):
            matches = [facts for facts in expected if _describes(facts, entry.iloc[0])]
            rows += [_row(quantity, entry, matches[0]) for quantity in QUANTITIES if matches]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _describes(facts: Mapping[str, Any], entry: Any) -> bool:
    """Whether facts are of an entry: of several trees of a kind, verifier and size the first is the best."""
    names = ("draws", "verifier", "num_nodes")
    same = all(facts[name] == entry[name] for name in names)
    return same and len(facts["child_counts"]) + 1 == entry["num_levels"]


def _row(quantity: str, entry: pd.DataFrame, facts: Mapping[str, Any]) -> dict[str, Any]:
    step_s, tokens = facts["step_s"], facts["expected_tokens"]
    expected = {"decoded_per_s": tokens / step_s, "step_ms": 1e3 * step_s, "accepted_length": tokens}[
        quantity
    ]
    found = entry[entry.quantity == quantity].iloc[0]
    kept = {name: found[name] for name in COLUMNS if name in found}
    numbers = {"measured": found.value, "expected": expected}
    return kept | numbers | {"quantity": quantity, "expected_over_measured": expected / found.value}


def table(compared: pd.DataFrame, plan: Plan) -> Table:
    """The table of all comparisons; its last note counts how many are within GOAL."""
    lines = []
    keys = ["pair", "dataset", "temperature", "entry"]
    for _, rows in compared.groupby(["cell_id", *keys], sort=False):
        first, by = rows.iloc[0], rows.set_index("quantity")
        line = [labels.text(key, first[key]) for key in keys[:3]] + [entry_text(first)]
        line += [labels.name("verifier", first.verifier), str(int(first.num_nodes))]
        for quantity, spec in zip(QUANTITIES, (".0f", ".2f", ".2f"), strict=True):
            found = by.loc[quantity]
            line += [labels.number(found.measured, spec), labels.number(found.expected, spec)]
            line += [labels.number(found.expected_over_measured, ".2f")] * (quantity == QUANTITIES[0])
        lines.append(line)
    header = [*(labels.header(key) for key in keys[:3]), "Entry", *HEADER]
    return Table(
        stem="speed_costs",
        frame=compared,
        shown=pd.DataFrame(lines, columns=header),
        num_keys=5,
        caption=f"Expected against measured speed, {plan.profile} profile.",
        notes=(*NOTES, *summary(compared)),
    )


def summary(compared: pd.DataFrame) -> Sequence[str]:
    """How many predictions are within GOAL, in one note; none without predictions."""
    said = []
    names = {"decoded_per_s": "tokens/s", "step_ms": "ms a step", "accepted_length": "tokens a step"}
    for quantity, name in names.items():
        own = compared[compared.quantity == quantity]
        said += _within(name, own.expected_over_measured)
        if quantity == "decoded_per_s":
            one_token = own[own.num_nodes == 1].groupby("cell_id").expected_over_measured.first()
            others = own[(own.num_nodes > 1) & own.cell_id.isin(one_token.index)]
            relative = others.expected_over_measured / others.cell_id.map(one_token)
            said += _within("tokens/s over those of one token at a time", relative)
    return (f"Expected against measured. {'; '.join(said)}.",) if said else ()


def _within(name: str, ratios: pd.Series) -> list[str]:
    if not len(ratios):
        return []
    errors = (ratios.astype(float) - 1).abs()
    within = int((errors <= GOAL).sum())
    return [f"{name}: {within} of {len(errors)} within {GOAL:.0%}, at most {errors.max():.0%} off"]
