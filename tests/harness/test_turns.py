"""Cells that are timed in turns by one process; what fails, hangs or kills takes no other cell along."""

import json

import pytest
from toy_runs import hashes, messages, rows, run, run_here

from experiments import rehearsal
from experiments.grid import cells_of
from experiments.store import CellStore


def turns(cell):
    return [(row.get("timed_by"), row.get("turn")) for row in rows(cell)]


def test_cells_that_differ_in_their_decoders_are_timed_in_turns(toy):
    """In an order of each prompt's own; tokens are those of a cell alone, which says that it was."""
    command = [*toy, "tree=d4b4", "verifier=standard,naive,optimal", "num_prompts=8", "audit=false,true"]
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


@pytest.mark.parametrize("body", RULES)
def test_a_rule_that_kills_or_hangs_fails_its_cell_and_the_others_are_measured(
    toy, tmp_path, monkeypatch, body
):
    monkeypatch.setattr(rehearsal, "LIMIT_S", 5.0)
    file = tmp_path / "rule.py"
    file.write_text(f"import os, time\nclass Rule:\n    def law(self, *inputs):\n        {body}\n")
    command = [*toy, "verifier=custom", f"verifier.name=standard,{file}:Rule,naive", "cell_timeout_s=3"]
    done = run(*command)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    *notes, error, last = messages(done.stderr)
    assert error.startswith("error: ") and error.endswith(RULES[body]) and len(error.splitlines()) == 1
    assert [note.partition("; ")[0] for note in notes] == [f"note: {RULES[body]}"] * body.startswith("os.")
    assert last.startswith("3 cells: 2 done (0 before), 1 not complete")
    states = [CellStore(cell.folder).status() for cell in cells_of(command)]
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
