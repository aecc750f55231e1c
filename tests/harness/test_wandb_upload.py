"""Runs on W&B hold what the rows say, and sending them can neither end a sweep nor change its exit code."""

import json
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
from toy_cells import kl_rows, make_cell, rows_of, save, write_plan

from experiments import publish, wandb_upload
from experiments.schema import CONF
from experiments.wandb_upload import Record, uploads
from resispec.files import checksums

DECODED = [(0.5, [1, 2]), (1.0, [2, 0, 2])]


def stored(cell, measured, task="experiments.tasks.decode.Decode"):
    """A toy cell with the configuration that every real one has."""
    save(cell, measured)
    config = {"task": {"_target_": task}, "seed": 0, "audit": False, "wandb": {"mode": "auto"}}
    (cell.folder / "cell.json").write_text(json.dumps({"cell_id": cell.cell_id, "config": config}))
    status = json.loads((cell.folder / "status.json").read_text())
    status["files"] = checksums(cell.folder, ["cell.json", "provenance.json", "rows.jsonl"])
    (cell.folder / "status.json").write_text(json.dumps(status))
    return cell


def every_run(results, artefact):
    record = Record(results, "embedded")
    return [run for setting in record.settings(record.cells(artefact)) for run in record.runs(setting)]


@pytest.fixture
def sent(monkeypatch):
    """The runs that would be sent."""
    runs = []
    monkeypatch.setattr(wandb_upload, "send", lambda run, _: runs.append(run))
    monkeypatch.setattr(publish, "send", lambda run, _: runs.append(run))
    return runs


def test_a_cell_of_several_artefacts_is_one_run_in_the_group_of_the_table(tmp_path):
    cell = stored(make_cell(tmp_path, "standard"), rows_of(DECODED))
    for artefact in ("frontier", "table1", "figure3", "sweep"):
        write_plan(tmp_path, artefact, [cell])
    artefacts = Record(tmp_path, "embedded").artefacts
    assert artefacts == ["table1", "figure3", "frontier", "sweep"]
    runs = [run for artefact in artefacts for run in every_run(tmp_path, artefact)]
    assert len(runs) == 4 and {run.run_id for run in runs} == {runs[0].run_id}
    assert {run.group for run in runs} == {"table1"} and {*artefacts, "embedded", "1.0"} <= set(runs[0].tags)
    stored(cell, rows_of([(0.7, [1, 2]), (1.0, [2, 0, 2])]))  # measured anew it is another run
    [anew] = every_run(tmp_path, "table1")
    assert anew.run_id != runs[0].run_id and anew.run_id.startswith(f"{cell.cell_id}-")


def test_baselines_are_cells_of_the_same_prompts(tmp_path):
    """A standard cell of more prompts has the same labels; the gain is over the one of the same prompts."""
    short = stored(make_cell(tmp_path, "standard"), rows_of(DECODED))
    biased = stored(make_cell(tmp_path, "resispec"), rows_of([(0.5, [0, 0, 2]), (1.0, [0, 0, 4])]))
    longer = make_cell(tmp_path, "standard", n=9)
    longer = stored(type(longer)(tmp_path, longer.cell_id, short.labels), rows_of([*DECODED, (1.0, [9])]))
    for part, cells in (("a", [short, biased]), ("b", [longer])):
        write_plan(tmp_path, "frontier", cells, part)
    runs = {run.run_id.rpartition("-")[0]: run for run in every_run(tmp_path, "frontier")}
    assert runs[biased.cell_id].summary["accepted_length_gain"] == pytest.approx(3 / (13 / 7))
    assert runs[longer.cell_id].summary["num_prompts"] == 3 and len(runs) == 3


def test_other_tasks_are_shown_as_they_are(tmp_path):
    measured = kl_rows([[0.1, 0.2], [0.3]])
    cell = stored(make_cell(tmp_path, "resispec"), measured, "experiments.tasks.kl.Kl")
    write_plan(tmp_path, "table4", [cell])
    [run] = every_run(tmp_path, "table4")
    assert run.job_type == "kl" and run.summary == {"num_prompts": 2} and not run.counts
    assert [point["prompt/num_prefixes"] for point in run.curves] == [2, 1]
    assert run.tables["prompts"].to_dict("records") == measured


def test_a_report_alone_is_sent_without_the_cells_that_a_sweep_has_sent(tmp_path, sent):
    cell = stored(make_cell(tmp_path, "standard"), rows_of(DECODED))
    write_plan(tmp_path, "table1", [cell])
    (tmp_path / "embedded" / "table1.csv").write_text("quantity,value\na,0.1\n")
    (tmp_path / "embedded" / "table1.md").write_text("**Table 1.**\n\n| a |\n|---|\n")
    words = [f"results={tmp_path}", "wandb.mode=offline"]
    assert publish.main(words) == 0 and [run.job_type for run in sent] == ["bench", "report"]
    assert publish.main([*words, "report_only=true"]) == 0 and sent[2].job_type == "report" and len(sent) == 3


