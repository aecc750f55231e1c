"""The runner as users meet it: sweeps run, fail in one line, are killed, go on; cells' folders."""

import csv
import json
import math
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pandas as pd
import pytest

from analysis.audits import judged
from analysis.load import Status, load, read_plan, read_status
from analysis.page.provenance import facts as origin_of
from experiments import check, show
from experiments.cell import CellFailed
from experiments.grid import cells_of, digest, parts_of, sweep_of
from experiments.store import CellStore, RowLog, write_plans
from experiments.tasks.decode import PromptRow
from experiments.worker import load_workload, measure
from resispec import files, machine
from resispec.files import read_json, write_json
from resispec.models import features_of
from tests.harness.toy_runs import COMMAND, hashes, messages, rows, run, run_here, save_rule


def test_one_cell_end_to_end_is_repeatable_and_skipped_when_done(toy, tmp_path):
    """And its files are read once, to see whether they are as they were."""
    done = run(*toy)
    assert done.returncode == 0, done.stderr
    [line] = messages(done.stderr)
    [cell] = cells_of(toy)
    where = f"--profile embedded --results {tmp_path}/results"
    shown = f"resispec show {cell.cell_id} {where}"
    assert (
        line
        == f"1 cell: 1 done (0 before); results in {tmp_path}/results/raw/embedded; next: {shown}"
    )
    # a log gets lines, and stdout the table
    assert "\r" not in done.stderr and "| 1.0" not in done.stderr
    assert "    done |" in done.stdout and f"sweeps/{digest([cell])}.csv" in done.stdout
    facts = json.loads((cell.folder / "provenance.json").read_text())
    assert {"git_commit", "device", "versions", "command"} <= set(facts)
    # folders are no copies of a hub's
    assert facts["model_commits"] == {"target": None, "draft": None}
    first = hashes(cell)
    files._sha256.cache_clear()
    again = run(*toy)
    assert again.returncode == 0 and "1 done (1 before)" in again.stderr
    assert files._sha256.cache_info().misses == 3
    with (cell.folder / "rows.jsonl").open("a") as file:
        file.write("{}\n")
    mended = run(*toy)
    assert mended.returncode == 0 and hashes(cell) == first
    assert (
        "its files are damaged (status.json says that rows.jsonl is not what was written)"
        in mended.stderr
    )


def test_temperature_0_is_greedy_whatever_verifies_and_its_audit_finds_nothing_that_could_vary(
    toy, folder
):
    """The target drafts for itself, which it does well."""
    greedy = [*toy, "temperature=0", "sampling.max_new_tokens=12", "tree=d4b4", "num_prompts=1"]
    greedy += [f"pair.draft={folder}/target", "verifier=resispec"]
    cells = cells_of([*greedy, "decoder=autoregressive,specinfer", "audit=false,true"])
    alone, plain, audit = (rows(run_here(cell)) for cell in cells)
    assert alone[0]["tokens"] == plain[0]["tokens"] == audit[0]["tokens"]
    assert alone[0]["num_steps"] == 12 > plain[0]["num_steps"]
    assert judged("it", pd.DataFrame(audit))["verdict"] == "undecided"


@pytest.mark.parametrize("law", ["temperature=0", "sampling.top_p=0.5"])
def test_an_audit_of_tokens_that_the_target_never_emits_has_its_verdict(law, toy, tmp_path):
    """Defect: an infinite surprisal was no JSON, and the audit failed."""
    dialled = [*toy, law, "verifier=dial", "verifier.chance=0.9", "audit=true", "name=dialled"]
    done = run(*dialled)
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(tmp_path / "results" / "embedded" / "sweeps" / "dialled.csv")
    assert table.verdict.tolist() == ["biased"] and table.z_surprisal.tolist() == [math.inf]


