"""results.csv and the tables of categories: a row a cell, the numbers that the tables have."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from toy_cells import (
    METHODS,
    STANDARD,
    ToyCell,
    decay_rows,
    make_audit,
    make_cell,
    planned,
    rows_of,
    save,
    save_methods,
    shown,
    write_plan,
)

from analysis import audits, categories, metrics, table1
from analysis.cells import FIRST, LAST, METRICS, main


def read(results: Path, *artefacts: str) -> pd.DataFrame:
    """The file that the command writes."""
    assert main(["--results", str(results), *artefacts]) == 0
    return pd.read_csv(results / "embedded" / "results.csv", keep_default_na=False, na_values=[""])


def test_a_row_has_what_the_table_has(tmp_path: Path) -> None:
    """Every metric, interval and audit is the long table's own number."""
    cells = save_methods(tmp_path)
    audited = [make_audit(cell, 2000, 0.001) for cell in cells[1:]]
    plan = planned(tmp_path, "table1", [*cells, *audited])
    frame, [long] = read(tmp_path), [table.frame for table in table1.make(plan).tables]
    assert list(frame) == [*FIRST, *LAST] and len(frame) == 3
    assert set(long.quantity) == {*(metric.name for metric in metrics.METRICS), *audits.QUANTITIES}
    for row in frame.to_dict("records"):
        for one in long[long.cell_id == row["cell_id"]].to_dict("records"):
            found = {"": "value", "_lower": "lower", "_upper": "upper"}
            if one["quantity"] in audits.QUANTITIES:
                found = {"": "value"}
            for bound, column in found.items():
                assert row[one["quantity"] + bound] == pytest.approx(one[column], nan_ok=True)
            assert (row["verdict"] == one["verdict"]) or pd.isna(row["verdict"])
    by_verifier = frame.set_index("verifier")
    assert by_verifier.accepted_length["resispec"] == pytest.approx(16 / 6)
    assert by_verifier.accepted_length_gain["resispec"] == pytest.approx((16 / 6) / (13 / 7))
    assert (
        by_verifier.verdict["standard"] == "no bias seen" and by_verifier.audited_tokens["standard"] == 4000
    )
    assert all(pd.api.types.is_numeric_dtype(frame[name]) for name in METRICS)
    assert set(frame.command) == {"python -m experiments.run experiment=table1 profile=embedded"}


def test_every_sweep_has_its_rows_and_its_labels(tmp_path: Path) -> None:
    """Sweeps of one's own as well; what one of them varies is empty in the rows of others."""
    cells = save_methods(tmp_path)
    write_plan(tmp_path, "table1", cells)
    seeds = [cell.labelled(seed=7) for cell in cells[1:2]]
    write_plan(tmp_path, "sweep", cells[1:2], part="1a2b3c4d", command="python -m experiments.run tree=chain")
    write_plan(tmp_path, "sweep", seeds, part="5e6f7a8b", command="python -m experiments.run seed=7")
    frame = read(tmp_path)
    assert list(frame) == [*FIRST, "seed", *LAST]
    assert frame.artefact.tolist() == ["sweep", "sweep", "table1", "table1", "table1"]
    assert frame.part.fillna("").tolist() == ["1a2b3c4d", "5e6f7a8b", "", "", ""]
    assert (
        frame.command[1].endswith("seed=7") and frame.seed.tolist()[1] == 7 and frame.seed.isna().sum() == 4
    )
    assert frame.accepted_length[1] == pytest.approx(13 / 7)  # of the same cell as in table1
    assert set(read(tmp_path, "sweep").artefact) == {"sweep"}
    assert len(read(tmp_path, "table1", "sweep")) == 5


def test_parts_with_the_same_labels_are_not_mixed_up(tmp_path: Path) -> None:
    """A longer run of the same cell is compared with nothing of the shorter one."""
    short = save(make_cell(tmp_path, "standard"), rows_of(STANDARD))
    labels = short.labels
    longer = save(ToyCell(tmp_path, "longer", labels), rows_of(STANDARD * 2))
    write_plan(tmp_path, "frontier", [short], part="d5b3")
    write_plan(tmp_path, "frontier", [longer], part="long")
    assert read(tmp_path).num_prompts.tolist() == [2, 4]


