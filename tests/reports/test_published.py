"""What was measured here against what is published, and the command that publishes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from toy_cells import ToyCell, make_audit, make_cell, rows_of, save, write_plan

from analysis import publish, published, table1
from analysis.published import ACCEPTED_LENGTHS, Compared, compare
from analysis.report import Table

NUM_PROMPTS = 10
ROWS = {
    "autoregressive": [(1.0, [4])],
    "standard": [(0.5, [1, 2]), (1.0, [2, 0, 2])],
    "resispec": [(0.5, [1, 0, 3])],
}


def measured(
    results: Path, num_prompts: int = NUM_PROMPTS, histogram: list[int] | None = None
) -> list[ToyCell]:
    """A plan of three cells, two of them audited; histogram: what the last one emits instead."""
    cells = []
    for method, rows in ROWS.items():
        rows = [(1.0, histogram)] if histogram and method == "resispec" else rows
        cells.append(save(make_cell(results, method), rows_of((rows * num_prompts)[:num_prompts])))
    cells += [make_audit(cells[1], 600, 0.0), make_audit(cells[2], 600, 1.0)]
    write_plan(results, "table1", cells)
    return cells


@pytest.fixture
def last_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Publish ten prompts of the toy cells. Makes table 1 of a folder and gives its last line."""
    monkeypatch.setattr(published, "FOLDER", tmp_path / "repository" / "results" / "published")

    def run(results: Path) -> str:
        assert table1.main(["--results", str(results)]) == 0
        return capsys.readouterr().out.splitlines()[-1]

    measured(tmp_path / "theirs")
    assert run(tmp_path / "theirs") == "nothing is published for table1 of profile embedded"
    assert "Compared with" not in (tmp_path / "theirs" / "embedded" / "table1.md").read_text()
    publish.publish("table1", "embedded", tmp_path / "theirs", tmp_path / "repository")
    return run


def test_the_same_numbers_agree(tmp_path: Path, last_line: Any) -> None:
    measured(tmp_path / "ours")
    assert last_line(tmp_path / "ours") == (
        "Compared with results/published/embedded/table1.csv: 3 of 3 accepted lengths agree, 2 of 2 verdicts"
    )
    [note] = [
        line
        for line in (tmp_path / "ours" / "embedded" / "table1.md").read_text().splitlines()
        if line.startswith("Compared with")
    ]
    assert note.endswith("Two numbers agree when their intervals overlap, and times are not compared.")


def test_other_numbers_are_named(tmp_path: Path, last_line: Any) -> None:
    cells = measured(tmp_path / "ours", histogram=[4])
    for audit, shift in ((cells[3], 1.0), (cells[4], 0.0)):
        make_audit(next(cell for cell in cells if audit.cell_id == f"{cell.cell_id}-audit"), 600, shift)
    assert last_line(tmp_path / "ours").endswith("2 of 3 accepted lengths agree, 0 of 2 verdicts")
    text = (tmp_path / "ours" / "embedded" / "table1.md").read_text()
    row = "Python code, d5b3, T = 1, SpecInfer + ResiSpec"
    assert (
        f"{row} has 1.00 [1.00, 1.00], published 2.50 [2.50, 2.50]; {row} is exact, published as biased."
        in text
    )
    assert "Python code, d5b3, T = 1, SpecInfer (standard) is biased, published as exact" in text


def test_few_prompts_and_undecided_verdicts_are_not_compared(tmp_path: Path, last_line: Any) -> None:
    cells = measured(tmp_path / "ours", num_prompts=2)
    assert last_line(tmp_path / "ours").endswith(
        "table1.csv: 2 of 2 verdicts agree (not compared: 3 rows of fewer than 8 prompts)"
    )
    for audit in cells[3:]:
        audit.folder.joinpath("status.json").unlink()
        audit.folder.joinpath("rows.jsonl").unlink()
    assert last_line(tmp_path / "ours").endswith(
        "nothing in it can be compared (not compared: 3 rows of fewer than 8 prompts)"
    )


