"""Table 2 from raw cells: which figure of the paper is beside which row, and what the search expected."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from toy_cells import AUTOREGRESSIVE, RESISPEC, STANDARD, ToyCell, make_cell, planned, rows_of, save

from analysis import table2
from analysis.report import Table


def table_of(cells: list[ToyCell]) -> Table:
    return table2.make(planned(cells[0].results, "table2", cells)).tables[0]


def sequoia(root: Path, verifier: str, tree: str = "growmap_64", path: Path | None = None) -> ToyCell:
    return replace(make_cell(root, verifier, decoder="sequoia", tree=tree), tree_file=path)


@pytest.fixture
def cells(tmp_path: Path) -> list[ToyCell]:
    """A map of ours, a user's map, a complete tree, and the autoregressive baseline."""
    ours = tmp_path / "ours.json"
    ours.write_text(json.dumps({"about": {"expected_tokens": 1.9}}))
    return [
        save(make_cell(tmp_path, "autoregressive"), rows_of(AUTOREGRESSIVE)),
        save(sequoia(tmp_path, "standard", path=ours), rows_of(STANDARD)),
        save(sequoia(tmp_path, "resispec", path=ours), rows_of(RESISPEC)),
        save(sequoia(tmp_path, "standard", "growmap_121", tmp_path / "L40.pt"), rows_of(STANDARD)),
        save(sequoia(tmp_path, "standard", "d5b3"), rows_of(STANDARD)),
        sequoia(tmp_path, "resispec", "d5b3"),
    ]


def test_every_cell_has_a_row_and_the_papers_figure_of_its_own_setting(cells: list[ToyCell]) -> None:
    shown = table_of(cells).shown
    assert len(shown) == len(cells) and list(shown.columns).count("(paper)") == 4
    # the columns "(paper)" repeat, so rows are read by place
    rows = {(row[0], row[1]): row for row in shown.to_numpy().tolist()}
    standard = rows["grow map of 64", "Sequoia (standard)"]
    resispec = rows["grow map of 64", "Sequoia + ResiSpec"]
    assert [standard[place] for place in (3, 5, 7, 9)] == ["3.07", "88.14", "–", "–"]
    assert [resispec[place] for place in (3, 5, 7, 9)] == ["4.32", "115.32", "1.41", "1.31"]
    # by hand, from sixths and sevenths
    assert resispec[6].startswith("1.44 [") and resispec[8].startswith("2.46 [")
    for tree in ("grow map of 121", "d5b3"):  # the paper has no such row
        assert rows[tree, "Sequoia (standard)"][3] == "–"
    assert rows["d5b3", "Sequoia + ResiSpec"][2] == "missing"


def test_eagle_is_compared_with_its_own_reading_as_in_the_paper(tmp_path: Path) -> None:
    def eagle(decoder: str, verifier: str, measured: list[tuple[float, list[int]]]) -> ToyCell:
        return save(make_cell(tmp_path, verifier, decoder=decoder, tree="eagle2"), rows_of(measured))

    cells = [
        eagle("eagle", "standard", STANDARD),
        eagle("eagle_softmax", "standard", STANDARD),
        eagle("eagle_softmax", "resispec", RESISPEC),
    ]
    rows = {row[0]: row for row in table_of(cells).shown.to_numpy().tolist()}
    softmax = rows["EAGLE, softmax as q + ResiSpec"]
    assert [softmax[place] for place in (2, 4, 6, 8)] == ["3.85", "71.17", "1.23", "1.15"]
    assert softmax[5].startswith("1.44 [") and rows["EAGLE, softmax as q (standard)"][5].startswith("1.00 [")
    assert rows["EAGLE (standard)"][2] == "3.12" and rows["EAGLE, softmax as q (standard)"][2] == "–"


def test_what_the_search_expected_stands_beside_what_was_measured(cells: list[ToyCell]) -> None:
    [agreement] = [note for note in table_of(cells).notes if "tree search expected" in note]
    assert agreement.endswith("Python code, grow map of 64: 1.90 and 1.86 [1.67, 2.00].")
    without = table_of(cells[:1] + cells[4:]).notes
    assert not any("tree search expected" in note for note in without)


def test_chains_of_other_lengths_are_rows_of_their_own(tmp_path: Path) -> None:
    """Table 2's parts share a pair and data sets, and a user's parameters are printed (defect E)."""
    cells = [save(make_cell(tmp_path, "standard"), rows_of(STANDARD))]
    cells += [
        save(make_cell(tmp_path, "standard", tree=f"chain(num_drafted={count})"), rows_of(STANDARD))
        for count in (3, 7)
    ]
    trees = table_of(cells).shown["Tree"].tolist()
    assert trees == ["d5b3", "chain, num_drafted=3", "chain, num_drafted=7"]
