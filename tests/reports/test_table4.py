"""Table 4 on cells worked out by hand, and what Tables 4 and 5 and Figure 1 share."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from toy_cells import (
    SCALING_ROWS,
    ToyCell,
    decay_rows,
    kl_rows,
    make_cell,
    planned,
    save,
    write_plan,
)

from analysis import figure1, report, table4, table5
from resispec.errors import InvalidInput


def measured(frame: pd.DataFrame, **wanted: Any) -> pd.Series:
    [row] = frame[(frame[list(wanted)] == pd.Series(wanted)).all(axis=1)].to_dict("records")
    return pd.Series(row)


def table4_of(results: Path, cells: list[ToyCell]) -> report.Table:
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
    text = report.markdown(table)
    rows = [line for line in text.splitlines() if line.startswith("|")][2:]
    assert [row.split("|")[2].strip() for row in rows] == ["SpecInfer (standard)", "SpecInfer + ResiSpec"] * 2
    for said in ("3.0e-07", "2.6e-10–1.0e-09", "0.300 [0.300, 0.300]", "5.2"):
        assert said in rows[1]
    assert "failed: out of memory" in rows[2] and "missing" in rows[3]
    made_by = "Made by: make reproduce-table4 PROFILE=embedded"
    for said in (
        "1,600 sampled",
        "0.231 (4 standard errors",
        "other models",
        "test CPU",
        made_by,
        "2 of 4 cells",
    ):
        assert said in text, said


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


@pytest.mark.parametrize("field", ["kl_plug_in", "num_prefixes"])
def test_rows_of_another_kind_are_refused(field: str, tmp_path: Path) -> None:
    [row] = kl_rows([[0.1]])
    cell = save(make_cell(tmp_path, "standard"), [{name: row[name] for name in row if name != field}])
    with pytest.raises(InvalidInput, match=f"cell {cell.cell_id}: its rows lack {field};"):
        table4_of(tmp_path, [cell])


def test_cells_must_share_their_prompts(tmp_path: Path) -> None:
    one = save(make_cell(tmp_path, "standard"), kl_rows([[0.1], [0.2]]))
    other = save(make_cell(tmp_path, "resispec"), [row | {"seed": 9} for row in kl_rows([[0.1], [0.2]])])
    with pytest.raises(InvalidInput, match=f"measured prompt .* where {one.cell_id}, compared with it"):
        table4_of(tmp_path, [one, other])


def test_seeds_of_a_sweep_are_rows_of_their_own(tmp_path: Path) -> None:
    cells = [
        save(
            make_cell(tmp_path, "standard", seed=seed),
            [row | {"seed": row["seed"] + seed} for row in SCALING_ROWS],
        )
        for seed in (0, 50)
    ]
    table = table5.make(planned(tmp_path, "table5", cells)).tables[0]
    # a curve and a ceiling in two arrangements
    assert table.shown["seed"].tolist() == ["0"] * 16 + ["50"] * 16
    decay = decay_rows([[6.0, 1.0]] * 2, [[10.0, 4.0]] * 2)
    cells = [
        save(
            make_cell(tmp_path, "resispec", seed=seed), [row | {"seed": row["seed"] + seed} for row in decay]
        )
        for seed in (0, 50)
    ]
    panels = figure1.make(planned(tmp_path, "figure1", cells)).figures["figure1"]
    assert [axes.get_title() for axes in panels.axes] == [f"Python code, seed = {seed}" for seed in (0, 50)]
