"""The doctor's lines about a machine and a profile, and how a run starts with it."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from experiments.doctor import __main__ as doctor
from experiments.doctor import checks, device
from experiments.doctor.checks import GIB, NOTE, OK, PROBLEM, check_cells
from experiments.doctor.device import Device
from experiments.doctor.hub import Repository, Wanted
from experiments.grid import cells_of, parts_of
from resispec.errors import InvalidInput
from resispec.hub import Access

GPU = Device("cuda", "Toy GPU", 20 * GIB, 24 * GIB)


def test_the_command_prints_a_line_each_and_its_exit_code_says_whether_the_profile_can_run(
    tmp_path, monkeypatch, capsys
):
    few = (
        "experiment=table1,table3,figure1"  # which share cells; to plan all artefacts takes a while
    )
    monkeypatch.setattr(doctor, "parts_of", lambda overrides: parts_of([few, *overrides[1:]]))
    monkeypatch.setattr(device, "ask", lambda kind: replace(GPU, kind=kind))
    assert doctor.main(["--profile", "embedded", "--results", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines[:-1]} <= {OK, NOTE, PROBLEM}
    assert lines[-1] == "profile embedded can run: make reproduce PROFILE=embedded"
    assert doctor.main(["--profile", "paper", "--results", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert "problem  hub: HF_HUB_OFFLINE is set" in printed.out
    assert "problem  model lmsys/vicuna-7b-v1.3" in printed.out
    assert printed.err.startswith("error: profile paper cannot run as it is; ")


def test_versions_that_cannot_work_are_problems_and_others_notes(tmp_path):
    def versions(tested, allowed, absent=""):
        dependencies = f'dependencies = ["packaging{allowed}"{absent}]'
        lines = f'[project]\nrequires-python = ">=3.11"\n{dependencies}\n'
        (tmp_path / "pyproject.toml").write_text(
            f"{lines}[project.optional-dependencies]\nharness = []\n"
        )
        (tmp_path / "constraints.txt").write_text(f"# tested\npackaging=={tested}\n")
        [line] = checks.versions(None, tmp_path)
        return line

    own = checks.version("packaging")
    assert [versions(own, ">=1").state, versions("1.0", ">=1").state] == [OK, NOTE]
    assert versions(own, "<1").state == PROBLEM
    assert versions(own, ">=1", ', "absent-toy"').found == "absent-toy is missing"


def test_a_full_disk_and_a_missing_device_are_problems(tmp_path):
    large = Repository(Wanted("model", "a/b"), Access.OPEN, num_bytes=2**62)
    patient = SimpleNamespace(data={}, results=tmp_path / "new", repositories={large.wanted: large})
    assert [line.state for line in checks.disk(patient)] == [PROBLEM, OK]
    missing = device.ask_torch("cuda:97")
    patient = SimpleNamespace(device=missing, cells=[SimpleNamespace(config={"dtype": "float16"})])
    [line] = checks.device(patient)
    assert missing.missing and line.state == PROBLEM


@pytest.fixture
def pair(folder, tmp_path):
    """A tiny pair in folders and prompts in a file, for the paper's profile."""
    data = ["dataset=jsonl", f"dataset.path={folder}/prompts.jsonl", "tree=chain"]
    own = [f"pair.target={folder}/target", f"pair.draft={folder}/draft"]
    return ["profile=paper", f"results={tmp_path}", "pair=llama2_7b__jf68m", *own, *data]


def test_a_run_starts_with_one_line_or_is_refused_before_anything_is_read(
    pair, monkeypatch, capsys
):
    monkeypatch.setattr(device, "ask", lambda kind: replace(GPU, kind=kind))
    cells = cells_of(pair)
    check_cells(cells)
    line = capsys.readouterr().err
    assert (
        line.startswith("doctor: llama2_7b__jf68m") and line.count("\n") == 1 and "Toy GPU" in line
    )
    # offline, and no copy
    on_the_hub = cells_of(["profile=paper", "pair=vicuna_7b__jf68m", *pair[-3:]])
    check_cells([*cells, *on_the_hub])
    lines = capsys.readouterr().err
    assert "problem  model lmsys/vicuna-7b-v1.3" in lines and "HF_HUB_OFFLINE" in lines
    small, absent = Device("cuda", "Small GPU", GIB // 4, GIB // 2), "no CUDA device was found"
    refused = {
        "model lmsys/vicuna-7b-v1.3: no copy here": (on_the_hub, GPU),
        "too large for Small GPU: needs about 1.0 GiB .*has 0.5 GiB; to do: ": (cells, small),
        "0.5 GiB of 24.0 GiB are free": (cells, replace(GPU, free=GIB // 2)),
        f"device cuda: {absent}": (cells, Device("cuda", missing=absent)),
    }
    for message, (asked, found) in refused.items():
        monkeypatch.setattr(device, "ask", lambda _, found=found: found)
        with pytest.raises(InvalidInput, match=message) as error:
            check_cells(asked)
        assert "\n" not in str(error.value) and not capsys.readouterr().err
    # Of cells on a CPU without a hub nothing is asked.
    monkeypatch.setattr(device, "ask", lambda _: pytest.fail("it was asked"))
    check_cells(cells_of([*pair, "device=cpu", "dtype=float32"]))
    check_cells(cells_of(["tree=chain"]))
    assert not capsys.readouterr().err