def test_a_sweep_over_filters_decodes_at_each_law_and_names_it(toy, tmp_path):
    """Every token is among its place's two likeliest, and its variance is that of their law."""
    command = [*toy, "tree=d4b4", "sampling.top_k=2,40", "audit=false,true", "name=filters"]
    done = run(*command)
    assert done.returncode == 0, done.stderr
    header, _, *lines = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert "top-k" in header and [line.split()[1] for line in lines] == ["2", "40"]
    table = pd.read_csv(tmp_path / "results" / "embedded" / "sweeps" / "filters.csv")
    assert table["sampling.top_k"].tolist() == [2, 40]
    narrow, audit, *_ = cells_of(command)
    assert hashes(narrow) == hashes(audit)
    material = load_workload(narrow.config, None)
    for (_, prompt), row in zip(material.prompts, rows(audit), strict=True):
        scores = material.pair.target.head(
            features_of(material.pair.target, [*prompt, *row["tokens"]])
        )
        likeliest = scores[len(prompt) - 1 : -1].topk(2)
        assert all(
            token in two
            for token, two in zip(row["tokens"], likeliest.indices.tolist(), strict=True)
        )
        share = likeliest.values.softmax(-1)
        variance = (share.prod(-1) * (share[:, 0] / share[:, 1]).log() ** 2).tolist()
        assert row["surprisal_variance"] == pytest.approx(variance, rel=1e-3)


@pytest.mark.slow
def test_a_killed_sweep_goes_on_where_it_was(toy, tmp_path):
    """A SIGKILL within a cell, then the same command again: every prompt once, the same tokens."""
    command = [*toy, "tree=d5b3,chain", "num_prompts=8", "sampling.max_new_tokens=24"]
    calm = [hashes(run_here(cell)) for cell in cells_of([*command, f"results={tmp_path}/calm"])]
    first, _ = cells_of(command)
    first.folder.mkdir(parents=True)  # a process was killed as it wrote
    (first.folder / ".status.json.12345").write_text("{")
    process = subprocess.Popen([*COMMAND, *command], stderr=subprocess.DEVNULL)
    while process.poll() is None and not (first.folder / "rows.partial.jsonl").exists():
        time.sleep(0.02)
    process.kill()
    process.wait()
    done = run(*command)
    assert done.returncode == 0 and "2 cells: 2 done" in messages(done.stderr)[-1]
    assert [hashes(cell) for cell in cells_of(command)] == calm
    for cell in cells_of(command):
        assert [row["prompt_index"] for row in rows(cell)] == list(range(8))
        assert {path.name for path in cell.folder.glob(".*")} == {".lock"}


def test_a_sweep_records_a_failure_and_goes_on(toy, tmp_path):
    """d7b2 cannot fit max_length 17; the others can. The exit code says so, whatever the flag.

    The name of a sweep is that of its files.
    """
    command = [*toy, "tree=d7b2,d4b4,chain", "sampling.max_length=17", "name=own"]
    done = run(*command, "--multirun")
    assert done.returncode == 1
    error, last = messages(done.stderr)
    assert (
        error.startswith("error: ")
        and "tree of 7 levels" in error
        and "Traceback" not in done.stderr
    )
    assert last.startswith("3 cells: 2 done (0 before), 1 not complete; results in ")
    assert last.endswith(f"; next: resispec run {' '.join(command)} profile=embedded")
    with (tmp_path / "results" / "embedded" / "sweeps" / "own.csv").open() as file:
        states = [row["status"] for row in csv.DictReader(file)]
    assert sorted(states) == ["done", "done", "failed"] and "failed: a prompt of" in done.stdout
    assert (tmp_path / "results" / "embedded" / "plans" / "sweep" / "own.json").is_file()
    statuses = [read_status(cell.folder) for cell in cells_of(command)]
    assert [status.state for status in statuses] == ["failed", "done", "done"]
    assert "max_length 17" in statuses[0].reason


def test_a_search_that_fails_is_one_line_and_is_summed_up(toy, tmp_path):
    """Documents are too few to search with; the sweep's plan and last line come all the same."""
    path = tmp_path / "results" / "missing.json"
    done = run(*toy, "tree=growmap", f"tree.path={path}", "decoder=sequoia", "num_prompts=1")
    searching, error, last = messages(done.stderr)
    assert searching == f"searching for the tree {path}" and done.returncode == 1
    assert (
        error.startswith(f"error: the search for {path} failed: ")
        and "prompts were asked for" in error
    )
    assert last.startswith("1 cell: 0 done (0 before), 1 not complete")
    [plan] = (tmp_path / "results" / "embedded" / "plans" / "sweep").glob("*.json")
    assert [cell["cell_id"] for cell in json.loads(plan.read_text())["cells"]] == ["no-tree"]


