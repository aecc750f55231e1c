"""Runs on W&B hold what the rows say; what W&B does cannot reach the sweep."""

import json
import re
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from experiments import publish, wandb_upload
from experiments.cell import Cell
from experiments.schema import CONF
from experiments.wandb_upload import Record
from tests.harness.toy_runs import rows
from tests.toy_cells import (
    STANDARD,
    kl_rows,
    make_audit,
    make_cell,
    rows_of,
    stored,
    write_plan,
)


@pytest.fixture
def sent(monkeypatch):
    """Runs that W&B would be sent, and where to."""
    runs = []
    monkeypatch.setattr(wandb_upload, "send", lambda run, to: runs.append((run, to)))
    return runs


def every_run(results, *artefacts, name=None):
    return list(Record(results, "embedded", artefacts, name).runs())


def test_a_run_is_named_by_its_cell_and_its_measurement(tmp_path):
    cell = stored(make_cell(tmp_path, "standard"), rows_of(STANDARD))
    for artefact in ("frontier", "table1", "figure3", "sweep"):
        write_plan(tmp_path, artefact, [cell])
    artefacts = Record(tmp_path, "embedded").artefacts
    assert artefacts == ["table1", "figure3", "frontier", "sweep"]
    [run], [other] = every_run(tmp_path), every_run(tmp_path, "frontier", "sweep")
    [named_run] = every_run(tmp_path, "frontier", name="mine")
    assert [one.about["group"] for one in (run, other, named_run)] == ["table1", "frontier", "mine"]
    assert run.about["id"] == other.about["id"] == named_run.about["id"]
    assert named_run.about["tags"][1:3] == ["sweep:mine", "sweep:frontier"]
    labels = ["pair:embedded", "dataset:embedded_code", "temperature:1.0", "decoder:specinfer"]
    assert other.about["tags"] == ["profile:embedded", "sweep:frontier", "sweep:sweep", *labels,
                                   "tree:d5b3", "verifier:standard"]  # fmt: skip
    named = {"pair": "embedded", "dataset": "embedded_code", "decoder": "specinfer", "tree": "d5b3"}
    determining = {"seed": 0, "num_prompts": 2, "sampling/max_length": 40, "temperature": 1.0}
    determining |= {"task/_target_": "experiments.tasks.decode.Decode"}
    named |= {"cell_id": cell.cell_id, "verifier": "standard"}
    assert run.about["config"] == named | determining
    stored(cell, rows_of([(0.7, [1, 2]), (1.0, [2, 0, 2])]))  # measured anew it is another run
    [anew] = every_run(tmp_path, "table1")
    assert anew.about["id"] != run.about["id"]
    assert anew.about["id"].startswith(f"{cell.cell_id}-")


def test_baselines_are_cells_of_the_same_prompts_and_audits_have_a_verdict_and_no_times(tmp_path):
    """A standard cell of more prompts has the same labels;
    the gain is over the one of the same prompts.
    """
    short = stored(make_cell(tmp_path, "standard"), rows_of(STANDARD))
    biased = stored(make_cell(tmp_path, "resispec"), rows_of([(0.5, [0, 0, 2]), (1.0, [0, 0, 4])]))
    audit = make_audit(biased, 600, 0.2)
    stored(audit, rows(audit))
    longer = make_cell(tmp_path, "standard", n=9)
    longer = stored(
        type(longer)(tmp_path, longer.cell_id, short.labels), rows_of([*STANDARD, (1.0, [9])])
    )
    for part, cells in (("a", [short, biased, audit]), ("b", [longer])):
        path = write_plan(tmp_path, "frontier", cells, part)
        plan = json.loads(path.read_text())
        plan["cells"] = [entry | {"num_prompts": 2 + (part == "b")} for entry in plan["cells"]]
        path.write_text(json.dumps(plan))
    runs = {run.about["config"]["cell_id"]: run for run in every_run(tmp_path, "frontier")}
    assert runs[biased.cell_id].summary["accepted_length_gain"] == pytest.approx(3 / (13 / 7))
    assert runs[longer.cell_id].summary["num_prompts"] == 3 and len(runs) == 4
    for cell in (audit, biased):
        assert runs[cell.cell_id].summary["verdict"] == "biased"
    points = runs[short.cell_id].points
    assert [point["accepted_length"] for point in points] == pytest.approx([5 / 3, 13 / 7])
    assert [point["prompt/accepted_length"] for point in points] == pytest.approx([5 / 3, 2])
    assert runs[audit.cell_id].about["job_type"] == "audit"
    assert not [
        name for point in runs[audit.cell_id].points for name in point if name.endswith("_s")
    ]


