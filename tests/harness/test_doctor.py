"""What the doctor says of a machine and of a profile's work, and how a run starts with it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from toys import save_prompts, save_tiny_pair

from experiments.doctor import __main__ as doctor
from experiments.doctor import device, hours, machine, start, work
from experiments.doctor.device import Device
from experiments.doctor.finding import GIB, State
from experiments.plan import cells_of, parts_of
from experiments.planned import NO_TREE
from resispec.errors import InvalidInput

EXPERIMENTS = work.EXPERIMENTS
GPU = Device("cuda", "Toy GPU", 20 * GIB, 24 * GIB)


@pytest.fixture
def artefacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three artefacts, which share cells; to plan all of them takes a while."""
    folder = tmp_path / "experiment"
    folder.mkdir()
    for name in ("table1", "table3", "figure1"):
        shutil.copyfile(EXPERIMENTS / f"{name}.yaml", folder / f"{name}.yaml")
    monkeypatch.setattr(work, "EXPERIMENTS", folder)


@pytest.mark.usefixtures("artefacts")
@pytest.mark.parametrize("profile", ["embedded", "paper"])
def test_cells_are_counted_as_planning_counts_them(profile):
    parts = parts_of(["experiment=table1,table3,figure1", f"profile={profile}"])
    distinct = {json.dumps(cell.determining, sort_keys=True) for part in parts for cell in part.cells}
    found = work.work_of(profile, Path("results"))
    assert found.num_cells == len(distinct) < sum(len(part.cells) for part in parts)
    pairs = {cell.labels["pair"] for part in parts for cell in part.cells}
    assert set(found.options("pair")) == pairs
    [line] = work.skipped(found, [("pair", max(pairs))])
    assert line.found.endswith(f"the cells of pair {max(pairs)}")


@pytest.mark.usefixtures("artefacts")
def test_hours_follow_from_the_cells_that_are_done(tmp_path):
    found = work.work_of("embedded", tmp_path)
    unknown = hours.finding(found, replace(GPU, kind="cpu"), "embedded", tmp_path)
    assert unknown.state == State.NOTE and "not known for this device" in unknown.found
    cell = {"cell_id": "one", "labels": {"decoder": "specinfer", "tree": "d5b3"}, "task": "Decode"}
    plans, raw = tmp_path / "embedded" / "plans", tmp_path / "raw" / "embedded" / "one"
    for folder in (plans, raw):
        folder.mkdir(parents=True)
    (plans / "table1.json").write_text(json.dumps({"cells": [cell | {"num_prompts": 20}]}))
    for name in ("cell.json", "provenance.json", "rows.jsonl"):
        (raw / name).write_text("{}")
    from experiments.store import CellStore, Status

    def said(seconds: float) -> str:
        CellStore(raw).write_status(Status("done", "", seconds))
        return hours.finding(found, GPU, "embedded", tmp_path).found

    prompts = sum(cell.config["num_prompts"] * len(points) for cell, points in found.cells.values())
    timed = sum(c.config["num_prompts"] * len(points) for c, points in found.cells.values() if c.is_timed)
    cell_of_all = next(iter(found.cells.values()))[0]
    workers = hours.jobs_of(cell_of_all.config)
    expected = max(timed, prompts / workers) * 36 / 20 - 36 / workers
    assert said(36.0) == f"about {hours.duration(expected)} more, by the 1 cells that are done"
    assert NO_TREE not in said(36.0)


def write_project(root: Path, tested: str, allowed: str) -> Path:
    dependencies = f'dependencies = ["packaging{allowed}", "absent-toy{allowed}"]'
    lines = f'[project]\nrequires-python = ">=3.11"\n{dependencies}\n'
    lines = lines if "absent" in tested else lines.replace(f', "absent-toy{allowed}"', "")
    (root / "pyproject.toml").write_text(f"{lines}[project.optional-dependencies]\nharness = []\n")
    (root / "constraints.txt").write_text(f"# tested\npackaging=={tested.removesuffix(' absent')}\n")
    return root


def test_versions_that_cannot_work_are_problems_and_others_notes(tmp_path):
    own = machine.version("packaging")
    states = {
        (own, ">=1"): State.OK,
        ("1.0", ">=1"): State.NOTE,
        (own, "<1"): State.PROBLEM,
        (f"{own} absent", ">=1"): State.PROBLEM,
    }
    for (tested, allowed), state in states.items():
        found = machine.versions(write_project(tmp_path, tested, allowed))
        assert found.state == state, found
    assert found.found == "absent-toy is missing"


