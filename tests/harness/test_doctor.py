"""The doctor's lines about a machine and a profile, and how a run starts with it."""

from dataclasses import replace

import pytest

from experiments.doctor import __main__ as doctor
from experiments.doctor import device
from experiments.doctor.device import Device
from experiments.doctor.needs import GIB, NOTE, OK, PROBLEM, Needs, check_cells
from experiments.grid import cells_of, parts_of
from resispec.errors import InvalidInput

GPU = Device("Toy GPU", 20 * GIB, 24 * GIB)


def test_the_command_prints_a_line_each_and_its_exit_code_says_whether_the_profile_can_run(
    tmp_path, monkeypatch, capsys
):
    # which share cells; to plan all artefacts takes a while
    few = "experiment=table1,table3,figure1"
    monkeypatch.setattr(doctor, "parts_of", lambda overrides: parts_of([few, *overrides[1:]]))
    monkeypatch.setattr(device, "ask", lambda *_: GPU)
    assert doctor.main(["--profile", "embedded", "--results", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines[:-1]} <= {OK, NOTE, PROBLEM}
    command = f"make reproduce PROFILE=embedded RESULTS={tmp_path}"
    assert lines[-1] == f"profile embedded can run: {command}"
    assert doctor.main(["--profile", "paper", "--results", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    for line in ("problem  model lmsys/vicuna-7b-v1.3: ", "problem  dataset allenai/c4: "):
        assert line in printed.out and "HF_HUB_OFFLINE is set" in printed.out
    assert printed.err.startswith("error: profile paper cannot run as it is; ")


def test_versions_that_cannot_work_are_problems_and_others_notes(tmp_path):
    def versions(tested, allowed, absent=""):
        dependencies = f'dependencies = ["packaging{allowed}"{absent}]'
        lines = f'[project]\nrequires-python = ">=3.11"\n{dependencies}\n'
        (tmp_path / "pyproject.toml").write_text(
            f"{lines}[project.optional-dependencies]\nharness = []\n"
        )
        (tmp_path / "constraints.txt").write_text(f"# tested\npackaging=={tested}\n")
        return doctor.versions(tmp_path)

    own = doctor.version("packaging")
    assert [versions(own, ">=1").state, versions("1.0", ">=1").state] == [OK, NOTE]
    assert versions(own, "<1").state == PROBLEM
    assert "absent-toy is missing" in versions(own, ">=1", ', "absent-toy"').found


def test_a_missing_device_is_named_with_the_reason_of_torch():
    missing = device.ask("cuda:97")
    assert not missing.name and "finds no cuda:97: " in missing.missing
    assert device.ask("cpu").total >= device.ask("cpu").free > 0


@pytest.fixture
def pair(folder, tmp_path):
    """A tiny pair in folders and prompts in a file, for the paper's profile."""
    data = ["dataset=jsonl", f"dataset.path={folder}/prompts.jsonl", "tree=chain"]
    own = [f"pair.target={folder}/target", f"pair.draft={folder}/draft"]
    return ["profile=paper", f"results={tmp_path}", "pair=llama2_7b__jf68m", *own, *data]


def test_a_run_says_what_keeps_cells_from_running_or_is_refused_before_anything_is_read(
    pair, monkeypatch, capsys
):
    monkeypatch.setattr(device, "ask", lambda *_: GPU)
    cells = cells_of(pair)
    check_cells(cells)
    assert not capsys.readouterr().err
    # offline, and no copy
    on_the_hub = cells_of(["profile=paper", "pair=vicuna_7b__jf68m", *pair[-3:]])
    check_cells([*cells, *on_the_hub])
    lines = capsys.readouterr().err
    assert "problem  model lmsys/vicuna-7b-v1.3" in lines and "HF_HUB_OFFLINE" in lines
    small, absent = Device("Small GPU", GIB // 4, GIB // 2), "no CUDA device was found"
    refused = {
        "model lmsys/vicuna-7b-v1.3: .*is not cached": (on_the_hub, GPU),
        "needs about 1.0 GiB .* of 0.5 GiB are free; a smaller pair, or a larger": (cells, small),
        "0.5 GiB of 24.0 GiB are free; end what": (cells, replace(GPU, free=GIB // 2)),
        f"device cuda: {absent}": (cells, Device(missing=absent)),
    }
    for message, (asked, found) in refused.items():
        monkeypatch.setattr(device, "ask", lambda *_, found=found: found)
        with pytest.raises(InvalidInput, match=message) as error:
            check_cells(asked)
        assert "\n" not in str(error.value) and not capsys.readouterr().err
    # Of cells on a CPU without a hub nothing is asked.
    monkeypatch.setattr(device, "ask", lambda *_: pytest.fail("it was asked"))
    check_cells(cells_of([*pair, "device=cpu", "dtype=float32"]))
    check_cells(cells_of(["tree=chain"]))
    assert not capsys.readouterr().err


def test_the_memory_of_an_inflated_pair_is_that_of_its_shape(monkeypatch):
    monkeypatch.setattr(device, "ask", lambda *_: GPU)
    [cell] = cells_of(["profile=inflated", "pair=inflated_llama2_7b__jf68m", "tree=chain"])
    [*_, line] = Needs([cell]).lines(cell)
    # Llama-2-7B with a draft of 68 million parameters, and a quarter of that beside
    assert line.state == OK and "needs about 16.8 GiB (weights 12.7 GiB in bfloat16)" in line.found
