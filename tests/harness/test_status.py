"""`make status`: what of every artefact is done, running, failed and missing, within a second."""

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from analysis.cells import read_plans
from analysis.page.sections import artefacts
from experiments import states, status
from experiments.status import main, standings
from experiments.store import CellStore
from resispec.files import write_json
from tests.toy_cells import METHODS, PROVENANCE, ToyCell, make_cell, rows_of, save, write_plan


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """This machine has the device of toy cells."""
    monkeypatch.setattr(status, "device_names", lambda: {PROVENANCE["device"]})


def cell_of(results, name, state="missing", seconds=1.0, device=PROVENANCE["device"], **labels):
    """A cell named by its verifier, in a state, after `seconds`."""
    cell = make_cell(results, name, **labels)
    if state != "missing":
        rows = rows_of(METHODS["standard"]) if state == "done" else None
        reason, origin = "too large" if state == "failed" else "", PROVENANCE | {"device": device}
        save(cell, rows, state, reason, seconds=seconds, provenance=origin)
    return cell


def plan(results, artefact, cells, part="", **entry):
    """Write a plan as a sweep does, of 2 prompts a cell."""
    about = {"task": "Decode", "num_prompts": 2} | entry
    entries = [{"cell_id": cell.cell_id, "labels": cell.labels} | about for cell in cells]
    write_plan(results, artefact, cells, part, cells=entries)


def of(results, artefact):
    found, _ = standings("embedded", results)
    return next(one for one in found if one.artefact == artefact)


