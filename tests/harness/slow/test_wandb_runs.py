"""What W&B itself keeps of a sweep and of its report; keys that do not work."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import wandb
from PIL import Image

from experiments import publish
from experiments.wandb_upload import NO_KEY, Record, chosen_mode
from tests.harness.toy_runs import messages, run, toy_overrides
from tests.toy_cells import STANDARD, make_cell, rows_of, stored, write_artefact, write_plan

KEY = "k" * 40
OF_ANOTHER_RUN = {
    "WANDB_RUN_ID": "other", "WANDB_NAME": "other", "WANDB_RESUME": "must",
    "WANDB_MODE": "disabled",
    "WANDB_NOTES": "other", "WANDB_RESUME_FROM": "other?_step=1",
}  # fmt: skip
HEEDED = {"WANDB_RUN_GROUP": "ours", "WANDB_TAGS": "first,second", "WANDB_PROJECT": "named"}


@pytest.fixture(autouse=True)
def own_home(monkeypatch, tmp_path):
    """No key of this machine, no folder of its user; W&B reads the environment anew."""
    for name in [name for name in os.environ if name.startswith(("WANDB_", "NETRC"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home" / name))
    wandb.teardown()
    yield
    wandb.teardown()


def read(path):
    """A run as W&B's own reader has it."""
    command = [Path(sys.executable).parent / "wandb", "leet", "inspect", "--json", path]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("WANDB_")
    }
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    run = {"summary": {}, "history": [], "metric": [], "artifacts": {}, "exit": None, "stats": 0}
    for record in map(json.loads, done.stdout.splitlines()):
        kind, content = record["type"], record.get(record["type"])
        if kind == "run":
            run |= content | {"config": content["config"]["update"]}
        elif kind == "summary":
            run["summary"] |= content.get("update", {})
        elif kind == "history":
            run["history"].append(content["item"])
            run["summary"] |= content["item"]
        elif kind == "metric":
            run["metric"].append(content)
        elif kind == "artifact" and content["type"] != "run_table":
            run["artifacts"][content["name"], content["type"]] = content
        elif kind == "exit":
            run["exit"] = content.get("exit_code", 0)
        run["stats"] += kind == "stats"
    return run


def runs_in(results):
    """The folders of offline runs by their ids; W&B gives two of a second different folders."""
    files = (results / "wandb").glob("offline-run-*/run-*.wandb")
    return {file.stem.removeprefix("run-"): file.parent for file in files}


def table_of(run, path, name):
    stored_table = json.loads((path / "files" / run["summary"][f"{name}.path"]).read_text())
    return [dict(zip(stored_table["columns"], row, strict=True)) for row in stored_table["data"]]


