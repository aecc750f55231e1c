"""Accepted length by category, against numbers by hand."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from toy_cells import METHODS, ToyCell, make_audit, make_cell, planned, rows_of, save, write_plan

from analysis import categories, cells, publish, table1
from analysis.page.__main__ import write


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
    assert list(table.shown) == ["Method", "qa", "rag", "all prompts"]
    assert table.shown["qa"].tolist() == ["1.00", "1.67", "3.00"]  # 4/4, 5/3 and 6/2
    assert table.shown["rag"].tolist() == ["1.00", "2.00", "2.50"]  # 8/8, 8/4 and 10/4
    assert [text.split()[0] for text in table.shown["all prompts"]] == ["1.00", "1.86", "2.67"]
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
    by_dataset = table.shown.set_index("Data set")
    assert by_dataset.index.tolist() == ["Spec-Bench", "Spec-Bench", "GSM8K"]
    assert by_dataset["qa"].tolist() == ["1.67", "failed: too large", "–"]
    assert by_dataset["math reasoning"]["GSM8K"].startswith("1.86 ")


def test_scripts_pages_and_sweeps_have_the_table(tmp_path: Path) -> None:
    made = [labelled(tmp_path, method) for method in METHODS]
    write_plan(tmp_path, "table1", made)
    write_plan(tmp_path, "sweep", made[1:2], part="1a2b3c4d")
    folder = tmp_path / "embedded"
    assert table1.main(["--results", str(tmp_path)]) == 0
    page = (folder / "table1_categories.md").read_text()
    assert "| Method" in page and "1.67" in page
    assert "Accepted length by category" in write("embedded", tmp_path).read_text()
    assert cells.main(["--results", str(tmp_path), "sweep"]) == 0
    own = pd.read_csv(folder / "sweep_categories.csv")
    assert set(own.category) == {"all prompts", "qa", "rag"} and set(own.verifier) == {"standard"}
    (tmp_path / "repository").mkdir()
    copied = publish.publish("table1", "embedded", tmp_path, tmp_path / "repository")
    assert "table1_categories.csv" in {path.name for path in copied}
