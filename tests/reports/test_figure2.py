"""Figure 2 from rows of laws: the typical prefix, every number of the picture, and what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from matplotlib.figure import Figure
from toy_cells import ToyCell, identity, make_cell, planned, save

from analysis import figure2, residual_panels
from analysis.typical import Place, typical

# Two entries a side: a token and all others. By hand: q > p on the first two, .3 of p and .7 of q.
TARGET, DRAFT = [0.1, 0.2, 0.4, 0.3], [0.3, 0.4, 0.2, 0.1]
EXACT = [TARGET, [0.0, 0.0, 0.5, 0.5], [0.0, 0.0, 0.25, 0.75]]
BIASED = [TARGET, [0.2, 0.4, 0.3, 0.1], [0.1, 0.5, 0.25, 0.15]]


def row(index: int, numbers: list[float], residual: list[list[float]], excess: float) -> dict[str, Any]:
    """A prompt with a prefix for each of `numbers`, which is all that is typical of it."""
    count, same = len(numbers), [[number, number / 2, number / 4] for number in numbers]
    return identity(index, count) | {
        "num_tuples": 16,
        "context": [f"text  {index}\n {place}" for place in range(count)],
        "tokens": [[7, -1, 9, -1]] * count,
        "texts": [[" $x\n", "all others", "|", "all others"]] * count,
        "target": [TARGET] * count,
        "draft": [DRAFT] * count,
        "residual": [residual] * count,
        "rejected": same,
        "overlap": same,
        "outside": same,
        "overdraft": [[law[0] + law[1] for law in residual]] * count,
        "emitted": [[TARGET[0] + excess, *TARGET[1:3], TARGET[3] - excess]] * count,
        "emitted_error": [[0.01] * 4] * count,
        "excess": [excess] * count,
    }


def rows(residual: list[list[float]], excess: float = 0.0) -> list[dict[str, Any]]:
    """The median of all numbers is .4, and the last prompt's only prefix has it."""
    numbers = ([1.0, 0.25], [0.5, 0.125], [0.4])
    return [row(index, found, residual, excess) for index, found in enumerate(numbers)]


@pytest.fixture
def cells(tmp_path: Path) -> list[ToyCell]:
    return [
        save(make_cell(tmp_path, "standard"), rows(EXACT)),
        save(make_cell(tmp_path, "resispec"), rows(BIASED, 0.25)),
    ]


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(lambda one: hasattr(one, "get_text"))]


def test_the_prefix_nearest_to_the_medians_is_typical_and_of_equals_the_first() -> None:
    frame = pd.DataFrame({
        "num_prefixes": [1, 2, 1],
        "one": [[[0.0]], [[0.5], [0.4]], [[1.0]]],
        "two": [[[0.0, 9.0]], [[0.5, 5.0], [0.5, 5.2]], [[1.0, 1.0]]],
    })  # fmt: skip
    # medians .45, .5, 5.1: both prefixes of the second prompt are .112 away
    assert typical(frame, ("one", "two")) == Place(1, 0)
    assert typical(frame.iloc[::-1], ("one", "two")) == Place(1, 0)
    assert typical(frame, ("two",)) == Place(1, 0)
    assert typical(pd.DataFrame({"num_prefixes": [3], "one": [[[9.0], [2.0], [0.0]]]}), ("one",)) == Place(
        0, 1
    )


def test_figure2_by_hand(tmp_path: Path, cells: list[ToyCell]) -> None:
    planned(tmp_path, "figure2", cells)
    assert figure2.main(["--results", str(tmp_path)]) == 0
    figures = [tmp_path / "embedded" / f"figure2.{suffix}" for suffix in ("png", "pdf")]
    tables = [
        tmp_path / "embedded" / f"figure2{end}" for end in (".csv", ".md", "_context.csv", "_context.md")
    ]
    paths = [*tables, *figures]
    assert all(path.stat().st_size > 200 for path in paths)
    frame = pd.read_csv(paths[0]).set_index(["verifier", "quantity", "rejections"]).sort_index()
    found = frame.loc[("standard", "overlap", 1)]
    assert found["value"] == pytest.approx((1 + 0.25 + 0.5 + 0.125 + 0.4) / 2 / 5)
    assert found["median"] == 0.2 and found["context"] == 0.2
    assert frame.loc["standard", "overdraft"]["context"].tolist() == pytest.approx([0.3, 0.0, 0.0])
    assert frame.loc["resispec", "overdraft"]["value"].tolist() == pytest.approx([0.3, 0.6, 0.6])
    assert frame.value["resispec", "excess", 2] == 0.25
    bars = pd.read_csv(paths[2])
    assert len(bars) == 8 and bars.text.tolist()[:4] == ["␣$x⏎", "all others", "|", "all others"]
    assert bars.side.tolist()[:4] == ["q > p", "q > p", "q <= p", "q <= p"]
    assert bars.residual_2.tolist() == EXACT[2] + BIASED[2] and bars.draft.tolist() == DRAFT * 2
    assert (bars.emitted - bars.target).tolist()[4:] == pytest.approx([0.25, 0, 0, -0.25])
    page = paths[1].read_text()
    table = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line[:1] == "|"
    ]
    assert table[0][:2] == ["Method", "Rejections"] and len(table) == 2 + 6
    assert table[7][:2] == ["ResiSpec", "2"] and table[7][-1] == "0.250 [0.250, 0.250]"
    assert "](figure2.png)" in page and "of the standard rule" in page and "`` text 2 0 ``" in page
    first = [path.read_bytes() for path in paths]
    assert figure2.main(["--results", str(tmp_path)]) == 0
    assert [path.read_bytes() for path in paths] == first


