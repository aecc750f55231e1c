"""Plans as analysis reads them: what was asked for, by which command, and whether that is still so."""

from __future__ import annotations

import ast
import hashlib
from pathlib import Path
from typing import Any

import pytest
from toy_cells import ToyCell, planned, save_methods, write_plan

from analysis import load, table1
from analysis.load import read_plan
from resispec.errors import InvalidInput

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(path.stem for path in (ROOT / "conf" / "experiment").iterdir())


@pytest.fixture
def cells(tmp_path: Path) -> list[ToyCell]:
    return save_methods(tmp_path)


def test_analysis_imports_nothing_from_experiments() -> None:
    for path in (ROOT / "analysis").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not any(name.split(".")[0] == "experiments" for name in names), path


@pytest.mark.parametrize("name", SCRIPTS)
def test_without_a_plan_one_line_names_the_command_and_nothing_is_written(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    is_folder = (ROOT / "analysis" / name).is_dir()
    main = __import__(f"analysis.{name}" + (".table" if is_folder else ""), fromlist=["main"]).main
    (tmp_path / "there").mkdir()
    for results in (tmp_path / "nowhere", tmp_path / "there"):
        assert main(["--profile", "embedded", "--results", str(results)]) == 1
        captured = capsys.readouterr()
        assert captured.out == "" and captured.err.count("\n") == 1
        assert f"`make reproduce-{name} PROFILE=embedded RESULTS={results}`" in captured.err
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]


def test_the_usual_folder_needs_no_word_in_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match="`make reproduce-table1 PROFILE=embedded` makes it"):
        read_plan("table1", "embedded", Path("results"))


def test_a_part_that_no_plan_asks_for_is_named(tmp_path: Path, cells: list[ToyCell]) -> None:
    write_plan(tmp_path, "table2", cells[:1], part="chain")
    stale = read_plan("table2", "embedded", tmp_path).stale
    assert [line.split(" that ")[0] for line in stale if "no plan asks for yet" in line] == [
        f"table2 has a part {part}" for part in ("eagle", "sampled", "sequoia")
    ]


def test_an_artefact_takes_its_own_plans_only(tmp_path: Path, cells: list[ToyCell]) -> None:
    write_plan(tmp_path, "table1_ablation", cells[:1])
    write_plan(tmp_path, "table1_ablation", cells[:1], part="more")
    with pytest.raises(InvalidInput, match="no plan"):
        read_plan("table1", "embedded", tmp_path)
    plan = planned(tmp_path, "table1", cells[1:2])
    assert [one.cell_id for one in plan.requests] == [cells[1].cell_id]
    plan = planned(tmp_path, "table1", cells[2:], part="more")  # a file of its own and a folder of parts
    assert [(one.cell_id, one.part) for one in plan.requests] == [
        (cells[1].cell_id, ""),
        (cells[2].cell_id, "more"),
    ]
    assert len(plan.parts(lambda part: part == "more").requests) == 1


@pytest.mark.parametrize("content", ["", "{", "garbage", "{}", "[]", '{"cells": 3}', b"\xff\xfe"])
def test_a_damaged_plan_is_one_line(
    content: str | bytes, tmp_path: Path, cells: list[ToyCell], capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_plan(tmp_path, "table1", cells)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert table1.main(["--results", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and f"plan {path} is damaged" in error and "make reproduce-table1" in error


@pytest.mark.parametrize(
    "change",
    [{"artefact": "table2"}, {"cells": [{"cell_id": "a", "labels": {}}]}, {"cells": [{}]}, {"sources": 1}],
)
def test_a_plan_that_says_something_else_is_damaged(change: dict[str, Any], tmp_path: Path) -> None:
    write_plan(tmp_path, "table1", [], **change)
    with pytest.raises(InvalidInput, match="is damaged .* makes it again") as caught:
        read_plan("table1", "embedded", tmp_path)
    assert "\n" not in str(caught.value)


def test_a_plan_older_than_its_configuration_says_so(
    tmp_path: Path, cells: list[ToyCell], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(load, "ROOT", tmp_path)
    (tmp_path / "same.yaml").write_text("a: 1")
    (tmp_path / "changed.yaml").write_text("a: 2")
    then = hashlib.sha256(b"a: 1").hexdigest()
    sources = dict.fromkeys(("same.yaml", "changed.yaml", "gone.yaml"), then)
    write_plan(tmp_path, "table1", cells, part="first", sources=sources)
    assert table1.main(["--results", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    said = "The plan of table1, part first, is older than changed.yaml, gone.yaml; `make reproduce-table1"
    assert captured.err.startswith(f"table1: {said}") and captured.err.count("\n") == 1
    assert said in (tmp_path / "embedded" / "table1.md").read_text()
    write_plan(tmp_path, "table1", cells, part="first", sources={"same.yaml": then})
    assert table1.main(["--results", str(tmp_path)]) == 0
    assert capsys.readouterr().err == ""


def test_the_command_is_that_of_the_plan(tmp_path: Path, cells: list[ToyCell]) -> None:
    told = "python -m experiments.run -m experiment=table1 profile=embedded num_prompts=2"
    write_plan(tmp_path, "table1", cells)
    assert read_plan("table1", "embedded", tmp_path).command == "make reproduce-table1 PROFILE=embedded"
    write_plan(tmp_path, "table1", cells, command=told)
    command = read_plan("table1", "embedded", tmp_path).command
    assert command == f"{told} && python -m analysis.table1 --profile embedded"
