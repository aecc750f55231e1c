"""Runs on W&B hold what the rows say, live and afterwards; what W&B does cannot reach the sweep."""

import json
import re
import subprocess
import sys
import time

import pytest
from toy_cells import STANDARD, kl_rows, make_audit, make_cell, rows_of, save, write_plan
from toy_runs import rows

from experiments import publish, wandb_upload
from experiments.schema import CONF
from experiments.wandb_upload import Record, follow


def stored(cell, measured, task="experiments.tasks.decode.Decode", state="done"):
    """A toy cell with the configuration that every real one has;
    its rows are partial until it is done.
    """
    config = {"task": {"_target_": task}, "seed": 0, "audit": False, "num_prompts": 2, "jobs": 4}
    config |= {"wandb": {"mode": "auto"}, "sampling": {"max_length": 40}, "temperature": 1.0}
    save(cell, measured, state, "it broke" if state == "failed" else "", config)
    if state != "done":
        (cell.folder / "rows.jsonl").replace(cell.folder / "rows.partial.jsonl")
    return cell


class Noted:
    """In place of `Live`: what W&B would be told, in turn."""

    told = []

    def __init__(self, run, _to, has_stats=False):
        self.run_id, self.num_points = run.run_id, 0
        self.told.append(("open", self.run_id, has_stats))

    def draw(self, points):
        self.told.extend(("point", self.run_id, point) for point in points[self.num_points :])
        self.num_points = len(points)

    def finish(self, run):
        self.draw(run.points)
        self.told.append(("finish", self.run_id, run))

    def fail(self, reason):
        self.told.append(("fail", self.run_id, reason))


@pytest.fixture
def told(monkeypatch):
    monkeypatch.setattr(wandb_upload, "Live", Noted)
    monkeypatch.setattr(Noted, "told", [])
    return Noted.told


def every_run(results, *artefacts):
    record = Record(results, "embedded", artefacts)
    return [run for setting in record.settings(record.cells) for run in record.runs(setting)]


def test_a_run_is_named_by_its_cell_and_its_measurement(tmp_path):
    cell = stored(make_cell(tmp_path, "standard"), rows_of(STANDARD))
    for artefact in ("frontier", "table1", "figure3", "sweep", "table1@1a2b3c4d"):
        write_plan(tmp_path, artefact, [cell])
    artefacts = Record(tmp_path, "embedded").artefacts
    assert artefacts == ["table1", "figure3", "frontier", "table1@1a2b3c4d", "sweep"]
    [run], [other] = every_run(tmp_path), every_run(tmp_path, "frontier", "sweep")
    assert (run.about["group"], other.about["group"], run.run_id) == (
        "table1",
        "frontier",
        other.run_id,
    )
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
    assert anew.run_id != run.run_id and anew.run_id.startswith(f"{cell.cell_id}-")


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
    runs = {run.run_id.rpartition("-")[0]: run for run in every_run(tmp_path, "frontier")}
    assert runs[biased.cell_id].summary["accepted_length_gain"] == pytest.approx(3 / (13 / 7))
    assert runs[longer.cell_id].summary["num_prompts"] == 3 and len(runs) == 4
    assert (
        runs[audit.cell_id].summary["verdict"]
        == runs[biased.cell_id].summary["verdict"]
        == "biased"
    )
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


