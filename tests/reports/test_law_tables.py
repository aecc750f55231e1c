"""From rows of laws to Tables 4 and 5 and Figure 1, on cells worked out by hand."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis import figure1, law_report, scaling, table4, table5
from analysis.decay import CEILING, lines
from analysis.law_load import load_rows
from analysis.law_report import bracketed, number, ratio
from resispec.errors import InvalidInput
from resispec.law_rows import DecayRow, KlRow, ScalingRow


@dataclass(frozen=True)
class FakeCell:
    cell_id: str
    labels: dict[str, Any]
    folder: Path


def make_cell(
    root: Path, verifier: str = "standard", dataset: str = "embedded_code", temperature: float = 1.0
) -> FakeCell:
    """A cell that was asked for and never run."""
    cell_id = f"{verifier}-{dataset}-{temperature}"
    labels = {
        "pair": "embedded",
        "dataset": dataset,
        "decoder": "specinfer",
        "tree": "d5b3",
        "verifier": verifier,
    }
    return FakeCell(cell_id, labels | {"temperature": temperature}, root / cell_id)


def save(cell: FakeCell, rows: list[Any] | None, state: str = "done", reason: str = "") -> FakeCell:
    cell.folder.mkdir(parents=True)
    provenance = {"device": "test CPU", "git_commit": "abc1234567890", "git_is_dirty": False}
    status = {"state": state, "reason": reason, "seconds": 1.0}
    for file, content in (
        ("cell", {"cell_id": cell.cell_id, "labels": cell.labels}),
        ("status", status),
        ("provenance", provenance),
    ):
        (cell.folder / f"{file}.json").write_text(json.dumps(content))
    if rows is not None:
        (cell.folder / "rows.jsonl").write_text(
            "".join(json.dumps(row if isinstance(row, dict) else asdict(row)) + "\n" for row in rows)
        )
    return cell


def identity(index: int, contexts: int) -> dict[str, Any]:
    return {
        "prompt_index": index,
        "prompt_id": f"p{index}",
        "seed": index,
        "num_prompt_tokens": 64,
        "num_contexts": contexts,
    }


def kl_rows(variation: list[list[float]]) -> list[KlRow]:
    """Per prompt, the total variation of every context; every error is 0.1 and every divergence follows from it."""
    return [
        KlRow(
            **identity(index, len(values)), num_tuples=1600, paper_kl_resispec=[-3e-7] * len(values),
            paper_kl_standard=[1e-7, -1e-7][: len(values)], paper_kl_random=[2e-7] * len(values), total_variation=values,
            total_variation_error=[0.1] * len(values), kl_plug_in=[value + 0.5 for value in values], kl_at_least=values,
        )
        for index, values in enumerate(variation)
    ]  # fmt: skip


def measured(frame: pd.DataFrame, **wanted: Any) -> pd.Series:
    [row] = frame[(frame[list(wanted)] == pd.Series(wanted)).all(axis=1)].to_dict("records")
    return pd.Series(row)


def test_ratios_are_paired_and_leave_out_empty_resamples():
    found = ratio([1, 3], [2, 2])
    assert (found.value, found.lower, found.upper) == (
        1.0,
        0.5,
        1.5,
    )  # the two prompts alone are the extremes of the resamples
    assert ratio([1, 0], [2, 0]).value == 0.5 and ratio([1, 0], [2, 0]).lower == 0.5
    assert math.isnan(ratio([0, 0], [0, 0]).value) and math.isnan(ratio([1], [2]).lower)


def test_numbers_as_printed():
    assert [number(value, ".2f") for value in (1.234, -0.001, -1.0, math.nan)] == [
        "1.23",
        "0.00",
        "-1.00",
        "–",
    ]
    assert number(0.82, ".0%") == "82%" and bracketed(ratio([1, 3], [2, 2]), ".1f") == "1.0 [0.5, 1.5]"


def test_table4_by_hand(tmp_path):
    cells = [
        save(make_cell(tmp_path, "resispec"), kl_rows([[0.2, 0.4], [0.3]])),
        save(make_cell(tmp_path, "standard"), kl_rows([[0.02, -0.02], [0.0]])),
        save(make_cell(tmp_path, "standard", temperature=0.6), None, "failed", "out of memory"),
        make_cell(tmp_path, "resispec", temperature=0.6),
    ]
    table = table4.build(load_rows(cells, KlRow), "embedded", "make it")
    frame = table.frame
    resispec = partial(measured, frame, cell_id="resispec-embedded_code-1.0")
    assert resispec(quantity="total_variation").value == pytest.approx(0.9 / 3)  # three contexts
    assert resispec(quantity="total_variation_z").value == pytest.approx(0.3 / (math.sqrt(3 * 0.01) / 3))
    assert resispec(quantity="kl_at_least").value == pytest.approx(0.3) and resispec(
        quantity="kl_plug_in"
    ).value == pytest.approx(0.8)
    assert resispec(quantity="paper_kl").value == pytest.approx(
        3e-7
    )  # magnitudes, with the method's own proxy
    assert resispec(quantity="random_proxy_kl").value == pytest.approx(2e-7)
    assert (resispec(quantity="paper_kl").paper_low, resispec(quantity="paper_kl").paper_high) == (
        2.64e-10,
        1.02e-9,
    )
    standard = measured(frame, cell_id="standard-embedded_code-1.0", quantity="paper_kl")
    assert standard.value == pytest.approx(1e-7) and standard.paper_high == 1.63e-9
    text = law_report.markdown(table)
    rows = [line for line in text.splitlines() if line.startswith("|")][2:]
    assert [row.split("|")[3].strip() for row in rows] == ["SpecInfer (standard)", "SpecInfer + ResiSpec"] * 2
    assert (
        "3.0e-07" in rows[1]
        and "2.6e-10–1.0e-09" in rows[1]
        and "0.300 [0.300, 0.300]" in rows[1]
        and "5.2" in rows[1]
    )
    assert "failed: out of memory" in rows[2] and "missing" in rows[3]
    for said in (
        "1,600 sampled",
        "0.231 (4 standard errors",
        "other models",
        "test CPU",
        "Commit: abc1234567.",
        "make it",
        "2 of 4 cells",
    ):
        assert said in text, said


def test_table4_knows_the_papers_own_setting(tmp_path):
    cell = make_cell(tmp_path, "standard", dataset="c4", temperature=0.6)
    cell.labels["pair"] = "llama2_7b__jf68m"
    table = table4.build(load_rows([cell], KlRow), "paper", "make it")
    assert (
        measured(table.frame, quantity="paper_kl").paper_low
        == measured(table.frame, quantity="paper_kl").paper_high
        == 1.09e-10
    )
    assert table4.SAME_SETTING in table.notes
    other = table4.build(load_rows([make_cell(tmp_path, "kseq")], KlRow), "embedded", "make it")
    assert math.isnan(
        measured(other.frame, quantity="paper_kl").paper_low
    )  # a verifier of which the paper says nothing


def scaling_row(index: int, emitted: list[float], tree: float = 0.0, rollout: float = 1.0) -> ScalingRow:
    """Two contexts; `emitted` for N = 1, 2, 4, 8 as complete trees, then as chains."""
    return ScalingRow(
        **identity(index, 2), reading=["complete"] * 4 + ["chains"] * 4, num_candidates=[1, 2, 4, 8] * 2,
        num_nodes=[4, 15, 85, 585, 4, 7, 13, 25], emitted=emitted, tree_log_ratios=[[[tree] * 3] * 2] * 8,
        rollout_log_ratios=[[rollout] * 3] * 4,
    )  # fmt: skip


# Sums over two contexts of two prompts: EAL (2 + 4) / 4 = 1.5 at N = 1, then 2, 3 and 3.5; chains 1.5, 1.75, 2 and 2.25.
EMITTED = ([2.0, 3.0, 5.0, 6.0, 2.0, 2.5, 3.0, 3.5], [4.0, 5.0, 7.0, 8.0, 4.0, 4.5, 5.0, 5.5])


def test_table5_by_hand(tmp_path):
    rows = [scaling_row(index, emitted) for index, emitted in enumerate(EMITTED)]
    cells = [
        save(make_cell(tmp_path, "standard"), rows),
        save(make_cell(tmp_path, "resispec"), None, "failed", "no memory"),
    ]
    table = table5.build(load_rows(cells, ScalingRow), "embedded", "make it")
    got = {
        (row.reading, row.num_candidates, row.quantity): row.value
        for row in table.frame[table.frame.verifier == "standard"].itertuples()
    }
    assert [got["complete", count, "expected_accepted_length"] for count in (1, 2, 4, 8)] == [
        1.5,
        2.0,
        3.0,
        3.5,
    ]
    assert [got["complete", count, "marginal_gain"] for count in (2, 4, 8)] == [0.5, 1.0, 0.5]
    assert [got["complete", count, "efficiency"] for count in (2, 4, 8)] == [0.5, 0.5, 0.125]
    assert [got["chains", count, "marginal_gain"] for count in (2, 4, 8)] == [0.25, 0.25, 0.25]
    assert math.isnan(got["complete", 1, "marginal_gain"])
    published = table.frame[
        (table.frame.verifier == "standard") & (table.frame.quantity == "efficiency")
    ].paper.tolist()
    assert published[1:4] == [0.28, 0.155, 0.07] and published[5:] == published[1:4]
    text = law_report.markdown(table)
    assert (
        "failed: no memory" in text
        and "ceiling" in text
        and "Data set: Python code" in text
        and "1 of 2 cells" in text
    )
    assert text.count("failed: no memory") == 2  # one line a reading


def test_the_form_of_the_curve_is_compared_in_three_views():
    """Published 1.89, 2.17, 2.48, 2.76. Chains here gain a quarter thrice: shares 1/3 against .28, .31, .28 over .87."""
    rows = [scaling_row(index, emitted) for index, emitted in enumerate(EMITTED)]
    found = scaling.differences(rows, "chains", np.array([1.89, 2.17, 2.48, 2.76]))
    shares = [0.28 / 0.87 - 1 / 3, 0.31 / 0.87 - 1 / 3, 0.28 / 0.87 - 1 / 3]
    growth = [1.75 / 1.5 - 2.17 / 1.89, 2 / 1.5 - 2.48 / 1.89, 2.25 / 1.5 - 2.76 / 1.89]
    level = [1.5 - 1.89, 1.75 - 2.17, 2 - 2.48, 2.25 - 2.76]
    for view, deviations in (("gain shares", shares), ("growth", growth), ("level", level)):
        assert found[view].value == pytest.approx(
            math.sqrt(sum(value**2 for value in deviations) / len(deviations))
        )
        assert found[view].resampled.shape == (10_000,)


@pytest.mark.parametrize(
    ("tree", "rollout", "length"),
    [
        (0.0, 1.0, 1.0),  # the target never draws a path as poor as what was drafted: nothing can be accepted
        (0.0, 0.0, 4.0),  # p = q: everything can
        (1.0, 0.0, 4.0),
    ],
)
def test_the_ceiling_by_hand(tree, rollout, length):
    rows = [scaling_row(index, EMITTED[0], tree, rollout) for index in range(3)]
    points = scaling.ceiling_curve(rows, "complete")
    assert [point.expected_accepted_length.value for point in points] == [length] * 4
    assert points[1].marginal_gain.value == 0 and math.isnan(points[1].marginal_gain.lower)
    [alone, *_] = scaling.ceiling_curve(rows[:1], "complete")  # one prompt cannot be in two halves
    assert math.isnan(alone.expected_accepted_length.value)


def test_halves_hold_different_prompts():
    samples = scaling.in_halves([[[0.0], [1.0]], [[10.0], [11.0]], [[2.0], [3.0]]])
    assert samples[:, 0].tolist() == [0.0, 10.0, 1.0, 11.0]


def decay_rows(selected: list[list[float]], tested: list[list[float]]) -> list[DecayRow]:
    """Two contexts of five tuples a prompt; the ceiling's first sibling is accepted in half, its second in 1/4 of the rest."""
    return [
        DecayRow(
            **identity(index, 2),
            num_tuples=5,
            selected=above,
            tested=below,
            ceiling_selected=[1.0, 0.25],
            ceiling_tested=[2.0, 1.0],
        )
        for index, (above, below) in enumerate(zip(selected, tested, strict=True))
    ]


