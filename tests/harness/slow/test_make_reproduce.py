"""`make reproduce`: one sweep of all artefacts that can be stopped, every table, then the page."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from resispec.files import write_atomically
from tests.toys import save_prompts, save_tiny_pair

ROOT = Path(__file__).parents[3]
GLOBAL = "# @package _global_\n"
FILES = {
    "conf/pair/toy.yaml": "_target_: resispec.models.load_pair\n"
    "target: models/target\ndraft: models/draft\n"
    "target_revision: null\ndraft_revision: null\ndevice: ${device}\ndtype: ${dtype}\n",
    "conf/dataset/toy.yaml": "_target_: resispec.data.JsonlDataset\npath: models/prompts.jsonl\n"
    "field: text\n",
    "conf/profile/embedded.yaml": f"""{GLOBAL}
profile: embedded
device: cpu
dtype: float32
num_threads: 1
sampling: {{max_new_tokens: 6, max_length: 40}}
prompt_tokens: 12
num_prompts: 3
first_tuning_prompt: 6
warmup_prompts: 0
axes: {{pairs: toy, datasets: toy}}
""",
    "conf/experiment/table1.yaml": f"""{GLOBAL}
sweep: {{pair: "${{axes.pairs}}", dataset: "${{axes.datasets}}", tree: [d4b4, chain]}}
""",
    "conf/experiment/table2.yaml": f"""{GLOBAL}
sweep: {{dataset: "${{axes.datasets}}"}}
parts:
  chain: {{pair: "${{axes.pairs}}", tree: chain}}
  eagle: {{pair: "${{axes.eagle_pairs}}"}}
""",
    "analysis/page.py": 'from pathlib import Path\n\nPath("page").write_text("written")\n',
}
"""A profile of toys with no EAGLE drafter, two artefacts that share a cell, a page of one word."""


def with_makefile(root, *folders):
    """A folder with what make reads, and these folders of the repository."""
    for name in ("conf", *folders):
        shutil.copytree(
            ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__", "page")
        )
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copyfile(ROOT / name, root / name)
    return root


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The repository with FILES in place of its profile and its artefacts."""
    folders = ("resispec", "experiments", "analysis", "results/reference")
    root = with_makefile(tmp_path_factory.mktemp("copy"), *folders)
    shutil.rmtree(root / "conf" / "experiment")
    for name, content in FILES.items():
        write_atomically(root / name, content)
    save_tiny_pair(root / "models")
    save_prompts(root / "models", 8)
    return root


def make(root, target, python=sys.executable):
    """Make a target in a session of its own, as a terminal does."""
    command = ["make", target, f"PY={shlex.quote(str(python))}", "PROFILE=embedded"]
    return subprocess.Popen(
        command, cwd=root, env=os.environ | {"PYTHONPATH": str(root)}, start_new_session=True,
        text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def standings(root):
    """The progress of every artefact, by its name."""
    command = [sys.executable, "-m", "experiments.status", "--json"]
    environment = os.environ | {"PYTHONPATH": str(root)}
    done = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, check=True
    )
    return {one["artefact"]: one for one in json.loads(done.stdout)["artefacts"]}


def test_it_is_stopped_at_once_and_goes_on(copy):
    """By Ctrl-C in a terminal, which reaches every process, and by a signal to make alone."""
    plan = copy / "results" / "embedded" / "plans" / "table1.json"
    stops = {
        "reproduce": lambda process: os.killpg(process.pid, signal.SIGINT),
        "reproduce-table1": lambda process: process.terminate(),
    }
    for target, stop in stops.items():
        plan.unlink(missing_ok=True)
        process = make(copy, target)
        while process.poll() is None and not plan.exists():
            time.sleep(0.05)
        stop(process)
        _, errors = process.communicate(timeout=60)  # once nobody is left who could write
        assert process.returncode != 0
        assert "error: stopped; what is finished stays" in errors and "Traceback" not in errors
        # at most one was done at the stop
        written = (copy / "results" / "raw").rglob("status.json")
        assert sum(json.loads(path.read_text())["state"] == "done" for path in written) < 2
        assert not (copy / "page").exists() and not list(
            (copy / "results" / "embedded").glob("*.csv")
        )

    process = make(copy, "reproduce")
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert "note: the profile gives no axes.eagle_pairs: left out table2/eagle\n" in errors
    assert "2 cells: 2 done" in errors  # of 3 that the artefacts ask for, since they share one
    assert "raw/embedded; next: make table2 table1 PROFILE=embedded\n" in errors
    found = standings(copy)
    for artefact, states in (("table1", {"done": 2}), ("table2", {"done": 1})):
        assert (found[artefact]["states"], found[artefact]["table"]) == (states, "written")
    assert (copy / "page").read_text() == "written"


def test_a_failure_stops_neither_the_tables_nor_the_page(tmp_path):
    """The Makefile's part, with a stand-in for Python that fails where the cells are run."""
    with_makefile(tmp_path)
    for name in ("table1.json", "frontier/d5b3.json"):
        write_atomically(tmp_path / "results" / "embedded" / "plans" / name, "")
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$@" >> log\n[ "$2" != experiments.run ]\n')
    python.chmod(0o755)
    process = make(tmp_path, "reproduce", python)
    process.communicate(timeout=60)
    assert process.returncode != 0
    analysed = "--profile embedded --results results"
    assert (tmp_path / "log").read_text().splitlines() == [
        "-m experiments.run experiment=glob(*) profile=embedded results=results",
        f"-m analysis.frontier {analysed}",
        f"-m analysis.table1 {analysed}",  # what has no plan is not written
        f"-m analysis.page {analysed}",
    ]
    assert not (tmp_path / ".venv").exists()


def test_clean_removes_nothing_that_was_measured(tmp_path):
    with_makefile(tmp_path)
    kept = [
        tmp_path / name
        for name in (
            ".venv/x",
            "results/embedded/table1.csv",
            "results/published/x",
            "results/raw/embedded/a/rows.jsonl",
        )
    ]
    cache = tmp_path / ".pytest_cache" / "x"
    for path in (*kept, cache):
        write_atomically(path, "x")
    subprocess.run(["make", "clean", "PROFILE=embedded"], cwd=tmp_path, check=True)
    assert all(path.exists() for path in kept)
    assert not cache.exists()
