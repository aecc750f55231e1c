"""Submissions: their files, what is refused, and how they agree with ours."""

import json
import math
import shutil
from collections.abc import Callable

import pandas as pd
import pytest
from test_published import measured
from toy_cells import make_cell, rows_of, save, write_plan

from analysis import published, submissions
from analysis.load import EXPERIMENTS, part_names
from analysis.published import FOLDER
from analysis.submissions import flaw, main, read

Change = Callable[[pd.DataFrame], object]


@pytest.fixture
def ours(tmp_path, monkeypatch):
    """Three toy cells, two of them audited, in the place of what is published; the toy submission's rows."""
    monkeypatch.setattr(published, "FOLDER", tmp_path / "published")
    monkeypatch.setattr(submissions, "SUBMITTED", tmp_path / "submissions")
    (tmp_path / "published" / "embedded").mkdir(parents=True)
    shutil.copy(FOLDER / "embedded" / "table1.csv", tmp_path / "published" / "embedded")
    measured(tmp_path)
    monkeypatch.setattr(submissions, "flaw", lambda *_: "")
    submissions.collect("embedded", tmp_path)
    monkeypatch.setattr(submissions, "flaw", flaw)
    rows = read(tmp_path / "embedded" / "submission" / "table1.csv")
    rows.to_csv(tmp_path / "published" / "embedded" / "table1.csv", index=False)
    return rows.astype({"reason": object})


def put(rows, profile="embedded", name="other"):
    """Store a submission of table 1 in the repository's folder."""
    folder = submissions.SUBMITTED / name
    folder.mkdir(parents=True, exist_ok=True)
    rows.to_csv(folder / "table1.csv", index=False)
    facts = {"Profile": profile, "Commit": "1a2b", "Device": "test CPU"}
    (folder / "provenance.json").write_text(json.dumps(facts))
    return folder


def of(method, measured_as="accepted_length", **changed):
    """A change of a method's row."""

    def change(rows):
        is_there = rows.decoder.eq(method) | rows.verifier.eq(method)
        rows.loc[is_there & (rows.quantity == measured_as), list(changed)] = list(changed.values())

    return change


def length(method, value, lower, upper):
    return of(method, value=value, lower=lower, upper=upper)


def without(method):
    return lambda rows: rows.drop(rows.index[rows.verifier == method], inplace=True)


STANDARD = "table1: embedded embedded_code 1.0 specinfer d5b3 standard"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (without("standard"), f"{STANDARD} is missing"),
        (of("standard", verdict=None), f"{STANDARD} has no audit"),
        (of("standard", verdict="audit failed"), f"{STANDARD} has no audit that is done: audit failed"),
        (of("standard", status="failed", reason="no room"), f"{STANDARD} is failed (no room)"),
        (of("standard", "audited_tokens", value=999.0), "does not follow from z 0.0, 0.0 and 999 tokens"),
        (of("standard", "z_overdraft", value=-5.0), f"{STANDARD} is 'no bias seen', which does not follow"),
        (of("resispec", "audited_tokens", value=0.0), "resispec is 'biased', which does not follow from z"),
        (of("standard", num_prompts=9.0), f"{STANDARD} has 9 prompts; embedded has 10"),
        (of("standard", num_prompts=7.0), f"{STANDARD} has 7 prompts; allowed: at least 8"),
        (of("standard", value=math.nan), f"{STANDARD} has accepted_length nan"),
        (
            length("standard", 2.0, 2.5, 2.6),
            "has accepted_length 2 [2.5, 2.6]; allowed: an interval in 1 to 5",
        ),
        (length("standard", 2.7, 2.5, 2.6), "has accepted_length 2.7 [2.5, 2.6]"),
        (length("standard", 6.0, 5.5, 6.5), "allowed: an interval in 1 to 5"),
        (length("standard", 1.0, 0.5, 1.5), "allowed: an interval in 1 to 5"),
        (length("autoregressive", 1.0, 1.0, 1.5), "allowed: an interval in 1 to 1"),
        (lambda rows: rows.drop(rows.index, inplace=True), "table1.csv has no accepted lengths"),
        (lambda rows: rows.drop(columns="lower", inplace=True), "table1.csv lacks lower; found the columns"),
        (of("standard", "speedup", quantity="z_overdraft"), "several rows of the same labels and quantity"),
    ],
)
def test_what_cannot_be_right_is_refused_in_one_line(ours, capsys, change, line):
    change(ours)
    folder = put(ours)
    assert main(["--compare"]) == 1
    error = capsys.readouterr().err
    assert line in error and error.startswith(f"error: {folder}") and error.count("\n") == 1


