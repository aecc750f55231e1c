"""Figure 3: where the time of a step goes, and where that of shaping does, decoder by decoder.

Usage: python -m analysis.figure3 --profile embedded
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from analysis import labels, metrics, paper, script
from analysis.figure3.figure import SHAPING, STEP, draw
from analysis.load import SETTING, Plan, Results, load
from analysis.report import Table, footer, key_texts, split_keys
from analysis.stats import ABSENT, BRACKETS, Interval, divide, paired_gain, ratio

COUNTS = ("num_emitted", "num_steps", "num_timed")
SECONDS = ("profiled_s", "draft_s", "target_s", "verify_s", "shaping_s", "clock_s")
SHAPING_SECONDS = {part: f"{part}_s" for part in SHAPING if part != "between"}
FIELDS = (*COUNTS, *SECONDS, *SHAPING_SECONDS.values())
COLUMNS = {
    "Step, ms": ("step", "ms_per_step", ".2f"),
    **{f"{label}, ms": (part, "ms_per_step", ".2f") for part, (label, _) in STEP.items()},
    "Shaping, % of step": ("shaping", "percent_of_step", ".1f"),
    "Step over standard's, %": ("step", "percent_over_standard", "+.1f"),
    **{f"{label}, % of shaping": (part, "percent_of_shaping", ".0f") for part, (label, _) in SHAPING.items()},
}
"""Header -> which part and which quantity of it a column prints, and how."""
DEFINITIONS = (
    "A step is one draft, one forward of the target, verification and commit. Drafting: filling the tree. "
    "Target forward: over the tree, with the softmax. Shaping, a part of verification: from the law that a "
    "sibling was tested against to the law after its rejection; the standard rule's is a subtraction and a "
    "normalisation. Verification, the rest: chances of acceptance, the draft's law of the next sibling, "
    "drawing, walking down the tree. Other: cutting the caches to the accepted path, and the loop itself. "
    "These five add up to the step.",
    "ResiSpec's shaping, in the paper's words. Budget: the mass Z and the first projection min(Z q, p). "
    "Redistribution: what this clipped off, spread over the capacity that is left. Proxy formulation: the "
    "law norm(max(p - k, 0)) of the next test; k = p - r itself is never formed, since this law is the "
    "residual r, normalised. Between them: calls and the clock. These four add up to shaping. A law covers "
    "all siblings of a node that is visited, so a residual is shaped once for each of them, rejected or not.",
    "EAGLE, softmax as q: the paper's reading of EAGLE's candidates, here for both rules. Told that "
    "candidates are point masses, which they are, ResiSpec is the standard rule, and the two do not differ.",
    "Step over standard's: the time of a step over that of the same decoder with the standard rule. It also "
    "holds what longer accepted paths cost, which visit more nodes; ResiSpec's are those of a biased output, "
    "see Tables 1 and 2.",
)


def seconds(rows: pd.DataFrame) -> dict[str, pd.Series]:
    """Seconds of every prompt in a "step", in the parts of STEP and of SHAPING, and in the "clock"."""
    named = {part: rows[field] for part, field in SHAPING_SECONDS.items()}
    return {
        "step": rows.profiled_s,
        "draft": rows.draft_s,
        "target": rows.target_s,
        "verification": rows.verify_s - rows.shaping_s,
        "shaping": rows.shaping_s,
        "other": rows.profiled_s - rows.draft_s - rows.target_s - rows.verify_s,
        **named,
        "between": rows.shaping_s - sum(named.values()),
        "clock": rows.clock_s,
    }


def measure(results: Results) -> pd.DataFrame:
    """One row for every cell, part and quantity; a cell that is not done has one row, without a number.

    Columns: cell_id, the keys, status, reason, num_prompts, part, quantity, value, lower, upper.
    """
    cells, same = results.cells.to_dict("records"), [key for key in results.keys if key != "verifier"]
    baselines = {
        tuple(cell[key] for key in same): results.rows.get(cell["cell_id"])
        for cell in cells
        if cell["verifier"] == "standard"
    }
    records = []
    for cell in cells:
        rows = results.rows.get(cell["cell_id"])
        shared = {name: cell[name] for name in ("cell_id", *results.keys, "status", "reason")}
        shared["num_prompts"] = 0 if rows is None else len(rows)
        baseline = baselines.get(tuple(cell[key] for key in same))
        found = {("", ""): ABSENT}
        if rows is not None:
            found = dict(_quantities(rows, None if cell["verifier"] == "standard" else baseline))
        for (part, quantity), interval in found.items():
            records.append(shared | {"part": part, "quantity": quantity} | vars(interval))
    return pd.DataFrame(records)


def _quantities(
    rows: pd.DataFrame, baseline: pd.DataFrame | None
) -> Iterator[tuple[tuple[str, str], Interval]]:
    """Part, quantity and value of one cell. baseline: the rows that its step is compared with."""
    spent = seconds(rows)
    yield ("step", metrics.ACCEPTED_LENGTH.name), metrics.ACCEPTED_LENGTH.of(rows)
    yield ("step", "timed_parts"), ratio(rows.num_timed, rows.num_steps)
    for part, values in spent.items():
        yield (part, "ms_per_step"), ratio(1e3 * values, rows.num_steps)
    for part in (*STEP, "clock"):
        yield (part, "percent_of_step"), ratio(100 * spent[part], spent["step"])
    if rows.budget_s.any():  # the standard rule's shaping is not split
        for part in SHAPING:
            yield (part, "percent_of_shaping"), ratio(100 * spent[part], spent["shaping"])
    if baseline is not None:
        gain = paired_gain((rows.profiled_s, rows.num_steps), (baseline.profiled_s, baseline.num_steps))
        percent = [100 * (bound - 1) for bound in (gain.value, gain.lower, gain.upper)]
        yield ("step", "percent_over_standard"), Interval(*percent)


def make(plan: Plan) -> script.Artefact:
    """The figure, and its numbers as a table; a cell that is not done has a row that says so."""
    results = load(plan, FIELDS)
    frame = measure(results)
    keys = (*SETTING, *results.more, "tree", "method")
    varying, fixed = split_keys(results.cells.assign(method=""), keys)
    header = [labels.header(key) for key in varying] + list(COLUMNS)
    shown = [_shown(rows, varying) for _, rows in frame.groupby(["cell_id", *results.keys], sort=False)]
    table = Table(
        stem="figure3",
        frame=frame,
        shown=pd.DataFrame(shown, columns=header),
        num_keys=len(varying),
        caption=f"Figure 3 of the paper, {plan.profile} profile: the time of a step by part.{fixed}",
        notes=(
            "![The time of a step by part](figure3.png)",
            *DEFINITIONS,
            _compared(frame, varying),
            *_clock(frame),
            *footer(results, plan, BRACKETS),
        ),
    )
    picture = draw(frame, [key for key in varying if key != "method"])
    return script.Artefact((table,), {"figure3": picture}, suffixes=("csv", "md"))


def _shown(rows: pd.DataFrame, varying: Sequence[str]) -> list[str]:
    """A printed row, with intervals for the step and its shaping; those of the other parts are in the CSV."""
    bounds = rows.set_index(["part", "quantity"])[["value", "lower", "upper"]].to_dict("index")
    texts = []
    for part, quantity, spec in COLUMNS.values():
        found = Interval(**bounds[part, quantity]) if (part, quantity) in bounds else ABSENT
        is_whole = part in ("step", "shaping")
        texts.append(labels.interval(found, spec) if is_whole else labels.number(found.value, spec))
    first = rows.iloc[0]
    if first.status != "done":
        texts[0] = labels.gap(first)
    return [*key_texts(first, varying), *texts]


def _clock(frame: pd.DataFrame) -> tuple[str, ...]:
    """What the clock costs; nothing where no cell is done."""
    parts = frame.value[(frame.part == "step") & (frame.quantity == "timed_parts")]
    percent = frame.value[(frame.part == "clock") & (frame.quantity == "percent_of_step")]
    if parts.empty:
        return ()
    return (
        "Cells that are profiled are cells of their own, and no throughput is taken from them: the clock "
        "waits for the device at both ends of every part. It times "
        f"{labels.between(parts.min(), parts.max(), '.0f')} parts a step; as many empty ones take "
        f"{labels.between(percent.min(), percent.max(), '.1f')} % of the step, mostly within shaping, whose "
        "parts are the shortest. Nothing is subtracted. On a GPU waiting also keeps the host from running "
        "ahead, so a profiled step is longer than one whose throughput is measured.",
    )


def _compared(frame: pd.DataFrame, varying: Sequence[str]) -> str:
    """How much longer a step takes with ResiSpec, as the paper's Table 1 implies it, and here."""
    methods = ("specinfer", "resispec")
    names = {method: (f"{method}_accepted_length", f"{method}_tokens_per_s") for method in methods}
    table = paper.read("table1", ("temperature", "dataset", *names["specinfer"], *names["resispec"]))
    own, shaped = (1e3 * divide(table[above], table[below]) for above, below in names.values())
    over = 100 * (shaped / own - 1)
    first = int(((table.temperature == 1) & (table.dataset == "cnn_dm")).to_numpy().argmax())
    return (
        "The paper's Figure 3 comes without numbers. Accepted length over tokens/s is the time of a step, so "
        f"its Table 1 (RTX 3090) implies {own[first]:.1f} ms for SpecInfer and {shaped[first]:.1f} ms for "
        f"ResiSpec on CNN/DM at T = 1: {over[first]:+.1f} %, and {over.min():+.1f} to {over.max():+.1f} % "
        "over its six settings. That is a Step over standard's, in throughput runs, for orientation where "
        f"models or hardware are others.{_found(frame, varying)}"
    )


def _found(frame: pd.DataFrame, varying: Sequence[str]) -> str:
    """The same of the cells that are done: " Here: ...". varying: the keys that tell them apart."""
    rows = frame[frame.quantity == "percent_over_standard"].to_dict("records")
    said = [
        f"{', '.join(key_texts(row, varying))} "
        f"{labels.interval(Interval(row['value'], row['lower'], row['upper']), '+.1f')} %"
        for row in rows
    ]
    return f" Here: {'; '.join(said)}." if said else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """The script."""
    return script.run("figure3", make, arguments)
