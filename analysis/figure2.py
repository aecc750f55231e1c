"""Figure 2: where rejections leave the target's law, rule by rule, after one typical prefix.

Usage: python -m analysis.figure2 --profile embedded
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from analysis import labels, residual_panels, script
from analysis.load import SETTING, Plan, Results, load
from analysis.published import Compared
from analysis.report import Table, footer, key_texts, plain, split_keys
from analysis.residual_panels import OVERDRAFTED
from analysis.stats import BRACKETS, Interval, ratio
from analysis.typical import Place, typical

QUANTITIES = {
    "rejected": "All rejected",
    "overlap": "Overlap with q",
    "overdraft": "On tokens with q > p",
    "outside": "Outside of q's support",
}
"""Fields with a value for every number of rejections, and their headers."""
CHOOSING = ("rejected", "overlap", "outside")
"""What is typical of the context that is drawn."""
LAWS = ("target", "draft", "residual", "emitted", "emitted_error")
FIELDS = (
    *("num_prefixes", "num_tuples", "context", "tokens", "texts", *LAWS),
    *(*QUANTITIES, "excess"),
)
DEFINITIONS = (
    "Rejections: k siblings were drafted and none was accepted. The residual is the law of the token that is "
    "emitted then; with k = 0 it is p. Where siblings are tested one after another, it is the law against "
    "which the next one is tested. ResiSpec's depends on the rejected tokens, and is averaged over {tuples} "
    "drafted tuples, each with the probability that all of it is rejected. The optimal rule has one proxy m "
    "for k siblings, fixed before they are drawn: its residual is norm(max(p - m, 0)).",
    "All rejected: how often a draft of k siblings comes to that. Overlap with q: sum of min(residual, q), "
    "averaged over rejected tokens; where siblings are tested one after another, the chance that the next "
    "one is accepted. On tokens with q > p: the residual's mass where the draft gives more than the target. "
    "Accepted siblings already emit all that p gives to these tokens, so the standard and the optimal rule "
    "leave nothing there. Outside of q's support: the residual's mass outside of the smallest set of tokens "
    "that holds 95 % of q. Excess: what is emitted in the end on tokens with q > p, minus p's share of them; "
    "0 for an exact rule, and at most the total variation between the emitted law and p. Means over "
    "prefixes.",
    "The context of the picture is chosen by a rule: of all prefixes, the one whose numbers (all rejected, "
    "overlap with q, outside of q's support, after every number of rejections, of the {reference} rule) are "
    "nearest to their medians over prefixes, in Euclidean distance; of equals the first. It ends with "
    "`` {quote} ``. The CSV has the medians and the context's numbers; all that is drawn is in "
    "figure2_context.csv.",
    "The paper's Figure 2 is a drawing without numbers, so there is nothing to compare with.",
)
PICTURE = (
    "Bars of probability by token, rule by rule, after 1, 2 and 3 rejections. What the standard and the "
    "optimal rule leave lies on tokens that the draft gives too little; what ResiSpec leaves lies mostly on "
    "tokens that the draft gives too much, and these come out too often in the end"
)
"""For who cannot see it."""


@dataclass(frozen=True)
class Context:
    """What is drawn: the cells of one setting, after one prefix.

    setting: the labels that these cells share. reference: the verifier by whose numbers the prefix was
    chosen. place: of the prefix. quote: how it ends.
    """

    setting: dict[str, Any]
    reference: str
    place: Place
    quote: str

    def holds(self, cell: dict[str, Any]) -> bool:
        """Whether a cell is drawn."""
        return all(cell[key] == value for key, value in self.setting.items())


def make(plan: Plan) -> script.Artefact:
    """The picture, its numbers, and the same quantities over all prefixes; every cell has a row."""
    results = load(plan, FIELDS)
    varying, fixed = split_keys(results.cells, (*SETTING, *results.more))
    context = choose(results)
    cells = [
        (cell, list(_records(cell, results, context.place if context and context.holds(cell) else None)))
        for cell in results.cells.to_dict("records")
    ]
    keys = [*(labels.header(key) for key in varying), "Method", "Rejections"]
    shown = [line for cell, records in cells for line in _shown(cell, records, varying)]
    table = Table(
        stem="figure2",
        frame=pd.DataFrame([record for _, records in cells for record in records]),
        shown=pd.DataFrame(shown, columns=[*keys, *QUANTITIES.values(), "Excess"]),
        num_keys=len(keys),
        caption=f"Figure 2 of the paper, {plan.profile} profile: what rejections leave of the target.{fixed}",
        notes=(*_notes(results, context), *footer(results, plan, BRACKETS)),
    )
    made = script.Artefact(
        (table,), suffixes=("csv", "md"), compared=Compared("overlap", "overlaps", ("rejections",))
    )
    if context is None:
        return made
    drawn = [(cell, records) for cell, records in cells if context.holds(cell)]
    laws = pd.DataFrame([bar for cell, _ in drawn for bar in _bars(cell, results, context.place)])
    caption = f"Figure 2: what is drawn, after `` {context.quote} ``."
    bars = plain("figure2_context", laws, caption, specs=dict.fromkeys(laws.select_dtypes("float"), ".4f"))
    numbers = pd.DataFrame([record for _, records in drawn for record in records])
    picture = residual_panels.draw(laws, numbers, context.quote)
    return replace(made, tables=(table, bars), figures={"figure2": picture})


def choose(results: Results) -> Context | None:
    """The first setting with a finished cell, and its typical prefix; None where no cell is done.

    The numbers that decide are those of the standard rule, or of the first cell that is done without it.
    """
    done = results.cells[results.cells.status == "done"]
    if done.empty:
        return None
    standard = done[done.verifier == "standard"]
    cell = (done if standard.empty else standard).iloc[0]
    rows = results.rows[cell.cell_id]
    place = typical(rows, CHOOSING)
    quote = " ".join(rows.context.iloc[place.row][place.prefix].split())
    return Context({key: cell[key] for key in (*SETTING, *results.more)}, cell.verifier, place, quote)


def _records(cell: dict[str, Any], results: Results, place: Place | None) -> Iterator[dict[str, Any]]:
    """Rows of the CSV; `median` is over prefixes, `context` is the number of the prefix that is drawn."""
    shared = {name: cell[name] for name in ("cell_id", *results.keys, "status", "reason")}
    rows = results.rows.get(cell["cell_id"])
    shared["num_prompts"] = 0 if rows is None else len(rows)
    if rows is None:
        empty = ("rejections", "value", "lower", "upper", "median", "context")
        yield shared | {"quantity": ""} | dict.fromkeys(empty, np.nan)
        return
    rejections = range(len(rows.rejected.iloc[0][0]))
    for quantity in QUANTITIES:
        for count in rejections:
            values = [[prefix[count] for prefix in prompt] for prompt in rows[quantity]]
            yield shared | _summary(quantity, count, values, place)
    yield shared | _summary("excess", rejections[-1], rows.excess.tolist(), place)


def _summary(quantity: str, count: int, values: list[list[float]], place: Place | None) -> dict[str, Any]:
    """values: one a prefix, for every prompt."""
    found = ratio([sum(prompt) for prompt in values], [len(prompt) for prompt in values])
    numbers = {"median": float(np.median(sum(values, [])))}
    numbers["context"] = np.nan if place is None else values[place.row][place.prefix]
    return {"quantity": quantity, "rejections": count} | vars(found) | numbers


def _bars(cell: dict[str, Any], results: Results, place: Place) -> Iterator[dict[str, Any]]:
    """What is drawn of a cell, bar by bar; nothing of one that is not done. White space is made visible."""
    if cell["cell_id"] not in results.rows:
        return
    prompt = results.rows[cell["cell_id"]].iloc[place.row]
    row = {name: prompt[name][place.prefix] for name in ("tokens", "texts", *LAWS)}
    for entry, (token, text) in enumerate(zip(row["tokens"], row["texts"], strict=True)):
        yield {
            "verifier": cell["verifier"],
            "side": OVERDRAFTED if entry < len(row["tokens"]) // 2 else "q <= p",
            "token": token,
            "text": text.replace("\n", "⏎").replace(" ", "␣") if token >= 0 else text,
            **{name: row[name][entry] for name in ("target", "draft")},
            **{f"residual_{k}": law[entry] for k, law in enumerate(row["residual"]) if k},
            **{name: row[name][entry] for name in ("emitted", "emitted_error")},
        }


def _shown(
    cell: dict[str, Any], records: Sequence[dict[str, Any]], varying: Sequence[str]
) -> Iterator[list[str]]:
    """The printed rows of a cell."""
    keys = [*key_texts(cell, varying), labels.name("verifier", cell["verifier"])]
    if cell["status"] != "done":
        yield [*keys, labels.ABSENT, labels.gap(cell), *[labels.ABSENT] * len(QUANTITIES)]
        return
    found = {}
    for one in records:
        mean = Interval(one["value"], one["lower"], one["upper"])
        found[one["quantity"], one["rejections"]] = labels.interval(mean, ".3f")
    for count in sorted({one["rejections"] for one in records}):
        numbers = (found.get((quantity, count), labels.ABSENT) for quantity in (*QUANTITIES, "excess"))
        yield [*keys, str(count), *numbers]


def _notes(results: Results, context: Context | None) -> tuple[str, ...]:
    """The picture and what its numbers mean."""
    if context is None:
        return ()
    tuples = sorted({f"{count:,}" for rows in results.rows.values() for count in rows.num_tuples})
    reference = labels.name("verifier", context.reference)
    words = {"tuples": ", ".join(tuples), "reference": reference, "quote": context.quote}
    picture = f"![{PICTURE}](figure2.png)"
    return (picture, *(note.format(**words) for note in DEFINITIONS))


def main(arguments: Sequence[str] | None = None) -> int:
    """The script."""
    return script.run("figure2", make, arguments)


if __name__ == "__main__":
    sys.exit(main())