def test_files_that_are_no_submission_are_refused_in_one_line(ours, capsys):
    folder = put(ours)
    (folder / "table1.csv").write_text("cell_id,value\n1,many\n")
    assert main(["--compare"]) == 1
    assert "table1.csv cannot be read (" in capsys.readouterr().err
    (folder / "table1.csv").unlink()
    assert main(["--compare"]) == 1
    assert "table1.csv cannot be read ([Errno 2]" in capsys.readouterr().err
    put(ours, "papers")
    assert main(["--compare"]) == 1
    assert "unknown profile 'papers'; allowed: " in capsys.readouterr().err


def test_another_profile_has_data_sets_and_prompts_of_its_own_and_all_methods(ours, capsys):
    other = ours.assign(dataset="c4", num_prompts=200.0)
    put(other, "paper")
    assert main(["--compare"]) == 0
    assert capsys.readouterr().out == "other: nothing is published for table1 of profile paper\n"
    without("resispec")(other)
    put(other, "paper")
    assert main(["--compare"]) == 1
    assert "table1: embedded c4 1.0 specinfer d5b3 resispec is missing" in capsys.readouterr().err


def refused(results, capsys):
    assert main(["--profile", "embedded", "--results", str(results)]) == 1
    line = capsys.readouterr().err
    assert line.startswith("error: ") and line.count("\n") == 1
    assert not (results / "embedded" / "submission").exists()
    return line


def test_what_is_not_complete_is_refused_in_one_line(tmp_path, capsys):
    assert "there is no plan" in refused(tmp_path, capsys)
    cells = measured(tmp_path)
    assert "has 10 prompts; embedded has 20; `make reproduce-table1" in refused(tmp_path, capsys)
    write_plan(tmp_path, "table1", cells, sources={"conf/run.yaml": "0" * 64})
    assert "The plan of table1 is older than conf/run.yaml; `make" in refused(tmp_path, capsys)


@pytest.mark.usefixtures("ours")
def test_the_command_writes_files_that_can_be_sent_and_says_what_agrees_with_ours(tmp_path, capsys):
    shutil.rmtree(tmp_path / "embedded")
    cells = measured(tmp_path, histogram=[4])
    for part in part_names(EXPERIMENTS / "frontier.yaml"):
        write_plan(tmp_path, "frontier", cells if part == "d5b3" else [], part=part)
    shutil.copy(published.FOLDER / "embedded" / "table1.csv", published.FOLDER / "embedded" / "frontier.csv")
    cold = save(make_cell(tmp_path, "standard", temperature=0.3), rows_of([(1.0, [1, 2])] * 10))
    write_plan(tmp_path, "frontier", [cold], part="temperature")  # ours has none, and needs no audit
    assert main(["--profile", "embedded", "--results", str(tmp_path)]) == 0
    folder = tmp_path / "embedded" / "submission"
    *written, first, second = capsys.readouterr().out.splitlines()
    names = ("table1.csv", "frontier.csv", "provenance.json")
    assert written == [f"wrote {folder / name}" for name in names]
    assert ": 2 of 3 accepted lengths agree, 2 of 2 verdicts" in first and "frontier.csv: 2 of 3" in second
    shutil.copytree(folder, submissions.SUBMITTED / "toy")
    assert main(["--compare"]) == 0
    assert capsys.readouterr().out.splitlines() == [f"toy: {first}", f"toy: {second}"]


FILES = [path for name in submissions.ARTEFACTS for path in FOLDER.glob(f"*/{name}.csv")]


@pytest.mark.parametrize("path", FILES, ids=str)
def test_what_is_published_could_be_submitted(path):
    rows, profile = read(path), path.parent.name
    assert not flaw(rows, path.stem, profile)
    # Of these profiles no such artefact is published.
    heir = {"embedded": "paper", "smollm2": "smollm2_bfloat16"}.get(profile)
    assert heir is None or not flaw(rows, path.stem, heir)