def test_cells_are_followed_and_complete_with_their_setting(tmp_path, told, monkeypatch):
    """Points come with the rows, of two cells in turn; summaries once both are done."""
    standard, biased = make_cell(tmp_path, "standard"), make_cell(tmp_path, "resispec")
    failing = make_cell(tmp_path, "kseq", "c4")
    cells = [standard, biased, failing, make_cell(tmp_path, "optimal", "c4")]
    write_plan(tmp_path, "table1", cells)
    standards, better = rows_of(STANDARD), rows_of([(0.5, [0, 0, 2]), (1.0, [0, 0, 4])])
    now = time.time() + 40
    monkeypatch.setattr(time, "time", lambda: now)

    def kinds():
        return [(kind, run_id.rpartition("-")[0]) for kind, run_id, _ in told]

    def sweep():
        yield  # nothing has begun
        assert not told
        stored(standard, standards[:1], state="running")
        with (standard.folder / "rows.partial.jsonl").open("a") as file:
            file.write('{"prompt_index": 1, "pro')  # as it is being written
        yield
        assert kinds() == [("open", standard.cell_id), ("point", standard.cell_id)]
        assert told[0][2] and told[1][2]["tokens_per_s"] == pytest.approx(10)  # 80 s in all
        stored(standard, standards)
        stored(biased, better[:1], state="running")
        yield
        assert ("open", biased.cell_id) in kinds() and "finish" not in dict(kinds())
        stored(biased, better)
        stored(failing, standards[:1], state="running")
        yield
        assert kinds()[-2:] == [("open", failing.cell_id), ("point", failing.cell_id)]
        assert (
            kinds().count(("finish", standard.cell_id))
            == 1
            == kinds().count(("finish", biased.cell_id))
        )
        stored(failing, standards, state="failed")

    steps = sweep()
    record = Record(tmp_path, "embedded", ["table1"])
    assert follow(record, record.changing(0), {}, lambda: next(steps, "over") == "over") == (2, [])
    points = [
        point
        for kind, run_id, point in told
        if kind == "point" and run_id.startswith(f"{standard.cell_id}-")
    ]
    assert [point["prompt_index"] for point in points] == [0, 1]  # each once
    assert [kind for kind, _, _ in told].count(
        "open"
    ) == 3  # the complete run is the one that was live
    assert (
        points[1]["accepted_length"] == pytest.approx(13 / 7)
        and points[1]["prompt/accepted_length"] == 2
    )
    summaries = [run.summary for kind, _, run in told if kind == "finish"]
    assert ["accepted_length_gain" in summary for summary in summaries] == [False, True]
    assert summaries[0]["accepted_length"] == points[1]["accepted_length"]
    assert told[-2][2]["prompt_index"] == 1  # what came after the last look
    assert told[-1][0] == "fail" and told[-1][2] == "it broke" and kinds()[-1][1] == failing.cell_id


def test_a_damaged_cell_is_no_cell_that_is_done(tmp_path, told):
    """A sweep measures it again: until then it is not shown,
    and then its rows are those that count.
    """
    cell = stored(make_cell(tmp_path, "standard"), rows_of(STANDARD))
    write_plan(tmp_path, "table1", [cell])
    (cell.folder / "rows.jsonl").write_text("{}\n")

    def sweep():
        yield
        yield
        assert not told
        stored(cell, rows_of(STANDARD))

    steps = sweep()
    record = Record(tmp_path, "embedded", ["table1"])
    cell_ids = record.changing(time.time() + 9)
    assert follow(record, cell_ids, {}, lambda: next(steps, "over") == "over") == (1, [])
    assert record.changing(time.time() + 9) == [] and record.changing(0) == [cell.cell_id]


def test_a_report_alone_is_sent_without_the_cells_that_a_sweep_has_sent(tmp_path, told):
    cell = stored(make_cell(tmp_path, "standard"), rows_of(STANDARD))
    write_plan(tmp_path, "table1", [cell])
    for name in ("table1.csv", "table1_more.csv", "table10.csv", "table1.png"):
        (tmp_path / "embedded" / name).write_text("cell_id,verdict\na,biased\na,biased\nb,\n")
    (tmp_path / "embedded" / "table1.md").write_text("**Table 1.**\n\n| a |\n|---|\n")
    words = [f"results={tmp_path}", "wandb.mode=offline"]
    assert publish.main(words) == publish.main([*words, "report_only=true"]) == 0
    sent = [run.about["job_type"] for kind, _, run in told if kind == "finish"]
    assert sent == ["decode", "report", "report"]
    report = told[-1][2]
    assert report.summary == {"verdicts/biased": 1} and report.about["notes"] == "**Table 1.**"
    assert set(report.tables) == {"table1", "table1_more"} and set(report.images) == {
        "figure/table1"
    }