def fails(overrides, message):
    """The one cell fails in one line, and never leaves plausible rows."""
    [cell] = cells_of(overrides)
    with pytest.raises(CellFailed, match=message) as caught:
        run_here(cell)
    assert "\n" not in str(caught.value) and not (cell.folder / "rows.jsonl").exists()
    status = read_status(cell.folder)
    assert status.state == "failed" and status.reason in str(caught.value)


def test_what_only_the_cell_can_know_fails_the_cell_in_one_line(toy):
    fails([*toy, "pair.draft=JackFram/llama-68m"], "ways out: connect to the hub")


def test_a_task_for_other_draws_is_refused_by_the_cell_too(toy):
    """Defect: where no rehearsal said so, as one that took too long, the cell was measured."""
    fails([*toy, "task=decay", "decoder=sequoia"], "i.i.d.")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return Law(0 * s.float(), -p)", "Rule"),
        ("raise KeyError('lost')", "KeyError: 'lost' (verifier {rule})"),
        ("sys.exit(0)", "the code ended the process: sys.exit(0)"),
    ],
)
def test_a_rule_that_misbehaves_fails_its_cell_in_one_line(toy, tmp_path, body, message):
    rule = save_rule(tmp_path, body)
    fails([*toy, "verifier=custom", f"verifier.name={rule}"], re.escape(message.format(rule=rule)))


DAMAGES = [
    ("cell.json", "{}"), ("provenance.json", None), ("rows.jsonl", ""), ("status.json", None),
    ("status.json", "{}"), ("status.json", "[]"), ("status.json", "garbage"),
    *((name, "a folder") for name in ("rows.jsonl", "cell.json", "status.json")),
]  # fmt: skip


def test_a_damaged_cell_is_measured_again(toy):
    """A file was deleted or holds something else."""
    [cell] = cells_of(toy)
    first = hashes(run_here(cell))
    for name, content in DAMAGES:
        (cell.folder / name).unlink()
        if content == "a folder":
            (cell.folder / name).mkdir()
        elif content is not None:
            (cell.folder / name).write_text(content)
        status = read_status(cell.folder)
        assert status.state == "damaged" and name in status.reason and "\n" not in status.reason
        assert hashes(run_here(cell)) == first and read_status(cell.folder).state == "done"
    file = cell.folder / "rows.jsonl"
    file.write_text(file.read_text().replace(first[0], "0" * len(first[0])))  # rows that look right
    assert hashes(run_here(cell)) == first


def test_a_cell_that_was_stopped_before_its_last_status_keeps_its_rows(toy):
    """Between the last row and the status "done" nothing is lost, times included."""
    [cell] = cells_of(toy)
    first = rows(run_here(cell))
    CellStore(cell.folder).write_status(Status("interrupted", "stopped"))
    assert rows(run_here(cell)) == first
    assert read_status(cell.folder) == Status("done", "", 0.0)  # this run measured no prompt


def test_a_cell_names_every_run_that_worked_on_it_and_no_seconds_of_the_last_alone(toy):
    sweep = sweep_of(toy)
    write_plans(sweep, toy)
    [cell] = sweep.cells
    run_here(cell)
    lines = (cell.folder / "rows.jsonl").read_text().splitlines(keepends=True)
    file = cell.folder / "provenance.json"
    ours = json.loads(file.read_text())
    for number in range(2):  # stopped after a prompt, and again after two, on another device
        for name in ("rows.jsonl", "status.json"):
            (cell.folder / name).unlink()
        (cell.folder / "rows.partial.jsonl").write_text("".join(lines[: number + 1]))
        changed = {
            "device": f"device {number}",
            "git_commit": f"{number}" * 40,
            "git_is_dirty": False,
        }
        write_json(file, json.loads(file.read_text()) | changed)
        run_here(cell)
    assert read_status(cell.folder).seconds == 0
    before = json.loads(file.read_text())["before"]
    assert [one["device"] for one in before] == ["device 0", "device 1"]
    assert not any("before" in one for one in before)
    plan = read_plan("sweep", "embedded", Path(cell.config["results"]))
    [device], [commit] = (load(plan).cells[name] for name in ("device", "commit"))
    assert device == f"device 0, device 1, {ours['device']}" and commit.startswith(
        "0000000000, 1111111111, "
    )
    facts = origin_of([plan])
    assert facts["Cells measured"] == "1" and facts["Device"] == device


