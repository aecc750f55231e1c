"""The artefact of whole levels from raw cells: gains over SpecInfer, and over traversal on the same tree."""

from pathlib import Path

from toy_cells import STANDARD, make_audit, make_cell, planned, rows_of, save

from analysis import levels

FROM_THE_LEAVES = [(0.5, [1, 1, 1]), (1.0, [0, 0, 3])]  # 15 tokens in 6 steps
BY_LEVELS = [(0.5, [0, 2, 1]), (1.0, [0, 0, 4])]  # 19 in 7


def test_a_line_for_each_cell_with_both_gains(tmp_path: Path) -> None:
    cells = [
        save(make_cell(tmp_path, "standard"), rows_of(STANDARD)),
        save(make_cell(tmp_path, "traversal_optimal", tree="best_121"), rows_of(FROM_THE_LEAVES)),
        save(make_cell(tmp_path, "level_optimal", tree="best_121"), rows_of(BY_LEVELS)),
        make_cell(tmp_path, "level_optimal"),
    ]
    cells.append(make_audit(cells[2], 2000, 0.0))
    table = levels.make(planned(tmp_path, "levels", cells)).tables[0]
    shown = table.shown.set_index(["Tree", "Method"])
    best = shown.loc[("best of 121", "SpecInfer + whole levels, optimal")]
    assert best["Accepted length"].startswith("2.71 [") and best["Audit"].startswith("exact (z 0.0")
    assert best["Over traversal"].startswith("1.09 [")  # 19/7 over 15/6
    assert shown.loc[("best of 121", "SpecInfer + traversal, optimal weights")]["Over traversal"] == "–"
    assert "missing" in shown.loc[("d5b3", "SpecInfer + whole levels, optimal")].tolist()
    gains = table.frame[table.frame.quantity == levels.OVER_TRAVERSAL.name]
    assert gains.value.notna().sum() == 1 and gains.lower.notna().sum() == 1
