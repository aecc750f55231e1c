"""Plans and cells as analysis reads them: what was asked for, what is there, and what is damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from toy_cells import (
    AUTOREGRESSIVE,
    METHODS,
    RESISPEC,
    STANDARD,
    ToyCell,
    make_audit,
    make_cell,
    planned,
    rows_of,
    save,
    save_methods,
    write_plan,
)

from analysis import load, metrics, table1
from analysis.decoded import measure
from resispec.errors import InvalidInput
from resispec.files import checksums


def read(results: Path, cells: list[ToyCell], part: str = "") -> load.Results:
    return load.load(planned(results, "table1", cells, part), metrics.fields())


@pytest.fixture
def cells(tmp_path: Path) -> list[ToyCell]:
    return save_methods(tmp_path)


def test_one_cell_asked_for_under_two_names_has_both_rows(tmp_path: Path, cells: list[ToyCell]) -> None:
    """tree=d5b3 and tree=complete tree.depth=5 tree.branching=3 are one cell (defect B)."""
    names = {"tree": "complete(branching=3, depth=5)"}
    twins = [cell.labelled(**names) for cell in cells[1:]]
    results = read(tmp_path, [*cells, *twins, twins[0]])
    assert len(results.cells) == 5 and len(results.rows) == 3
    frame = measure(results)
    gains = frame[(frame.quantity == "accepted_length_gain") & frame.value.notna()]
    assert gains.tree.tolist() == ["d5b3", "complete(branching=3, depth=5)"]
    assert gains.value.tolist() == [pytest.approx((16 / 6) / (13 / 7))] * 2
    [table] = table1.make(planned(tmp_path, "table1", [*cells, *twins])).tables
    assert table.shown["Tree"].tolist()[1:] == ["d5b3"] * 2 + ["complete, branching=3, depth=5"] * 2


def test_what_else_a_sweep_varies_tells_rows_apart(tmp_path: Path) -> None:
    cells = []
    for seed in (0, 100):
        for method, measured in METHODS.items():
            rows = [row | {"seed": row["seed"] + seed} for row in rows_of(measured)]
            cells.append(save(make_cell(tmp_path, method, seed=seed), rows))
    [table] = table1.make(planned(tmp_path, "table1", cells)).tables
    assert table.shown.columns[:2].tolist() == ["seed", "Method"] and table.num_keys == 2
    assert table.shown["seed"].tolist() == ["0"] * 3 + ["100"] * 3
    assert table.shown["Gain"].tolist()[2].startswith("1.44") and table.shown["Gain"].tolist()[5].startswith(
        "1.44"
    )
    assert "seed" in table.frame


DAMAGE = {
    "truncated": lambda text: text[: len(text) // 2],
    "empty": lambda _: "",
    "garbage": lambda _: "\x00\x01 no json \ufffd",
    "{}": lambda _: "{}",
    "[]": lambda _: "[]",
    "deleted": None,
}


@pytest.mark.parametrize("file", ["status.json", "cell.json", "provenance.json", "rows.jsonl"])
@pytest.mark.parametrize("kind", list(DAMAGE))
def test_a_damaged_cell_is_one_line_that_says_what_to_do(
    file: str, kind: str, tmp_path: Path, cells: list[ToyCell], capsys: pytest.CaptureFixture[str]
) -> None:
    write_plan(tmp_path, "table1", cells)
    path, change = cells[1].folder / file, DAMAGE[kind]
    if change is None:
        path.unlink()
    else:
        path.write_text(change(path.read_text()))
    assert table1.main(["--results", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert captured.err.startswith(f"table1: cell {cells[1].cell_id}: ") and file in captured.err
    assert "running the sweep again measures it anew" in captured.err
    assert not (tmp_path / "embedded" / "table1.md").exists()


def reseal(cell: ToyCell) -> None:
    """Make the checksums right again, as if the files had been written so."""
    status = json.loads((cell.folder / "status.json").read_text())
    status["files"] = checksums(cell.folder, status["files"])
    (cell.folder / "status.json").write_text(json.dumps(status))


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("cell.json", '{"cell_id": "another"}', "cell.json describes another cell"),
        ("cell.json", "[]", "expected a JSON object"),
        ("rows.jsonl", "[1]\n", "rows.jsonl cannot be read"),
        ("rows.jsonl", "\n", "rows.jsonl cannot be read"),
        ("rows.jsonl", "", "rows.jsonl is empty or holds a prompt twice"),
    ],
)
def test_files_that_are_whole_and_wrong(file: str, content: str, message: str, tmp_path: Path) -> None:
    cell = save(make_cell(tmp_path, "standard"), rows_of(STANDARD))
    (cell.folder / file).write_text(content)
    reseal(cell)
    with pytest.raises(InvalidInput, match=f"^cell {cell.cell_id}: .*{message}") as caught:
        read(tmp_path, [cell])
    assert "\n" not in str(caught.value)


def test_provenance_without_a_commit_is_no_damage(tmp_path: Path) -> None:
    cell = save(make_cell(tmp_path, "standard"), rows_of(STANDARD))
    (cell.folder / "provenance.json").write_text('{"device": "a machine"}')
    reseal(cell)
    assert read(tmp_path, [cell]).cells[["device", "commit"]].values.tolist() == [["a machine", "unknown"]]


@pytest.mark.parametrize("name", ["num_steps", "decode_s", "seed"])
def test_a_missing_column_is_one_line(name: str, tmp_path: Path) -> None:
    rows = rows_of(STANDARD)
    del rows[1][name]
    cell = save(make_cell(tmp_path, "standard"), rows)
    with pytest.raises(InvalidInput, match=f"^cell {cell.cell_id}: its rows lack {name};"):
        read(tmp_path, [cell])


@pytest.mark.parametrize("change", [{"prompt_index": 0}, {"prompt_id": "p0"}])
def test_a_prompt_twice_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    rows = rows_of(STANDARD)
    rows[1] |= change
    cell = save(make_cell(tmp_path, "standard"), rows)
    with pytest.raises(InvalidInput, match=f"^cell {cell.cell_id}: .*a prompt twice"):
        read(tmp_path, [cell])


def test_compared_cells_must_share_their_prompts(tmp_path: Path, cells: list[ToyCell]) -> None:
    save(cells[2], rows_of(RESISPEC[:1]))
    with pytest.raises(
        InvalidInput, match=f"^cell {cells[2].cell_id}: has 1 prompts; {cells[0].cell_id}, .* has 2"
    ):
        read(tmp_path, cells)
    for change, found in (({"prompt_id": "other"}, "'other'"), ({"seed": 9}, "9")):
        rows = rows_of(RESISPEC)
        rows[1] |= change
        save(cells[2], rows)
        with pytest.raises(InvalidInput, match=f"^cell {cells[2].cell_id}: measured prompt .*{found}"):
            read(tmp_path, cells)


@pytest.mark.parametrize("state", ["interrupted", "running", "failed"])
def test_rows_of_an_unfinished_cell_are_not_used(tmp_path: Path, state: str) -> None:
    cell = save(make_cell(tmp_path, "standard"), rows_of(STANDARD), state)
    results = read(tmp_path, [cell])
    status = "interrupted" if state == "running" else state
    assert results.cells.status.tolist() == [status] and results.rows == {}
    [table] = table1.make(planned(tmp_path, "table1", [cell])).tables
    assert table.shown.iloc[0, 1].startswith(status)


def test_an_ambiguous_baseline_is_refused(tmp_path: Path) -> None:
    one = save(make_cell(tmp_path, "autoregressive"), rows_of(AUTOREGRESSIVE))
    twin = save(ToyCell(tmp_path, "twin", one.labels), rows_of(AUTOREGRESSIVE))
    cells = [one, twin, save(make_cell(tmp_path, "standard"), rows_of(STANDARD))]
    with pytest.raises(InvalidInput, match="^cell twin: has the labels of"):
        measure(read(tmp_path, cells))


def test_a_plan_without_cells_makes_an_empty_table(tmp_path: Path) -> None:
    results = read(tmp_path, [])
    assert results.cells.empty and measure(results).empty
    write_plan(tmp_path, "table1", [])
    assert table1.main(["--results", str(tmp_path)]) == 0


def test_an_audit_of_other_tokens_is_refused(tmp_path: Path, cells: list[ToyCell]) -> None:
    with pytest.raises(InvalidInput, match="decoded other tokens of prompt 0 than the timed cell"):
        measure(read(tmp_path, [*cells, make_audit(cells[1], 600, 0.0, sha="other")]))


def test_an_audit_without_a_statistic_is_refused(tmp_path: Path, cells: list[ToyCell]) -> None:
    audit = make_audit(cells[1], 600, 0.0)
    rows = [json.loads(line) for line in (audit.folder / "rows.jsonl").read_text().splitlines()]
    save(audit, [{name: value for name, value in row.items() if name != "rank_variance"} for row in rows])
    with pytest.raises(
        InvalidInput, match=f"cell {audit.cell_id}: its rows lack the statistics rank_variance"
    ):
        measure(read(tmp_path, [*cells, audit]))