def test_of_a_partial_file_only_the_right_beginning_is_kept(toy):
    """Rows 0, 1, 2, ... that say what such rows say and do not contradict themselves."""
    [cell] = cells_of(toy)
    finished = rows(run_here(cell))
    lines = (cell.folder / "rows.jsonl").read_text().splitlines(keepends=True)
    partial = cell.folder / "rows.partial.jsonl"
    workload = load_workload(cell.config, None)
    wrong = {
        "num_steps": 0,
        "histogram": [1],
        "decode_s": -1.0,
        "seed": "0",
        "num_emitted": None,
        "x": 1,
    }
    for changed in ({name: value} for name, value in wrong.items()):
        partial.write_text(json.dumps(finished[0] | changed) + "\n")
        assert RowLog(cell.folder, PromptRow, workload).rows == [], changed
    for order in ([1, 0], [0, 0, 1], [0, 2]):
        partial.write_text("".join(lines[index] for index in order) + lines[1][:-1])
        kept = RowLog(cell.folder, PromptRow, workload).rows
        assert [row.prompt_index for row in kept] == ([] if order[0] else [0]), order
    (cell.folder / "status.json").unlink()
    (cell.folder / "rows.jsonl").unlink()
    told = []
    measure([cell], lambda _, *counted: told.append(counted))
    assert told == [(1, 3), (2, 3), (3, 3)]
    assert [row["tokens_sha256"] for row in finished] == hashes(cell)


def test_rows_of_a_prompt_that_has_changed_since_are_not_gone_on_from(toy, tmp_path):
    """Defect: a class of the user's reads a file, whose old and new texts shared a cell."""
    path, source = tmp_path / "tickets.txt", tmp_path / "tickets_here.py"
    path.write_text("a\nc\ne\n")
    source.write_text(
        "from pathlib import Path\nfrom resispec.data import Prompt\nclass Tickets:\n"
        "    def prompts(self, count):\n"
        f"        texts = Path({str(path)!r}).read_text().split()[:count]\n"
        "        return [Prompt(str(number), text) for number, text in enumerate(texts)]\n"
    )
    words = [word for word in toy if not word.startswith("dataset")]
    [cell] = cells_of([*words, "dataset=custom", f"dataset.name={source}:Tickets"])
    finished = rows(run_here(cell))
    for edited, kept in (("a\ng\ne\n", 1), ("a\nc\ng\n", 2), ("a\nc\ne\n", 3)):
        path.write_text(edited)
        for is_older in (False, True):
            text = "".join(
                json.dumps({k: row[k] for k in row if not is_older or k != "prompt_sha256"}) + "\n"
                for row in finished
            )
            (cell.folder / "rows.partial.jsonl").write_text(text)
            log = RowLog(cell.folder, PromptRow, load_workload(cell.config, None))
            assert len(log.rows) == (3 if is_older else kept)


def test_a_cell_whose_files_change_while_it_waits_is_not_measured(toy, tmp_path):
    """Defect: a model that was trained on meanwhile was measured as the one before."""
    path = tmp_path / "texts.jsonl"
    path.write_text('{"text": "a"}\n{"text": "c"}\n{"text": "e"}\n')
    words = [word for word in toy if not word.startswith("dataset.path")]
    [cell] = cells_of([*words, f"dataset.path={path}"])
    assert len(cell.cell_id) == 16  # it is named when it is planned
    path.write_text('{"text": "a"}\n{"text": "g"}\n{"text": "e"}\n')
    with pytest.raises(CellFailed, match="a file that it reads has changed since it was planned"):
        measure([cell], lambda *_: None)
    assert read_status(cell.folder).state == "failed"
    assert not CellStore(cell.folder).rows_so_far()


