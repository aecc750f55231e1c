"""Tables 4 and 5 and Figure 1 from rows of laws, on cells worked out by hand."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from toy_cells import (
    EMITTED,
    SCALING_ROWS,
    ToyCell,
    decay_rows,
    kl_rows,
    make_cell,
    planned,
    save,
    scaling_row,
    write_plan,
)

from analysis import figure1, load, scaling, table4, table5
from analysis.metric_table import CEILING
from analysis.table import Table


def measured(frame: pd.DataFrame, **wanted: Any) -> pd.Series:
    [row] = frame[(frame[list(wanted)] == pd.Series(wanted)).all(axis=1)].to_dict("records")
    return pd.Series(row)


def table4_of(results: Path, cells: list[ToyCell]) -> Table:
    return table4.make(planned(results, "table4", cells)).tables[0]


def test_table4_by_hand(tmp_path: Path) -> None:
    cells = [
        save(make_cell(tmp_path, "resispec"), kl_rows([[0.2, 0.4], [0.3]])),
        save(make_cell(tmp_path, "standard"), kl_rows([[0.02, -0.02], [0.0]])),
        save(make_cell(tmp_path, "standard", temperature=0.6), None, "failed", "out of memory"),
        make_cell(tmp_path, "resispec", temperature=0.6),
    ]
    table = table4_of(tmp_path, cells)
    resispec = partial(measured, table.frame, cell_id=cells[0].cell_id)
    assert resispec(quantity="total_variation").value == pytest.approx(0.9 / 3)  # three prefixes
    assert resispec(quantity="total_variation_z").value == pytest.approx(0.3 / (math.sqrt(3 * 0.01) / 3))
    assert resispec(quantity="kl_at_least").value == pytest.approx(0.3)
    assert resispec(quantity="kl_plug_in").value == pytest.approx(0.8)
    # magnitudes, with the method's own proxy
    assert resispec(quantity="paper_kl").value == pytest.approx(3e-7)
    assert resispec(quantity="random_proxy_kl").value == pytest.approx(2e-7)
    own = resispec(quantity="paper_kl")
    assert (own.paper_low, own.paper_high) == (2.64e-10, 1.02e-9)
    standard = measured(table.frame, cell_id=cells[1].cell_id, quantity="paper_kl")
    assert standard.value == pytest.approx(1e-7) and standard.paper_high == 1.63e-9


def test_a_total_variation_without_an_error_has_no_z(tmp_path: Path) -> None:
    cell = save(make_cell(tmp_path, "naive"), kl_rows([[0.0, 0.0], [0.0]], error=0.0))
    table = table4_of(tmp_path, [cell])
    assert math.isnan(measured(table.frame, quantity="total_variation_z").value)
    assert table.shown["z"].tolist() == ["–"]


def test_table4_knows_the_papers_own_setting(tmp_path: Path) -> None:
    table = table4_of(
        tmp_path, [make_cell(tmp_path, "standard", "c4", temperature=0.6, pair="llama2_7b__jf68m")]
    )
    found = measured(table.frame, quantity="paper_kl")
    assert found.paper_low == found.paper_high == 1.09e-10
    assert table4.SAME_SETTING in table.notes
    other = table4_of(tmp_path, [make_cell(tmp_path, "kseq")])
    # a verifier of which the paper says nothing
    assert math.isnan(measured(other.frame, quantity="paper_kl").paper_low)


@pytest.mark.parametrize("module", [table4, table5, figure1])
def test_a_plan_of_which_nothing_was_run_shows_what_is_missing(
    module: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = module.__name__.rsplit(".", 1)[1]
    write_plan(tmp_path, name, [make_cell(tmp_path, verifier) for verifier in ("standard", "resispec")])
    assert module.main(["--results", str(tmp_path)]) == 0
    assert "missing" in capsys.readouterr().out
    assert {"csv", "md"} <= {path.suffix[1:] for path in (tmp_path / "embedded").glob(f"{name}.*")}


def test_table5_by_hand(tmp_path: Path) -> None:
    cells = [
        save(make_cell(tmp_path, "standard"), SCALING_ROWS),
        save(make_cell(tmp_path, "resispec"), None, "failed", "no memory"),
    ]
    table = table5.make(planned(tmp_path, "table5", cells)).tables[0]
    own = table.frame[table.frame.verifier == "standard"]
    got = {(row.arrangement, row.num_candidates, row.quantity): row.value for row in own.itertuples()}
    lengths = [got["complete", count, "expected_accepted_length"] for count in (1, 2, 4, 8)]
    assert lengths == [1.5, 2.0, 3.0, 3.5]
    assert [got["complete", count, "marginal_gain"] for count in (2, 4, 8)] == [0.5, 1.0, 0.5]
    assert [got["complete", count, "efficiency"] for count in (2, 4, 8)] == [0.5, 0.5, 0.125]
    assert [got["chains", count, "marginal_gain"] for count in (2, 4, 8)] == [0.25, 0.25, 0.25]
    assert math.isnan(got["complete", 1, "marginal_gain"])
    figures = own[own.quantity == "efficiency"].paper.tolist()
    assert figures[1:4] == [0.28, 0.155, 0.07] and figures[5:] == figures[1:4]


def test_rows_beside_their_ceilings_are_counted() -> None:
    """One row above its ceiling, one below, one that touches it, and one of another quantity."""
    rows = [("resispec", 2, 4.1, 4.3), ("resispec", 4, 2.0, 2.9), ("resispec", 8, 3.9, 4.0)]
    ceilings = [("ceiling", count, 3.0, 4.0) for count in (2, 4, 8)]
    shared = dict.fromkeys(("pair", "temperature", "dataset"), "any") | {"arrangement": "chains"}
    frame = pd.DataFrame(
        shared
        | {"verifier": verifier, "num_candidates": count, "quantity": name, "lower": low, "upper": high}
        for verifier, count, low, high in rows + ceilings
        for name in ("expected_accepted_length", "efficiency")
    )
    [note] = table5.beside_ceilings(frame)
    assert note == "Beside their ceilings, intervals apart: ResiSpec 1 of 3 rows above and 1 below."


def test_candidates_that_are_the_same_gain_nothing(tmp_path: Path) -> None:
    """Twice as many as before, or not: no division by zero."""
    rows = [row | {"num_candidates": [1, 1, 2, 2] * 2} for row in SCALING_ROWS]
    save(cell := make_cell(tmp_path, "standard"), rows)
    points = scaling.curve(load.load(planned(tmp_path, "table5", [cell]), ()).rows[cell.cell_id], "complete")
    assert math.isnan(points[1].efficiency.value) and points[1].marginal_gain.value == 0.5


def test_the_form_of_the_curve_is_compared_in_three_views() -> None:
    """The paper has 1.89, 2.17, 2.48, 2.76: shares .28, .31, .28 over .87. Chains here gain 1/4 thrice."""
    found = scaling.differences(pd.DataFrame(SCALING_ROWS), "chains", np.array([1.89, 2.17, 2.48, 2.76]))
    shares = [0.28 / 0.87 - 1 / 3, 0.31 / 0.87 - 1 / 3, 0.28 / 0.87 - 1 / 3]
    growth = [1.75 / 1.5 - 2.17 / 1.89, 2 / 1.5 - 2.48 / 1.89, 2.25 / 1.5 - 2.76 / 1.89]
    level = [1.5 - 1.89, 1.75 - 2.17, 2 - 2.48, 2.25 - 2.76]
    for view, deviations in (("gain shares", shares), ("growth", growth), ("level", level)):
        expected = math.sqrt(sum(value**2 for value in deviations) / len(deviations))
        assert found[view][0] == pytest.approx(expected)
        assert found[view][1].shape == (10_000,)


def test_a_curve_that_does_not_rise_has_no_shares() -> None:
    rows = pd.DataFrame([scaling_row(index, [4.0] * 8) for index in range(2)])
    found = scaling.differences(rows, "chains", np.array([1.89, 2.17, 2.48, 2.76]))
    assert math.isnan(found["gain shares"][0]) and found["level"][0] > 0


@pytest.mark.parametrize(
    ("tree", "rollout", "length"),
    [
        (0.0, 1.0, 1.0),  # the target never draws a path as poor as what was drafted: nothing can be accepted
        (0.0, 0.0, 4.0),  # p = q: everything can
        (1.0, 0.0, 4.0),
    ],
)
def test_the_ceiling_by_hand(tree: float, rollout: float, length: float) -> None:
    rows = pd.DataFrame([scaling_row(index, EMITTED[0], tree, rollout) for index in range(3)])
    points = scaling.ceiling_curve(rows, "complete")
    assert [point.expected_accepted_length.value for point in points] == [length] * 4
    assert points[1].marginal_gain.value == 0 and math.isnan(points[1].marginal_gain.lower)
    [alone, *_] = scaling.ceiling_curve(rows[:1], "complete")  # one prompt cannot be in two halves
    assert math.isnan(alone.expected_accepted_length.value)


def test_halves_hold_different_prompts() -> None:
    samples = scaling.in_halves([[[0.0], [1.0]], [[10.0], [11.0]], [[2.0], [3.0]]])
    assert samples[:, 0].tolist() == [0.0, 10.0, 1.0, 11.0]


def test_figure1_by_hand(tmp_path: Path) -> None:
    rows = decay_rows([[6.0, 1.0], [8.0, 1.0]], [[10.0, 4.0], [10.0, 2.0]])
    rare = decay_rows([[10.0, 0.0], [9.96, 0.0]], [[10.0, 0.0], [10.0, 0.04]])
    cells = [
        save(make_cell(tmp_path, "standard"), rows),
        save(make_cell(tmp_path, "resispec"), rare),
        save(make_cell(tmp_path, "resispec", temperature=0.6), None, "failed", "no memory"),
        make_cell(tmp_path, "standard", temperature=0.6),
    ]
    results = load.load(planned(tmp_path, "figure1", cells), figure1.FIELDS)
    drawn = {(cell["temperature"], verifier): rates for cell, verifier, rates in figure1.lines(results)}
    assert [found.value for found in drawn[1.0, "standard"].acceptance] == [14 / 20, 2 / 6]
    assert [found.value for found in drawn[1.0, "standard"].accepted] == [14 / 20, 16 / 20]
    assert drawn[1.0, "standard"].share == (1.0, 6 / 20)
    assert [found.value for found in drawn[1.0, CEILING].acceptance] == [0.5, 0.25]
    assert drawn[1.0, CEILING].share == (1.0, 0.5)
    # tested in 0.04 of 20 drafts: too rare for a rate
    assert math.isnan(drawn[1.0, "resispec"].acceptance[1].value)
    assert drawn[0.6, "resispec"] is None and (0.6, CEILING) not in drawn
