"""Tables 4 and 5 and Figure 1 beyond test_golden_outputs.py: gaps, ties and lone prompts."""

import math

import numpy as np
import pandas as pd
import pytest

from analysis import stats, table4, table5
from tests.toy_cells import (
    SCALING_ROWS,
    make_cell,
    planned,
    repeated,
    save,
    scaling_row,
    write_artefact,
    write_plan,
)


def test_table4_knows_the_papers_own_setting(tmp_path):
    cell = make_cell(tmp_path, "standard", "c4", temperature=0.6, pair="llama2_7b__jf68m")
    table = table4.make(planned(tmp_path, "table4", [cell])).tables[0]
    [found] = table.frame[table.frame.quantity == "paper_kl"].itertuples()
    assert found.paper_low == found.paper_high == 1.09e-10
    assert table4.TEXTS["same_setting"] in table.notes


@pytest.mark.parametrize("name", ["table4", "table5", "figure1"])
def test_a_plan_of_which_nothing_was_run_shows_what_is_missing(name, tmp_path, capsys):
    write_plan(
        tmp_path, name, [make_cell(tmp_path, verifier) for verifier in ("standard", "resispec")]
    )
    assert write_artefact(name, "--results", str(tmp_path)) == 0
    assert "missing" in capsys.readouterr().out
    assert {"csv", "md"} <= {path.suffix[1:] for path in (tmp_path / "embedded").glob(f"{name}.*")}


def test_rows_beside_their_ceilings_are_counted():
    """One row above its ceiling, one below, one that touches it, and one of another quantity."""
    rows = [("resispec", 2, 4.1, 4.3), ("resispec", 4, 2.0, 2.9), ("resispec", 8, 3.9, 4.0)]
    ceilings = [("ceiling", count, 3.0, 4.0) for count in (2, 4, 8)]
    shared = dict.fromkeys(("pair", "temperature", "dataset"), "any") | {"arrangement": "chains"}
    frame = pd.DataFrame(
        shared
        | {
            "verifier": verifier,
            "num_candidates": count,
            "quantity": name,
            "lower": low,
            "upper": high,
        }
        for verifier, count, low, high in rows + ceilings
        for name in ("expected_accepted_length", "efficiency")
    )
    [note] = table5.beside_ceilings(frame)
    assert note == "Beside their ceilings, intervals apart: ResiSpec 1 of 3 rows above and 1 below."


def test_curves_that_gain_nothing_have_no_efficiency_and_no_shares():
    rows = pd.DataFrame([row | {"num_candidates": [1, 1, 2, 2] * 2} for row in SCALING_ROWS])
    _, (_, second), *_ = table5.curve(rows, "complete", False)  # as many candidates as before
    assert math.isnan(second["efficiency"].value) and second["marginal_gain"].value == 0.5
    # no shares of a gain
    flat = pd.DataFrame([scaling_row(index, [4.0] * 8) for index in range(2)])
    _, (shares, _), (level, _) = table5.differences(
        flat, "chains", np.array([1.89, 2.17, 2.48, 2.76])
    )
    assert math.isnan(shares) and level > 0


def test_trees_of_another_depth_have_no_figures_of_the_paper_beside_them(tmp_path):
    """Defect: six levels stood beside the paper's four, under "at most 4"."""
    deep = [6, 63, 1365, 37449, 6, 11, 21, 41]
    rows = [row | {"num_nodes": deep} for row in repeated(SCALING_ROWS)]
    made = []
    for name, measured in (("usual", repeated(SCALING_ROWS)), ("deep", rows)):
        cell = save(make_cell(tmp_path / name, "standard", "c4"), measured)
        made += table5.make(planned(tmp_path / name, "table5", [cell])).tables
    asked = [any("closer to the published" in note for note in table.notes) for table in made]
    levels = [f"trees of {number} levels" for number in (4, 6)]
    said = [[level in " ".join(map(str, table.notes)) for level in levels] for table in made]
    assert asked == [True, False] and said == [[True, False], [False, True]]
    assert [table.frame.paper.notna().any() for table in made] == [True, False]


def test_filtered_laws_have_no_figures_of_the_paper_beside_them(tmp_path):
    """It has none of filters. Nor is a curve in another order compared with its curve."""
    backwards = []
    for row in SCALING_ROWS:
        nodes = row["num_nodes"][3::-1] + row["num_nodes"][:3:-1]
        backwards.append(row | {"num_candidates": [8, 4, 2, 1] * 2, "num_nodes": nodes})
    for name, rows, filters in (
        ("filtered", SCALING_ROWS, {"sampling.top_p": 0.9}),
        ("backwards", backwards, {}),
    ):
        cell = save(make_cell(tmp_path / name, "standard", "c4", **filters), repeated(rows))
        [table] = table5.make(planned(tmp_path / name, "table5", [cell])).tables
        assert not any("closer to the published" in note for note in table.notes)
        assert table.frame.paper.isna().all() == bool(filters)


def test_halves_hold_different_prompts():
    """A single prompt, which cannot be in two halves, has no ceiling."""
    [(_, alone), *_] = table5.curve(pd.DataFrame(SCALING_ROWS[:1]), "complete", True)
    assert math.isnan(alone["expected_accepted_length"].value)
    samples = stats.in_halves([[[0.0], [1.0]], [[10.0], [11.0]], [[2.0], [3.0]]])
    assert samples[:, 0].tolist() == [0.0, 10.0, 1.0, 11.0]
