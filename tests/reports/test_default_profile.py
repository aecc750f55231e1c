"""The profile of a command that names none: one rule, by torch's devices and the models here."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import constants

from analysis import cli
from resispec import machine
from tests.harness.toy_runs import run
from tests.toy_cells import write_artefact

ROOT = Path(__file__).parents[2]


@pytest.fixture
def gpu_machine(tmp_path, monkeypatch):
    """A machine whose driver lists a device that its torch can use; no hub, no profile given."""
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    (tmp_path / "torch.py").write_text(
        "class cuda:\n    is_available = staticmethod(lambda: True)\n"
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.delenv("PROFILE")
    cli.default_profile.cache_clear()
    yield tmp_path
    cli.default_profile.cache_clear()


def test_a_device_counts_where_there_is_a_driver_and_torch_can_use_it(gpu_machine, monkeypatch):
    assert machine.has_cuda()
    (gpu_machine / "torch.py").write_text(
        "class cuda:\n    is_available = staticmethod(lambda: False)\n"
    )
    assert not machine.has_cuda()
    (gpu_machine / "torch.py").write_text(f"open({str(gpu_machine / 'asked')!r}, 'w')\n")
    monkeypatch.setattr(machine, "DRIVERS", ())
    monkeypatch.setenv("PATH", "/nowhere")
    assert not machine.has_cuda() and not (gpu_machine / "asked").exists()  # torch takes seconds


@pytest.mark.parametrize(
    ("has_copy", "is_offline", "answer", "profile"),
    [
        (False, True, 0, "inflated"),
        (True, True, 1, "paper"),
        (False, False, 0, "paper"),
        (False, False, 6, "inflated"),
    ],
)
def test_models_decide_where_there_is_a_device(
    has_copy, is_offline, answer, profile, gpu_machine, monkeypatch
):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", is_offline)
    if has_copy:
        (gpu_machine / cli.TARGET).mkdir()
    (gpu_machine / "curl").write_text(f"#!/bin/sh\nexit {answer}\n")
    (gpu_machine / "curl").chmod(0o755)
    assert cli.default_profile()[0] == profile


# Commands by how they take options.


def by_make(*variables):
    command = [
        "make",
        "--old-file",
        ".venv/installed",
        "profile",
        f"PY={shlex.quote(sys.executable)}",
        *variables,
    ]
    subprocess.run(command, cwd=ROOT, check=False)


def by_flags(*flags):
    write_artefact("table1", "--results", "/nowhere", *flags)


def by_overrides(*overrides):
    sys.stderr.write(run("verifier=nope", *overrides).stderr)


@pytest.mark.parametrize(
    ("command", "given"),
    [
        (by_make, "PROFILE=paper"),
        (by_flags, "--profile=paper"),
        (by_overrides, "profile=paper"),
    ],
)
@pytest.mark.usefixtures("gpu_machine")
def test_make_and_every_command_choose_alike_and_say_why(command, given, monkeypatch, capfd):
    def said(*words):
        command(*words)
        return "".join(capfd.readouterr())

    line = "profile: inflated (torch finds a CUDA device, but there is no hub; "
    assert said().count(line) == 1
    assert "(torch " not in said(given)
    monkeypatch.setenv("PROFILE", "paper")
    assert "(torch " not in said()
