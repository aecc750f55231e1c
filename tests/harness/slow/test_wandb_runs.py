"""What W&B itself keeps of a sweep and of its report; keys that do not work."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import wandb

from analysis.load import readable_plans
from experiments.wandb_runs import NO_KEY, chosen_mode, of_cell, of_sweep
from tests.harness.toy_runs import messages, run, toy_overrides

KEY = "k" * 40
OF_ANOTHER_RUN = {
    "WANDB_RUN_ID": "other", "WANDB_NAME": "other", "WANDB_RESUME": "must",
    "WANDB_MODE": "disabled",
    "WANDB_NOTES": "other", "WANDB_RESUME_FROM": "other?_step=1", "WANDB_RUN_GROUP": "other",
    "WANDB_TAGS": "other",
}  # fmt: skip


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
    run = {"summary": {}, "history": [], "metric": [], "exit": None, "stats": 0}
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
    """Results, stderr of a sweep and of the same sweep again, and runs after each of them."""
    results = tmp_path_factory.mktemp("shown")
    home = str(tmp_path_factory.mktemp("home"))
    with pytest.MonkeyPatch.context() as patch:
        variables = OF_ANOTHER_RUN | {"HOME": home, "WANDB_DATA_DIR": home}
        for name, value in (variables | {"WANDB_PROJECT": "ours"}).items():
            patch.setenv(name, value)
        wandb.teardown()
        overrides = [*toy_overrides(folder, results), "temperature=1.0", "wandb.mode=offline"]
        words = ["experiment=table1", *overrides, "name=ours", "tree=d4b4", "verifier=standard"]
        done = run(*words)
        assert done.returncode == 0, done.stderr
        during = set(runs_in(results))
        again = run(*words)
        wandb.teardown()
    runs = {name: (read(path), path) for name, path in runs_in(results).items()}
    return results, (done.stderr, again.stderr), during, runs


def test_a_sweep_that_runs_again_writes_the_same_runs_once(shown):
    results, said, during, runs = shown
    folder = f"{results}/wandb"
    where = f"written to {folder}; `wandb sync {folder}/offline-run-*` uploads them"
    for lines in said:
        assert f"W&B: 3 cells and the sweep's table {where}" in messages(lines)
    assert runs.keys() == during and len(during) == 4
    assert len(list((results / "wandb").glob("offline-run-*"))) == 4
    for name, (live, _) in runs.items():
        assert (live["run_id"], live["project"], live["exit"]) == (name, "ours", 0)
        assert live["resume"]


def test_all_that_a_run_holds_is_there(shown):
    """Cells with and without a tree, an audit, the table; test_dashboard.py has what they hold."""
    results, _, _, runs = shown
    [plan] = readable_plans("embedded", results)
    held = [of_cell(plan, request) for request in plan.requests]
    held.append(of_sweep(results / "embedded" / "sweeps" / "ours.csv", "embedded"))
    assert {one.about["id"] for one in held} == runs.keys()
    for one in held:
        live, path = runs[one.about["id"]]
        for key, name in (("job_type", "job_type"), ("display_name", "name")):
            assert live[key] == one.about[name]
        assert {**live["config"], "_wandb": None} == {**one.about["config"], "_wandb": None}
        assert live["run_group"] == "ours" and "sweep:ours" in live["tags"]
        assert len(live["tags"]) == len(one.about["tags"]) and live["stats"] == 0
        points = [point for point in live["history"] if "prompt_index" in point]
        assert [point["_step"] for point in points] == [
            point["prompt_index"] for point in one.points
        ]
        for point, expected in zip(points, one.points, strict=True):
            assert {name: point[name] for name in expected} == pytest.approx(expected, rel=1e-12)
        for name, value in one.summary.items():
            assert live["summary"][name] == value or pd.isna(value)
        name, frame = one.table
        records = frame.astype(object).where(frame.notna(), None).to_dict("records")
        assert table_of(live, path, name) == records
        images = len(list(path.glob("files/media/images/figure*.png")))
        assert images == (1 if one.about["job_type"] == "report" else 0)
        if one.points:
            [step] = [metric for metric in live["metric"] if metric.get("glob_name") == "prompt/*"]
            assert step["step_metric"] == "prompt_index"


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("short", "W&B did not take a run (AuthenticationError: "),
        (KEY, "W&B did not take a run (CommError: "),
    ],
)
def test_a_key_that_is_refused_and_a_server_that_is_not_there_are_one_line(
    key, said, toy, monkeypatch
):
    monkeypatch.setenv("WANDB_API_KEY", key)
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "5")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    done = run(*toy, "num_prompts=1", "wandb.mode=online")
    [line] = [line for line in messages(done.stderr) if "W&B" in line]
    assert done.returncode == 0 and line.startswith(said)
    assert line.endswith("the same command with wandb.mode=online or offline sends all cells again")


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
    assert done.returncode == 0 and messages(done.stderr).count(NO_KEY) == 1
    assert not (tmp_path / "results" / "wandb").exists()