@pytest.mark.usefixtures("told")
def test_a_damaged_cell_is_named_and_the_others_are_sent(tmp_path, capsys):
    cells = [
        stored(make_cell(tmp_path, name), rows_of(STANDARD)) for name in ("standard", "resispec")
    ]
    write_plan(tmp_path, "table1", [*cells, make_cell(tmp_path, "kseq")])
    (cells[0].folder / "rows.jsonl").write_text("{}")
    assert publish.main([f"results={tmp_path}", "experiment=table1", "wandb.mode=offline"]) == 1
    error, last = capsys.readouterr().err.splitlines()
    assert error.startswith(f"error: cell {cells[0].cell_id}: ") and "rows.jsonl" in error
    folder = f"{tmp_path}/wandb"
    assert (
        last == f"W&B: 1 run written to {folder}; `wandb sync {folder}/offline-run-*` uploads them"
    )


BAD = {
    "experiment": "'experiment' is no KEY=VALUE; like experiment=table1",
    "wandb.entity=@me": "allowed: experiment, .*wandb.entity",
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


def test_project_and_team_follow_the_environment(monkeypatch, tmp_path):
    write_plan(tmp_path, "table1", [stored(make_cell(tmp_path, "standard"), rows_of(STANDARD))])
    places = []
    monkeypatch.setattr(wandb_upload, "Live", lambda run, to: places.append(to) or Noted(run, to))
    for name in ("PROJECT", "ENTITY"):
        monkeypatch.setenv(f"WANDB_{name}", name.lower())
    words = [f"results={tmp_path}", "wandb.mode=offline"]
    assert publish.main(words) == publish.main([*words, "wandb.project=mine"]) == 0
    assert [(to["project"], to["entity"]) for to in places] == [
        ("project", "entity"),
        ("mine", "entity"),
    ]


CHILD = """import sys, time
if "{kind}" == "hangs":
    time.sleep(60)
print({"works": "W&B: 1 run sent", "fails": "error: boom"}.get("{kind}", ""), file=sys.stderr)
sys.exit("{kind}" != "works")
"""
LAST = {
    "works": "W&B: 1 run sent",
    "fails": "boom; `python -m experiments.publish experiment=a,b profile=embedded results=r` "
    "sends .*",
    "hangs": "W&B: not all was taken in within 0.2 s; `python .*",
    "is silent": "W&B: its process ended with exit code 1; `python .*",
}


@pytest.mark.parametrize("kind", LAST)
def test_what_the_uploader_does_is_one_line_and_a_bounded_wait(kind, monkeypatch, capsys):
    """Each in place of the command that a sweep runs beside itself."""
    real = subprocess.Popen
    child = [sys.executable, "-c", CHILD.replace("{kind}", kind)]
    monkeypatch.setattr(publish.subprocess, "Popen", lambda _, **options: real(child, **options))
    monkeypatch.setattr(publish, "END_S", 0.2 if kind == "hangs" else 60)
    monkeypatch.delenv("WANDB_MODE")
    config = {"wandb": {"mode": "auto", "project": "resispec", "entity": None}}
    begun = time.monotonic()
    with publish.following(["a", "b", "a"], config | {"profile": "embedded", "results": "r"}):
        entered = time.monotonic()
    assert entered - begun < 5 and time.monotonic() - entered < 30
    [line] = capsys.readouterr().err.splitlines()
    assert re.fullmatch(LAST[kind], line), line


def test_one_module_imports_wandb():
    imports = re.compile(r"^\s*(import|from) wandb", re.M)
    folders = ("experiments", "analysis", "resispec", "referee")
    sources = [path for name in folders for path in (CONF.parent / name).rglob("*.py")]
    assert [path.name for path in sources if imports.search(path.read_text())] == [
        "wandb_upload.py"
    ]