def test_more_prompts_are_compared(tmp_path: Path, last_line: Any) -> None:
    measured(tmp_path / "ours", num_prompts=40)
    assert last_line(tmp_path / "ours").endswith("3 of 3 accepted lengths agree, 2 of 2 verdicts")


def test_rows_that_are_not_published_or_not_measured_are_counted(tmp_path: Path, last_line: Any) -> None:
    ours = tmp_path / "ours"
    cells = measured(ours)
    other = save(make_cell(ours, "optimal"), rows_of(ROWS["standard"] * 5))
    write_plan(ours, "table1", [*cells, other, make_cell(ours, "kseq")])
    assert last_line(ours).endswith(
        "3 of 3 accepted lengths agree, 2 of 2 verdicts (not compared: 1 row without a number here, "
        "1 row not published)"
    )


def test_overlapping_intervals_agree() -> None:
    """Bounds that touch agree; a number without an interval is a point; a row's own keys count."""
    columns = [
        "dataset",
        "temperature",
        "verifier",
        "level",
        "num_prompts",
        "quantity",
        "value",
        "lower",
        "upper",
    ]
    theirs = [["c4", 1.0, "standard", level, 20, "rate", 2.0, 1.0, 3.0] for level in (1, 2, 3, 4)]
    ours = [
        ["c4", 1.0, "standard", 1, 20, "rate", 3.5, 3.0, 4.0],
        ["c4", 1.0, "standard", 2, 20, "rate", 3.6, 3.1, 4.0],
        ["c4", 1.0, "standard", 3, 20, "rate", 2.5, float("nan"), float("nan")],
        ["c4", 1.0, "standard", 4, 20, "rate", float("nan"), float("nan"), float("nan")],
    ]
    return_of = _agreement(pd.DataFrame(ours, columns=columns), pd.DataFrame(theirs, columns=columns))
    assert "2 of 3 rates agree (not compared: 1 row without a number here)" in return_of.summary
    assert "CNN/DM" not in return_of.notes[0]
    assert (
        "C4, T = 1, standard, level 2 has 3.60 [3.10, 4.00], published 2.00 [1.00, 3.00]"
        in return_of.notes[0]
    )


def _agreement(ours: pd.DataFrame, theirs: pd.DataFrame) -> published.Agreement:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "toy").mkdir()
        theirs.to_csv(Path(folder) / "toy" / "t.csv", index=False)
        table = Table("t", ours, ours.astype(str), 1, "")
        return compare(table, "toy", Compared("rate", "rates", ("level",)), Path(folder))


@pytest.mark.parametrize("content", ["", "\x00", "a,b\n1,2\n"])
def test_a_published_file_that_is_none_does_no_harm(content: str, tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "t.csv").write_text(content)
    frame = pd.DataFrame({"quantity": ["accepted_length"], "value": [1.0], "num_prompts": [9]})
    table = Table("t", frame, frame.astype(str), 1, "")
    if content:
        assert "can be compared" in compare(table, "toy", ACCEPTED_LENGTHS, tmp_path).summary
    else:
        with pytest.raises(published.InvalidInput, match="cannot be read") as caught:
            compare(table, "toy", ACCEPTED_LENGTHS, tmp_path)
        assert "\n" not in str(caught.value)


README = """# Read me
<!-- table1 -->
| old | table |
|---|---|

Profile: another machine.

Words of our own.
<!-- /table1 -->
rest
"""


