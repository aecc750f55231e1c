"""results.csv and the tables of categories: a row a cell, the numbers that the tables have."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import toy_artefacts
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

from analysis import audits, categories, table1
from analysis.cells import FIRST, LAST, METRICS, main


def read(results: Path, *artefacts: str) -> pd.DataFrame:
    """The file that the command writes."""
    assert main(["--results", str(results), *artefacts]) == 0
    return pd.read_csv(results / "embedded" / "results.csv", keep_default_na=False, na_values=[""])


def test_a_row_has_what_the_table_has(tmp_path: Path) -> None:
    """Every metric, interval and audit is the long table's own number."""
    cells = save_methods(tmp_path)
    plan = planned(tmp_path, "table1", [*cells, *(make_audit(cell, 2000, 0.001) for cell in cells[1:])])
    frame, [long] = read(tmp_path), [table.frame for table in table1.make(plan).tables]
    columns = [*FIRST, *LAST, *(f"acceptance_histogram_{accepted}" for accepted in range(3))]
    columns += [f"acceptance_rate_per_position_{depth}" for depth in (1, 2)]
    assert list(frame) == [*columns, "is_across_runs"] and len(frame) == 3
    rows = frame.set_index("cell_id")
    for one in long.to_dict("records"):
        bounds = {"": "value", "_lower": "lower", "_upper": "upper"}
        for bound, column in list(bounds.items())[: 1 if one["quantity"] in audits.QUANTITIES else 3]:
            found = rows.loc[one["cell_id"], one["quantity"] + bound]
            assert found == pytest.approx(one[column], nan_ok=True)
    by_verifier = frame.set_index("verifier")
    assert by_verifier.accepted_length_gain["resispec"] == pytest.approx((16 / 6) / (13 / 7))
    assert by_verifier.verdict["standard"] == "no bias seen"
    assert by_verifier.audited_tokens["standard"] == 4000
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
    assert list(frame)[: len(FIRST + LAST) + 1] == [*FIRST, "seed", *LAST]
    assert frame.artefact.tolist() == ["sweep", "sweep", "table1", "table1", "table1"]
    assert frame.part.fillna("").tolist() == ["1a2b3c4d", "5e6f7a8b", "", "", ""]
    assert frame.command[1].endswith("seed=7") and frame.seed.fillna(0).tolist() == [0, 7, 0, 0, 0]
    assert frame.accepted_length[1] == pytest.approx(13 / 7)  # of the same cell as in table1
    assert set(read(tmp_path, "sweep").artefact) == {"sweep"}


def test_parts_with_the_same_labels_are_not_mixed_up(tmp_path: Path) -> None:
    """A longer run of the same cell is compared with nothing of the shorter one; an audit may be alone."""
    short = save(make_cell(tmp_path, "standard"), rows_of(STANDARD))
    longer = save(ToyCell(tmp_path, "longer", short.labels), rows_of(STANDARD * 2))
    decay = save(make_cell(tmp_path, "resispec"), decay_rows([[1.0, 0.5]] * 2, [[2.0, 1.0]] * 2))
    write_plan(tmp_path, "frontier", [short], part="d5b3")
    write_plan(tmp_path, "frontier", [longer], part="long")
    write_plan(tmp_path, "frontier", [make_audit(short, 2000, 0.001)], part="none")
    entry = {"cell_id": decay.cell_id, "labels": decay.labels, "task": "Decay", "num_prompts": 2}
    write_plan(tmp_path, "figure1", [decay], cells=[entry])
    other, first, second, alone = read(tmp_path).to_dict("records")
    assert (first["num_prompts"], second["num_prompts"]) == (2, 4)
    assert alone["is_audit"] and alone["verdict"] == "no bias seen" and pd.isna(alone["tokens_per_s"])
    assert other["task"] == "Decay" and other["status"] == "done" and pd.isna(other["accepted_length"])


def test_what_is_wrong_is_one_line_and_the_file_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def error(*arguments: str) -> str:
        assert main(["--results", str(tmp_path), *arguments]) == 1
        line = capsys.readouterr().err
        assert line.count("\n") == 1
        return line

    assert "there are no plans in" in error()
    cells = save_methods(tmp_path)
    write_plan(tmp_path, "table1", cells)
    before = read(tmp_path)
    assert error("tabel1").endswith("embedded/plans; allowed: table1\n")
    (cells[0].folder / "rows.jsonl").write_text("")
    assert "rows.jsonl is not what was written" in error()
    after = pd.read_csv(tmp_path / "embedded" / "results.csv", keep_default_na=False, na_values=[""])
    pd.testing.assert_frame_equal(before, after)


def labelled(results: Path, method: str, dataset: str, names: tuple[str, str]) -> ToyCell:
    """The toy cell of a method, whose two prompts are of two categories."""
    rows = [row | {"category": name} for row, name in zip(rows_of(METHODS[method]), names, strict=True)]
    return save(make_cell(results, method, dataset), rows)


def test_a_category_is_its_prompts_alone(tmp_path: Path) -> None:
    made = [labelled(tmp_path, method, "spec_bench", ("qa", "rag")) for method in METHODS]
    table = categories.of(planned(tmp_path, "table1", made))
    assert table is not None and table.stem == "table1_categories"
    printed = shown(table)
    assert list(printed) == ["Method", "qa", "rag", "all prompts"]
    assert printed["qa"].tolist() == ["1.00", "1.67", "3.00"]  # 4/4, 5/3 and 6/2
    assert printed["rag"].tolist() == ["1.00", "2.00", "2.50"]  # 8/8, 8/4 and 10/4
    assert [text.split()[0] for text in printed["all prompts"]] == ["1.00", "1.86", "2.67"]
    found = table.frame.set_index(["verifier", "category", "quantity"])
    assert found.value["resispec", "qa", "accepted_length_gain"] == pytest.approx(3 / (5 / 3))
    assert found.value["resispec", "rag", "speedup"] == pytest.approx((10 / 0.5) / (8 / 1.0))
    assert found.num_prompts["resispec", "qa", "speedup"] == 1


def test_a_race_whose_rows_hold_lists_has_no_table_of_categories(tmp_path: Path) -> None:
    race = make_cell(tmp_path, "autoregressive", decoder="fastest", tree="fastest")
    rows = [row | {"category": "qa"} for row in toy_artefacts.speed_rows()]
    assert categories.of(planned(tmp_path, "speed", [save(race, rows)])) is None


def test_only_data_sets_with_categories_have_lines_and_gaps_are_shown(tmp_path: Path) -> None:
    plain = save_methods(tmp_path)
    assert categories.of(planned(tmp_path, "table1", plain)) is None
    failed = save(make_cell(tmp_path, "resispec", "spec_bench"), None, "failed", "too large")
    own = labelled(tmp_path, "standard", "spec_bench", ("qa", "rag"))
    gsm8k = labelled(tmp_path, "standard", "gsm8k", ("math_reasoning",) * 2)
    cells = [*plain, own, make_audit(own, 600, 0.0), failed, gsm8k]
    table = categories.of(planned(tmp_path, "table1", cells))
    assert table is not None
    by_dataset = shown(table).set_index("Data set")
    assert by_dataset.index.tolist() == ["Spec-Bench", "Spec-Bench", "GSM8K"]
    assert by_dataset["qa"].tolist() == ["1.67", "failed: too large", "–"]
    assert by_dataset["math reasoning"]["GSM8K"].startswith("1.86 ")
