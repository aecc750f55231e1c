"""Submissions: their contents, what is refused, and that a file shows what was done to it."""

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_published import measured
from toy_cells import ToyCell, make_cell, rows_of, save, write_plan

from analysis.load import EXPERIMENTS, part_names
from analysis.submissions import __main__ as command
from analysis.submissions.gather import gather
from analysis.submissions.schema import Pointer, json_schema, plan_hash, read
from resispec.errors import InvalidInput

Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def submission(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The submission of three toy cells, two of them audited."""
    folder = tmp_path_factory.mktemp("toy")
    measured(folder)
    return gather("embedded", folder, "toy").model_dump_json()


@pytest.fixture
def content(submission: str) -> dict[str, Any]:
    """Its contents, to change."""
    return json.loads(submission)


@pytest.fixture
def ours(content, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The toy submission in the place of what the repository has."""
    monkeypatch.setattr(command, "SUBMITTED", tmp_path / "submissions")
    put(content | {"name": "resispec"}, command.OURS)
    return content


def put(content: dict[str, Any], name: str) -> Path:
    """Store a submission in the repository's folder."""
    path = command.SUBMITTED / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def rows(content: dict[str, Any]) -> list[dict[str, Any]]:
    return content["artefacts"][0]["rows"]


def planned_anew(content: dict[str, Any]) -> None:
    """Give a changed submission the hash of its rows, as somebody would who means it."""
    cells = [(row["cell_id"], row["labels"], False) for row in rows(content)]
    cells += [(row["audit"]["cell_id"], row["labels"], True) for row in rows(content) if row["audit"]]
    content["artefacts"][0]["plan_sha256"] = plan_hash(cells)


def of_row(place: int, **changed: Any) -> Change:
    """A change of a row: values that are replaced, and values within its dictionaries."""

    def change(content: dict[str, Any]) -> None:
        row = rows(content)[place]
        for field, value in changed.items():
            row[field] = row[field] | value if isinstance(value, dict) else value

    return change


def length(place: int, value: float, lower: float, upper: float) -> Change:
    """A change of a row's accepted length."""
    return of_row(place, numbers={"accepted_length": {"value": value, "lower": lower, "upper": upper}})


def leave_a_hole(content: dict[str, Any]) -> None:
    """Add a row at another temperature to a plan that asks for it."""
    other = json.loads(json.dumps(rows(content)[2]))
    other["labels"]["temperature"] = 0.6
    rows(content).append(other)
    planned_anew(content)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (of_row(1, labels={"dataset": "c4"}), "plan's hash does not match its rows"),
        (of_row(1, cell_id="other"), "plan's hash does not match its rows"),
        (of_row(1, audit={"cell_id": "other"}), "plan's hash does not match its rows"),
        (lambda one: rows(one).pop(0), "plan's hash does not match its rows"),
        (of_row(1, audit=None), "specinfer d5b3 standard: an exactness audit is absent"),
        (of_row(1, audit={"audited_tokens": 999}), "no bias seen does not follow from z"),
        (of_row(1, audit={"z_overdraft": -5.0}), "no bias seen does not follow from z"),
        (of_row(2, audit={"audited_tokens": 0}), "biased does not follow from 0 tokens"),
        (of_row(0, num_prompts=9), "9 and 10 prompts of embedded_code"),
        (lambda one: rows(one)[0]["numbers"].clear(), "it has no accepted_length"),
        (length(1, 500.0, 499.0, 1.0), "500 is not in its interval [499, 1]"),
        (length(1, 6.0, 5.5, 6.5), "accepted_length 6 [5.5, 6.5]; allowed: 1 to 5"),
        (length(1, 1.0, 0.5, 1.5), "allowed: 1 to 5"),
        (length(0, 1.0, 1.0, 1.5), "allowed: 1 to 1"),
        (of_row(0, more=1), "artefacts.0.rows.0.more: Extra inputs are not permitted"),
        (lambda one: one["artefacts"].clear(), "its artefacts are none; allowed: table1"),
        (leave_a_hole, "grid, embedded 0.6 embedded_code autoregressive is missing"),
    ],
)
def test_what_was_done_to_a_submission_shows_in_one_line(content, tmp_path, change: Change, said: str):
    change(content)
    (tmp_path / "file.json").write_text(json.dumps(content))
    with pytest.raises(InvalidInput) as error:
        read(tmp_path / "file.json")
    assert said in str(error.value) and "\n" not in str(error.value) and "file.json" in str(error.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda one: rows(one).pop(), "other: table1 is no whole grid, .* specinfer .* resispec is missing"),
        (lambda one: [row.update(num_prompts=8) for row in rows(one)], "8 prompts of .* embedded has 10"),
        (lambda one: (one.update(profile="paper"), rows(one).pop()), "grid, 1.0 specinfer d5b3 resispec is"),
        (lambda one: [row["labels"].update(dataset="c4") for row in rows(one)], "embedded_code .* missing"),
    ],
)
def test_a_submission_has_the_whole_grid_that_ours_has(ours, change: Change, said: str):
    other = ours | {"name": "other"}
    change(other)
    planned_anew(other)
    put(other, "other.json")
    with pytest.raises(InvalidInput, match=said):
        command.submitted()