def test_figure1_by_hand(tmp_path):
    rows = decay_rows([[6.0, 1.0], [8.0, 1.0]], [[10.0, 4.0], [10.0, 2.0]])
    rare = decay_rows([[10.0, 0.0], [9.96, 0.0]], [[10.0, 0.0], [10.0, 0.04]])
    cells = [
        save(make_cell(tmp_path, "standard"), rows),
        save(make_cell(tmp_path, "resispec"), rare),
        save(make_cell(tmp_path, "resispec", temperature=0.6), None, "failed", "no memory"),
        make_cell(tmp_path, "standard", temperature=0.6),
    ]
    results = load_rows(cells, DecayRow)
    drawn = {(line.cell["temperature"], line.verifier): line.rates for line in lines(results)}
    assert [found.value for found in drawn[1.0, "standard"].acceptance] == [14 / 20, 2 / 6]
    assert [found.value for found in drawn[1.0, "standard"].accepted] == [14 / 20, 16 / 20]
    assert drawn[1.0, "standard"].share == (1.0, 6 / 20)
    assert [found.value for found in drawn[1.0, CEILING].acceptance] == [0.5, 0.25]
    assert drawn[1.0, CEILING].share == (1.0, 0.5)
    assert math.isnan(
        drawn[1.0, "resispec"].acceptance[1].value
    )  # tested in 0.04 of 20 drafts: too rare for a rate
    assert drawn[0.6, "resispec"] is None and (0.6, CEILING) not in drawn
    text, paths = figure1.publish(figure1.build(results, "embedded", "make it"), tmp_path / "out")
    assert [path.name for path in paths] == ["figure1.csv", "figure1.md", "figure1.png", "figure1.pdf"]
    assert all(path.stat().st_size > 200 for path in paths)
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")
    ]
    assert rows[0] == ["T", "Method", "1", "2", "Any of 2"]
    assert rows[2] == ["1", "standard", "0.70", "0.33", "0.800 [0.700, 0.900]"]
    assert "failed: no memory" in text and "missing" in text
    first = [path.read_bytes() for path in paths]
    figure1.publish(figure1.build(results, "embedded", "make it"), tmp_path / "out")
    assert [path.read_bytes() for path in paths] == first


