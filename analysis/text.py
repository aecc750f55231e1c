"""Text: perplexity, repetition and length of what verifiers write, beside no speculation."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis import labels, long
from analysis.artefact import Artefact, footer, run, texts
from analysis.audits import METHOD
from analysis.load import Plan, Results, load
from analysis.metrics import ACCEPTED_LENGTH, Metric
from analysis.stats import BRACKETS, LEVEL, paired_difference
from analysis.table import Column, Found, Number, Table
from resispec.errors import InvalidInput

TEXTS = texts("text")
SEED = "seed"
BASELINE = "autoregressive"
FIELDS = (
    "num_returned", "num_emitted", "num_steps", "stop_reason", "surprisal", "surprisal_unwarped",
    "num_outside", "num_ngrams", "num_distinct",
)  # fmt: skip
DIFFERENCE = "_difference"
"""Ending of the name of a quantity's difference to no speculation."""


def _quantity(name: str, label: str, *sums: str, spec: str = ".3f") -> Metric:
    """A ratio of two of the `sums` over answers."""
    return Metric(name, label, "", *sums, spec=spec)


QUANTITIES = (
    _quantity("surprisal", "Perplexity", "surprisal", "inside", spec=".2f"),
    _quantity(
        "surprisal_unwarped", "Perplexity, T = 1", "surprisal_unwarped", "num_returned", spec=".2f"
    ),
    *(
        _quantity(f"distinct_{n}", f"Distinct {n}", f"distinct_{n}", f"ngrams_{n}")
        for n in (1, 2, 3)
    ),
    _quantity("repeated_4", "Repeated 4", "repeated_4", "ngrams_4"),
    _quantity("answer_tokens", "Tokens", "num_returned", "answers", spec=".1f"),
    _quantity("ended", "Ended", "ended", "answers"),
)
"""Numbers of a text, each of which may differ from those of no speculation."""
ALL = (ACCEPTED_LENGTH, *QUANTITIES)
LOGS = ("surprisal", "surprisal_unwarped")
"""Names of the mean surprisals, which are printed as perplexities: as their exp."""
STRICT = 1 - (1 - LEVEL) / len(QUANTITIES)
"""Level of each difference's interval, so that all of a row hold at LEVEL (Bonferroni)."""


def make(plan: Plan) -> Artefact:
    """The table of the numbers, and that of their differences to no speculation."""
    results = load(plan, FIELDS)
    more = [key for key in results.more if key != SEED]
    frame = _frame(results, more)
    runs = results.cells[SEED].nunique() if SEED in results.cells else 1
    words = {"count": len(QUANTITIES), "level": 100 * STRICT}
    about = [text.format(**words) for text in TEXTS["about"]]
    notes = footer(results, plan, about, [TEXTS["definitions"], BRACKETS])
    keys = ["pair", "temperature", *more, *METHOD]
    varying, fixed = long.split_keys(frame, ("pair", "temperature", *more, "tree", "method"))
    names = long.names(varying)
    caption = TEXTS["caption"].replace("{runs}", f"{runs} runs" if runs > 1 else "one run") + fixed
    caption = caption.replace("{datasets}", labels.together(results.cells.dataset))
    lines = long.tabulate(frame, keys, [*names, *_columns()])
    differences = frame[frame.decoder != BASELINE]
    shown = [*names, *map(_difference, QUANTITIES)]
    more = footer(results, plan, [TEXTS["differences_about"].format(**words)])
    return Artefact(
        (
            Table("text", *lines, caption, frame, notes),
            Table(
                "text_differences",
                *long.tabulate(differences, keys, shown),
                TEXTS["differences_caption"] + fixed,
                differences[differences.quantity.str.endswith(DIFFERENCE)],
                more,
            ),
        )
    )


def sums(rows: pd.DataFrame) -> pd.DataFrame:
    """The sums of each prompt that QUANTITIES divide, with its id. rows: of the task `text`."""
    ngrams, distinct = (
        pd.DataFrame(rows[name].tolist(), index=rows.index).rename(columns=lambda n: n + 1)
        for name in ("num_ngrams", "num_distinct")
    )
    return pd.DataFrame(
        rows[["prompt_id", "num_emitted", "num_steps", "num_returned"]]
        .assign(
            surprisal=rows.surprisal,
            surprisal_unwarped=rows.surprisal_unwarped,
            inside=rows.num_returned - rows.num_outside,
            repeated_4=ngrams[4] - distinct[4],
            answers=1,
            ended=(rows.stop_reason == "eos").astype(int),
        )
        .join(ngrams.add_prefix("ngrams_"))
        .join(distinct.add_prefix("distinct_"))
    )