def test_an_audit_without_a_timed_cell_has_a_row_of_its_own(tmp_path: Path) -> None:
    [_, standard, _] = save_methods(tmp_path)
    write_plan(tmp_path, "frontier", [make_audit(standard, 2000, 0.001)], part="long")
    [row] = read(tmp_path).to_dict("records")
    assert row["is_audit"] and row["verdict"] == "no bias seen" and row["audited_tokens"] == 4000
    assert pd.isna(row["tokens_per_s"])


def test_cells_of_another_task_have_their_labels(tmp_path: Path) -> None:
    cell = save(make_cell(tmp_path, "standard"), decay_rows([[1.0, 0.5]] * 2, [[2.0, 1.0]] * 2))
    entry = {"cell_id": cell.cell_id, "labels": cell.labels, "task": "Decay", "num_prompts": 2}
    write_plan(tmp_path, "figure1", [cell], cells=[entry])
    [row] = read(tmp_path).to_dict("records")
    assert row["task"] == "Decay" and row["status"] == "done" and row["num_prompts"] == 2
    assert pd.isna(row["accepted_length"])


def test_what_is_wrong_is_one_line_and_the_file_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--results", str(tmp_path)]) == 1
    assert "there are no plans in" in capsys.readouterr().err
    cells = save_methods(tmp_path)
    write_plan(tmp_path, "table1", cells)
    before = read(tmp_path)
    assert main(["--results", str(tmp_path), "tabel1"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "no plan of 'tabel1'" in error and error.endswith("allowed: table1\n")
    (cells[0].folder / "rows.jsonl").write_text("")
    assert main(["--results", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "rows.jsonl is not what was written" in error
    after = pd.read_csv(tmp_path / "embedded" / "results.csv", keep_default_na=False, na_values=[""])
    pd.testing.assert_frame_equal(before, after)


def labelled(results: Path, method: str, dataset: str = "spec_bench") -> ToyCell:
    """The toy cell of a method, whose two prompts are of two categories."""
    rows = rows_of(METHODS[method])
    for row, name in zip(rows, ("qa", "rag"), strict=True):
        row["category"] = name
    return save(make_cell(results, method, dataset), rows)


def test_a_category_is_its_prompts_alone(tmp_path: Path) -> None:
    made = [labelled(tmp_path, method) for method in METHODS]
    table = categories.of(planned(tmp_path, "table1", made))
    assert table is not None and table.stem == "table1_categories"
    assert list(shown(table)) == ["Method", "qa", "rag", "all prompts"]
    assert shown(table)["qa"].tolist() == ["1.00", "1.67", "3.00"]  # 4/4, 5/3 and 6/2
    assert shown(table)["rag"].tolist() == ["1.00", "2.00", "2.50"]  # 8/8, 8/4 and 10/4
    assert [text.split()[0] for text in shown(table)["all prompts"]] == ["1.00", "1.86", "2.67"]
    found = table.frame.set_index(["verifier", "category", "quantity"])
    assert found.value["resispec", "qa", "accepted_length_gain"] == pytest.approx(3 / (5 / 3))
    assert found.value["resispec", "rag", "speedup"] == pytest.approx((10 / 0.5) / (8 / 1.0))
    assert found.num_prompts["resispec", "qa", "speedup"] == 1
    assert found.num_prompts["resispec", "all prompts", "speedup"] == 2


def test_only_data_sets_with_categories_have_lines_and_gaps_are_shown(tmp_path: Path) -> None:
    plain = [save(make_cell(tmp_path, method), rows_of(rows)) for method, rows in METHODS.items()]
    assert categories.of(planned(tmp_path, "table1", plain)) is None
    failed = save(make_cell(tmp_path, "resispec", "spec_bench"), None, "failed", "too large")
    own = labelled(tmp_path, "standard")
    gsm8k = save(
        make_cell(tmp_path, "standard", "gsm8k"),
        [row | {"category": "math_reasoning"} for row in rows_of(METHODS["standard"])],
    )
    table = categories.of(
        planned(tmp_path, "table1", [*plain, own, make_audit(own, 600, 0.0), failed, gsm8k])
    )
    assert table is not None
    by_dataset = shown(table).set_index("Data set")
    assert by_dataset.index.tolist() == ["Spec-Bench", "Spec-Bench", "GSM8K"]
    assert by_dataset["qa"].tolist() == ["1.67", "failed: too large", "–"]
    assert by_dataset["math reasoning"]["GSM8K"].startswith("1.86 ")
