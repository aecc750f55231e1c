"""W&B shows what the rows say, sends it once, and can neither end nor slow a sweep."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image
from toy_cells import kl_rows, make_cell, rows_of, save, write_plan
from toy_runs import messages, rows, run, save_toys, toy_overrides

from analysis import table1
from experiments import publish
from experiments.configuration.schema import CONF
from experiments.dashboards import beside, publisher
from experiments.dashboards.mode import NO_KEY, decided
from experiments.dashboards.runs import Record
from experiments.plan import cells_of
from resispec.files import checksums

KEY = "k" * 40
OF_ANOTHER_RUN = {
    "WANDB_RUN_ID": "other", "WANDB_NAME": "other", "WANDB_RUN_GROUP": "other", "WANDB_TAGS": "other",
    "WANDB_RESUME": "must", "WANDB_MODE": "disabled", "WANDB_PROJECT": "other", "WANDB_NOTES": "other",
    "WANDB_RESUME_FROM": "other?_step=1",
}  # fmt: skip


@pytest.fixture(autouse=True)
def own_home(monkeypatch, tmp_path):
    """No key of this machine, no folder of its user, and the environment as it was afterwards."""
    for name in [name for name in os.environ if name.startswith(("WANDB_", "NETRC"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home" / name))
    monkeypatch.setenv("WANDB_MODE", "disabled")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_toys(tmp_path_factory.mktemp("toys"))


@pytest.fixture
def toy(folder, tmp_path):
    return [*toy_overrides(folder, tmp_path / "results"), "tree=d4b4"]


def read(path):
    """A run as W&B's own reader has it."""
    command = [Path(sys.executable).parent / "wandb", "leet", "inspect", "--json", path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    records = [json.loads(line) for line in done.stdout.splitlines()]
    found = {"summary": {}, "history": [], "metric": []}
    for record in records:
        kind, content = record["type"], record.get(record["type"])
        if kind == "run":
            found |= content | {"config": content["config"]["update"]}
        elif kind == "summary":
            found["summary"] |= content.get("update", {})
        elif kind == "history":
            found["history"].append(content["item"])
            found["summary"] |= content["item"]
        elif kind == "metric":
            found["metric"].append(content)
    return found


def runs_in(results):
    """The folders of offline runs by their ids."""
    folders = (results / "wandb").glob("offline-run-*")
    return {re.sub(r"^offline-run-\d+_\d+-", "", path.name): path for path in folders}


def table_of(found, path, name):
    stored = json.loads((path / "files" / found["summary"][f"{name}.path"]).read_text())
    return [dict(zip(stored["columns"], row, strict=True)) for row in stored["data"]]


@pytest.fixture(scope="module")
def shown(folder, tmp_path_factory):
    """A sweep with dashboards, its table, and everything published again: results, runs during, after."""
    results = tmp_path_factory.mktemp("shown")
    home = str(tmp_path_factory.mktemp("home"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (OF_ANOTHER_RUN | {"HOME": home, "WANDB_DATA_DIR": home}).items():
            patch.setenv(name, value)
        overrides = [*toy_overrides(folder, results), "temperature=1.0", "wandb.mode=offline"]
        done = run("experiment=table1", *overrides, "tree=d4b4")
        assert done.returncode == 0, done.stderr
        during = runs_in(results)
        table1.main(["--results", str(results)])
        said = publish.main([f"results={results}", "wandb.mode=offline", "wandb.project=mine"])
    assert said == 0
    after = runs_in(results)
    return results, done.stderr, during, {name: (read(path), path) for name, path in after.items()}


def cells_in(results):
    """Folder, configuration and rows of every cell."""
    for path in sorted((results / "raw" / "embedded").glob("*/cell.json")):
        text = (path.parent / "rows.jsonl").read_text()
        config = json.loads(path.read_text())["config"]
        yield path.parent, config, [json.loads(line) for line in text.splitlines()]


def of_cell(runs, cell_id):
    [found] = [entry for name, entry in runs.items() if name.startswith(f"{cell_id}-")]
    return found


def test_a_sweep_and_publishing_write_the_same_runs_once(shown):
    results, said, during, after = shown
    assert len(during) == 5 and set(after) == {*during, "report-embedded-table1"}
    assert len(list((results / "wandb").glob("offline-run-*"))) == 6
    line = f"W&B: 5 runs written to {results}/wandb; `wandb sync {results}/wandb/offline-run-*` uploads them"
    assert line in messages(said)
    for name, (found, path) in after.items():
        assert found["run_id"] == name and found["resume"] and found["project"] == "mine"
        assert path != during.get(name)


def test_every_number_of_the_rows_is_in_the_runs(shown):
    results, _, _, runs = shown
    for folder, config, measured in cells_in(results):
        found, path = of_cell(runs, folder.name)
        assert table_of(found, path, "prompts") == measured
        points = [point for point in found["history"] if "prompt_index" in point]
        assert [point["prompt_index"] for point in points] == [0, 1, 2] == [p["_step"] for p in points]
        hidden = ("_s",) if config["audit"] else ()
        for point, row in zip(points, measured, strict=True):
            given = {name: value for name, value in point.items() if name.startswith("prompt/")}
            expected = {
                f"prompt/{name}": value
                for name, value in row.items()
                if isinstance(value, int | float) and name not in ("prompt_index", "seed")
                if not name.endswith(hidden or ("never",))
            } | {"prompt/accepted_length": row["num_emitted"] / row["num_steps"]}
            if not config["audit"]:
                expected["prompt/tokens_per_s"] = row["num_emitted"] / row["decode_s"]
            assert given == pytest.approx(expected, rel=1e-12)
        counts, edges = (found["summary"][f"accepted_length_histogram.{side}"] for side in ("values", "bins"))
        lengths = [length for row in measured for length in row["histogram"]]
        assert sum(counts) == sum(lengths) == sum(row["num_steps"] for row in measured)
        emitted = sum(length * count for length, count in enumerate(counts, start=1))
        assert emitted == sum(row["num_emitted"] for row in measured)
        assert edges == [place + 0.5 for place in range(len(counts) + 1)]


def test_every_number_of_the_table_is_in_the_summaries(shown):
    results, _, _, runs = shown
    frame = pd.read_csv(results / "embedded" / "table1.csv")
    for cell_id, own in frame.groupby("cell_id"):
        summary = of_cell(runs, cell_id)[0]["summary"]
        for row in own.to_dict("records"):
            names = {"value": row["quantity"]} | {
                side: f"{row['quantity']}_{side}" for side in ("lower", "upper")
            }
            for column, name in names.items():
                assert summary.get(name) == (None if pd.isna(row[column]) else pytest.approx(row[column])), (
                    name
                )
            assert summary.get("verdict", "") == ("" if pd.isna(row["verdict"]) else row["verdict"])
        assert summary["num_prompts"] == 3
    audits = [found for found, _ in runs.values() if found["job_type"] == "audit"]
    assert len(audits) == 2 and all("verdict" in found["summary"] for found in audits)
    assert not any(name.startswith("tokens_per_s") for found in audits for name in found["summary"])


def test_runs_are_described_by_their_cells(shown):
    results, _, _, runs = shown
    names = set()
    for folder, config, _ in cells_in(results):
        found, _ = of_cell(runs, folder.name)
        assert found["run_group"] == "table1"
        assert found["job_type"] == ("audit" if config["audit"] else "bench")
        assert {"embedded", "table1", "1.0"} <= set(found["tags"]) and "other" not in found["tags"]
        provenance = json.loads((folder / "provenance.json").read_text())
        assert found["config"].pop("_wandb") == {}
        assert (
            found["config"].pop("provenance") == provenance and found["config"].pop("cell_id") == folder.name
        )
        assert found["config"].pop("labels")["temperature"] == 1.0
        assert found["config"] == {name: value for name, value in config.items() if name != "wandb"}
        [step] = [one for one in found["metric"] if one.get("glob_name") == "prompt/*"]
        assert step["step_metric"] == "prompt_index"
        names.add(found["display_name"])
    assert len(names) == 5
    [biased] = [name for name in names if "ResiSpec" in name and not name.endswith("audit")]
    assert "/SpecInfer + ResiSpec/d4b4/T=1/seed=0/" in biased


def test_the_report_holds_table_notes_and_verdicts(shown):
    results, _, _, runs = shown
    found, path = runs["report-embedded-table1"]
    assert (found["run_group"], found["job_type"]) == ("table1", "report")
    frame = pd.read_csv(results / "embedded" / "table1.csv")
    expected = frame.astype(object).where(frame.notna(), None).to_dict("records")
    assert table_of(found, path, "table1") == expected
    verdicts = {name: value for name, value in found["summary"].items() if name.startswith("verdicts/")}
    assert verdicts == {"verdicts/undecided": 2}
    assert "ResiSpec's rows are biased" in found["notes"] and "|" not in found["notes"]
    assert "wandb" not in found["config"]["command"]


def test_a_report_shows_every_picture_and_table_of_its_artefact(tmp_path, capsys):
    """The frontier has a table beside its own; what is another artefact's is not shown."""
    write_plan(tmp_path, "frontier", [make_cell(tmp_path, "standard")])
    folder = tmp_path / "embedded"
    for stem in ("frontier", "frontier_shapes", "table1"):
        (folder / f"{stem}.csv").write_text("quantity,value\na,0.1\nb,\n")
    (folder / "frontier.md").write_text("**The frontier.**\n\n| a |\n|---|\n\nA note.\n")
    Image.new("RGB", (3, 2), "red").save(folder / "frontier.png")
    assert publish.main([f"results={tmp_path}", "wandb.mode=offline"]) == 0
    assert capsys.readouterr().err.startswith("frontier: 1 run written to ")
    [(name, path)] = runs_in(tmp_path).items()
    found = read(path)
    assert name == "report-embedded-frontier" and found["notes"] == "**The frontier.**\n\nA note."
    expected = [{"quantity": "a", "value": 0.1}, {"quantity": "b", "value": None}]
    assert table_of(found, path, "frontier") == table_of(found, path, "frontier_shapes") == expected
    assert "table1.path" not in found["summary"]
    picture = path / "files" / found["summary"]["figure/frontier.path"]
    assert picture.read_bytes() == (folder / "frontier.png").read_bytes()


def stored(cell, measured, task="experiments.tasks.decode.Decode"):
    """A toy cell with the configuration that every real one has."""
    save(cell, measured)
    config = {"task": {"_target_": task}, "seed": 0, "audit": False, "wandb": {"mode": "auto"}}
    (cell.folder / "cell.json").write_text(json.dumps({"cell_id": cell.cell_id, "config": config}))
    status = json.loads((cell.folder / "status.json").read_text())
    status["files"] = checksums(cell.folder, ["cell.json", "provenance.json", "rows.jsonl"])
    (cell.folder / "status.json").write_text(json.dumps(status))
    return cell


DECODED = [(0.5, [1, 2]), (1.0, [2, 0, 2])]


def every_run(record, artefact):
    return [found for setting in record.settings(record.cells(artefact)) for found in record.runs(setting)]


def test_a_cell_of_several_artefacts_is_one_run_in_the_group_of_the_table(tmp_path):
    cell = stored(make_cell(tmp_path, "standard"), rows_of(DECODED))
    for artefact in ("frontier", "table1", "figure3", "sweep"):
        write_plan(tmp_path, artefact, [cell])
    record = Record(tmp_path, "embedded")
    found = [every_run(record, artefact) for artefact in record.artefacts]
    assert record.artefacts == ["table1", "figure3", "frontier", "sweep"]
    assert {one.run_id for [one] in found} == {found[0][0].run_id} and {one.group for [one] in found} == {
        "table1"
    }
    assert {"table1", "figure3", "frontier", "sweep"} <= set(found[0][0].tags)


def test_a_cell_that_was_measured_anew_is_another_run(tmp_path):
    cell = stored(make_cell(tmp_path, "standard"), rows_of(DECODED))
    write_plan(tmp_path, "table1", [cell])
    [first] = every_run(Record(tmp_path, "embedded"), "table1")
    stored(cell, rows_of([(0.7, [1, 2]), (1.0, [2, 0, 2])]))
    [second] = every_run(Record(tmp_path, "embedded"), "table1")
    assert first.run_id != second.run_id and second.run_id.startswith(f"{cell.cell_id}-")


def test_baselines_are_cells_of_the_same_prompts(tmp_path):
    """A standard cell of more prompts has the same labels; the gain is over the one of the same prompts."""
    short = stored(make_cell(tmp_path, "standard"), rows_of(DECODED))
    own = stored(make_cell(tmp_path, "resispec"), rows_of([(0.5, [0, 0, 2]), (1.0, [0, 0, 4])]))
    longer = make_cell(tmp_path, "standard", n=9)
    longer = stored(type(longer)(tmp_path, longer.cell_id, short.labels), rows_of([*DECODED, (1.0, [9])]))
    for part, cells in (("a", [short, own]), ("b", [longer])):
        write_plan(tmp_path, "frontier", cells, part)
    found = {
        one.run_id.rpartition("-")[0]: one for one in every_run(Record(tmp_path, "embedded"), "frontier")
    }
    assert found[own.cell_id].summary["accepted_length_gain"] == pytest.approx(3 / (13 / 7))
    assert found[longer.cell_id].summary["num_prompts"] == 3 and len(found) == 3


def test_a_report_alone_is_sent_without_the_cells_that_a_sweep_has_sent(tmp_path, monkeypatch):
    cell = stored(make_cell(tmp_path, "standard"), rows_of(DECODED))
    write_plan(tmp_path, "table1", [cell])
    (tmp_path / "embedded" / "table1.csv").write_text("quantity,value\na,0.1\n")
    (tmp_path / "embedded" / "table1.md").write_text("**Table 1.**\n\n| a |\n|---|\n")
    sent = []
    monkeypatch.setattr(publish, "send", lambda run, _: sent.append(run.job_type))
    given = [f"results={tmp_path}", "wandb.mode=offline"]
    assert publish.main(given) == 0 and sent == ["bench", "report"]
    assert publish.main([*given, "report_only=true"]) == 0 and sent == ["bench", "report", "report"]


def test_other_tasks_are_shown_as_they_are(tmp_path):
    measured = kl_rows([[0.1, 0.2], [0.3]])
    cell = stored(make_cell(tmp_path, "resispec"), measured, "experiments.tasks.kl.Kl")
    write_plan(tmp_path, "table4", [cell])
    [found] = every_run(Record(tmp_path, "embedded"), "table4")
    assert found.job_type == "kl" and found.summary == {"num_prompts": 2} and not found.counts
    assert [point["prompt/num_prefixes"] for point in found.curves] == [2, 1]
    grid = found.tables["prompts"]
    assert [dict(zip(grid.columns, row, strict=True)) for row in grid.rows] == measured


def test_a_damaged_cell_is_named_and_the_others_are_sent(tmp_path, capsys):
    cells = [stored(make_cell(tmp_path, name), rows_of(DECODED)) for name in ("standard", "resispec")]
    missing = make_cell(tmp_path, "kseq")
    write_plan(tmp_path, "table1", [*cells, missing])
    (cells[0].folder / "rows.jsonl").write_text("{}")
    assert publish.main([f"results={tmp_path}", "experiment=table1", "wandb.mode=offline"]) == 1
    error, last = capsys.readouterr().err.splitlines()
    assert error.startswith(f"error: table1: cell {cells[0].cell_id}: ") and "rows.jsonl" in error
    assert last.startswith("table1: 1 run written to ")


BAD = {
    "table1": "'table1' is no KEY=VALUE",
    "experiment=table9 wandb.mode=offline": "no plan asks for 'table9' in .*; allowed: table1",
    "profile=paper wandb.mode=offline": "paper/plans holds no plan of a sweep; `make reproduce-table1`",
    "wandb.mode=sometimes": "wandb.mode is 'sometimes'; allowed: 'auto', 'online', 'offline' or 'disabled'",
    "wandb.moed=offline": "Key 'moed' not in 'WandbConfig'; allowed: experiment, .*wandb.entity",
    "wandb.project=a/b": "wandb.project is 'a/b'",
    "wandb.mode=online": "wandb.mode is 'online', but no key is known",
}


@pytest.mark.parametrize("command", BAD)
def test_bad_input_is_one_line(command, tmp_path, capsys):
    write_plan(tmp_path, "table1", [make_cell(tmp_path, "standard")])
    assert publish.main([f"results={tmp_path}", *command.split()]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert re.match(f"error: .*{BAD[command]}", line), line


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
KNOWN = {
    "nothing": (lambda _home: None, {}, "disabled"),
    "a key": (lambda _home: None, {"WANDB_API_KEY": KEY}, "online"),
    "netrc": (lambda home: write(home / ".netrc", NETRC), {}, "online"),
    "_netrc": (lambda home: write(home / "_netrc", NETRC), {}, "online"),
    "another host's netrc": (
        lambda home: write(home / ".netrc", NETRC.replace("wandb", "other")),
        {},
        "disabled",
    ),
    "own host": (
        lambda home: write(home / ".netrc", NETRC.replace("api.wandb.ai", "own.host")),
        {"WANDB_BASE_URL": "https://own.host"},
        "online",
    ),
    "a broken netrc": (lambda home: write(home / ".netrc", "machine"), {}, "disabled"),
    "WANDB_MODE": (lambda _home: None, {"WANDB_MODE": "dryrun", "WANDB_API_KEY": KEY}, "offline"),
    "settings": (
        lambda home: write(home / "WANDB_CONFIG_DIR" / "settings", "[default]\nmode = offline\n"),
        {},
        "offline",
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_auto_is_online_only_where_a_key_is_known(name, monkeypatch, tmp_path):
    prepare, environment, expected = KNOWN[name]
    monkeypatch.delenv("WANDB_MODE")
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path / "home")
    assert decided("auto") == (expected, NO_KEY if expected == "disabled" else "")
    assert [decided(mode) for mode in ("online", "offline", "disabled")] == [
        ("online", ""), ("offline", ""), ("disabled", ""),
    ]  # fmt: skip


def test_without_a_key_a_sweep_says_so_once_and_starts_nothing(toy, monkeypatch, tmp_path):
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.setattr(beside, "_Publisher", None)
    done = run(*toy, "num_prompts=1")
    assert done.returncode == 0 and messages(done.stderr)[0] == NO_KEY
    assert not (tmp_path / "results" / "wandb").exists()


def test_an_unreachable_host_leaves_a_sweep_as_it_is(toy, monkeypatch, tmp_path):
    """The key, in the user's netrc file, is found here and by W&B; nothing listens at the host."""
    write(tmp_path / "home" / ".netrc", NETRC.replace("api.wandb.ai", "127.0.0.1:9"))
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "1")
    done = run(*toy, "verifier=standard,resispec")
    assert done.returncode == 0
    said, last = messages(done.stderr)
    assert said.startswith("W&B: 0 runs sent, not all: CommError: ")
    command = f"python -m experiments.publish experiment=sweep profile=embedded results={tmp_path}/results"
    assert said.endswith(f"; `{command}` sends them")
    assert last.startswith("2 cells: 2 done") and "Traceback" not in done.stderr
    assert [len(rows(cell)) for cell in cells_of([*toy, "verifier=standard,resispec"])] == [3, 3]


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import os; os.kill(os.getpid(), 9)", "the process that sends them ended with exit code -9"),
        ("import sys; sys.exit(3)", "the process that sends them ended with exit code 3"),
        ("import time; time.sleep(600)", "no answer for 0.2 s"),
    ],
)
def test_a_publisher_that_dies_or_hangs_leaves_a_sweep_as_it_is(toy, monkeypatch, program, reason):
    start, started = subprocess.Popen, []

    def stand_in(command, **given):
        if "experiments.dashboards.publisher" not in command:
            return start(command, **given)
        started.append(start([sys.executable, "-c", program], **given))
        return started[0]

    monkeypatch.setattr(beside.subprocess, "Popen", stand_in)
    monkeypatch.setattr(beside, "STALL_S", 0.2)
    done = run(*toy, "num_prompts=1", "wandb.mode=offline")
    said, last = messages(done.stderr)
    assert done.returncode == 0 and last.startswith("1 cell: 1 done")
    assert said.startswith(f"W&B: 0 runs sent, not all: {reason}; `python -m experiments.publish ")
    assert started[0].poll() is not None


def test_a_sweep_that_is_stopped_ends_its_publisher(toy):
    cells = cells_of([*toy, "wandb.mode=offline"])
    started = []
    with pytest.raises(KeyboardInterrupt), beside.published(cells, ["sweep"]):
        started += [path.parent for path in Path("/proc").glob("[0-9]*/cmdline") if _is_publisher(path)]
        raise KeyboardInterrupt
    assert started and not any(path.exists() and _is_publisher(path / "cmdline") for path in started)


def test_a_sweep_that_is_stopped_while_it_waits_ends_its_publisher_too(toy, monkeypatch):
    def stop(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(beside._Publisher, "wait", stop)
    cells, started = cells_of([*toy, "wandb.mode=offline"]), []
    with pytest.raises(KeyboardInterrupt), beside.published(cells, ["sweep"]):
        started += [path.parent for path in Path("/proc").glob("[0-9]*/cmdline") if _is_publisher(path)]
    assert started and not any(path.exists() and _is_publisher(path / "cmdline") for path in started)


def _is_publisher(path):
    try:
        parent = path.with_name("status").read_text().partition("PPid:\t")[2].split()[0]
        return b"experiments.dashboards.publisher" in path.read_bytes() and int(parent) == os.getpid()
    except (OSError, IndexError):
        return False


def test_the_publisher_has_the_lowest_priority_and_ends_with_its_sweep(tmp_path):
    work = {"results": str(tmp_path), "profile": "embedded", "settings": [["never"]]}
    work |= {"mode": "offline", "project": "resispec", "entity": None}
    process = subprocess.Popen(
        [sys.executable, "-m", "experiments.dashboards.publisher"], stdin=subprocess.PIPE, text=True
    )
    process.stdin.write(json.dumps(work) + "\n")
    process.stdin.flush()
    deadline = time.monotonic() + 30
    while os.getpriority(os.PRIO_PROCESS, process.pid) != 19 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == 19 and process.poll() is None
    process.stdin.write("over\n")  # also while it sends what remains
    process.stdin.close()
    assert process.wait(30) in (0, 1)


def test_what_w_and_b_prints_does_not_reach_the_sweep():
    """The publisher's answers are lines of JSON; whatever else is printed goes nowhere."""
    program = """
import os, sys
from experiments.dashboards import publisher

def follow(work, is_over, say):
    print("wandb: hello")
    os.system("echo wandb-core: hello")
    say({"sent": "a run"})

publisher.follow = follow
sys.exit(publisher.main())
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        process.stdin.write("{}\n")
        process.stdin.flush()
        assert process.stdout.read() == '{"sent": "a run"}\n'


def test_a_setting_is_sent_once_all_of_its_cells_are_complete(tmp_path, monkeypatch):
    cells = {name: make_cell(tmp_path, name) for name in ("standard", "resispec", "kseq")}
    save(cells["standard"], rows_of(DECODED))
    is_over, sent = threading.Event(), []

    def send_all(_work, cell_ids, _say):
        sent.append(cell_ids)
        is_over.set()

    monkeypatch.setattr(publisher, "_send_all", send_all)
    monkeypatch.setattr(publisher, "POLL_S", 0.01)
    pair, other = [[cell.cell_id for cell in found] for found in ([cells["standard"]], [*cells.values()][1:])]
    save(cells["resispec"], rows_of(DECODED))
    publisher.follow({"results": tmp_path, "profile": "embedded", "settings": [other, pair]}, is_over, print)
    assert sent == [pair, [cells["resispec"].cell_id]]  # the other is not complete when the sweep is over


def test_dashboards_are_no_part_of_a_cell(toy):
    [plain] = cells_of(toy)
    [shown_elsewhere] = cells_of([*toy, "wandb.mode=offline", "wandb.project=mine", "wandb.entity=me"])
    assert plain.cell_id == shown_elsewhere.cell_id


def test_one_module_imports_wandb_and_a_sweep_neither_it_nor_pandas():
    imports = re.compile(r"^\s*(import|from) wandb", re.M)
    sources = [
        path
        for name in ("experiments", "analysis", "resispec")
        for path in (CONF.parent / name).rglob("*.py")
    ]
    assert [path.name for path in sources if imports.search(path.read_text())] == ["tracking.py"]
    program = """
import sys
from experiments import run, sweep
from experiments.dashboards import beside, publisher

print({"wandb", "pandas", "torch"} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
