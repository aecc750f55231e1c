"""Runs on W&B hold what the rows say; what W&B does cannot reach the sweep."""

import json
import re
import subprocess
import sys
import time

import pytest

from analysis.load import Plan, Request
from experiments import dashboard, wandb_runs
from experiments.cell import Cell
from experiments.dashboard import UNREAD, Dashboard
from experiments.schema import CONF
from experiments.wandb_runs import of_cell, of_sweep, publish
from resispec.files import read_json
from tests.harness.toy_runs import rows
from tests.toy_cells import (
    PROVENANCE,
    STANDARD,
    kl_rows,
    make_audit,
    make_cell,
    repeated,
    rows_of,
    save,
    stored,
)


def entry(cell, task="Decode"):
    return {"cell_id": cell.cell_id, "labels": cell.labels, "task": task, "num_prompts": 2}


def run_of(cell, sweep="mine", task="Decode"):
    """The run of a stored toy cell."""
    request = Request.read(entry(cell, task))
    return of_cell(Plan(sweep, "embedded", cell.results, (request,), "", ()), request)


def test_a_run_is_named_by_its_cell_and_its_measurement(tmp_path):
    cell = stored(make_cell(tmp_path, "standard"), rows_of(STANDARD))
    run = run_of(cell)
    assert (run.about["group"], run.about["job_type"]) == ("mine", "decode")
    assert run.about["name"] == "embedded embedded_code T=1.0 specinfer d5b3 standard"
    labels = ["pair:embedded", "dataset:embedded_code", "temperature:1.0", "decoder:specinfer"]
    assert run.about["tags"] == ["profile:embedded", "sweep:mine", *labels,
                                 "tree:d5b3", "verifier:standard"]  # fmt: skip
    named = {"pair": "embedded", "dataset": "embedded_code", "decoder": "specinfer", "tree": "d5b3"}
    determining = {"seed": 0, "num_prompts": 2, "sampling/max_length": 40, "temperature": 1.0}
    determining |= {"task/_target_": "experiments.tasks.decode.Decode"}
    named |= {"cell_id": cell.cell_id, "verifier": "standard"}
    assert run.about["config"] == named | determining
    assert run_of(cell, "other").about["id"] == run.about["id"]
    stored(cell, rows_of([(0.7, [1, 2]), (1.0, [2, 0, 2])]))  # measured anew it is another run
    assert run_of(cell).about["id"] != run.about["id"]
    assert run_of(cell).about["id"].startswith(f"{cell.cell_id}-")


def test_a_cell_has_its_own_numbers_and_an_audit_a_verdict_and_no_times(tmp_path):
    cell = stored(make_cell(tmp_path, "resispec"), rows_of(STANDARD))
    run = run_of(cell)
    assert run.summary["accepted_length"] == pytest.approx(13 / 7)
    assert run.summary["tokens_per_s"] == pytest.approx(13 / 1.5)
    assert "accepted_length_lower" not in run.summary  # of two prompts
    more = run_of(stored(make_cell(tmp_path, "naive"), repeated(rows_of(STANDARD)))).summary
    assert more["accepted_length_lower"] < 13 / 7 < more["accepted_length_upper"]
    lengths = [
        [point[prefix + "accepted_length"] for point in run.points] for prefix in ("", "prompt/")
    ]
    assert lengths == [pytest.approx([5 / 3, 13 / 7]), pytest.approx([5 / 3, 2])]
    audit = make_audit(cell, 600, 0.2)
    audited = rows(audit)
    config = read_json(stored(audit, audited).folder / "cell.json")["config"]
    save(audit, audited, config=config | {"audit": True})
    of_audit = run_of(audit)
    assert (of_audit.about["job_type"], of_audit.summary["verdict"]) == ("audit", "biased")
    assert of_audit.about["name"].endswith(" resispec audit")
    untimed = stored(make_cell(tmp_path, "naive"), rows_of(STANDARD))
    config = read_json(untimed.folder / "cell.json")["config"]
    save(untimed, rows_of(STANDARD), config=config | {"timed": False})
    for without in (of_audit, run_of(untimed)):
        names = {name for point in without.points for name in point} | set(without.summary)
        assert not [name for name in names if name.endswith("_s")]