@pytest.mark.parametrize("module", [table4, table5, figure1])
def test_scripts_without_any_cell_show_what_is_missing(module, tmp_path, capsys):
    name = module.__name__.rsplit(".", 1)[1]
    narrowed = [] if module is table5 else ["dataset=embedded_code", "temperature=1.0"]
    assert module.main(["--results", str(tmp_path), *narrowed]) == 0
    assert "missing" in capsys.readouterr().out
    assert {"csv", "md"} <= {path.suffix[1:] for path in (tmp_path / "embedded").glob(f"{name}.*")}


def broken(row: KlRow) -> dict[str, dict[str, Any]]:
    good = asdict(row)
    return {
        "does not have the columns of KlRow": {
            key: value for key, value in good.items() if key != "kl_plug_in"
        },
        "wrong total_variation:": good | {"total_variation": ["a lot"]},
        "wrong num_contexts: 1.5": good | {"num_contexts": 1.5},
        "wrong kl_at_least": good | {"kl_at_least": [math.nan]},
    }


@pytest.mark.parametrize("message", list(broken(kl_rows([[0.1]])[0])))
def test_rows_that_break_the_schema_are_refused(message, tmp_path):
    [row] = kl_rows([[0.1]])
    cell = save(make_cell(tmp_path), [broken(row)[message]])
    with pytest.raises(InvalidInput, match=f"cell standard-embedded_code-1.0: rows.jsonl line 1 .*{message}"):
        load_rows([cell], KlRow)


def test_cells_must_share_their_prompts(tmp_path):
    one = save(make_cell(tmp_path, "standard"), kl_rows([[0.1], [0.2]]))
    other = save(make_cell(tmp_path, "resispec"), [replace(row, seed=9) for row in kl_rows([[0.1], [0.2]])])
    with pytest.raises(
        InvalidInput, match="its prompts or seeds are not those of standard-embedded_code-1.0"
    ):
        load_rows([one, other], KlRow)
    twice = save(make_cell(tmp_path, "kseq"), [*kl_rows([[0.1]]), *kl_rows([[0.1]])])
    with pytest.raises(InvalidInput, match="holds a prompt twice"):
        load_rows([twice], KlRow)