def test_other_tasks_are_shown_as_they_are(tmp_path):
    measured = kl_rows([[0.1, 0.2], [0.3]])
    cell = stored(make_cell(tmp_path, "resispec"), measured, "experiments.tasks.kl.Kl")
    write_plan(tmp_path, "table4", [cell])
    [run] = every_run(tmp_path, "table4")
    assert run.about["job_type"] == "kl" and run.summary == {"num_prompts": 2} and not run.counts
    assert [point["prompt/num_prefixes"] for point in run.points] == [2, 1]
    scalars = [
        {key: value for key, value in row.items() if not isinstance(value, list)}
        for row in measured
    ]
    assert run.tables["prompts"].to_dict("records") == scalars


def test_a_sweep_has_one_run_with_its_table_and_its_artefact(tmp_path, sent):
    """Without the cells, which a sweep has sent; a sweep with a name has its table alone."""
    cell = stored(make_cell(tmp_path, "standard"), rows_of(STANDARD))
    write_plan(tmp_path, "table1", [cell])
    (tmp_path / "embedded" / "sweeps").mkdir()
    verdicts = "cell_id,verdict,command\na,biased,x\na,biased,x\nb,,y\n"
    for name in ("table1.csv", "table1_more.csv", "table10.csv", "table1.png"):
        (tmp_path / "embedded" / name).write_text(verdicts)
    (tmp_path / "embedded" / "sweeps" / "mine.csv").write_text(verdicts)
    (tmp_path / "embedded" / "table1.md").write_text("**Table 1.**\n\n| a |\n|---|\n")
    words = [f"results={tmp_path}", "wandb.mode=offline"]
    assert publish.main(words) == publish.main([*words, "cells=none", "reports=table1"]) == 0
    kinds = [run.about["job_type"] for run, _ in sent]
    assert kinds == ["decode", "report", "report", "report"]
    report, mine, again = (run for run, _ in sent[1:])
    assert again.about == report.about and again.images == report.images
    assert report.summary == {"verdicts/biased": 1} and report.about["notes"] == "**Table 1.**"
    assert set(report.tables) == {"table1", "table1_more"}
    assert set(report.images) == {"figure/table1"}
    assert mine.about["id"] == "report-embedded-mine" and set(mine.tables) == {"cells"}
    assert mine.summary == report.summary and mine.about["config"]["command"] == "x && y"


def test_a_damaged_cell_is_named_and_the_others_are_sent(tmp_path, capsys, monkeypatch, sent):
    cells = [
        stored(make_cell(tmp_path, name), rows_of(STANDARD)) for name in ("standard", "resispec")
    ]
    write_plan(tmp_path, "table1", [*cells, make_cell(tmp_path, "kseq")])
    write_plan(tmp_path, "table2", cells)
    write_plan(tmp_path, "sweep", cells[1:], "mine")
    (cells[0].folder / "rows.jsonl").write_text("{}")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path / "else where"))
    words = [f"results={tmp_path}", "wandb.mode=offline"]
    assert publish.main([*words, "experiment=table1,table2"]) == 1
    error, last = capsys.readouterr().err.splitlines()
    assert error.startswith(f"error: cell {cells[0].cell_id}: ") and "rows.jsonl" in error
    [(_, to)] = sent
    assert to["dir"] == f"{tmp_path}/else where" and (tmp_path / "else where").is_dir()
    folder = f"{tmp_path}/else where/wandb"
    line = f"W&B: 1 run written to {folder}; `wandb sync '{folder}'/offline-run-*` uploads them"
    assert last == line
    assert publish.main([*words, "experiment=sweep"]) == 0
    assert sent[-1][0].about["group"] == "mine"  # the sweep's own name


def test_an_id_of_digits_is_the_id_of_a_cell(tmp_path, sent):
    """YAML takes it for a number."""
    cells = []
    for cell_id, method in (("0123456701234567", "standard"), ("12345678901234e5", "kseq")):
        cell = replace(make_cell(tmp_path, method), cell_id=cell_id)
        cells.append(stored(cell, rows_of(STANDARD)))
    write_plan(tmp_path, "table1", cells)
    for cell in cells:
        words = [f"results={tmp_path}", "wandb.mode=offline", f"cells={cell.cell_id}"]
        assert publish.main([*words, "reports=none"]) == 0
    ids = [run.about["config"]["cell_id"] for run, _ in sent]
    assert ids == [cell.cell_id for cell in cells]


BAD = {
    "experiment": "'experiment' is no KEY=VALUE; like experiment=table1",
    "experiment=table9 wandb.mode=offline": "no plan asks for 'table9' in .*; allowed: table1",
    "profile=paper wandb.mode=offline": "paper/plans holds no plan of a sweep; `make "
    "reproduce-table1`",
    "wandb.moed=offline": "Key 'moed' not in 'WandbConfig'; allowed: experiment, .*wandb.entity",
    "wandb.project=a/b": "wandb.project is 'a/b'",
    "wandb.mode=online": "W&B: no key is known",
}