def _by_prompt(results: Results, cells: pd.DataFrame) -> pd.DataFrame:
    """The sums of each prompt over the runs of a method, by data set and prompt."""
    parts = [
        sums(results.rows[cell["cell_id"]]).assign(dataset=str(cell["dataset"]))
        for cell in cells.to_dict("records")
        if cell["cell_id"] in results.rows
    ]
    return pd.concat(parts).groupby(["dataset", "prompt_id"]).sum() if parts else pd.DataFrame()


def _frame(results: Results, more: Sequence[str]) -> pd.DataFrame:
    """The long frame: a row for each setting, method and quantity, over data sets and seeds.

    more: keys of a setting beside its pair and temperature.
    """
    records: list[dict[str, Any]] = []
    keys = ["pair", "temperature", *more]
    for values, setting in results.cells.groupby(keys, sort=False):
        baseline = _by_prompt(results, setting[setting.decoder == BASELINE])
        for method, cells in setting.groupby(METHOD, sort=False):
            gaps = cells[cells.status != "done"]
            about = dict(zip([*keys, *METHOD], [*values, *method], strict=True))
            first = (gaps if len(gaps) else cells).iloc[0]
            own = _by_prompt(results, cells)
            about |= {"status": first.status, "reason": first.reason, "num_prompts": len(own)}
            if len(gaps):
                records.append(about | {"quantity": ACCEPTED_LENGTH.name})
                continue
            numbers = {one.name: one.of(own) for one in ALL}
            if about["decoder"] != BASELINE and len(baseline):
                _check_alike(results, cells, setting[setting.decoder == BASELINE], about)
                numbers |= {
                    one.name + DIFFERENCE: paired_difference(
                        (own[one.numerator], own[one.denominator]),
                        (baseline[one.numerator], baseline[one.denominator]),
                        STRICT,
                    )
                    for one in QUANTITIES
                }
            records += long.records(about, numbers)
    names = [*keys, *METHOD, "status", "reason", "num_prompts", "quantity"]
    frame = pd.DataFrame(records, columns=[*names, "value", "lower", "upper"])
    return frame.astype(dict.fromkeys(("value", "lower", "upper"), float))


def _facts(results: Results, cells: pd.DataFrame) -> dict[tuple[str, str], list[Any]]:
    """The number of prompts, the limits and the dtype of each done cell, by data set and seed."""
    facts = {}
    for cell in cells.to_dict("records"):
        if (rows := results.rows.get(cell["cell_id"])) is not None:
            place = str(cell["dataset"]), str(cell.get(SEED, ""))
            facts[place] = [len(rows), *rows.attrs["alike"]]
    return facts


def _check_alike(
    results: Results, cells: pd.DataFrame, baseline: pd.DataFrame, about: Mapping[str, Any]
) -> None:
    """Raise InvalidInput unless a method has the runs, limits and dtype of no speculation.

    That the prompts of a data set are the same is checked where they are loaded.
    """
    own, theirs = _facts(results, cells), _facts(results, baseline)
    for place in {**theirs, **own}:
        if own.get(place) != theirs.get(place):
            where = f"{about['decoder']} {about['verifier']} at T = {about['temperature']:g}"
            raise InvalidInput(
                f"{where} has {own.get(place, 'no run')} on {' '.join(place).strip()} (prompts, "
                "max_new_tokens, max_length, ignore_eos, dtype); allowed: those of no "
                f"speculation, {theirs.get(place, 'no run')}"
            )


def _columns() -> list[Column]:
    """The columns of the numbers, and that of those that differ."""

    def number(quantity: Metric) -> Column:
        def cell(rows: Found) -> Number:
            row = rows.get((quantity.name,), long.NO_ROW)
            bounds = [row[name] for name in ("value", "lower", "upper")]
            if quantity.name in LOGS:
                bounds = [math.exp(bound) for bound in bounds]
            return Number(*bounds, spec=quantity.spec)

        return Column(quantity.name, quantity.label, "number", cell=cell)

    def differing(row: Found) -> str:
        found = {one.label: row.get((one.name + DIFFERENCE,), long.NO_ROW) for one in QUANTITIES}
        known = {
            label: number for label, number in found.items() if not math.isnan(number["lower"])
        }
        if not known:
            return labels.ABSENT
        names = [label for label, number in known.items() if not _has_zero(number)]
        return ", ".join(names) or "none seen"

    differs = Column("differs", "Differs", "text", cell=differing)
    return [*map(number, ALL), differs]


def _has_zero(row: Mapping[str, Any]) -> bool:
    return bool(row["lower"] <= 0 <= row["upper"])


def _difference(quantity: Metric) -> Column:
    """The column of a quantity's differences; of a surprisal in nats a token."""
    label = quantity.label.replace("Perplexity", "Nats a token")
    spec = ".3f" if quantity.name in LOGS else quantity.spec
    return long.number(label, spec, quantity.name + DIFFERENCE)


if __name__ == "__main__":
    raise SystemExit(run("text", make))
