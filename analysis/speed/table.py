"""The table of speeds: tokens a second and time a token against verified positions.

Usage: python -m analysis.speed --profile embedded
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis import labels, script
from analysis.load import SETTING, Plan, Results, load
from analysis.published import Compared
from analysis.report import Table, footer, key_texts, split_keys
from analysis.speed import figure, predicted
from analysis.speed.measured import DESCRIBING, FASTEST, FIELDS, measure
from analysis.speed.words import entry_text
from analysis.stats import BRACKETS, Interval

PICTURE = "![Tokens a second against verified positions](speed.png)"
HEADER = ("Entry", "Verifier", "Positions", "Levels")
NUMBERS = {
    "tokens_per_s": ("Tokens/s", ".0f"),
    "ms_per_token": ("ms a token", ".2f"),
    "accepted_length": ("Accepted length", ".2f"),
    "speedup_vs_one_token": ("Over one token", ".2f"),
}
DEFINITIONS = (
    "Every prompt is decoded by all entries in turn, in an order that is drawn anew for each prompt, so "
    "that noise falls on all alike. Tokens/s: tokens returned over seconds of the whole call, the prompt's "
    "forward included. Accepted length: tokens emitted per forward of the target. Over one token: tokens/s "
    "over those of one token at a time. Best: the fastest of its kind and number of positions by expected "
    "tokens a step and the cost model of the device; tree=fastest: the fastest of all, which may be not to "
    "speculate.",
    "Wins at cost ratios: if a forward of the target cost the same for any number of positions here, as "
    "where memory bounds it, between which ratios of a draft forward to a target forward no other entry "
    "would be faster, by the accepted lengths measured here.",
)
ENGINES = "Transformers drafts 4 tokens a step at most, and stops drafting by its own confidence threshold."


def make(plan: Plan) -> script.Artefact:
    """The table of all entries, that of the predictions, and the figure."""
    results = load(plan, FIELDS)
    frame = measure(results)
    compared = predicted.compare(frame, plan)
    verdicts = tuple(line for _, own in frame.groupby("cell_id", sort=False) for line in goal(own))
    notes = (PICTURE, *verdicts, *predicted.summary(compared), *DEFINITIONS, ENGINES)
    table = _table(frame, results, plan, (*notes, *footer(results, plan, BRACKETS)))
    tables = (table, predicted.table(compared, plan))
    lengths = Compared("accepted_length", "accepted lengths", ("entry",))
    return script.Artefact(tables, {"speed": figure.draw(frame)}, compared=lengths)


def goal(own: pd.DataFrame) -> Sequence[str]:
    """How near `tree=fastest` came to the fastest entry and to one token at a time, of one cell's rows."""
    rates = own[(own.quantity == "tokens_per_s") & own.value.notna()].set_index("entry")
    if rates.empty:
        return ()
    fastest, best = rates.loc[FASTEST], str(rates.value.idxmax())
    by = own[own.entry == FASTEST].set_index("quantity")[["value", "lower", "upper"]]
    found = f"{fastest.num_nodes:.0f} positions" if fastest.num_nodes > 1 else "no speculation"
    share, speedup = (
        labels.interval(Interval(*by.loc[name]), ".2f") for name in ("share_of_best", "speedup_vs_one_token")
    )
    near = "the fastest entry"
    if best != FASTEST:
        is_same = all(fastest[name] == rates.loc[best][name] for name in DESCRIBING[1:])
        named = f"{best.replace('_', ' ')}{', the same configuration' if is_same else ''}"
        near = f"{share} of the fastest entry ({named})"
    said = f"{found}, {near}, and {speedup} of one token at a time"
    return (f"At T={fastest.temperature:g} tree=fastest is {said}.",)


def _table(frame: pd.DataFrame, results: Results, plan: Plan, notes: Sequence[str]) -> Table:
    keys = (*SETTING, *results.more)
    varying, fixed = split_keys(results.cells, keys)
    lines = [
        _line(rows, varying) for _, rows in frame.groupby(["cell_id", *results.keys[:3], "entry"], sort=False)
    ]
    header = [*(labels.header(key) for key in varying), *HEADER]
    header += [title for title, _ in NUMBERS.values()] + ["Wins at cost ratios"]
    return Table(
        stem="speed",
        frame=frame,
        shown=pd.DataFrame(lines, columns=header),
        num_keys=len(varying) + len(HEADER),
        caption=f"Speed of exact decoding, {plan.profile} profile.{fixed}",
        notes=tuple(notes),
    )


def _line(rows: pd.DataFrame, varying: Sequence[str]) -> list[str]:
    """The printed row of one entry; a cell that is not done says so in place of its first number."""
    first, by = rows.iloc[0], rows.set_index("quantity")
    line = key_texts(first, varying)
    if first.status != "done":
        return [*line, *[labels.ABSENT] * len(HEADER), labels.gap(first), *[labels.ABSENT] * len(NUMBERS)]
    sizes = [str(int(first[name])) if first[name] else labels.ABSENT for name in ("num_nodes", "num_levels")]
    verifier = labels.name("verifier", first.verifier) if first.num_nodes > 1 else labels.ABSENT
    line += [entry_text(first), verifier, *sizes]
    for quantity, (_, spec) in NUMBERS.items():
        found = by.loc[quantity]
        line.append(labels.interval(Interval(found.value, found.lower, found.upper), spec))
    return [*line, _between(first)]


def _between(row: Mapping[str, Any]) -> str:
    low, high = row["wins_from_ratio"], row["wins_up_to_ratio"]
    if pd.isna(low):
        return labels.ABSENT
    return f"from {low:.3f}" if math.isinf(high) else f"{low:.3f} to {high:.3f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The script."""
    return script.run("speed", make, arguments)