def test_the_doctor_starts_without_torch():
    code = "import sys, experiments.doctor.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_full_disk_is_a_problem(tmp_path):
    assert machine.disk("downloads", tmp_path / "new", 1.0, "").state == State.OK
    assert machine.disk("downloads", tmp_path / "new", 2.0**62, "make place").state == State.PROBLEM


def test_a_device_that_is_not_there_says_why():
    assert device.ask("cpu").total > 0
    missing = device.found_here("cuda:97")
    assert missing.missing and device.finding(missing, "float16").state == State.PROBLEM


@pytest.fixture
def pair(tmp_path: Path) -> list[str]:
    """A tiny pair in folders and prompts in a file, for the paper's profile."""
    save_tiny_pair(tmp_path / "models")
    save_prompts(tmp_path / "models", 4)
    folder = tmp_path / "models"
    return [
        "profile=paper", f"results={tmp_path}", f"pair.target={folder / 'target'}",
        f"pair.draft={folder / 'draft'}", "pair=llama2_7b__jf68m",
        "dataset=jsonl", f"dataset.path={folder / 'prompts.jsonl'}", "tree=chain",
    ]  # fmt: skip


def test_a_run_starts_with_one_line_when_all_is_well(pair, monkeypatch, capsys):
    monkeypatch.setattr(device, "ask", lambda kind: replace(GPU, kind=kind))
    start.check(cells_of(pair))
    said = capsys.readouterr().err
    assert said.startswith("doctor: llama2_7b__jf68m") and said.count("\n") == 1 and "Toy GPU" in said


def test_a_pair_that_is_too_large_is_refused_in_one_line_before_anything_is_read(pair, monkeypatch, capsys):
    monkeypatch.setattr(device, "ask", lambda kind: Device(kind, "Small GPU", GIB // 4, GIB // 2))
    with pytest.raises(
        InvalidInput, match="too large for Small GPU: needs 1.0 GiB .*has 0.5 GiB; to do: "
    ) as error:
        start.check(cells_of(pair))
    assert "\n" not in str(error.value) and not capsys.readouterr().err
    monkeypatch.setattr(device, "ask", lambda kind: replace(GPU, kind=kind, free=GIB // 2))
    with pytest.raises(InvalidInput, match="0.5 GiB of 24.0 GiB are free"):
        start.check(cells_of(pair))


def test_cells_that_can_run_do_although_others_cannot(pair, monkeypatch, capsys):
    monkeypatch.setattr(device, "ask", lambda kind: replace(GPU, kind=kind))
    on_the_hub = cells_of(["profile=paper", "pair=vicuna_7b__jf68m", *pair[-3:]])  # offline, and no copy
    start.check([*cells_of(pair), *on_the_hub])
    said = capsys.readouterr().err
    assert "problem  model lmsys/vicuna-7b-v1.3" in said and "HF_HUB_OFFLINE" in said
    with pytest.raises(InvalidInput, match="model lmsys/vicuna-7b-v1.3: no copy here"):
        start.check(on_the_hub)


def test_a_device_that_is_missing_stops_a_run(pair, monkeypatch):
    monkeypatch.setattr(device, "ask", lambda kind: Device(kind, missing="no CUDA device was found"))
    with pytest.raises(InvalidInput, match="device cuda: no CUDA device was found"):
        start.check(cells_of(pair))


def test_nothing_is_asked_for_cells_on_a_cpu_without_a_hub(pair, monkeypatch, capsys):
    def ask(_: str) -> Device:
        raise AssertionError("it was asked")

    monkeypatch.setattr(device, "ask", ask)
    start.check(cells_of([*pair, "device=cpu", "dtype=float32"]))
    start.check(cells_of(["tree=chain"]))
    assert not capsys.readouterr().err


@pytest.mark.usefixtures("artefacts")
def test_the_command_prints_a_line_each_and_its_exit_code_says_whether_the_profile_can_run(
    monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(device, "ask", lambda kind: replace(GPU, kind=kind))
    assert doctor.main(["--profile", "embedded", "--results", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines[:-1]} <= set(State)
    assert lines[-1] == "profile embedded can run: make reproduce PROFILE=embedded"
    assert doctor.main(["--profile", "paper", "--results", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert "problem  hub: HF_HUB_OFFLINE is set" in printed.out and "skipped" in printed.out
    assert printed.err.startswith("error: profile paper cannot run as it is; ")
    assert doctor.main(["--profile", "papers"]) == 1
    allowed = "embedded, inflated, inflated_cpu, paper"
    assert capsys.readouterr().err == f"error: unknown profile 'papers'; allowed: {allowed}\n"