def test_a_damaged_cell_is_named_and_the_others_are_sent(tmp_path, capsys, sent):
    cells = [stored(make_cell(tmp_path, name), rows_of(DECODED)) for name in ("standard", "resispec")]
    write_plan(tmp_path, "table1", [*cells, make_cell(tmp_path, "kseq")])
    (cells[0].folder / "rows.jsonl").write_text("{}")
    assert publish.main([f"results={tmp_path}", "experiment=table1", "wandb.mode=offline"]) == 1
    error, last = capsys.readouterr().err.splitlines()
    assert error.startswith(f"error: table1: cell {cells[0].cell_id}: ") and "rows.jsonl" in error
    assert last.startswith("table1: 1 run written to ") and len(sent) == 1


BAD = {
    "table1": "'table1' is no KEY=VALUE",
    "experiment=table9 wandb.mode=offline": "no plan asks for 'table9' in .*; allowed: table1",
    "profile=paper wandb.mode=offline": "paper/plans holds no plan of a sweep; `make reproduce-table1`",
    "wandb.mode=sometimes": "wandb.mode is 'sometimes'; allowed: .*auto.*online.*offline.*disabled",
    "wandb.moed=offline": "Key 'moed' not in 'WandbConfig'; allowed: experiment, .*wandb.entity",
    "wandb.project=a/b": "wandb.project is 'a/b'",
    "wandb.mode=online": "wandb.mode is 'online', but no key is known",
}


@pytest.mark.parametrize("command", BAD)
def test_bad_input_is_one_line(command, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(publish, "has_key", lambda: False)
    write_plan(tmp_path, "table1", [make_cell(tmp_path, "standard")])
    assert publish.main([f"results={tmp_path}", *command.split()]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert re.match(f"error: .*{BAD[command]}", line), line


def swept(results, *methods, datasets=("embedded_code",)):
    """Cells of one sweep, none of them measured, and their toy twins."""
    toys = [make_cell(results, method, dataset) for dataset in datasets for method in methods]
    write_plan(results, "table1", toys)
    wandb = {"mode": "offline", "project": "resispec", "entity": None}
    config = {"results": str(results), "profile": "embedded", "wandb": wandb}
    return [SimpleNamespace(config=config, cell_id=toy.cell_id) for toy in toys], toys


def test_a_setting_is_sent_once_all_of_its_cells_are_complete(tmp_path, sent, capsys):
    cells, toys = swept(tmp_path, "standard", "resispec", "kseq")
    with uploads(cells, ["table1"]) as is_complete:
        for place in (0, 1):
            stored(toys[place], rows_of(DECODED))
            is_complete(cells[place])
        assert not sent
        stored(toys[2], rows_of(DECODED))
        is_complete(cells[2])
        assert ["accepted_length_gain" in run.summary for run in sent] == [False, True, True]
    assert len(sent) == 3
    folder = f"{tmp_path}/wandb"
    line = f"W&B: 3 runs written to {folder}; `wandb sync {folder}/offline-run-*` uploads them\n"
    assert capsys.readouterr().err == line


def test_what_is_complete_is_sent_when_the_sweep_is_over_and_not_when_it_is_stopped(tmp_path, sent):
    cells, toys = swept(tmp_path, "standard", "resispec")
    stored(toys[0], rows_of(DECODED))
    with pytest.raises(KeyboardInterrupt), uploads(cells, ["table1"]):
        raise KeyboardInterrupt
    assert not sent
    with uploads(cells, ["table1"]) as is_complete:
        is_complete(cells[0])
    assert len(sent) == 1


def test_after_the_first_run_that_is_refused_nothing_more_is_sent(tmp_path, monkeypatch, capsys):
    tried = []

    def refuse(run, _to):
        tried.append(run)
        raise RuntimeError("what wandb\nnever told")

    monkeypatch.setattr(wandb_upload, "send", refuse)
    cells, toys = swept(tmp_path, "standard", "resispec", datasets=("embedded_code", "c4"))
    for toy in toys:
        stored(toy, rows_of(DECODED))
    with uploads(cells, ["table1", "frontier", "table1"]) as is_complete:
        for cell in cells:
            is_complete(cell)
    assert len(tried) == 1
    command = f"experiment=table1,frontier profile=embedded results={tmp_path} wandb.mode=offline"
    line = f"W&B: 0 runs sent, not all: what wandb; `python -m experiments.publish {command}` sends them\n"
    assert capsys.readouterr().err == line


def test_a_plan_that_cannot_be_read_ends_no_sweep(tmp_path, sent, capsys):
    cells, _ = swept(tmp_path, "standard")
    (tmp_path / "embedded" / "plans" / "table1.json").write_text("{")
    with uploads(cells, ["table1"]) as is_complete:
        is_complete(cells[0])
    assert not sent and capsys.readouterr().err.startswith("W&B: 0 runs sent, not all: plan ")


def test_one_module_imports_wandb_and_a_sweep_neither_it_nor_torch():
    imports = re.compile(r"^\s*(import|from) wandb", re.M)
    folders = ("experiments", "analysis", "resispec", "referee")
    sources = [path for name in folders for path in (CONF.parent / name).rglob("*.py")]
    assert [path.name for path in sources if imports.search(path.read_text())] == ["wandb_upload.py"]
    program = "import sys; from experiments import run; print({'wandb', 'torch'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
