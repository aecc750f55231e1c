"""Tables 3 and 6 from raw cells: the paper's layout and figures, gaps, and what a better draft brings."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_cells import (
    AUTOREGRESSIVE,
    DATASETS,
    RESISPEC,
    STANDARD,
    ToyCell,
    make_audit,
    make_cell,
    planned,
    rows_of,
    save,
)

from analysis import table3, table6
from analysis.report import Table, markdown

EXACT = [(0.5, [1, 1, 1]), (1.0, [0, 0, 3])]  # 6 in 3 steps + 9 in 3: 15/6 = 2.5; in 1.5 s: 10


def line_of(table: Table, **keys: str) -> dict[str, str]:
    """The only printed line with these values."""
    found = table.shown[(table.shown[list(keys)] == list(keys.values())).all(axis=1)]
    assert len(found) == 1
    return found.iloc[0].to_dict()


@pytest.fixture
def trees(tmp_path: Path) -> Table:
    """Two trees of Table 3, one of them without its exact verifier, and one without the paper's figures."""
    cells: list[ToyCell] = []
    for tree in ("d7b2", "d5b3", "chain"):
        cells += [
            save(make_cell(tmp_path, "standard", tree=tree), rows_of(STANDARD)),
            save(make_cell(tmp_path, "resispec", tree=tree), rows_of(RESISPEC)),
        ]
    cells.append(save(make_cell(tmp_path, "traversal_optimal", tree="d7b2"), rows_of(EXACT)))
    cells.append(make_cell(tmp_path, "traversal_optimal", tree="d5b3"))
    cells += [make_audit(cells[0], 2000, 0.0), make_audit(cells[1], 2000, 0.5)]
    return table3.make(planned(tmp_path, "table3", cells)).tables[0]


def test_table3_has_a_line_a_tree_with_its_cost_and_the_papers_figures(trees: Table) -> None:
    assert list(trees.shown.Tree) == ["d7b2", "d5b3", "chain of 4"]
    assert list(trees.shown["Verification cost"]) == ["127", "121", "–"]
    deep = line_of(trees, Tree="d7b2")
    assert deep["ResiSpec tokens/s (paper)"] == "101.01" and deep["ResiSpec speedup (paper)"] == "1.92"
    assert deep["SpecInfer tokens/s (paper)"] == "52.69"
    assert line_of(trees, Tree="chain of 4")["ResiSpec speedup (paper)"] == "–"
    assert "Exact speedup (paper)" not in trees.shown
    # by hand, from the counts above: 21.333 / 8.667, and 2.5 / 1.857
    assert deep["ResiSpec speedup"].startswith("2.46 [") and deep["Exact gain"].startswith("1.35 [")
    assert deep["SpecInfer accepted length"].startswith("1.86 [")
    assert "Pair: embedded 2M + 80k, T: 1, Data set: Python code, Decoder: SpecInfer." in trees.caption


def test_table3_shows_what_is_missing_and_what_audits_say(trees: Table) -> None:
    middle = line_of(trees, Tree="d5b3")
    assert middle["Exact tokens/s"] == "missing" and middle["Exact accepted length"] == "–"
    assert middle["Audit of standard"] == "–"
    deep = line_of(trees, Tree="d7b2")
    assert deep["Audit of standard"].startswith("exact (z 0.0")
    assert deep["Audit of ResiSpec"].startswith("biased (z ")
    assert "Audit of traversal, optimal weights" not in trees.shown
    assert any(note.startswith("Incomplete: 1 of 8 cells") for note in trees.notes)


def test_table3_tells_decoders_apart_and_names_what_has_no_column(tmp_path: Path) -> None:
    cells = [save(make_cell(tmp_path, "standard"), rows_of(STANDARD))]
    cells += [
        save(make_cell(tmp_path, rule, decoder="greedy"), rows_of(EXACT)) for rule in ("standard", "kseq")
    ]
    cells.append(save(make_cell(tmp_path, "autoregressive"), rows_of(AUTOREGRESSIVE)))
    for script in (table3, table6):
        table = script.make(planned(tmp_path, script.__name__.rpartition(".")[2], cells)).tables[0]
        found = [line_of(table, Decoder=name) for name in ("SpecInfer", "Greedy draws")]
        assert len(table.shown) == 2
        assert [line["SpecInfer accepted length"].partition(" ")[0] for line in found] == ["1.86", "2.50"]
        assert table.notes[0] == "Not in this table: Autoregressive, Greedy draws + K-SEQ; the CSV has them."
        assert set(table.frame.verifier) == {"", "standard", "kseq"}
        table = script.make(planned(tmp_path, "table3", cells[-1:])).tables[0]
        assert len(table.shown) == 0 and "Not in this table: Autoregressive" in markdown(table)


def pairs(root: Path, drafts: dict[str, list[tuple[float, list[int]]]]) -> tuple[Table, Table]:
    cells = []
    for pair, measured in drafts.items():
        cells += [
            save(make_cell(root, "standard", pair=pair), rows_of(measured)),
            save(make_cell(root, "resispec", pair=pair), rows_of(RESISPEC)),
        ]
    first, second = table6.make(planned(root, "table6", cells)).tables
    return first, second


