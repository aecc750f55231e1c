"""results.csv and the tables of categories: a row a cell, the numbers that the tables have."""

from dataclasses import replace

import pandas as pd

from analysis import categories, load, table1
from analysis.artefact import complete
from analysis.cells import main
from tests import toy_artefacts
from tests.toy_cells import (
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


def read(results, *artefacts):
    """The file that the command writes."""
    assert main(["--results", str(results), *artefacts]) == 0
    return pd.read_csv(results / "embedded" / "results.csv", keep_default_na=False, na_values=[""])


def test_parts_with_the_same_labels_are_not_mixed_up(tmp_path):
    """A longer run of the same cell is not compared with the shorter one; an audit may be alone."""
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
    assert (
        alone["is_audit"] and alone["verdict"] == "no bias seen" and pd.isna(alone["tokens_per_s"])
    )
    assert (
        other["task"] == "Decay" and other["status"] == "done" and pd.isna(other["accepted_length"])
    )
    assert set(read(tmp_path, "figure1").artefact) == {"figure1"}


def test_parts_of_an_artefact_in_a_sweep_of_ones_own_are_compared_within_each(tmp_path):
    """Cells have the same labels as those of more tokens, and a baseline those of an overlap."""
    cells, parts = [], ("d5b3", "long", "overlap")
    for part, measured in zip(parts, (STANDARD, STANDARD * 2, None), strict=True):
        for name in ("standard", "resispec"):
            cell = ToyCell(tmp_path, f"{part}-{name}", make_cell(tmp_path, name).labels)
            rows = rows_of(measured) if measured else decay_rows([[1.0]] * 2, [[2.0]] * 2)
            task = "Decode" if measured else "Acceptance"
            about = {"labels": save(cell, rows).labels, "task": task, "of": f"length/{part}"}
            cells.append({"cell_id": cell.cell_id} | about)
    write_plan(tmp_path, "sweep", [], part="mine", cells=cells)
    found = read(tmp_path).set_index("cell_id")
    assert len(found) == 6 and found.of["long-resispec"] == "length/long"
    gains = found.accepted_length_gain.dropna().to_dict()
    assert gains == {"d5b3-resispec": 1.0, "long-resispec": 1.0}
    assert found.num_prompts[["d5b3-standard", "long-standard"]].tolist() == [2, 4]


def test_a_sweep_over_tasks_has_a_column_of_them(tmp_path):
    """Defect: the table of the run ended with an error, and so did every later results.csv."""
    plain = make_cell(tmp_path, "standard").labels
    cells = []
    for name, rows in (("decode", rows_of(STANDARD)), ("decay", decay_rows([[1.0]], [[2.0]]))):
        cell = save(ToyCell(tmp_path, name, plain | {"task": name}), rows)
        task = name.capitalize()
        cells.append({"cell_id": cell.cell_id, "labels": cell.labels, "task": task})
    write_plan(tmp_path, "sweep", [], part="mine", cells=cells)
    assert read(tmp_path).set_index("cell_id").task.to_dict() == {
        "decode": "Decode",
        "decay": "Decay",
    }


def test_an_artefact_without_a_plan_is_one_line(tmp_path, capsys):
    def error(*arguments):
        assert main(["--results", str(tmp_path), *arguments]) == 1
        line = capsys.readouterr().err
        assert line.count("\n") == 1
        return line

    assert "there are no plans in" in error()
    write_plan(tmp_path, "table1", save_methods(tmp_path))
    assert error("tabel1").endswith("embedded/plans; allowed: table1\n")


def test_a_race_whose_rows_hold_lists_has_no_table_of_categories(tmp_path):
    race = make_cell(tmp_path, "autoregressive", decoder="fastest", tree="fastest")
    rows = [row | {"category": "qa"} for row in toy_artefacts.speed_rows()]
    assert categories.of(planned(tmp_path, "speed", [save(race, rows)]), "own") is None


def test_data_sets_have_categories_of_their_own(tmp_path):
    cells = []
    for dataset, names in (("spec_bench", ("qa", "rag")), ("gsm8k", ("math_reasoning",) * 2)):
        rows = [
            row | {"category": name} for row, name in zip(rows_of(STANDARD), names, strict=True)
        ]
        cells.append(save(make_cell(tmp_path, "standard", dataset), rows))
    table = categories.of(planned(tmp_path, "table1", cells), "own")
    by_dataset = shown(table).set_index("Data set")
    assert by_dataset["qa"].to_dict() == {"Spec-Bench": "1.67", "GSM8K": "–"}  # 5 tokens in 3 steps
    assert by_dataset["math reasoning"]["GSM8K"] == "1.86"


def test_sweeps_of_ones_own_with_equal_labels_have_lines_of_their_own(tmp_path):
    """They may differ in a setting that none of them varied."""
    for part, measured in (("a", METHODS["standard"]), ("b", METHODS["resispec"])):
        rows = [row | {"category": "qa"} for row in rows_of(measured)]
        cell = save(ToyCell(tmp_path, part, make_cell(tmp_path, "standard").labels), rows)
        write_plan(tmp_path, "sweep", [cell], part=part)
    assert main(["--results", str(tmp_path)]) == 0
    found = pd.read_csv(tmp_path / "embedded" / "sweep_categories.csv")
    lengths = found[(found.quantity == "accepted_length") & (found.category == "qa")]
    assert dict(zip(lengths.part, lengths.value.round(2), strict=True)) == {"a": 1.86, "b": 2.67}
    table = categories.of(load.read_plan("sweep", "embedded", tmp_path), "own")
    assert shown(table)["Part"].tolist() == ["a", "b"]


def test_gains_by_category_are_over_the_baseline_of_the_artefact_and_rows_have_verdicts(tmp_path):
    """Defect: EAGLE's softmax was over its own standard rule, where Table 2 is over EAGLE's."""
    at = {"decoder": "eagle_softmax", "tree": "eagle2"}
    methods = (("standard", STANDARD, at | {"decoder": "eagle"}), ("standard", STANDARD, at))
    cells = []
    for name, measured, more in (*methods, ("resispec", METHODS["resispec"], at)):
        rows = [row | {"category": "qa"} for row in rows_of(measured)]
        cells.append(save(make_cell(tmp_path, name, **more), rows))
    cells.append(make_audit(cells[-1], 600, 0.2))
    table = categories.of(planned(tmp_path, "table2", cells), "own")
    gains = table.frame[table.frame.quantity == "accepted_length_gain"].dropna(subset="value")
    assert set(gains.decoder) == {"eagle_softmax"} and set(gains.category) == {"qa", "all prompts"}
    assert gains.value.round(4).tolist() == [1.0, round((16 / 6) / (13 / 7), 4)] * 2
    assert shown(table)["Audit"].tolist() == ["–", "–", "biased"]


def test_a_sweep_whose_name_begins_like_that_of_further_runs_has_its_categories(tmp_path):
    rows = [row | {"category": "qa"} for row in rows_of(STANDARD)]
    cell = save(make_cell(tmp_path, "standard"), rows)
    write_plan(tmp_path, "sweep", [cell], part="runs_may")
    table = categories.of(load.read_plan("sweep", "embedded", tmp_path), "own")
    assert shown(table)["qa"].tolist() == ["1.86"]


def test_categories_of_a_sweeps_cells_have_the_artefacts_name(tmp_path):
    """Defect: two artefacts of one sweep wrote the same file, in a folder of the sweep's name."""
    rows = [row | {"category": "qa"} for row in rows_of(STANDARD)]
    plan = planned(tmp_path, "table1", [save(make_cell(tmp_path, "standard"), rows)])
    made = complete(table1.make, replace(plan, artefact="sweep/quick"))
    assert [one.stem for one in made.tables][-1] == "table1_categories"