def test_files_that_a_class_of_the_users_reads_are_part_of_a_cell(toy, tmp_path, monkeypatch):
    """Defect: a folder given to dataset=custom by a bare name was a text like any other."""
    monkeypatch.chdir(tmp_path)
    for folder in ("notes", "dataset"):
        Path(folder).mkdir()
        Path(folder, "1.txt").write_text("a")
    Path("tickets.py").write_text("class Tickets:\n    pass\n")
    words = [word for word in toy if not word.startswith("dataset")]
    words += ["dataset=custom", f"dataset.name={tmp_path}/tickets.py:Tickets"]

    def cell_id():
        [cell] = cells_of([*words, "+dataset.folder=notes"])
        return cell.cell_id

    before = cell_id()
    Path("dataset", "1.txt").write_text("b")  # the kind of plug-in, and no folder
    assert cell_id() == before
    Path("notes", "1.txt").write_text("b")
    assert cell_id() != before


def test_rows_so_far_of_another_cell_are_not_taken(toy):
    """As in a folder that was renamed while its cell was not complete."""
    cell, other = cells_of([*toy, "temperature=1,0.6"])
    finished = hashes(run_here(cell))
    other.folder.mkdir(parents=True)
    for name, as_name in (("cell.json", "cell.json"), ("rows.jsonl", "rows.partial.jsonl")):
        shutil.copy(cell.folder / name, other.folder / as_name)
    write_json(other.folder / "status.json", {"state": "interrupted"})
    assert read_status(other.folder).state == "damaged"
    assert hashes(run_here(other)) != finished
    assert read_status(other.folder).seconds > 0


# Cells that are timed in turns by one process; what fails, hangs or kills takes no other cell
# along.


def turns(cell):
    return [(row.get("timed_by"), row.get("turn")) for row in rows(cell)]


def test_cells_that_differ_in_their_decoders_are_timed_in_turns(toy):
    """In an order of each prompt's own; tokens are those of a cell alone, which says it was."""
    command = [
        *toy,
        "tree=d4b4",
        "verifier=standard,naive,optimal",
        "num_prompts=8",
        "audit=false,true",
    ]
    first, *_ = cells_of(command)
    alone = run_here(cells_of([*command, f"results={first.config['results']}/alone"])[0])
    assert turns(alone) == [(None, None)] * 8
    first.folder.mkdir(parents=True)  # as if stopped after two prompts
    lines = (alone.folder / "rows.jsonl").read_text().splitlines(keepends=True)
    (first.folder / "rows.partial.jsonl").write_text("".join(lines[:2]))

    done = run(*command)
    assert done.returncode == 0, done.stderr
    timed = [cell for cell in cells_of(command) if not cell.config["audit"]]
    [process] = {by for cell in timed for by, _ in turns(cell)} - {None}
    orders = list(zip(*map(turns, timed), strict=True))
    assert [sorted(turn for _, turn in order if turn is not None) for order in orders] == [
        [0, 1] if index < 2 else [0, 1, 2] for index in range(8)
    ]
    assert len({tuple(turn for _, turn in order) for order in orders[2:]}) > 1
    assert turns(first)[:2] == [(None, None)] * 2 and turns(first)[2][0] == process
    assert hashes(first) == hashes(alone)
    for cell in cells_of(command):
        if cell.config["audit"]:
            assert turns(cell) == [(None, None)] * 8
        facts = json.loads((cell.folder / "provenance.json").read_text())
        assert facts["peak_memory_bytes"]["process"] > 1 << 20 and facts["dtype"] == "float32"


RULES = {
    "os.kill(os.getpid(), 9)": "the worker was killed by signal 9",
    "os._exit(0)": "the worker ended without a result",
    "time.sleep(99)": "took longer than cell_timeout_s=3.0",
}


@pytest.mark.slow
@pytest.mark.parametrize("body", RULES)
def test_a_rule_that_kills_or_hangs_fails_its_cell_and_the_others_are_measured(
    toy, tmp_path, monkeypatch, body
):
    monkeypatch.setattr(check, "LIMIT_S", 3.0)
    names = f"verifier.name=standard,{save_rule(tmp_path, body)},naive"
    command = [*toy, "verifier=custom", names, "cell_timeout_s=3"]
    done = run(*command)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    *notes, error, last = messages(done.stderr)
    assert (
        error.startswith("error: ") and error.endswith(RULES[body]) and len(error.splitlines()) == 1
    )
    assert [note.partition("; ")[0] for note in notes] == (
        [f"note: {RULES[body]}"] if body.startswith("os.") else []
    )
    assert last.startswith("3 cells: 2 done (0 before), 1 not complete")
    states = [read_status(cell.folder) for cell in cells_of(command)]
    assert [state.state for state in states] == ["done", "failed", "done"]
    assert states[1].reason == RULES[body]