@pytest.mark.parametrize("command", BAD)
def test_bad_input_is_one_line(command, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(wandb_upload, "_has_key", lambda: False)
    write_plan(tmp_path, "table1", [make_cell(tmp_path, "standard")])
    assert publish.main([f"results={tmp_path}", *command.split()]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert re.match(f"error: .*{BAD[command]}", line), line


def test_project_and_team_follow_the_environment(monkeypatch, tmp_path, sent):
    write_plan(tmp_path, "table1", [stored(make_cell(tmp_path, "standard"), rows_of(STANDARD))])
    for name in ("PROJECT", "ENTITY"):
        monkeypatch.setenv(f"WANDB_{name}", name.lower())
    words = [f"results={tmp_path}", "wandb.mode=offline"]
    assert publish.main(words) == publish.main([*words, "wandb.project=mine"]) == 0
    places = [(to["project"], to["entity"]) for _, to in sent]
    assert places == [("project", "entity"), ("mine", "entity")]


def sweep_of(*methods, **changed):
    """Cells of one data set that are compared with each other."""
    config = {"wandb": {"mode": "offline", "project": "resispec", "entity": None}, "name": None}
    config |= {"profile": "embedded", "results": "r", "num_prompts": 2, "tree": {}} | changed
    cells = []
    for method in methods:
        labels = {"dataset": "c4", "verifier": method}
        cells.append(Cell(labels, config | {"verifier": method, "decoder": method}))
    return cells


def test_a_sweep_sends_compared_cells_together_and_takes_its_share_of_time(monkeypatch, capsys):
    """One call takes a second, after which nothing is sent before the tenth."""
    now, commands = [0.0], []

    def noted(command):
        commands.append(dict(word.split("=", 1) for word in command[3:]))
        now[0] += 1
        return ""

    monkeypatch.setattr(publish.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(publish, "_problem", noted)
    before, one, two = sweep_of("standard", "resispec", "kseq")
    xsum, arxiv = (
        Cell({"dataset": name}, one.config | {"dataset": name}) for name in ("xsum", "arxiv")
    )
    cells = [before, one, two, xsum, arxiv]
    dashboard = publish.Dashboard(["a", "b", "a"], cells, cells[1:])
    dashboard.send_complete([before, one])  # the group of both lacks a cell
    assert not commands
    dashboard.send_complete([before, one, two])
    now[0] = 5.0
    dashboard.send_complete([before, one, two, xsum])
    assert len(commands) == 1
    now[0] = 11.0
    dashboard.send_complete([before, one, two, xsum])
    dashboard.send_rest(cells[:4], "a")  # the last one has failed
    common = {"experiment": "a,b", "profile": "embedded", "results": "r", "wandb.mode": "offline"}
    first = ",".join(sorted(cell.cell_id for cell in (before, one, two)))
    assert commands == [
        common | {"cells": first, "reports": "none"},
        common | {"cells": xsum.cell_id, "reports": "none"},
        common | {"cells": "none", "reports": "a"},
    ]
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("W&B: 4 cells written to r/wandb; `wandb sync ")


CHILD = """import sys, time
if "{kind}" == "hangs":
    time.sleep(60)
print("error: boom" if "{kind}" == "fails" else "", file=sys.stderr)
sys.exit(1)
"""
LAST = {
    "fails": "boom; `python -m experiments.publish experiment=a profile=embedded results=r "
    "wandb.mode=offline` sends what is missing",
    "hangs": "W&B: not all was taken in within 0.5 s; `python .*",
    "is silent": "W&B: its process ended with exit code 1; `python .*",
}


@pytest.mark.parametrize("kind", LAST)
def test_what_w_and_b_does_is_one_line_and_one_bounded_wait(kind, monkeypatch, capsys):
    """Each in place of the command that a sweep runs."""
    real, calls = subprocess.run, []
    child = [sys.executable, "-c", CHILD.replace("{kind}", kind)]

    def run(_command, **options):
        calls.append(options)
        return real(child, **options)

    monkeypatch.setattr(publish.subprocess, "run", run)
    monkeypatch.setattr(publish, "LIMIT_S", 0.5 if kind == "hangs" else 60)
    cells = sweep_of("standard")
    dashboard, begun = publish.Dashboard(["a"], cells, cells), time.monotonic()
    dashboard.send_complete(cells)
    dashboard.send_rest(cells, "a")
    assert time.monotonic() - begun < 30 and len(calls) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert re.fullmatch(LAST[kind], line), line


def test_settings_that_w_and_b_cannot_read_do_not_end_the_sweep(monkeypatch, capsys):
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.setattr(wandb_upload, "chosen_mode", lambda _: 1 / 0)
    cells = sweep_of("standard", wandb={"mode": "auto", "project": "resispec", "entity": None})
    publish.Dashboard(["a"], cells, cells).send_rest(cells, "a")
    assert capsys.readouterr().err == "W&B: division by zero\n"


def test_one_module_imports_wandb():
    imports = re.compile(r"^\s*(import|from) wandb", re.M)
    folders = ("experiments", "analysis", "resispec", "referee")
    sources = [path for name in folders for path in (CONF.parent / name).rglob("*.py")]
    assert [path.name for path in sources if imports.search(path.read_text())] == [
        "wandb_upload.py"
    ]