@pytest.fixture(scope="module")
def shown(folder, tmp_path_factory):
    """Results, stderr of a sweep, ids of its runs, and all runs after publishing again."""
    results = tmp_path_factory.mktemp("shown")
    home = str(tmp_path_factory.mktemp("home"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (
            OF_ANOTHER_RUN | HEEDED | {"HOME": home, "WANDB_DATA_DIR": home}
        ).items():
            patch.setenv(name, value)
        wandb.teardown()
        overrides = [*toy_overrides(folder, results), "temperature=1.0", "wandb.mode=offline"]
        overrides.append("name=ours")
        done = run("experiment=table1", *overrides, "tree=d4b4", "verifier=standard")
        assert done.returncode == 0, done.stderr
        during = runs_in(results)
        assert read(during["report-embedded-ours"])["project"] == "named"
        write_artefact("table1", "--results", str(results), "--plan", "ours")
        written = results / "embedded" / "sweeps" / "ours"
        Image.new("RGB", (3, 2), "red").save(written / "table1.png")
        assert publish.main([f"results={results}", "wandb.mode=offline", "wandb.project=mine"]) == 0
        wandb.teardown()
    [plan] = (results / "embedded" / "plans").iterdir()
    runs = {name: (read(path), path) for name, path in runs_in(results).items()}
    return results, plan.stem, done.stderr, during, runs


def test_a_sweep_and_publishing_write_the_same_runs_once(shown):
    results, slice_name, lines, during, runs = shown
    folder = f"{results}/wandb"
    line = f"W&B: 3 cells written to {folder}; `wandb sync {folder}/offline-run-*` uploads them"
    assert line in messages(lines)
    assert len(during) == 4 and runs.keys() - during.keys() == {f"report-embedded-{slice_name}"}
    assert len(list((results / "wandb").glob("offline-run-*"))) == 5
    for name, (live, _) in runs.items():
        assert (live["run_id"], live["project"], live["exit"]) == (name, "mine", 0)
        assert live["resume"]


def test_all_that_a_run_holds_is_there(shown):
    """Of cells with and without a tree, an audit and the report;
    test_wandb_upload.py has what they hold.
    """
    results, slice_name, _, _, runs = shown
    record = Record(results, "embedded")
    held = [*record.runs(), *map(record.report, record.sweeps)]
    assert len(held) == len(runs) == 5 and any(one.images for one in held)
    for one in held:
        live, path = runs[one.about["id"]]
        assert (live["job_type"], live["display_name"]) == (
            one.about["job_type"],
            one.about["name"],
        )
        assert {**live["config"], "_wandb": None} == {**one.about["config"], "_wandb": None}
        assert live.get("notes", "") == one.about.get("notes", "")
        assert live["run_group"] == "ours" and live["stats"] == 0
        assert set(live["tags"]) == {*one.about["tags"], "first", "second"}
        points = [point for point in live["history"] if "prompt_index" in point]
        assert [point["_step"] for point in points] == [
            point["prompt_index"] for point in one.points
        ]
        for point, expected in zip(points, one.points, strict=True):
            assert {name: point[name] for name in expected} == pytest.approx(expected, rel=1e-12)
        assert {name: live["summary"][name] for name in one.summary} == one.summary
        for name, counts in one.counts.items():
            assert live["summary"][f"{name}.values"] == counts
            assert live["summary"][f"{name}.bins"] == [
                place + 0.5 for place in range(len(counts) + 1)
            ]
        for name, frame in one.tables.items():
            records = frame.astype(object).where(frame.notna(), None).to_dict("records")
            assert table_of(live, path, name) == records
        for name, picture in one.images.items():
            assert (
                path / "files" / live["summary"][f"{name}.path"]
            ).read_bytes() == picture.read_bytes()
        [((_, kind), artifact)] = live["artifacts"].items()
        assert kind == one.artifact.partition("-")[0]
        assert {file["path"] for file in artifact["manifest"]["contents"]} == {
            it.name for it in one.files
        }
        assert json.loads(artifact.get("metadata", "{}")) == one.facts
        if one.points:
            [step] = [metric for metric in live["metric"] if metric.get("glob_name") == "prompt/*"]
            assert step["step_metric"] == "prompt_index"


def test_a_key_that_w_and_b_refuses_is_one_line(tmp_path, capsys, monkeypatch):
    write_plan(tmp_path, "table1", [stored(make_cell(tmp_path, "standard"), rows_of(STANDARD))])
    monkeypatch.setenv("WANDB_API_KEY", "short")
    assert publish.main([f"results={tmp_path}", "wandb.mode=online"]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "W&B did not take a run (AuthenticationError: " in line and "40+ characters" in line


KNOWN = {
    "nothing": ({}, "disabled"),
    "a key": ({"WANDB_API_KEY": KEY}, "online"),
    "WANDB_MODE": ({"WANDB_MODE": "dryrun", "WANDB_API_KEY": KEY}, "offline"),
    "WANDB_MODE off": ({"WANDB_MODE": "disabled", "WANDB_API_KEY": KEY}, "disabled"),
}


@pytest.mark.parametrize("name", KNOWN)
def test_auto_is_online_only_where_a_key_is_known(name, monkeypatch, tmp_path):
    environment, expected = KNOWN[name]
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.chdir(tmp_path)
    assert chosen_mode("auto") == (expected, "" if environment else NO_KEY)
    online = "online" if environment else "disabled"
    assert [chosen_mode(mode)[0] for mode in ("online", "offline")] == [online, "offline"]


def test_without_a_key_a_sweep_says_so_once_and_starts_nothing(toy, tmp_path):
    done = run(*toy, "num_prompts=1")
    assert done.returncode == 0 and messages(done.stderr)[0] == NO_KEY
    assert not (tmp_path / "results" / "wandb").exists()
