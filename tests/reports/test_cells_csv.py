"""results.csv and the tables of categories: a row a cell, the numbers that the tables have."""

import pandas as pd

from analysis import categories
from analysis.cells import main
from tests import toy_artefacts
from tests.toy_cells import (
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
    """A longer run of the same cell is compared with nothing of the shorter one;
    an audit may be alone.
    """
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
    assert categories.of(planned(tmp_path, "speed", [save(race, rows)])) is None


def test_data_sets_have_categories_of_their_own(tmp_path):
    cells = []
    for dataset, names in (("spec_bench", ("qa", "rag")), ("gsm8k", ("math_reasoning",) * 2)):
        rows = [
            row | {"category": name} for row, name in zip(rows_of(STANDARD), names, strict=True)
        ]
        cells.append(save(make_cell(tmp_path, "standard", dataset), rows))
    table = categories.of(planned(tmp_path, "table1", cells))
    by_dataset = shown(table).set_index("Data set")
    assert by_dataset["qa"].to_dict() == {"Spec-Bench": "1.67", "GSM8K": "–"}  # 5 tokens in 3 steps
    assert by_dataset["math reasoning"]["GSM8K"] == "1.86"