def test_a_bias_that_enumeration_shows_stands_beside_the_numbers(tmp_path):
    cell = stored(make_cell(tmp_path, "resispec"), rows_of(STANDARD))
    assert "shown_bias" not in run_of(cell).summary
    config = json.loads((cell.folder / "cell.json").read_text())["config"]
    sentence = PROVENANCE | {"shown_bias": "ResiSpec is biased"}
    save(cell, rows_of(STANDARD), config=config, provenance=sentence)
    assert run_of(cell).summary["shown_bias"] == "ResiSpec is biased"
    for shift, verdict in ((0.0, "biased (enumerated)"), (0.2, "biased")):
        audit = make_audit(cell, 600, shift)
        save(audit, rows(audit), config=config | {"audit": True}, provenance=sentence)
        assert run_of(audit).summary["verdict"] == verdict


def test_other_tasks_are_shown_as_they_are(tmp_path):
    measured = kl_rows([[0.1, 0.2], [0.3]])
    cell = stored(make_cell(tmp_path, "resispec"), measured, "experiments.tasks.kl.Kl")
    run = run_of(cell, task="Kl")
    assert run.about["job_type"] == "kl" and run.summary == {"num_prompts": 2}
    assert [point["prompt/num_prefixes"] for point in run.points] == [2, 1]
    scalars = [
        {key: value for key, value in row.items() if not isinstance(value, list)}
        for row in measured
    ]
    name, table = run.table
    assert name == "prompts" and table.to_dict("records") == scalars


def test_a_sweep_has_one_run_with_its_table(tmp_path):
    (tmp_path / "mine.csv").write_text("cell_id,verdict,command\na,biased,x\na,biased,x\nb,,y\n")
    run = of_sweep(tmp_path / "mine.csv", "embedded")
    assert run.about["id"] == "report-embedded-mine" and run.about["group"] == "mine"
    counts = {name: count for name, count in run.summary.items() if count}
    assert counts == {"num_cells": 3, "verdicts/biased": 1}
    # defect: a run that went on kept the verdict of an audit that had failed before
    assert run.summary["verdicts/audit failed"] == run.summary["verdicts/no bias seen"] == 0
    assert run.about["config"]["command"] == "x && y" and len(run.table[1]) == 3
    assert run.figure is None  # nothing was decoded


def test_a_damaged_cell_is_named_and_the_others_are_sent(tmp_path, capsys, monkeypatch):
    sent = []
    monkeypatch.setattr(wandb_runs, "send", lambda run, to: sent.append((run, to)))
    names = ("standard", "resispec")
    cells = [stored(make_cell(tmp_path, name), rows_of(STANDARD)) for name in names]
    (cells[0].folder / "rows.jsonl").write_text("{}")
    to = {"mode": "offline", "dir": f"{tmp_path}/new"}
    work = {"name": "mine", "profile": "embedded", "results": str(tmp_path), "to": to}
    work |= {"cells": list(map(entry, cells)), "has_table": True}
    assert publish(work) == UNREAD
    [error] = capsys.readouterr().err.splitlines()
    assert error.startswith(f"error: cell {cells[0].cell_id}: ") and "rows.jsonl" in error
    [(run, place)] = sent  # and no table, which is not written
    assert run.about["config"]["cell_id"] == cells[1].cell_id and place == to
    assert (tmp_path / "new").is_dir()  # W&B would take another folder


def sweep_of(*methods, **changed):
    """The configuration of a sweep, and its cells."""
    wandb = {"mode": "offline", "project": "resispec", "entity": None}
    config = {"wandb": wandb, "profile": "embedded", "results": "r", "num_prompts": 2}
    config |= {"tree": {}, "task": {}, "audit": False, "timed": True} | changed
    labels = {"dataset": "c4", "temperature": 1.0}
    return config, [Cell(labels | {"verifier": name}, config | {"verifier": name, "decoder": name})
                    for name in methods]  # fmt: skip