def test_the_picture_says_its_numbers_in_words(tmp_path: Path, cells: list[ToyCell]) -> None:
    made = figure2.make(planned(tmp_path, "figure2", cells))
    said = texts(made.figures["figure2"])
    for text in (
        *("after 1 rejection (20 % of drafts)", "after 2 rejections (10 % of drafts)"),
        *(
            "overlap of target and draft: 40 %",
            "overlap with the draft: 10 %",
            "The next token after “text 2 0”",
        ),
        *("0 % here", "100 % here", "60 % here", "40 % here"),
        *("0 % too much", "0 % too little", "25 % too much", "25 % too little"),
        *("␣$x⏎", "the draft gives these too much (q > p)"),
    ):
        assert text in said, text
    assert sum("come out too often" in text for text in said) == 1


def test_the_bars_are_the_numbers(tmp_path: Path, cells: list[ToyCell]) -> None:
    figure = figure2.make(planned(tmp_path, "figure2", cells)).figures["figure2"]
    [models], *strips = [part.axes for part in figure.subfigs]
    drawn = [[[bar.get_height() for bar in axes.containers[0]] for axes in strip] for strip in strips]
    assert [bar.get_height() for bar in models.containers[0]] == TARGET
    assert drawn[0][:2] == EXACT[1:] and drawn[1][:2] == BIASED[1:]
    assert drawn[0][2] == pytest.approx([0] * 4) and drawn[1][2] == pytest.approx([0.25, 0, 0, -0.25])


def test_missing_and_failed_cells_are_shown(tmp_path: Path, cells: list[ToyCell]) -> None:
    failed = save(make_cell(tmp_path, "optimal"), None, "failed", "no memory")
    missing = make_cell(tmp_path, "kseq")
    made = figure2.make(planned(tmp_path, "figure2", [failed, cells[1], missing]))
    assert "of the ResiSpec rule" in " ".join(made.tables[0].notes)  # without the standard rule's numbers
    said = texts(made.figures["figure2"])
    assert "failed: no memory" in said and "missing" in said and "K-SEQ" in said
    assert {"failed: no memory", "missing"} <= set(made.tables[0].shown["All rejected"])
    none = figure2.make(planned(tmp_path, "figure2", [failed, missing]))
    assert not none.figures and len(none.tables) == 1 and len(none.tables[0].frame) == 2


def test_the_picture_is_of_one_setting_and_the_table_of_all(tmp_path: Path, cells: list[ToyCell]) -> None:
    other = save(make_cell(tmp_path, "standard", temperature=0.6), rows(EXACT))
    made = figure2.make(planned(tmp_path, "figure2", [*cells, other]))
    frame = made.tables[0].frame
    assert frame[frame.temperature == 0.6].context.isna().all() and len(made.tables[1].frame) == 8
    assert frame[frame.temperature == 1.0].context.notna().all()
    assert made.tables[0].shown["T"].tolist().count("0.6") == 3
    assert len(made.figures["figure2"].subfigs) == 3


def test_the_standard_rule_decides_wherever_it_is_done(tmp_path: Path, cells: list[ToyCell]) -> None:
    other = save(make_cell(tmp_path, "standard", temperature=0.6), rows(EXACT))
    made = figure2.make(planned(tmp_path, "figure2", [cells[1], other]))
    assert made.tables[1].frame.verifier.unique().tolist() == ["standard"]


def test_a_rule_of_ones_own_needs_no_entry(tmp_path: Path) -> None:
    own = save(make_cell(tmp_path, "my_rule"), rows(EXACT))
    said = texts(figure2.make(planned(tmp_path, "figure2", [own])).figures["figure2"])
    assert "my rule" in said


def test_rare_rejections_are_not_printed_as_none() -> None:
    assert residual_panels._rare(0.0004) == "< 1 %" and residual_panels._rare(0.38) == "38 %"