def test_a_worker_that_is_killed_once_costs_nothing(toy, tmp_path):
    """Its cell is tried once more, and goes on after the prompts that it has."""
    file = tmp_path / "rule.py"
    file.write_text(
        "import os\nfrom pathlib import Path\nfrom resispec.verifiers import Standard\n\n\n"
        "class Rule(Standard):\n    def law(self, *inputs):\n"
        f"        count = Path({str(tmp_path / 'count')!r})\n"
        "        with count.open('a') as file:\n            file.write('.')\n"
        "        if count.stat().st_size == 20:\n            os.kill(os.getpid(), 9)\n"
        "        return super().law(*inputs)\n"
    )
    command = [*toy, "verifier=custom", f"verifier.name={file}:Rule", "num_prompts=6"]
    done = run(*command)
    note, last = messages(done.stderr)
    assert done.returncode == 0 and last.startswith("1 cell: 1 done")
    assert note.startswith("note: the worker was killed by signal 9; tried once more")
    [cell] = cells_of(command)
    assert [row["prompt_index"] for row in rows(cell)] == list(range(6))
    [plain] = cells_of([*toy, "num_prompts=6", f"results={tmp_path}/plain"])
    assert hashes(cell) == hashes(run_here(plain))


# Where a result comes from.


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_only_changes_to_what_measures_count_as_changed(tmp_path, monkeypatch):
    """A file that git does not know counts as changed, too, and the changed files are named."""
    names = [
        "resispec/machine.py",
        "conf/run.yaml",
        "docs/page.md",
        "results/table.md",
        "experiments/run.py",
    ]
    for name in names:
        files.write_atomically(tmp_path / name, "one\n")
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for arguments in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-qm", "all"]):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    monkeypatch.setattr(machine, "__file__", str(tmp_path / "resispec" / "machine.py"))
    found = {}
    for name in names:
        (tmp_path / name).write_text("two\n")
        # which a process asks for once
        found[name] = machine.checkout.__wrapped__()["git_is_dirty"]
        (tmp_path / name).write_text("one\n")
    assert found == {name: not name.startswith(("docs", "results")) for name in names}
    for name in ("resispec/verifiers/own.py", "docs/own.py"):
        files.write_atomically(tmp_path / name, "new\n")
    (tmp_path / "conf" / "run.yaml").write_text("two\n")
    facts = machine.checkout.__wrapped__()
    assert facts["git_is_dirty"] and len(facts["git_commit"]) == 40
    assert facts["changed_files"] == ["conf/run.yaml", "resispec/verifiers/own.py"]
    # installed in that repository
    files.write_atomically(tmp_path / ".venv" / "resispec" / "machine.py", "")
    monkeypatch.setattr(machine, "__file__", str(tmp_path / ".venv" / "resispec" / "machine.py"))
    assert machine.checkout.__wrapped__()["git_commit"] == ""


# What a cell wrote, step by step: resispec show.


class Letters:
    """Tokens are letters, and two tokens of 9 are one character."""

    def decode(self, tokens):
        text = "".join("abcdefgh?"[token - 1] for token in tokens)
        return text.replace("??", "é").replace("?", "\ufffd")


def test_a_character_that_two_steps_write_is_the_later_ones():
    assert list(show.pieces(Letters(), [1, 2, 9, 9, 3], [2, 1, 1, 3])) == ["ab", "", "é", "c"]


def test_the_bias_of_a_verifier_is_kept_with_its_cell_and_shown(toy, tmp_path, capsys):
    """Without an audit. A greedy cell has that of temperature 0, at which ResiSpec is exact."""
    settings = ["verifier=standard", "verifier=resispec", "verifier=resispec temperature=0"]
    cells = [run_here(parts_of([*toy, *words.split()])[0].cells[0]) for words in settings]
    greedy = parts_of([*toy, "verifier=dial", "temperature=0"])[0].cells[0]
    bias = read_json(run_here(greedy).folder / "provenance.json")["shown_bias"]
    assert bias.startswith("Dial is biased")  # it goes on where the likeliest token was not drafted
    for cell, is_biased in zip(cells, (False, True, False), strict=True):
        assert ("shown_bias" in read_json(cell.folder / "provenance.json")) is is_biased
        assert show.main([cell.cell_id, "--results", str(tmp_path / "results")]) == 0
        assert ("ResiSpec is biased" in capsys.readouterr().out) is is_biased