def test_a_sweep_sends_what_has_ended_and_takes_its_share_of_time(monkeypatch, capsys):
    """One call takes a second, after which nothing is sent before the tenth."""
    now, works = [0.0], []

    def noted(work, _limit_s):
        works.append(work)
        now[0] += 1
        return 0, ""

    monkeypatch.setattr(dashboard.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(dashboard, "_taken_in", noted)
    monkeypatch.setenv("WANDB_DIR", "else where")
    config, [before, one, two, three, failed] = sweep_of("a", "b", "c", "d", "e")
    board = Dashboard(config, "mine", [one, two, three, failed])
    board.send_ended([before])
    assert not works
    board.send_ended([before, one])
    now[0] = 5.0
    board.send_ended([before, one, two])
    assert len(works) == 1
    now[0] = 11.0
    board.send_ended([before, one, two])
    board.send_rest([before, one, two, three], True)
    ids = [[sent["cell_id"] for sent in work["cells"]] for work in works]
    assert ids == [[one.cell_id], [two.cell_id], [three.cell_id]]
    assert [work["has_table"] for work in works] == [False, False, True]
    to = config["wandb"] | {"dir": "else where"}
    assert works[0]["to"] == to and (works[0]["name"], works[0]["profile"]) == ("mine", "embedded")
    [line] = capsys.readouterr().err.splitlines()
    where = "written to else where/wandb; `wandb sync 'else where/wandb'/offline-run-*` uploads"
    assert line.startswith(f"W&B: 3 cells and the sweep's table {where}")


CHILD = """import sys, time
if "{kind}" == "hangs":
    time.sleep(60)
print("error: boom" if "{kind}" == "fails" else "", file=sys.stderr)
sys.exit(1)
"""
LAST = {
    "fails": "boom; the same command with wandb.mode=online or offline sends all cells again",
    "hangs": "W&B: not all was taken in within 0.5 s; the same command .*",
    "is silent": "W&B: its process ended with exit code 1; the same command .*",
}


@pytest.mark.parametrize("kind", LAST)
def test_what_w_and_b_does_is_one_line_and_one_bounded_wait(kind, monkeypatch, capsys):
    """Each in place of the process that a sweep starts."""
    real, calls = subprocess.run, []
    child = [sys.executable, "-c", CHILD.replace("{kind}", kind)]

    def run(_command, **options):
        calls.append(options)
        return real(child, **options)

    monkeypatch.setattr(dashboard.subprocess, "run", run)
    monkeypatch.setattr(dashboard, "LIMIT_S", 0.5 if kind == "hangs" else 60)
    monkeypatch.setattr(dashboard, "CELL_S", 0)
    config, cells = sweep_of("standard")
    board, begun = Dashboard(config, "mine", cells), time.monotonic()
    board.send_ended(cells)
    board.send_rest(cells, True)
    assert time.monotonic() - begun < 30 and len(calls) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert re.fullmatch(LAST[kind], line), line


def test_a_cell_that_cannot_be_read_is_told_and_the_others_are_sent(monkeypatch, capsys):
    config, cells = sweep_of("standard", "naive")
    works = []
    outcomes = iter([(dashboard.UNREAD, "cell is damaged"), (0, "")])
    monkeypatch.setattr(dashboard, "SHARE", 1e9)
    monkeypatch.setattr(
        dashboard, "_taken_in", lambda work, _: works.append(work) or next(outcomes)
    )
    board = Dashboard(config, "mine", cells)
    board.send_ended(cells[:1])
    board.send_rest(cells, False)
    assert [work["has_table"] for work in works] == [False, False]
    assert "cell is damaged; the same command" in capsys.readouterr().err


def test_settings_that_w_and_b_cannot_read_do_not_end_the_sweep(monkeypatch, capsys):
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.setattr(wandb_runs, "chosen_mode", lambda _: 1 / 0)
    config, cells = sweep_of("standard", wandb={"mode": "auto"})
    Dashboard(config, "mine", cells).send_rest(cells, True)
    assert capsys.readouterr().err == "W&B: division by zero\n"


def test_one_module_imports_wandb():
    imports = re.compile(r"^\s*(import|from) wandb\b", re.M)
    folders = ("experiments", "analysis", "resispec", "referee", "recipes")
    sources = [path for name in folders for path in (CONF.parent / name).rglob("*.py")]
    assert [path.name for path in sources if imports.search(path.read_text())] == ["wandb_runs.py"]
