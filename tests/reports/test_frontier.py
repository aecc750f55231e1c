"""The frontier from raw cells: rows, ceilings, longer audits and searched trees."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toy_cells import (
    AUTOREGRESSIVE,
    RESISPEC,
    STANDARD,
    ToyCell,
    make_audit,
    make_cell,
    rows_of,
    save,
    write_plan,
)

from analysis.frontier import shapes
from analysis.frontier.table import main, make
from analysis.load import Plan, read_plan
from analysis.report import Table
from resispec.trees import from_widths, grow_map

TRAVERSAL = [(0.5, [0, 1, 1]), (1.0, [0, 0, 0, 2])]  # 5 in 2 steps + 8 in 2: 13/4 = 3.25


def bound_cell(root: Path, tree: str, ratio: float) -> ToyCell:
    """Rollouts and trees whose first level always has these ratios, 1 and `ratio`."""
    cell = replace(make_cell(root, "traversal_optimal", tree=tree), cell_id=f"bound-{tree}")
    rows = [
        {
            "prompt_index": index,
            "prompt_id": f"p{index}",
            "seed": index,
            "num_prompt_tokens": 8,
            "num_prefixes": 2,
            "num_nodes": 3,
            "emitted": 3.0,
            "tree_log_ratios": [[ratio], [ratio]],
            "rollout_log_ratios": [[1.0], [1.0]],
        }
        for index in range(4)
    ]
    return save(cell, rows)


def plan_of(results: Path, parts: dict[str, list[ToyCell]]) -> Plan:
    for part, cells in parts.items():
        write_plan(results, "frontier", cells, part=part)
    return read_plan("frontier", "embedded", results)


@pytest.fixture
def parts(tmp_path: Path) -> dict[str, list[ToyCell]]:
    """The baseline, the reference, a biased, a missing and a best cell, audits, and two ceilings."""
    made = [
        save(make_cell(tmp_path, "autoregressive"), rows_of(AUTOREGRESSIVE)),
        save(make_cell(tmp_path, "standard"), rows_of(STANDARD)),
        save(make_cell(tmp_path, "resispec"), rows_of(RESISPEC)),
        make_cell(tmp_path, "optimal"),
    ]
    best = save(make_cell(tmp_path, "traversal_optimal", tree="best_121"), rows_of(TRAVERSAL))
    longer = save(replace(made[1], cell_id="longer"), rows_of(STANDARD))
    return {
        "d5b3": [*made, make_audit(made[2], 600, 0.2)],
        "best": [best, make_audit(best, 600, 0.0)],
        "long": [make_audit(longer, 5100, 0.0)],
        # a rollout's ratio, 1.0, lies above all of d5b3's trees and below those of the other: A_1 is 0, and 1
        "bound": [bound_cell(tmp_path, "d5b3", 0.0), bound_cell(tmp_path, "best_121", 2.0)],
    }


def table_rows(table: Table) -> dict[tuple[str, str], dict[str, str]]:
    assert list(table.shown.columns) == [
        *("Tree", "Method", "Accepted length", "Ceiling", "Tokens/s", "Gain", "Speedup"),
        *("Speedup vs autoregressive", "Audit"),
    ]
    return {(row["Tree"], row["Method"]): row for row in table.shown.to_dict("records")}


def test_every_row_is_compared_with_the_standard_rule_on_d5b3(tmp_path: Path, parts: dict[str, Any]) -> None:
    rows = table_rows(make(plan_of(tmp_path, parts)).tables[0])
    assert len(rows) == 5
    best = rows["best of 121", "SpecInfer + traversal, optimal weights"]
    resispec = rows["d5b3", "SpecInfer + ResiSpec"]
    assert best["Accepted length"].startswith("3.25 [")
    assert best["Gain"].startswith("1.75 [")  # (13/4) / (13/7)
    assert resispec["Gain"].startswith("1.44 [")
    assert "biased" in resispec["Audit"] and "exact" in best["Audit"]
    assert rows["d5b3", "SpecInfer + optimal"]["Accepted length"] == "missing"
    assert (
        rows["d5b3", "SpecInfer (standard)"]["Gain"] == "–" and rows["–", "Autoregressive"]["Ceiling"] == "–"
    )


def test_the_ceiling_is_that_of_the_tree(tmp_path: Path, parts: dict[str, Any]) -> None:
    rows = table_rows(make(plan_of(tmp_path, parts)).tables[0])
    for method in ("SpecInfer (standard)", "SpecInfer + ResiSpec", "SpecInfer + optimal"):
        assert rows["d5b3", method]["Ceiling"] == "1.00 [1.00, 1.00]", method
    assert rows["best of 121", "SpecInfer + traversal, optimal weights"]["Ceiling"] == "2.00 [2.00, 2.00]"


def test_longer_audits_are_a_note_and_no_row(
    tmp_path: Path, parts: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    made = make(plan_of(tmp_path, parts))
    [note] = [note for note in made.tables[0].notes if note.startswith("Longer audits")]
    assert "Python code, d5b3, T = 1, SpecInfer (standard): exact (z" in note and "10,200 tokens" in note
    assert main(["--results", str(tmp_path)]) == 0
    assert "frontier.png" in capsys.readouterr().out
    for name in ("frontier.csv", "frontier.md", "frontier.tex", "frontier.png", "frontier.pdf"):
        assert (tmp_path / "embedded" / name).stat().st_size > 100
    assert {path.suffix for path in (tmp_path / "embedded").glob("frontier_shapes.*")} == {
        ".csv",
        ".md",
        ".tex",
    }


def test_the_number_of_prompts_says_nothing_about_the_part(tmp_path: Path, parts: dict[str, Any]) -> None:
    """With num_prompts=192 the table's audits are also the longer ones, and still the table's (defect C)."""
    standard = parts["d5b3"][1]
    audit = make_audit(standard, 5100, 0.0)
    parts["d5b3"].append(audit)
    parts["long"] = [audit]
    table = make(plan_of(tmp_path, parts)).tables[0]
    rows = table_rows(table)
    assert len(rows) == 5 and "10,200 tokens" in rows["d5b3", "SpecInfer (standard)"]["Audit"]
    assert [note for note in table.notes if note.startswith("Longer audits") and "10,200 tokens" in note]


@pytest.mark.parametrize("kept", [["bound"], ["long"], ["best"], ["best", "bound"]])
def test_any_part_alone_makes_a_table(tmp_path: Path, parts: dict[str, Any], kept: list[str]) -> None:
    plan_of(tmp_path, {part: parts[part] for part in kept})
    assert main(["--results", str(tmp_path)]) == 0
    table = make(read_plan("frontier", "embedded", tmp_path)).tables[0]
    assert len(table.shown) == ("best" in kept)


def shape(widths: list[int], tokens: float) -> dict[str, Any]:
    return {"widths": widths, "expected_tokens": tokens, "standard_error": 0.1, "s_per_token": 0.002}


def searched(root: Path, decoder: str, temperature: float) -> ToyCell:
    """A cell whose map says that three levels are the fastest from a cost ratio of 0.2, five below."""
    path = root / f"{decoder}.{temperature}.json"
    about = {
        "temperature": temperature,
        "verifier": "traversal",
        "device": "a machine",
        "draft_s": 0.001,
        "target_s": {"1": 1, "9": 0.02},
        "frontier": {"3": shape([3, 5], 2.0), "4": shape([2, 3, 3], 2.1), "5": shape([2, 2, 2, 2], 3.0)},
        "fastest_up_to_ratio": {"5": 0.2, "3": None},
    } | shape([2, 2, 2, 2], 3.0)
    grow_map.save(from_widths([2, 2, 2, 2]), path, about)
    cell = make_cell(root, "traversal", tree="best_9", decoder=decoder, temperature=temperature)
    return replace(cell, tree_file=path)


def test_searched_shapes_are_listed_with_the_costs_at_which_they_are_the_fastest(tmp_path: Path) -> None:
    cells = [
        searched(tmp_path, *case)
        for case in (("sequoia", 1.0), ("specinfer", 0.6), ("specinfer", 1.0), ("specinfer", 1.0))
    ]
    missing = replace(cells[0], cell_id="other", tree_file=tmp_path / "none.json")
    others = [make_cell(tmp_path, "standard"), make_cell(tmp_path, "autoregressive")]
    plan = plan_of(tmp_path, {"best": [*cells, missing, *others]})
    found = shapes.read(plan)
    table = shapes.table(found, plan)
    assert [row[:4] + row[7:] for row in table.shown.to_numpy().tolist()] == [
        ["1", "SpecInfer + traversal", "9", "3", "from 0.200"],
        ["1", "SpecInfer + traversal", "9", "5", "0.000 to 0.200"],
        ["1", "Sequoia + traversal", "9", "3", "from 0.200"],
        ["1", "Sequoia + traversal", "9", "5", "0.000 to 0.200"],
        ["0.6", "SpecInfer + traversal", "9", "3", "from 0.200"],
        ["0.6", "SpecInfer + traversal", "9", "5", "0.000 to 0.200"],
    ]
    assert table.shown.iloc[0].tolist()[4:7] == ["1, 3, 5", "2.00 (0.10)", "2.00"]
    # four levels, in each of three maps
    assert len(table.frame) == 9 and table.frame.fastest_up_to_ratio.isna().sum() == 3
    [note] = shapes.by_cost(found)
    first = "at T = 1 5 levels up to 0.200, 3 levels beyond (this pair, here: 0.050); at T = 0.6 5 levels"
    assert first in note
    assert shapes.by_cost([]) == () and shapes.table([], plan).shown.empty


def test_the_summary_has_ranges_over_data_sets_and_counts_verdicts(
    tmp_path: Path, parts: dict[str, Any]
) -> None:
    other = "embedded_reference"
    parts["d5b3"].append(save(make_cell(tmp_path, "standard", other), rows_of(STANDARD)))
    better = save(make_cell(tmp_path, "resispec", other), rows_of(TRAVERSAL))
    parts["d5b3"] += [better, make_audit(better, 600, 0.2)]
    summary = make(plan_of(tmp_path, parts)).tables[1]
    assert summary.stem == "frontier_summary"
    rows = {(row["Tree"], row["Method"]): row for row in summary.shown.to_dict("records")}
    resispec = rows["d5b3", "SpecInfer + ResiSpec"]
    assert resispec["Accepted length, T = 1"] == "2.67–3.25"  # 16/6 and 13/4
    assert resispec["Gain, T = 1"] == "1.44–1.75"
    assert resispec["Gain, T = 0.6"] == "–" and resispec["Audit"] == "biased (2 of 2)"
    best = rows["best of 121", "SpecInfer + traversal, optimal weights"]
    assert best["Accepted length, T = 1"] == "3.25" and best["Audit"] == "exact (1 of 1)"
    assert rows["d5b3", "SpecInfer (standard)"]["Audit"] == "–"