def test_every_state_is_counted_and_a_reason_is_said_once(tmp_path, capsys):
    states = ["done", "done", "failed", "failed", "interrupted", "missing"]
    plan(tmp_path, "table1", [cell_of(tmp_path, f"v{n}", state) for n, state in enumerate(states)])
    assert main(["--results", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    place = next(n for n, line in enumerate(lines) if line.startswith("  table1 "))
    assert lines[place].split(maxsplit=1)[1] == (
        "2/6 done, 2 failed, 1 interrupted, 1 missing; about 1 min left; table not written"
    )
    assert lines[place + 1].strip() == "2 failed: too large"
    assert (
        lines[0]
        == "profile embedded: 2/6 done, 2 failed, 1 interrupted, 1 missing; about 1 min left"
    )
    hints = [line.split(maxsplit=1)[1] for line in lines if line.startswith("  table2 ")]
    assert hints == [f"not planned: make reproduce-table2 PROFILE=embedded RESULTS={tmp_path}"]


def test_a_cell_runs_while_its_lock_is_held(tmp_path):
    cell = cell_of(tmp_path, "standard", "running")
    plan(tmp_path, "table1", [cell])
    assert of(tmp_path, "table1").states == {"interrupted": 1}  # a kill left it
    with CellStore(cell.folder).locked():
        assert of(tmp_path, "table1").states == {"running": 1}
    with CellStore(cell.folder).locked():  # which status has let go of
        pass


def test_what_is_left_is_estimated_from_cells_that_are_alike(tmp_path):
    """Medians of seconds a prompt: of the same tree 1, of the decoder 2, or else of all cells."""
    measured = {"a": ("d5b3", 2.0), "b": ("d5b3", 2.0), "c": ("d5b3", 200.0), "d": ("d4b4", 4.0)}
    measured |= {"e": ("d7b2", 4.0)}
    cells = [cell_of(tmp_path, name, "done", of[1], tree=of[0]) for name, of in measured.items()]
    plan(tmp_path, "table1", cells)
    plan(tmp_path, "table4", [cell_of(tmp_path, "x", tree="d5b3")])
    plan(tmp_path, "table5", [cell_of(tmp_path, "x", tree="d3b11")])
    plan(
        tmp_path,
        "figure1",
        [cell_of(tmp_path, "x", decoder="sequoia")],
        task="Other",
        num_prompts=20,
    )
    assert of(tmp_path, "table4").eta_s == 2 * 1.0  # median of 1, 1, 100
    assert of(tmp_path, "table5").eta_s == 2 * 2.0  # of 1, 1, 100, 2, 2
    assert of(tmp_path, "figure1").eta_s == 20 * 2.0
    assert of(tmp_path, "table1").eta_s == 0


def test_times_of_another_machine_serve_only_where_this_one_measured_nothing(tmp_path, capsys):
    """And the line names it. A cell of the same tree there is worth less than one of any here."""
    there = [cell_of(tmp_path, "a", "done", 2000.0, device="NVIDIA H200", tree="d5b3")]
    left = cell_of(tmp_path, "x", tree="d5b3")
    plan(tmp_path, "table1", [*there, left])
    assert of(tmp_path, "table1").eta_by == "NVIDIA H200"
    assert main(["--results", str(tmp_path)]) == 0
    line = "1/2 done, 1 missing; about 33 min left, by the times of NVIDIA H200"
    assert f"profile embedded: {line}\n" in capsys.readouterr().out
    ours = cell_of(tmp_path, "b", "done", 20.0, tree="d4b4")
    plan(tmp_path, "table1", [*there, ours, left])
    assert (of(tmp_path, "table1").eta_s, of(tmp_path, "table1").eta_by) == (20.0, "")


def test_prompts_that_are_measured_already_are_not_left(tmp_path):
    stopped = cell_of(tmp_path, "b", "interrupted")
    (stopped.folder / "rows.partial.jsonl").write_text("{}\n" * 15)
    plan(tmp_path, "table1", [cell_of(tmp_path, "a", "done", 20.0), stopped], num_prompts=20)
    assert of(tmp_path, "table1").eta_s == 5.0


def test_running_workers_share_what_is_left_but_timed_cells_are_finished_one_by_one(tmp_path):
    running = [cell_of(tmp_path, name, "running") for name in ("b", "c")]
    timed = [cell_of(tmp_path, name) for name in ("d", "e", "f")]
    plan(tmp_path, "table1", [cell_of(tmp_path, "a", "done", 20.0), *running])
    plan(tmp_path, "table3", timed, is_timed=True)
    in_turns = [cell_of(tmp_path, name, "running") for name in ("g", "h")]
    plan(tmp_path, "table2", in_turns, is_timed=True)
    with ExitStack() as held:
        held.enter_context(CellStore(running[0].folder).locked())
        for cell in in_turns:  # by one worker
            held.enter_context(CellStore(cell.folder).locked())
        assert of(tmp_path, "table1").eta_s == 2 * 20.0 / 2
        assert of(tmp_path, "table3").eta_s == 3 * 20.0


def test_without_a_measured_cell_nobody_knows(tmp_path, capsys):
    plan(tmp_path, "table1", [cell_of(tmp_path, "a")])
    assert main(["--results", str(tmp_path)]) == 0
    assert "0/1 done, 1 missing; time left unknown, no cell is measured" in capsys.readouterr().out


def test_a_cell_counts_once_in_a_sweep_of_any_name_and_in_all(tmp_path, monkeypatch):
    """And its files are read once."""
    read: list[Path] = []
    reader = states.read_status
    monkeypatch.setattr(states, "read_status", lambda folder: read.append(folder) or reader(folder))
    shared = cell_of(tmp_path, "a", "done")
    plan(tmp_path, "table1", [shared, cell_of(tmp_path, "b")])
    plan(tmp_path, "table2", [shared], part="chain")
    plan(tmp_path, "table2", [shared], part="sequoia")
    plan(tmp_path, "sweep", [shared], part="1a2b3c4d")
    plan(tmp_path, "sweep", [cell_of(tmp_path, "b")], part="5e6f7a8b")
    without_tree = [
        ToyCell(tmp_path, "no-tree", make_cell(tmp_path, name).labels) for name in ("c", "d")
    ]
    plan(tmp_path, "table3", without_tree)
    found, whole = standings("embedded", tmp_path)
    assert whole.states == {"done": 1, "missing": 3} and len(read) == len(set(read)) == 2
    by_name = {one.artefact: one for one in found}
    assert by_name["table2"].states == {"done": 1} and by_name["table3"].states == {"missing": 2}
    assert by_name["sweep"].states == {"done": 1, "missing": 1} and by_name["sweep"].table == ""
    assert [note.split(" that")[0] for note in by_name["table2"].notes] == [
        f"table2 has a part {part}"
        for part in ("eagle", "runs", "runs_eagle", "runs_eagle_softmax", "sampled")
    ]


def test_a_file_that_a_kill_left_is_no_plan(tmp_path):
    """See `resispec.files.replacing`: of a plan, and of the first part of one."""
    plan(tmp_path, "table1", [cell_of(tmp_path, "a")])
    for name in (".table1.json.123", "more/.d5b3.json.123"):
        write_json(tmp_path / "embedded" / "plans" / name, {})
    assert {one.artefact for one in standings("embedded", tmp_path)[0]} == set(artefacts())
    assert [one.artefact for one in read_plans("embedded", tmp_path)] == ["table1"]


def test_a_table_is_older_than_a_cell_that_was_measured_after_it(tmp_path):
    cell = cell_of(tmp_path, "a", "done")
    plan(tmp_path, "table1", [cell])
    assert of(tmp_path, "table1").table == "not written"
    table = tmp_path / "embedded" / "table1.csv"
    table.touch()
    assert of(tmp_path, "table1").table == "written"
    os.utime(table, ns=(0, (cell.folder / "status.json").stat().st_mtime_ns - 1))
    assert of(tmp_path, "table1").table == "older than its cells"


def test_what_is_wrong_with_a_plan_or_a_cell_is_a_line(tmp_path):
    damaged = cell_of(tmp_path, "a", "done")
    (damaged.folder / "rows.jsonl").write_text("")
    plan(tmp_path, "table1", [damaged])
    write_plan(tmp_path, "table4", [], sources={"conf/run.yaml": "0" * 64})
    (tmp_path / "embedded" / "plans" / "table5.json").write_text("{")
    assert of(tmp_path, "table1").states == {"damaged": 1}
    assert (
        of(tmp_path, "table4")
        .notes[0]
        .startswith("The plan of table4 is older than conf/run.yaml; `make")
    )
    assert "table5.json is damaged" in of(tmp_path, "table5").notes[0]