def test_table6_names_both_models_and_takes_the_papers_pair_in_its_place(tmp_path: Path) -> None:
    table, _ = pairs(tmp_path, {"embedded": STANDARD, "embedded_800k__420k": EXACT})
    assert table.shown[["Target", "Draft"]].values.tolist() == [
        ["embedded 800k", "420k"],
        ["embedded 2M", "80k"],
    ]
    main = line_of(table, Target="embedded 2M")
    assert main["SpecInfer accepted length (paper)"] == "2.51–2.64"  # Llama-2-7B with JF68M, d5b3, T = 1
    assert main["ResiSpec tokens/s (paper)"] == "94.00–95.06"
    large = line_of(table, Target="embedded 800k")
    assert large["SpecInfer accepted length (paper)"] == "3.88–3.98"  # Sheared-2.7B with Sheared-1.3B
    assert large["ResiSpec accepted length (paper)"] == "4.84–4.88"


def test_table6_of_the_papers_own_pair_and_data_set_has_its_own_figure(tmp_path: Path) -> None:
    own = {"pair": "sheared_2.7b__tinyllama_1.1b", "temperature": 0.6, "tree": "d4b4"}
    cells = [save(make_cell(tmp_path, "standard", "c4", **own), rows_of(STANDARD))]
    cells.append(save(make_cell(tmp_path, "resispec", "c4", **own), rows_of(RESISPEC)))
    cells.append(save(make_cell(tmp_path, "standard", "c4", pair="my_pair"), rows_of(STANDARD)))
    table = table6.make(planned(tmp_path, "table6", cells)).tables[0]
    line = line_of(table, Target="Sheared-2.7B", Draft="TinyLlama-1.1B", T="0.6", Tree="d4b4")
    assert line["SpecInfer accepted length (paper)"] == "3.32"
    assert line["ResiSpec tokens/s (paper)"] == "87.04"
    mine = line_of(table, Target="my pair", Draft="–")
    assert mine["SpecInfer accepted length (paper)"] == "–" and mine["ResiSpec accepted length"] == "–"


def test_table6_says_by_how_much_a_better_draft_is_accepted_more(tmp_path: Path) -> None:
    small, large = STANDARD, EXACT
    _, drafts = pairs(
        tmp_path,
        {"embedded_800k__420k": large, "embedded_800k__80k": small, "embedded": small},
    )
    standard = drafts.shown[drafts.shown.Method == "SpecInfer (standard)"]
    assert standard[["Target", "Draft"]].values.tolist() == [
        ["embedded 800k", "80k"],
        ["embedded 800k", "420k"],
        ["embedded 2M", "80k"],
    ]
    over = standard["Over the weaker draft"].tolist()
    assert over[0] == over[2] == "–" and over[1].startswith("1.346 [")  # 2.5 over 13/7
    rows = drafts.frame[drafts.frame.quantity == "over_weaker_draft"]
    assert rows.value[rows.verifier == "standard"].dropna().tolist() == pytest.approx([2.5 * 7 / 13])


def test_table6_compares_drafts_on_the_same_data_sets_only(tmp_path: Path) -> None:
    """Of three drafts the middle one has two of two data sets, the weakest one of them, the best none."""
    cells = [
        make_cell(tmp_path, "standard", dataset, pair=f"embedded_800k__{size}")
        for size in ("80k", "180k", "420k")
        for dataset in DATASETS
    ]
    for cell in cells[1:4]:
        save(cell, rows_of(STANDARD))
    save(cells[4], None, "failed", "no memory")

    def lines() -> list[list[str]]:
        drafts = table6.make(planned(tmp_path, "table6", cells)).tables[1]
        names = ["Draft", "Accepted length", "Over the weaker draft", "Data sets"]
        return [[text.partition(" [")[0] for text in row] for row in drafts.shown[names].values.tolist()]

    weak, middle, best = lines()
    assert weak == ["80k", "1.86", "–", "1 of 2"]
    assert middle == ["180k", "1.86", "–", "2 of 2"]
    assert best[:1] + best[2:] == ["420k", "–", "0 of 2"] and best[1] in ("missing", "failed: no memory")
    save(cells[0], rows_of(STANDARD))
    assert lines()[1] == ["180k", "1.86", "1.000", "2 of 2"]
    for cell in cells[2:4]:  # the neighbour of the best is gone, so that it is compared with nothing
        (cell.folder / "status.json").unlink()
        (cell.folder / "rows.jsonl").unlink()
    for cell in cells[4:]:
        save(cell, rows_of(EXACT))
    assert lines()[1:] == [["180k", "missing", "–", "0 of 2"], ["420k", "2.50", "–", "2 of 2"]]


def test_table6_keeps_what_else_a_sweep_varied_apart(tmp_path: Path) -> None:
    cells = [
        save(make_cell(tmp_path, "standard", decoder=decoder, seed=seed), rows_of(STANDARD))
        for decoder in ("specinfer", "sequoia")
        for seed in (0, 1)
    ]
    table, drafts = table6.make(planned(tmp_path, "table6", cells)).tables
    assert (
        drafts.shown[["seed", "Method"]].drop_duplicates().shape
        == (4, 2)
        == table.shown[["seed", "Decoder"]].shape
    )
    assert drafts.num_keys == 6 and set(drafts.shown["Data sets"]) == {"1 of 1"}
