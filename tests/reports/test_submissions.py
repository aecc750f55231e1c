"""Submissions: what is in them, what is refused, that a file shows what was done to it, and their page."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_published import measured
from toy_cells import ToyCell, make_cell, rows_of, save, write_plan

from analysis.submissions import __main__ as command
from analysis.submissions import gather, page
from analysis.submissions.schema import Submission, checked, read
from resispec.errors import InvalidInput

Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def content(tmp_path: Path) -> dict[str, Any]:
    """What the submission of three toy cells holds, two of them audited."""
    measured(tmp_path)
    return json.loads(gather.measured("embedded", tmp_path, "toy").model_dump_json())


def rows(content: dict[str, Any]) -> list[dict[str, Any]]:
    return content["artefacts"][0]["rows"]


def test_a_submission_holds_numbers_audits_and_where_they_are_from(content):
    baseline, standard, biased = rows(content)
    assert standard["numbers"]["accepted_length"]["value"] == pytest.approx(13 / 7)
    assert (
        standard["numbers"]["accepted_length"]["lower"]
        < 13 / 7
        < standard["numbers"]["accepted_length"]["upper"]
    )
    assert baseline["audit"] is None and baseline["labels"]["verifier"] == ""
    assert (standard["audit"]["verdict"], biased["audit"]["verdict"]) == ("exact", "biased")
    assert standard["audit"]["cell_id"] != standard["cell_id"] and standard["num_prompts"] == 10
    assert content["provenance"]["device"] == "test CPU"
    assert content["provenance"]["commit"] == "abc1234567890 (changed)"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda one: rows(one).pop(), "plan's hash does not match its rows"),
        (lambda one: rows(one)[1]["labels"].update(dataset="c4"), "plan's hash does not match its rows"),
        (lambda one: rows(one)[1].update(cell_id="other"), "plan's hash does not match its rows"),
        (lambda one: rows(one)[1]["audit"].update(cell_id="other"), "plan's hash does not match its rows"),
        (
            lambda one: rows(one)[1].update(audit=None),
            "specinfer d5b3 standard: an exactness audit is absent",
        ),
        (lambda one: rows(one)[0]["numbers"].pop("accepted_length"), "it has no accepted_length"),
        (lambda one: rows(one)[1]["audit"].update(verdict="fine"), "'exact', 'biased' or 'undecided'"),
        (lambda one: rows(one)[0].update(num_prompts=0), "greater than or equal to 1"),
        (lambda one: one.update(artefacts=[]), "table1"),
        (lambda one: one.update(more=1), "more: Extra inputs are not permitted"),
        (lambda one: one.update(name="<b>"), "name: String should match pattern"),
        (lambda one: one["provenance"].pop("commit"), "provenance.commit: Field required"),
    ],
)
def test_what_was_done_to_a_file_shows_in_one_line(content, tmp_path, change: Change, said: str):
    (tmp_path / "file.json").write_text(json.dumps(content))
    assert read(tmp_path / "file.json").name == "toy"
    change(content)
    (tmp_path / "file.json").write_text(json.dumps(content))
    with pytest.raises(InvalidInput) as error:
        read(tmp_path / "file.json")
    assert said in str(error.value) and "\n" not in str(error.value) and "file.json" in str(error.value)


def refused(results: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert command.main(["--results", str(results)]) == 1
    said = capsys.readouterr().err
    assert said.startswith("submission: ") and said.count("\n") == 1
    assert not (results / "embedded" / "submission.json").exists()
    return said


def test_what_is_not_complete_is_refused_in_one_line(tmp_path, capsys):
    assert "there is no plan" in refused(tmp_path, capsys)
    cells = measured(tmp_path)
    plan = write_plan(tmp_path, "table1", cells[:4])  # without the last audit
    assert "resispec: an exactness audit is absent; `make reproduce-table1" in refused(tmp_path, capsys)
    write_plan(tmp_path, "table1", [*cells, make_cell(tmp_path, "standard", "embedded_reference")])
    assert "this cell is missing" in refused(tmp_path, capsys)
    failed = save(make_cell(tmp_path, "standard", "embedded_reference"), None, "failed", "out of memory")
    write_plan(tmp_path, "table1", [*cells, failed])
    assert "this cell is failed (out of memory)" in refused(tmp_path, capsys)
    save(cells[4], None, "failed", "out of memory")
    (cells[4].folder / "rows.jsonl").unlink()
    write_plan(tmp_path, "table1", cells)
    assert "its exactness audit is 'audit failed'" in refused(tmp_path, capsys)
    assert plan.is_file()


def test_the_frontier_is_covered_without_its_temperature_curve(tmp_path):
    cells = measured(tmp_path)
    write_plan(tmp_path, "frontier", cells, part="d5b3")
    cold = save(make_cell(tmp_path, "standard", temperature=0.3), rows_of([(1.0, [1, 2])] * 10))
    write_plan(tmp_path, "frontier", [cold], part="temperature")  # it has no audit
    found = gather.measured("embedded", tmp_path, "")
    assert found.name == "test CPU"
    first, second = found.artefacts
    assert (first.artefact, second.artefact) == ("table1", "frontier")
    assert first.plan_sha256 == second.plan_sha256 and len(second.rows) == 3


def test_the_command_writes_a_file_that_can_be_read_and_a_page_beside_ours(tmp_path, capsys):
    measured(tmp_path)
    assert command.main(["--results", str(tmp_path), "--name", "Toy (2 cores)"]) == 0
    assert capsys.readouterr().out.count("wrote ") == 2
    assert read(tmp_path / "embedded" / "submission.json").name == "Toy (2 cores)"
    shown = (tmp_path / "embedded" / "submissions.html").read_text()
    assert "Toy (2 cores)" in shown and ">resispec<" in shown and "differs" in shown


def test_the_page_says_which_rows_agree(content):
    first, second = checked(content, "first"), json.loads(json.dumps(content)) | {"name": "other"}
    number = rows(second)[1]["numbers"]["accepted_length"]
    number |= {key: value + 5 for key, value in number.items()}
    table = page._rows("table1", [first, checked(second, "second")])
    found = table.frame[table.frame.Submission == "other"].set_index("Method")["Beside the first"].to_dict()
    assert found == {
        "Autoregressive": "agrees",
        "SpecInfer (standard)": "differs",
        "SpecInfer + ResiSpec": "agrees",
    }
    assert list(table.frame.Submission) == ["toy", "other"] * 3  # rows of the same labels are neighbours


def test_ours_is_what_is_published_and_the_schema_is_that_of_the_code(tmp_path):
    stored = json.loads((command.SUBMITTED / command.SCHEMA).read_text())
    assert stored == Submission.model_json_schema()
    ours = command.submitted()[0]
    for entry in ours.artefacts:
        cells = [ToyCell(tmp_path, row.cell_id, row.labels) for row in entry.rows]
        audits = [
            ToyCell(tmp_path, row.audit.cell_id, row.labels | {"audit": True})
            for row in entry.rows
            if row.audit
        ]
        write_plan(tmp_path, entry.artefact, [*cells, *audits], part="d5b3" * (entry.artefact == "frontier"))
    assert gather.published("embedded", tmp_path, "resispec") == ours
    assert {entry.artefact: len(entry.rows) for entry in ours.artefacts} == {"table1": 18, "frontier": 114}
    assert (command.SUBMITTED / command.COMPARISON).read_text() == page.render(command.submitted())
