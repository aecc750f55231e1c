"""The command for a machine with a GPU, with toy commands on a CPU; and that it runs what needs a device."""

import re
import shlex
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from experiments import provenance
from experiments.bench import gpu_check
from experiments.bench.gpu_check import ROOT, Command, commands, main, run_command

EVERY = commands(Path("results of mine"))


def toy(name, program, limit_s=60.0):
    return Command(name, limit_s, shlex.join(("-c", program)))


GOOD = toy("a good job", "print('first'); print('42 passed'); print()")
BAD = toy("a bad job", "print('fine'); import absent")
SLOW = toy("a slow job", "import time; print('begun', flush=True); time.sleep(600)", 1.0)
BAR = toy("a bar", r"print('bench:  50%\rbench: 100%\r')")
MUTE = toy("a mute job", "print(' ')")


def test_every_command_runs_whatever_the_others_do_and_the_exit_code_says_whether_one_failed(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(provenance, "device_name", lambda _: "Toy 1")
    monkeypatch.setattr(gpu_check, "commands", lambda _: [BAD, SLOW, GOOD, BAR, MUTE])
    assert main(["--results", str(tmp_path)]) == 1
    text = (tmp_path / "timing" / "gpu_check_toy_1.txt").read_text()
    assert capsys.readouterr().out.endswith(text) and text.startswith("gpu-check on Toy 1, torch ")
    assert re.findall(r"^(\w+) +[\d.]+ s  ([\w ]+): (.*)$", text, re.M) == [
        ("failed", "a bad job", "exit code 1; the last line: ModuleNotFoundError: No module named 'absent'"),
        ("failed", "a slow job", "stopped after 1 s; the last line: begun"),
        ("ok", "a good job", "42 passed"),
        ("ok", "a bar", "bench: 100%"),
        ("ok", "a mute job", "no output"),
    ]
    assert "3 ok, 2 failed; " in text
    assert "first" in (tmp_path / "timing" / "gpu_check" / "a_good_job.log").read_text()
    monkeypatch.setattr(gpu_check, "commands", lambda _: [GOOD])
    assert main(["--results", str(tmp_path)]) == 0


def test_what_a_command_started_ends_with_it(tmp_path):
    alive = tmp_path / "alive"
    child = f"import time, pathlib\nwhile True: pathlib.Path({str(alive)!r}).touch(); time.sleep(0.05)"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    assert run_command(toy("parent", program, 4.0), tmp_path)[0] == "failed"
    assert alive.exists()
    time.sleep(0.3)  # for what was just being written
    alive.unlink()
    time.sleep(0.5)
    assert not alive.exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_it_says_so_in_one_line(tmp_path, capsys):
    assert main(["--results", str(tmp_path)]) == 1 and not list(tmp_path.iterdir())
    assert capsys.readouterr().err == (
        "error: no CUDA device was found on this machine, and everything that gpu-check runs needs one\n"
    )


def test_it_takes_25_minutes_at_most_and_runs_what_exists(pytestconfig):
    """Of all tests those that are skipped where there is no device: they have the marker, and no others."""
    assert sum(each.limit_s for each in EVERY) <= 25 * 60 and len({each.name for each in EVERY}) == len(EVERY)
    words = {each.name: shlex.split(each.arguments) for each in EVERY}
    assert all(find_spec(own[1]) for own in words.values() if own[0] == "-m")
    own = "results of mine", "results=results of mine"
    assert sum(set(own) & set(line) != set() for line in words.values()) == 7
    assert words["CUDA tests"][-2:] == ["-m", "cuda"]  # and no paths, so that they are those of testpaths
    folders = [ROOT / folder for folder in pytestconfig.getini("testpaths")]
    for path in (path for folder in folders for path in folder.rglob("test_*.py")):
        lines = path.read_text().splitlines()
        places = {number for number, line in enumerate(lines) if line == "@pytest.mark.cuda"}
        skipped = {
            number
            for number, line in enumerate(lines)
            if re.match(r"@(on_cuda$|pytest\.mark\.skipif\(not torch\.cuda\.is_available\(\))", line)
        }
        assert {number + 1 for number in places} == skipped, path