def test_another_profile_has_data_sets_and_prompts_of_its_own(ours):
    other = ours | {"name": "other", "profile": "paper"}
    for row in rows(other):
        row["labels"]["dataset"], row["num_prompts"] = "c4", 200
    planned_anew(other)
    put(other, "other.json")
    first, others = command.submitted()
    assert [one.name for one in (first, *others)] == ["resispec", "other"]


def refused(results: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert command.main(["--results", str(results)]) == 1
    said = capsys.readouterr().err
    assert said.startswith("submission: ") and said.count("\n") == 1
    assert not (results / "embedded" / "submission.json").exists()
    return said


def test_what_is_not_complete_is_refused_in_one_line(tmp_path, capsys):
    assert "there is no plan" in refused(tmp_path, capsys)
    cells = measured(tmp_path)
    write_plan(tmp_path, "table1", cells[:4])  # without the last audit
    assert "resispec: an exactness audit is absent; `make reproduce-table1" in refused(tmp_path, capsys)
    failed = save(make_cell(tmp_path, "standard", "embedded_reference"), None, "failed", "out of memory")
    write_plan(tmp_path, "table1", [*cells, failed])
    assert "this cell is failed (out of memory)" in refused(tmp_path, capsys)
    save(cells[4], None, "failed", "out of memory")
    (cells[4].folder / "rows.jsonl").unlink()
    write_plan(tmp_path, "table1", cells)
    assert "its exactness audit is 'audit failed'" in refused(tmp_path, capsys)
    write_plan(tmp_path, "table1", cells, sources={"conf/run.yaml": "0" * 64})
    assert "The plan of table1 is older than conf/run.yaml; `make" in refused(tmp_path, capsys)


def test_few_cells_or_prompts_of_the_profile_are_refused_in_one_line(tmp_path, capsys):
    """Compared with our own entry, which is the whole grid of the embedded profile."""
    measured(tmp_path)
    assert "grid, embedded embedded_reference 1.0 autoregressive is missing" in refused(tmp_path, capsys)
    measured(tmp_path, num_prompts=2)
    assert "num_prompts: Input should be greater than or equal to 8" in refused(tmp_path, capsys)


def test_the_frontier_is_covered_without_its_temperature_curve(tmp_path):
    cells = measured(tmp_path)
    for part in part_names(EXPERIMENTS / "frontier.yaml"):
        write_plan(tmp_path, "frontier", cells if part == "d5b3" else [], part=part)
    cold = save(make_cell(tmp_path, "standard", temperature=0.3), rows_of([(1.0, [1, 2])] * 10))
    write_plan(tmp_path, "frontier", [cold], part="temperature")  # it has no audit
    found = gather("embedded", tmp_path, "")
    assert found.name == "test CPU"
    first, second = found.artefacts
    assert (first.artefact, second.artefact) == ("table1", "frontier")
    assert first.plan_sha256 == second.plan_sha256 and len(second.rows) == 3


@pytest.mark.usefixtures("ours")
def test_the_command_writes_a_file_that_can_be_read_and_says_what_agrees_with_ours(tmp_path, capsys):
    measured(tmp_path, histogram=[4])
    assert command.main(["--results", str(tmp_path), "--name", "Toy (2 cores)"]) == 0
    path = tmp_path / "embedded" / "submission.json"
    line = "beside resispec: 2 of 3 accepted lengths agree"
    assert capsys.readouterr().out == f"wrote {path}\n{line}\n" and read(path).name == "Toy (2 cores)"
    put(json.loads(path.read_text()), "toy.json")
    assert command.main(["--compare"]) == 0
    assert capsys.readouterr().out == "resispec: ours\nToy (2 cores): 2 of 3 accepted lengths agree\n"


def test_a_pointer_names_a_file_elsewhere_which_must_pass_as_if_it_lay_here(
    ours, tmp_path, monkeypatch, capsys
):
    """The example of the page, whose file is here the toy's."""
    page = (Path(__file__).parents[2] / "docs" / "submissions.md").read_text()
    pointer = json.loads(re.search(r"```json\n(.*?)```", page, re.S)[1])
    put(pointer, "pointer.json")
    url = "https://raw.githubusercontent.com/OWNER/REPOSITORY/0123456789abcdef0123456789abcdef01234567/"
    assert command.main(["--compare"]) == 0
    assert capsys.readouterr().out == f"resispec: ours\nRTX 4090: at {url}results/submission.json\n"
    file = tmp_path / "submission.json"
    monkeypatch.setattr(Pointer, "url", property(lambda _: file.as_uri()))

    def fetching(content: str, sha256: str | None = None) -> str:
        file.write_text(content)
        digest = sha256 or hashlib.sha256(content.encode()).hexdigest()
        put(pointer | {"sha256": digest}, "pointer.json")
        code, said = command.main(["--compare", "--fetch"]), capsys.readouterr()
        assert said.err.count("\n") == code
        return said.out + said.err

    assert fetching(json.dumps(ours)) == "resispec: ours\ntoy: 3 of 3 accepted lengths agree\n"
    assert "is another file than the pinned one: SHA-256" in fetching(json.dumps(ours), "0" * 64)
    assert "is no JSON" in fetching("{half")
    rows(ours).pop()
    assert "plan's hash does not match its rows" in fetching(json.dumps(ours))
    planned_anew(ours)
    assert "is no whole grid" in fetching(json.dumps(ours))
    file.unlink()
    assert command.main(["--compare", "--fetch"]) == 1
    assert capsys.readouterr().err.startswith(f"submission: RTX 4090: {file.as_uri()} cannot be fetched")
    for wrong in ({"commit": "main"}, {"repository": "http://github.com/a/b"}, {"path": "a.py"}, {"more": 1}):
        put(pointer | wrong, "pointer.json")
        assert command.main(["--compare"]) == 1
        assert f"pointer.json: {next(iter(wrong))}: " in capsys.readouterr().err


def test_ours_is_what_is_published_and_the_schema_is_that_of_the_code(tmp_path):
    stored = json.loads((command.SUBMITTED / command.SCHEMA).read_text())
    assert stored == json_schema()
    ours, _ = command.submitted()
    for entry in ours.artefacts:
        cells = [ToyCell(tmp_path, row.cell_id, row.labels) for row in entry.rows]
        audited = [row for row in entry.rows if row.audit]
        cells += [ToyCell(tmp_path, row.audit.cell_id, row.labels | {"audit": True}) for row in audited]
        write_plan(tmp_path, entry.artefact, cells, part="d5b3" * (entry.artefact == "frontier"))
    assert gather("embedded", tmp_path, "resispec", published=True) == ours
    assert {entry.artefact: len(entry.rows) for entry in ours.artefacts} == {"table1": 18, "frontier": 114}
