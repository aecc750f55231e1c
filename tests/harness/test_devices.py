"""Several GPUs, by names that are made up: which process sees which, and what runs at a time."""

import json
import os
import time
from types import SimpleNamespace

import pytest
import torch

from experiments import scheduler
from experiments.auditing import audits
from experiments.devices import check_devices, gpus_of
from experiments.doctor import device
from experiments.doctor.device import Device
from experiments.grid import cells_of
from experiments.processes import GPUS
from resispec.errors import InvalidInput
from tests.harness.toy_runs import run


def test_devices_count_the_gpus_that_the_command_sees(monkeypatch):
    config = {"device": "cuda", "devices": [2, 0]}
    monkeypatch.delenv(GPUS, raising=False)
    assert gpus_of(config) == ["2", "0"] and gpus_of(config | {"devices": []}) == [None]
    monkeypatch.setenv(GPUS, "GPU-a, GPU-b,MIG-c")
    assert gpus_of(config) == ["MIG-c", "GPU-a"]
    monkeypatch.setenv(GPUS, "5,6")
    with pytest.raises(InvalidInput, match=r"devices has 2; CUDA_VISIBLE_DEVICES=5,6 has 2 ent"):
        gpus_of(config)
    monkeypatch.setenv(GPUS, "")
    with pytest.raises(InvalidInput, match="devices has 2; CUDA_VISIBLE_DEVICES= has 0 entries"):
        check_devices(config)


def test_torch_is_asked_whether_all_are_there_and_for_the_least_memory(monkeypatch):
    free = {0: 40, 1: 10, 2: 30}
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda one: (free[one.index or 0], 80))
    monkeypatch.setattr("experiments.provenance.device_name", lambda one: f"GPU {one.index}")
    assert device.ask_torch("cuda", [0, 1, 2]) == Device("GPU 1", 10, 80)
    missing = device.ask_torch("cuda", [1, 3, 9]).missing
    assert missing.startswith("devices has 3, 9; torch ") and "finds 3 GPUs" in missing
    assert "devices has 7; torch " in device.ask("cuda", [7]).missing  # in a process of its own


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("devices=[0,1]", "devices=[0, 1] goes with device=cuda; found device=cpu"),
        ("device=cuda devices=[1,1]", "devices is [1, 1]; allowed: indexes from 0, each once"),
        ("device=cuda devices=[-1]", "devices is [-1]; allowed: indexes from 0, each once"),
        ("device=cuda devices=[0,97]", "device cuda: devices has "),
    ],
)
def test_devices_that_cannot_be_are_one_line(toy, given, message):
    done = run(*toy, *given.split())
    [line] = done.stderr.splitlines()
    assert done.returncode == 1 and line.startswith("error: ") and message in line


def note_run(cells, report):
    """In place of a measurement: writes down which GPU the process sees, and when it ran."""
    folder = cells[0].folder.parent
    folder.mkdir(parents=True, exist_ok=True)
    begun = time.time()
    report("loaded", 0, 1)
    time.sleep(0.5)
    facts = [os.environ[GPUS], cells[0].is_timed, begun, time.time()]
    (folder / f"{os.getpid()}.json").write_text(json.dumps(facts))


def test_cells_run_on_all_gpus_and_a_timed_one_has_its_gpu_for_itself(toy, monkeypatch):
    """Real processes; a group that is timed in turns stays on one GPU."""
    monkeypatch.setenv(GPUS, "GPU-a,GPU-b,GPU-c")
    monkeypatch.setattr(scheduler, "_measure", note_run)
    monkeypatch.setattr(scheduler, "read_status", lambda *_: SimpleNamespace(state="done"))
    given = [*toy, "device=cuda", "devices=[2,0]", "jobs=2", "temperature=1.0,0.9,0.8,0.7"]
    cells = cells_of([*given, "tree=chain,d7b2", "audit=false,true"])
    done, pauses = [], []
    scheduler.run_cells(cells, len(cells), done.append, lambda: pauses.append(len(done)))
    assert len(done) == len(cells) == 16
    runs = [json.loads(path.read_text()) for path in cells[0].folder.parent.glob("*.json")]
    timed = [one for one in runs if one[1]]
    assert (
        len(timed) == 4 and len(runs) == 4 + 8 and {gpu for gpu, *_ in timed} == {"GPU-a", "GPU-c"}
    )

    def at_a_time(one, others):
        return [
            other
            for other in others
            if other is not one and other[2] < one[3] and one[2] < other[3]
        ]

    for one in timed:
        assert not [other for other in at_a_time(one, runs) if other[0] == one[0]]
    assert any(at_a_time(one, timed) for one in timed)
    on_one = [one for one in runs if one[0] == "GPU-a" and not one[1]]
    assert any(at_a_time(one, on_one) for one in on_one)  # as many as `jobs` says
    assert pauses and pauses[-1] == 16


def test_an_audit_has_a_process_on_each_of_the_devices(monkeypatch):
    asked = []
    monkeypatch.setenv(GPUS, "GPU-a,GPU-b,GPU-c")
    monkeypatch.setattr(audits, "results", lambda *given: asked.append(given[-1]) or [])
    audits.audit_all([], {"device": "cuda", "devices": [1, 2]}, [])
    audits.audit_all([], {"device": "cuda", "devices": []}, [])
    audits.audit_all([], {"device": "cpu", "devices": []}, [])
    assert asked[::2] == [["GPU-b", "GPU-c"], [None], [None, None]]


def test_devices_change_no_cell(toy):
    one, other = (
        [*toy, "device=cuda", *more] for more in ((), ("devices=[0,1]", "cells_per_job=2"))
    )
    assert cells_of(one)[0].cell_id == cells_of(other)[0].cell_id
