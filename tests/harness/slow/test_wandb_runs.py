"""What W&B itself keeps of a sweep, live and afterwards, and of a report; keys and hosts that do not work."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import wandb
from PIL import Image
from test_wandb_upload import DECODED, stored
from toy_cells import make_cell, rows_of, write_plan
from toy_runs import messages, rows, run, toy_overrides

from analysis import table1
from experiments import publish
from experiments.cell import IGNORED
from experiments.grid import cells_of
from experiments.wandb_upload import NO_KEY, chosen_mode

KEY = "k" * 40
OF_ANOTHER_RUN = {
    "WANDB_RUN_ID": "other", "WANDB_NAME": "other", "WANDB_RESUME": "must", "WANDB_MODE": "disabled",
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
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
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
    """Results, a slice's name, stderr of its sweep, its runs then, and all runs after publishing again."""
    results = tmp_path_factory.mktemp("shown")
    home = str(tmp_path_factory.mktemp("home"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (OF_ANOTHER_RUN | HEEDED | {"HOME": home, "WANDB_DATA_DIR": home}).items():
            patch.setenv(name, value)
        wandb.teardown()
        overrides = [*toy_overrides(folder, results), "temperature=1.0", "wandb.mode=offline"]
        done = run("experiment=table1", *overrides, "tree=d4b4")
        assert done.returncode == 0, done.stderr
        during = {name: read(path) for name, path in runs_in(results).items()}
        table1.main(["--results", str(results), "--slice"])
        assert publish.main([f"results={results}", "wandb.mode=offline", "wandb.project=mine"]) == 0
        wandb.teardown()
    [plan] = (results / "embedded" / "plans").iterdir()
    runs = {name: (read(path), path) for name, path in runs_in(results).items()}
    return results, plan.stem, done.stderr, during, runs


def cells_in(results, runs):
    """Run, its folder, cell's folder, configuration and rows of every cell."""
    for path in sorted((results / "raw" / "embedded").glob("*/cell.json")):
        lines = (path.parent / "rows.jsonl").read_text().splitlines()
        [entry] = [entry for name, entry in runs.items() if name.startswith(f"{path.parent.name}-")]
        yield *entry, path.parent, json.loads(path.read_text())["config"], [*map(json.loads, lines)]


def test_a_sweep_and_publishing_write_the_same_runs_once(shown):
    results, slice_name, lines, during, runs = shown
    assert len(during) == 5 and set(runs) == {*during, f"report-embedded-{slice_name}"}
    assert len(list((results / "wandb").glob("offline-run-*"))) == 6
    line = f"W&B: 5 runs written to {results}/wandb; `wandb sync {results}/wandb/offline-run-*` uploads them"
    assert line in messages(lines)
    for name, (live, _) in runs.items():
        assert live["run_id"] == name and live["resume"] and live["project"] == "mine" and not live["exit"]
    same = ("summary", "config", "run_group", "job_type", "display_name", "tags")
    for name, live in during.items():
        assert live["project"] == "named" and len(live["history"]) == len(runs[name][0]["history"]) == 3
        now, then = ({key: run[key] for key in same} for run in (runs[name][0], live))
        for summary in (now["summary"], then["summary"]):
            for key in [key for key in summary if key[0] == "_" or "artifact" in key]:
                del summary[key]
        assert then == now


def test_every_number_of_the_rows_is_in_the_runs(shown):
    results, _, _, _, runs = shown
    for live, path, _, config, measured in cells_in(results, runs):
        scalars = [
            {name: value for name, value in row.items() if not isinstance(value, list)} for row in measured
        ]
        assert table_of(live, path, "prompts") == scalars
        points = [point for point in live["history"] if "prompt_index" in point]
        assert [point["prompt_index"] for point in points] == [0, 1, 2] == [p["_step"] for p in points]
        for point, row in zip(points, measured, strict=True):
            expected = {
                f"prompt/{name}": value
                for name, value in row.items()
                if isinstance(value, int | float) and name not in ("prompt_index", "seed")
                if not (config["audit"] and name.endswith("_s"))
            } | {"prompt/accepted_length": row["num_emitted"] / row["num_steps"]}
            if not config["audit"]:
                expected["prompt/tokens_per_s"] = row["num_emitted"] / row["decode_s"]
            drawn = {name: value for name, value in point.items() if name.startswith("prompt/")}
            assert drawn == pytest.approx(expected, rel=1e-12)
            so_far = measured[: row["prompt_index"] + 1]
            steps, emitted = (sum(row[name] for row in so_far) for name in ("num_steps", "num_emitted"))
            assert point["accepted_length"] == pytest.approx(emitted / steps)
            assert ("tokens_per_s" in point) != config["audit"]
        counts = live["summary"]["accepted_length_histogram.values"]
        edges = live["summary"]["accepted_length_histogram.bins"]
        assert sum(counts) == sum(row["num_steps"] for row in measured)
        emitted = sum(length * count for length, count in enumerate(counts, start=1))
        assert emitted == sum(row["num_emitted"] for row in measured)
        assert edges == [place + 0.5 for place in range(len(counts) + 1)]


def test_every_number_of_the_table_is_in_the_summaries(shown):
    results, slice_name, _, _, runs = shown
    frame = pd.read_csv(results / "embedded" / slice_name / "table1.csv")
    for live, _, folder, config, _ in cells_in(results, runs):
        summary, name = live["summary"], ""
        for row in frame[frame.cell_id == folder.name].to_dict("records"):
            name = row["quantity"]
            for key, column in ((name, "value"), (f"{name}_lower", "lower"), (f"{name}_upper", "upper")):
                assert summary.get(key) == (None if pd.isna(row[column]) else pytest.approx(row[column])), key
            assert summary.get("verdict", "") == ("" if pd.isna(row["verdict"]) else row["verdict"])
        assert summary["num_prompts"] == 3 and bool(name) != config["audit"]
        assert ("verdict" in summary) >= config["audit"]
        assert not (config["audit"] and any(key.startswith("tokens_per_s") for key in summary))


def test_runs_are_described_by_their_cells(shown):
    results, slice_name, _, _, runs = shown
    names = set()
    for live, _, folder, config, _ in cells_in(results, runs):
        assert live["run_group"] == "ours" and live["stats"] == 0
        assert live["job_type"] == ("audit" if config["audit"] else "decode")
        tags = {"profile:embedded", f"sweep:{slice_name}", "temperature:1.0", "first", "second"}
        assert tags <= set(live["tags"]) and "other" not in live["tags"]
        told = live["config"]
        assert told["cell_id"] == folder.name and told["task/audit"] == config["audit"]
        for name in IGNORED.keys() - {"tree", "verifier"}:
            assert not [key for key in told if key.partition("/")[0] == name]
        assert told["sampling/max_length"] == 40 and told["decoder/drafter/_target_"].startswith("resispec")
        files = {"rows.jsonl", "cell.json", "provenance.json"}
        artifact = live["artifacts"][f"rows-{folder.name}", "rows"]
        assert {file["path"] for file in artifact["manifest"]["contents"]} == files
        assert json.loads(artifact["metadata"]) == json.loads((folder / "provenance.json").read_text())
        [step] = [metric for metric in live["metric"] if metric.get("glob_name") == "prompt/*"]
        assert step["step_metric"] == "prompt_index"
        names.add(live["display_name"])
    assert len(names) == 5
    [biased] = [name for name in names if "ResiSpec" in name and not name.endswith("audit")]
    assert "/SpecInfer + ResiSpec/d4b4/T=1/seed=0/" in biased


def test_the_report_holds_table_notes_and_verdicts(shown):
    results, slice_name, _, _, runs = shown
    live, path = runs[f"report-embedded-{slice_name}"]
    assert (live["run_group"], live["job_type"]) == ("ours", "report")
    [((_, kind), artifact)] = live["artifacts"].items()
    paths = {file["path"] for file in artifact["manifest"]["contents"]}
    assert kind == "report" and {"table1.csv", "table1.md", "table1.tex"} <= paths
    frame = pd.read_csv(results / "embedded" / slice_name / "table1.csv")
    assert table_of(live, path, "table1") == frame.astype(object).where(frame.notna(), None).to_dict(
        "records"
    )
    verdicts = {name: value for name, value in live["summary"].items() if name.startswith("verdicts/")}
    assert verdicts == {"verdicts/undecided": 2}
    assert "ResiSpec's rows are biased" in live["notes"] and "|" not in live["notes"]
    assert "wandb" not in live["config"]["command"]


def test_a_report_shows_every_picture_and_table_of_its_artefact(tmp_path, capsys):
    """The frontier has a table beside its own; what is another artefact's is not shown."""
    write_plan(tmp_path, "frontier", [make_cell(tmp_path, "standard")])
    folder = tmp_path / "embedded"
    for stem in ("frontier", "frontier_shapes", "table1"):
        (folder / f"{stem}.csv").write_text("quantity,value\na,0.1\nb,\n")
    (folder / "frontier.md").write_text("**The frontier.**\n\n| a |\n|---|\n\nA note.\n")
    Image.new("RGB", (3, 2), "red").save(folder / "frontier.png")
    assert publish.main([f"results={tmp_path}", "wandb.mode=offline"]) == 0
    assert capsys.readouterr().err.startswith("W&B: 1 run written to ")
    [(name, path)] = runs_in(tmp_path).items()
    live = read(path)
    assert name == "report-embedded-frontier" and live["notes"] == "**The frontier.**\n\nA note."
    expected = [{"quantity": "a", "value": 0.1}, {"quantity": "b", "value": None}]
    assert table_of(live, path, "frontier") == table_of(live, path, "frontier_shapes") == expected
    assert "table1.path" not in live["summary"]
    picture = path / "files" / live["summary"]["figure/frontier.path"]
    assert picture.read_bytes() == (folder / "frontier.png").read_bytes()


def test_a_key_that_w_and_b_refuses_is_one_line(tmp_path, capsys, monkeypatch):
    write_plan(tmp_path, "table1", [stored(make_cell(tmp_path, "standard"), rows_of(DECODED))])
    monkeypatch.setenv("WANDB_API_KEY", "short")
    assert publish.main([f"results={tmp_path}", "wandb.mode=online"]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "W&B did not take a run (AuthenticationError: " in line and "40+ characters" in line


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


NETRC = f"machine api.wandb.ai\n  login user\n  password {KEY}\n"
OWN_HOST = NETRC.replace("api.wandb.ai", "own.host")
KNOWN = {
    "nothing": ({}, {}, "disabled"),
    "a key": ({}, {"WANDB_API_KEY": KEY}, "online"),
    "netrc": ({".netrc": NETRC}, {}, "online"),
    "own host": ({".netrc": OWN_HOST}, {"WANDB_BASE_URL": "https://own.host"}, "online"),
    "WANDB_MODE": ({}, {"WANDB_MODE": "dryrun", "WANDB_API_KEY": KEY}, "offline"),
    "WANDB_MODE off": ({}, {"WANDB_MODE": "disabled", "WANDB_API_KEY": KEY}, "disabled"),
    "settings": ({"WANDB_CONFIG_DIR/settings": "[default]\nmode = offline\n"}, {}, "offline"),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_auto_is_online_only_where_a_key_is_known(name, monkeypatch, tmp_path):
    files, environment, expected = KNOWN[name]
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.chdir(tmp_path)
    for path, text in files.items():
        write(tmp_path / "home" / path, text)
    nobody_chose = expected == "disabled" and not environment
    assert chosen_mode("auto") == (expected, NO_KEY if nobody_chose else "")
    online = "online" if "WANDB_API_KEY" in environment or expected == "online" else "disabled"
    assert [chosen_mode(mode)[0] for mode in ("online", "offline")] == [online, "offline"]


def test_without_a_key_a_sweep_says_so_once_and_starts_nothing(toy, tmp_path):
    done = run(*toy, "num_prompts=1")
    assert done.returncode == 0 and messages(done.stderr)[0] == NO_KEY
    assert not (tmp_path / "results" / "wandb").exists()


def test_an_unreachable_host_leaves_a_sweep_as_it_is(toy, monkeypatch, tmp_path):
    """The key, in the user's netrc file, is found here and by W&B; nothing listens at the host."""
    write(tmp_path / "home" / ".netrc", NETRC.replace("api.wandb.ai", "127.0.0.1:9"))
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "1")
    done = run(*toy, "verifier=standard,resispec")
    assert done.returncode == 0
    line, last = messages(done.stderr)
    assert line.startswith("W&B did not take a run (CommError: ")
    command = f"python -m experiments.publish experiment=sweep profile=embedded results={tmp_path}/results"
    assert line.endswith(f"; `{command}` sends what is missing")
    assert last.startswith("2 cells: 2 done") and "Traceback" not in done.stderr
    assert [len(rows(cell)) for cell in cells_of([*toy, "verifier=standard,resispec"])] == [3, 3]
