"""Table 5 from rows of laws, on cells worked out by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from toy_cells import (
    EMITTED,
    SCALING_ROWS,
    make_cell,
    planned,
    save,
    scaling_row,
)

from analysis import load, report, scaling, table5


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
    text = report.markdown(table)
    for said in (
        "failed: no memory",
        "ceiling",
        "Data set: Python code",
        "1 of 2 cells",
        "Which arrangement",
    ):
        assert said in text, said
    assert text.count("failed: no memory") == 2  # one line an arrangement


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
        assert found[view].value == pytest.approx(expected)
        assert found[view].resampled.shape == (10_000,)


def test_a_curve_that_does_not_rise_has_no_shares() -> None:
    rows = pd.DataFrame([scaling_row(index, [4.0] * 8) for index in range(2)])
    found = scaling.differences(rows, "chains", np.array([1.89, 2.17, 2.48, 2.76]))
    assert math.isnan(found["gain shares"].value) and found["level"].value > 0


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