def test_publishing_copies_files_and_renews_what_is_quoted(tmp_path: Path, last_line: Any) -> None:
    ours, root = tmp_path / "ours", tmp_path / "repository"
    measured(ours, histogram=[4])
    assert "2 of 3" in last_line(ours)
    root.joinpath("README.md").write_text(README)
    root.joinpath("docs").mkdir()
    root.joinpath("docs", "other.md").write_text("<!-- table2 -->\nkept\n<!-- /table2 -->\n")
    paths = publish.publish("table1", "embedded", ours, root)
    folder = root / "results" / "published" / "embedded"
    assert [path.name for path in paths] == ["table1.csv", "table1.md", "table1.tex", "README.md"]
    for suffix in ("md", "tex"):  # what the comparison said is not published
        own, copy = ((place / f"table1.{suffix}").read_text() for place in (ours / "embedded", folder))
        assert "Compared with" in own and "Compared with" not in copy
        assert [line for line in own.splitlines() if line not in copy.splitlines()] == [
            line for line in own.splitlines() if line.startswith("Compared with")
        ]
    assert (folder / "table1.csv").read_bytes() == (ours / "embedded" / "table1.csv").read_bytes()
    page, readme = (folder / "table1.md").read_text(), (root / "README.md").read_text()
    table = "\n".join(line for line in page.splitlines() if line.startswith("|"))
    [source] = [line for line in page.splitlines() if line.startswith("Profile:")]
    assert readme == README.replace("| old | table |\n|---|---|", table).replace(
        "Profile: another machine.", source
    )
    assert publish.publish("table1", "embedded", ours, root)[-1].name == "table1.tex"  # nothing left to renew
    assert last_line(ours).endswith("3 of 3 accepted lengths agree, 2 of 2 verdicts")


def test_what_another_profile_measured_is_quoted_in_blocks_of_its_own(tmp_path: Path) -> None:
    table, root = "| a |\n|---|\n| {} |\n", tmp_path / "repository"
    (tmp_path / "inflated").mkdir()
    (tmp_path / "inflated" / "bench.md").write_text(table.format(2))
    root.mkdir()
    page = "<!-- bench -->\n{}<!-- /bench -->\n<!-- inflated/bench -->\n{}<!-- /inflated/bench -->\n"
    (root / "README.md").write_text(page.format(table.format(1), table.format(1)))
    publish.publish("bench", "inflated", tmp_path, root)
    assert (root / "README.md").read_text() == page.format(table.format(1), table.format(2))


def test_trees_that_a_plan_names_are_published(tmp_path: Path) -> None:
    ours, root = tmp_path / "ours", tmp_path / "repository"
    folder = ours / "embedded"
    (folder / "growmap").mkdir(parents=True)
    for name in (
        "growmap/a.json",
        "growmap/a.acceptance.csv",
        "growmap/.lock",
        "frontier.md",
        "frontier_shapes.csv",
    ):
        (folder / name).write_text("content\n")
    cell = ToyCell(ours, "a", {}, folder / "growmap" / "a.json")
    write_plan(ours, "frontier", [cell], part="best")
    names = [path.name for path in publish.publish("frontier", "embedded", ours, root)]
    assert names == ["frontier.md", "frontier_shapes.csv", "a.acceptance.csv", "a.json"]


def test_by_default_everything_that_was_made_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[str] = []
    monkeypatch.setattr(publish, "publish", lambda artefact, *_: done.append(artefact) or [])
    assert publish.main(["--results", str(tmp_path)]) == 1
    assert "holds no artefact" in capsys.readouterr().err
    (tmp_path / "embedded").mkdir()
    for name in ("table1.md", "table1.csv", "frontier.md", "frontier_shapes.md", "audit.md"):
        (tmp_path / "embedded" / name).write_text("")
    assert publish.main(["--results", str(tmp_path)]) == 0 and done == ["audit", "frontier", "table1"]


def test_what_was_not_made_cannot_be_published(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert publish.main(["--results", str(tmp_path), "table1"]) == 1
    assert "`make table1` makes it" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_published_files_are_plans_free() -> None:
    """What is published does not depend on a plan or a cell."""
    folder = Path(__file__).parents[2] / "results" / "published"
    assert not list(folder.rglob("plans")) and not list(folder.rglob("rows.jsonl"))
    for path in folder.rglob("*.json"):
        assert json.loads(path.read_text())
