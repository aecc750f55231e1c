"""The one command for a machine with a GPU, with toy steps on a CPU; and that it runs what needs a device."""

import re
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from test_imports import HARNESS, run

from experiments import provenance
from experiments.bench import gpu_check
from experiments.bench.gpu_check import ROOT, Step, last_line, main, run_all, run_step, steps

EVERY = steps(Path("results"))
LIMIT_S = 20 * 60


def toy(name, program, limit_s=60.0, needs=()):
    return Step(name, (sys.executable, "-c", program), limit_s, needs)


GOOD = toy("a good step", "print('first'); print('42 passed'); print()")
BAD = toy("a bad step", "import sys; print('fine'); sys.stderr.write('it broke'); sys.exit(3)")
SLOW = toy("a slow step", "import time; print('begun', flush=True); time.sleep(600)", 1.0)
LACKING = toy("a lacking step", "raise AssertionError", needs=("os", "no_such_package"))
ABSENT = Step("an absent step", ("no-such-command",), 1.0)


def test_every_step_runs_whatever_the_others_do(tmp_path, capsys):
    found = list(run_all([BAD, SLOW, ABSENT, LACKING, GOOD], tmp_path / "logs"))
    assert [(one.step.name, one.state, one.said) for one in found[:2] + found[3:]] == [
        ("a bad step", "failed", "exit code 3; the last line: it broke"),
        ("a slow step", "failed", "stopped after 1 s; the last line: begun"),
        ("a lacking step", "skipped", "no_such_package not installed"),
        ("a good step", "ok", "42 passed"),
    ]
    assert found[2].state == "failed" and "no-such-command" in found[2].said
    assert 1 <= found[1].seconds < 50 and found[4].seconds > 0
    shown = capsys.readouterr().out
    assert [line for line in shown.splitlines() if not line.endswith("...")] == list(map(str, found))
    assert "first" in (tmp_path / "logs" / "a_good_step.log").read_text()


def test_what_a_step_started_ends_with_it(tmp_path):
    alive = tmp_path / "alive"
    child = f"import time, pathlib\nwhile True: pathlib.Path({str(alive)!r}).touch(); time.sleep(0.05)"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    assert run_step(toy("parent", program, 4.0), tmp_path).state == "failed"
    assert alive.exists()
    time.sleep(0.3)  # for what was just being written
    alive.unlink()
    time.sleep(0.5)
    assert not alive.exists()


@pytest.mark.parametrize(
    ("wanted", "code", "counted"),
    [
        ([GOOD, BAD], 1, "1 ok, 1 failed, 0 skipped"),
        ([GOOD, LACKING], 0, "1 ok, 0 failed, 1 skipped"),
    ],
)
def test_the_summary_and_the_exit_code(wanted, code, counted, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(provenance, "device_name", lambda _: "Toy 1")
    monkeypatch.setattr(gpu_check, "steps", lambda _: wanted)
    assert main(["--results", str(tmp_path)]) == code
    text = (tmp_path / "timing" / "gpu_check_toy_1.txt").read_text()
    assert counted in text and text.startswith("gpu-check on Toy 1, torch ") and "42 passed" in text
    assert capsys.readouterr().out.endswith(text)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_it_says_so_in_one_line(tmp_path):
    command = [sys.executable, "-m", "experiments.bench.gpu_check", "--results", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and not done.stdout and not list(tmp_path.iterdir())
    assert done.stderr == (
        "error: no CUDA device was found on this machine, and everything that gpu-check runs needs one\n"
    )


def test_it_takes_20_minutes_at_most():
    assert sum(step.limit_s for step in EVERY) <= LIMIT_S
    assert len({step.stem for step in EVERY}) == len(EVERY)


@pytest.mark.parametrize(
    "step", [one for one in EVERY if "-m" in one.command[:2]], ids=lambda step: step.name
)
def test_a_step_needs_no_package_but_those_that_it_names(step):
    module = step.command[2]
    assert find_spec(module) is not None
    blocked = [name for name in HARNESS if name not in step.needs]
    run(f"import sys\nfor name in {blocked}: sys.modules[name] = None\nimport {module}")


def test_it_runs_the_tests_that_need_a_device_and_no_others():
    """Whatever is skipped where there is no device has the marker, and the other way round."""
    marked = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        lines = path.read_text().splitlines()
        places = {number for number, line in enumerate(lines) if line == "@pytest.mark.cuda"}
        skipped = {
            number
            for number, line in enumerate(lines)
            if re.match(r"@pytest\.mark\.skipif\(not torch\.cuda\.is_available\(\)", line)
        }
        assert {number + 1 for number in places} == skipped, path
        marked += [str(path)] * bool(places)
    tests = [step.command for step in EVERY if step.command[2] == "pytest"]
    assert marked and sorted(word for command in tests for word in command if word.endswith(".py")) == marked
    assert all(command[command.index("-m", 2) + 1] == "cuda" for command in tests)


def test_the_last_line_is_one_that_says_something():
    assert last_line("") == last_line("\n \n") == "no output"
    assert last_line("a\nwritten: b\n\n") == "written: b"
    assert last_line("bench:  50%\rbench: 100%\r\n") == "bench: 100%"
    assert len(last_line("x" * 10_000)) < 200