def test_without_a_cell_the_newest_with_text_are_listed(tmp_path, capsys):
    raw, options = tmp_path / "raw" / "embedded", ["--results", str(tmp_path)]
    for number in range(show.NUM_LISTED + 3):
        folder = raw / f"cell{number:02}"
        row = {"tokens": [1], "step_emitted": [1]} if number != 11 else {"kl": 0.1}
        write_json(folder / "cell.json", {})
        name = "rows.partial.jsonl" if number == 10 else "rows.jsonl"
        files.write_atomically(folder / name, json.dumps(row) + "\n")
        os.utime(folder / name, (number, number))
    assert show.main(options) == 0
    *lines, _ = capsys.readouterr().out.splitlines()
    assert lines == [f"cell{number:02}" for number in (12, 10, 9, 8, 7, 6, 5, 4, 3, 2)]
    assert show.main([*options, "--profile", "smollm2"]) == 1
    assert "smollm2 keeps text; `resispec run` measures one" in capsys.readouterr().err


def test_a_cell_is_shown_with_its_prompt_answer_steps_and_times(toy, tmp_path, capsys):
    sweep = sweep_of(toy)
    write_plans(sweep, toy)
    [cell] = sweep.cells
    run_here(cell)
    row = rows(cell)[1]
    options = ["--results", str(tmp_path / "results")]

    def error(*arguments):
        assert show.main([*arguments, *options]) == 1
        line = capsys.readouterr().err
        assert line.count("\n") == 1
        return line

    assert show.main([cell.cell_id[:6], "1", *options]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"cell {cell.cell_id}: pair llama2_7b__jf68m")
    assert "\nprompt 1: p1, " in printed and "\nabc def gh abc" in printed
    assert f"tokens of each step: {' '.join(map(str, row['step_emitted']))}\n" in printed
    answer = printed.partition("stands between steps\n")[2].partition("\n\ntokens of")[0]
    assert answer.count("|") >= row["num_steps"] - 1 and "\ntimes: prompt " in printed

    assert show.main(options) == 0
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{cell.cell_id}: pair llama2_7b__jf68m") and "verifier " in first
    assert last.endswith(f"experiments.show {cell.cell_id}")
    assert "no cells in" in error("x")
    shutil.copytree(cell.folder, cell.folder.with_name("copied"))
    assert f"cell copied: cell.json is that of cell {cell.cell_id}" in error("copied")
    shutil.rmtree(cell.folder.with_name("copied"))
    config = read_json(cell.folder / "cell.json")["config"]
    assert any("times: " in line for line in show.text(config, row))
    assert not any("times: " in line for line in show.text(config | {"timed": False}, row))
    assert "has no prompt 7; allowed: 0 to 2" in error(cell.cell_id, "7")
    (cell.folder.parent / "twin").mkdir()
    (cell.folder.parent / "twin" / "cell.json").write_text("{}")
    assert f"2 cells in {cell.folder.parent} begin with ''" in error("")

    documents = Path(cell.config["dataset"]["path"])
    kept = documents.read_text()
    documents.write_text(kept.replace("abc def gh", "gh def abc"))  # as many tokens
    try:
        assert show.main([cell.cell_id, "1", *options]) == 0
    finally:
        documents.write_text(kept)
    printed = capsys.readouterr().out
    assert "\n(cannot be read here: another prompt stands in its place" in printed
    assert "\ntokens of each step: " in printed
    earlier = [{key: value for key, value in one.items() if key != "tokens"} for one in rows(cell)]
    (cell.folder / "rows.jsonl").write_text("".join(json.dumps(one) + "\n" for one in earlier))
    assert "rows.jsonl is not what was written" in error(cell.cell_id)
    (cell.folder / "status.json").write_text('{"state": "interrupted"}')
    assert "keeps no tokens" in error(cell.cell_id)
