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

from analysis import figure1, load, stats, table4, table5
from analysis.long import CEILING
from analysis.table import Table


def measured(frame: pd.DataFrame, **wanted: Any) -> pd.Series:
    [row] = frame[(frame[list(wanted)] == pd.Series(wanted)).all(axis=1)].to_dict("records")
    return pd.Series(row)


def table4_of(results: Path, *cells: ToyCell) -> Table:
    return table4.make(planned(results, "table4", list(cells))).tables[0]


def test_table4_by_hand(tmp_path: Path) -> None:
    cells = [
        save(make_cell(tmp_path, "resispec"), kl_rows([[0.2, 0.4], [0.3]])),
        save(make_cell(tmp_path, "standard"), kl_rows([[0.02, -0.02], [0.0]])),
        save(make_cell(tmp_path, "naive"), kl_rows([[0.0, 0.0], [0.0]], error=0.0)),
    ]
    frame = table4_of(tmp_path, *cells).frame
    found = partial(measured, frame, cell_id=cells[0].cell_id)
    expected = {
        "total_variation": 0.9 / 3,  # three prefixes
        "total_variation_z": 0.3 / (math.sqrt(3 * 0.01) / 3),
        "kl_at_least": 0.3,
        "kl_plug_in": 0.8,
        "paper_kl": 3e-7,  # magnitudes, with the method's own proxy
        "random_proxy_kl": 2e-7,
    }
    for quantity, value in expected.items():
        assert found(quantity=quantity).value == pytest.approx(value), quantity
    own = found(quantity="paper_kl")
    assert (own.paper_low, own.paper_high) == (2.64e-10, 1.02e-9)
    standard = measured(frame, cell_id=cells[1].cell_id, quantity="paper_kl")
    assert standard.value == pytest.approx(1e-7) and standard.paper_high == 1.63e-9
    without_error = measured(frame, cell_id=cells[2].cell_id, quantity="total_variation_z")
    assert math.isnan(without_error.value)


def test_table4_knows_the_papers_own_setting(tmp_path: Path) -> None:
    cell = make_cell(tmp_path, "standard", "c4", temperature=0.6, pair="llama2_7b__jf68m")
    table = table4_of(tmp_path, cell)
    found = measured(table.frame, quantity="paper_kl")
    assert found.paper_low == found.paper_high == 1.09e-10
    assert table4.TEXTS["same_setting"] in table.notes
    other = table4_of(tmp_path, make_cell(tmp_path, "kseq"))  # of which the paper says nothing
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
    cell = save(make_cell(tmp_path, "standard"), SCALING_ROWS)
    frame = table5.make(planned(tmp_path, "table5", [cell])).tables[0].frame
    own = frame[frame.verifier == "standard"]
    got = {(row.arrangement, row.num_candidates, row.quantity): row.value for row in own.itertuples()}
    lengths = [got["complete", count, "expected_accepted_length"] for count in (1, 2, 4, 8)]
    assert lengths == [1.5, 2.0, 3.0, 3.5]
    assert [got["complete", count, "marginal_gain"] for count in (2, 4, 8)] == [0.5, 1.0, 0.5]
    assert [got["complete", count, "efficiency"] for count in (2, 4, 8)] == [0.5, 0.5, 0.125]
    assert [got["chains", count, "marginal_gain"] for count in (2, 4, 8)] == [0.25, 0.25, 0.25]
    assert math.isnan(got["complete", 1, "marginal_gain"])
    figures = own[own.quantity == "efficiency"].paper.tolist()
    assert figures[1:4] == [0.28, 0.155, 0.07] and figures[5:] == figures[1:4]
    # candidates that are the same as before gain nothing: no division by zero
    rows = pd.DataFrame([row | {"num_candidates": [1, 1, 2, 2] * 2} for row in SCALING_ROWS])
    _, (_, second), *_ = table5.curve(rows, "complete", False)
    assert math.isnan(second["efficiency"].value) and second["marginal_gain"].value == 0.5


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


def test_the_form_of_the_curve_is_compared_in_three_views() -> None:
    """The paper has 1.89, 2.17, 2.48, 2.76: shares .28, .31, .28 over .87. Chains here gain 1/4 thrice."""
    paper = np.array([1.89, 2.17, 2.48, 2.76])
    found = table5.differences(pd.DataFrame(SCALING_ROWS), "chains", paper)
    growth = [1.75 / 1.5 - 2.17 / 1.89, 2 / 1.5 - 2.48 / 1.89, 2.25 / 1.5 - 2.76 / 1.89]
    shares = [0.28 / 0.87 - 1 / 3, 0.31 / 0.87 - 1 / 3, 0.28 / 0.87 - 1 / 3]
    level = [1.5 - 1.89, 1.75 - 2.17, 2 - 2.48, 2.25 - 2.76]
    for (value, drawn), deviations in zip(found, (growth, shares, level), strict=True):
        assert value == pytest.approx(math.sqrt(np.mean(np.square(deviations))))
        assert drawn.shape == (10_000,)
    flat = pd.DataFrame([scaling_row(index, [4.0] * 8) for index in range(2)])  # which has no shares
    _, (shares, _), (level, _) = table5.differences(flat, "chains", paper)
    assert math.isnan(shares) and level > 0


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
    points = [numbers for _, numbers in table5.curve(rows, "complete", True)]
    assert [point["expected_accepted_length"].value for point in points] == [length] * 4
    assert points[1]["marginal_gain"].value == 0 and math.isnan(points[1]["marginal_gain"].lower)
    [(_, alone), *_] = table5.curve(rows[:1], "complete", True)  # one prompt cannot be in two halves
    assert math.isnan(alone["expected_accepted_length"].value)


def test_halves_hold_different_prompts() -> None:
    samples = stats.in_halves([[[0.0], [1.0]], [[10.0], [11.0]], [[2.0], [3.0]]])
    assert samples[:, 0].tolist() == [0.0, 10.0, 1.0, 11.0]


def test_figure1_by_hand(tmp_path: Path) -> None:
    rows = decay_rows([[6.0, 1.0], [8.0, 1.0]], [[10.0, 4.0], [10.0, 2.0]])
    rare = decay_rows([[10.0, 0.0], [9.96, 0.0]], [[10.0, 0.0], [10.0, 0.04]])
    cells = [
        save(make_cell(tmp_path, "standard"), rows),
        save(make_cell(tmp_path, "resispec"), rare),
        save(make_cell(tmp_path, "resispec", temperature=0.6), None, "failed", "no memory"),
    ]
    frame = figure1.measure(load.load(planned(tmp_path, "figure1", cells), figure1.FIELDS))
    lines = frame.set_index(["temperature", "verifier", "quantity"]).sort_index()
    standard = lines.loc[1.0, "standard", "acceptance_rate"]
    assert standard.value.tolist() == [14 / 20, 2 / 6] and standard.tested_share.tolist() == [1.0, 6 / 20]
    assert lines.loc[1.0, "standard", "accepted_so_far"].value.tolist() == [14 / 20, 16 / 20]
    ceiling = lines.loc[1.0, CEILING, "acceptance_rate"]
    assert ceiling.value.tolist() == [0.5, 0.25] and ceiling.tested_share.tolist() == [1.0, 0.5]
    # tested in 0.04 of 20 drafts: too rare for a rate
    assert math.isnan(lines.loc[1.0, "resispec", "acceptance_rate"].value.iloc[1])
    assert frame[frame.temperature == 0.6].verifier.tolist() == ["resispec"]
