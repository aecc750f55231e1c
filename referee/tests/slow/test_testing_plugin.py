"""The pytest plug-in in another repository, and the examples of docs/kernel-tests.md as its tests.

What these print is compared with the page, but for the numbers; they are run with fewer samples.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

KERNEL_TESTS = """
import torch
from referee.testing import assert_exact_sampler

def draw_from_target(p, q, drafted, generator):
    token = int(torch.multinomial(p[0], 1, generator=generator))
    return [token]

def accept_everything(p, q, drafted, generator):
    return [*drafted.tolist(), int(torch.multinomial(p[-1], 1, generator=generator))]

def test_exact():
    assert_exact_sampler(draw_from_target, vocabularies=(6,), bias=0.2)

def test_biased():
    assert_exact_sampler(accept_everything, vocabularies=(6,), bias=0.2)

def test_own_seed():
    assert_exact_sampler(draw_from_target, vocabularies=(6,), bias=0.2, seed=2, samples=3000)

def test_without_an_assertion():
    pass
"""

NO_TORCH = """
import sys

def test_nothing():
    assert "torch" not in sys.modules and "referee.testing.plugin" in sys.modules
"""


def run(folder, *options):
    """pytest in a folder of its own, where nothing but the entry point says that there is a plug-in."""
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTEST_ADDOPTS", None)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, *options], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """One run of the tests of a kernel, in a process of pytest-xdist."""
    folder = tmp_path_factory.mktemp("engine")
    (folder / "test_kernel.py").write_text(KERNEL_TESTS)
    report = folder / "report.xml"
    found = run(folder, "-n1", "--resispec-seed=5", "--resispec-samples=2500", f"--junit-xml={report}")
    return found, report.read_text()


def test_a_biased_kernel_fails_with_its_message_and_not_our_code(done):
    found, _ = done
    assert found.returncode == 1 and "1 failed, 3 passed" in found.stdout, found.stdout + found.stderr
    assert "AssertionError: accept_everything is biased; p is allowed down to 1e-06" in found.stdout
    assert "worst cell: " in found.stdout and "again: seed=5, samples=2500" in found.stdout
    assert "samplers.py" not in found.stdout.replace("/referee/testing/samplers.py:", "", 1)


def test_the_summary_says_what_could_have_been_seen(done):
    found, xml = done
    lines = found.stdout.splitlines()
    (start,) = (index for index, line in enumerate(lines) if " exactness of speculative decoding " in line)
    assert lines[start + 1] == "test_kernel.py::test_exact"
    assert lines[start + 2] == "  draw_from_target: no bias seen"
    assert lines[start + 3].startswith("    V = 6: 2500 calls, 2500 tokens, p = ")
    assert lines[start + 3].endswith("would have shown") and lines[start + 4] == "    seed 5"
    assert lines[start + 5] == "test_kernel.py::test_own_seed" and lines[start + 8] == "    seed 2"
    assert lines[start + 7].startswith("    V = 6: 3000 calls, ")
    assert '<property name="resispec" value="draw_from_target: no bias seen; ' in xml


def test_nothing_is_written_where_nothing_was_asserted_and_torch_stays_away(tmp_path):
    (tmp_path / "test_other.py").write_text(NO_TORCH)
    found = run(tmp_path)
    assert found.returncode == 0 and "exactness" not in found.stdout, found.stdout + found.stderr
    listed = run(tmp_path, "--help").stdout
    assert "--resispec-seed=SEED" in listed and "--resispec-samples=NUMBER" in listed


PAGE = (Path(__file__).parents[3] / "docs" / "kernel-tests.md").read_text()
FEWER = (
    ("assert_exact_sampler(verify", "assert_exact_sampler(verify, samples=1200, bias=0.5"),
    ("assert_exact(standard", "assert_exact(standard, samples=100"),
    ('assert_exact("traversal"', 'assert_exact("traversal", samples=20'),
)
CUT = re.search(r"The same kernel with `(.*)` before the draw", PAGE)[1]  # the fault that the page speaks of


def masked(text):
    """The lines of a text, with # for every number."""
    return [re.sub(r"[+-]?\d[\d.]*(e-\d+)?|inf", "#", line) for line in text.splitlines()]


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """Pytest's output in a folder with all files of the page and the two faults that it speaks of."""
    folder = tmp_path_factory.mktemp("engine")
    blocks = re.findall(r"(?:^`(\w+\.py)`:\n\n)?^```python\n(.*?)^```$", PAGE, re.M | re.S)
    files = {name or f"test_{number}.py": text for number, (name, text) in enumerate(blocks)}
    engine = files["my_engine.py"].replace(
        "            return [*", f"            {CUT}\n            return [*"
    )
    (noise,) = (text for text in files.values() if "noise[i] here" in text)
    called = (
        "\n\ndef test_top_100():\n    assert_exact_sampler(verify, vocabularies=(32_000,), samples=6000)\n"
    )
    for name, text in files.items():
        for many, few in FEWER:
            text = text.replace(many, few)
        (folder / name).write_text(text)
    importing = "from referee.testing import assert_exact_sampler\n"
    (folder / "test_top_100.py").write_text(importing + (engine + called).replace("verify", "verify_top_100"))
    noise = noise.replace("/ fresh", "/ noise[i]").replace("draft=draft", "draft=draft, vocabularies=(16,)")
    (folder / "test_noise.py").write_text(noise.replace("verify", "verify_with_noise"))
    return run(folder).stdout


def test_the_examples_of_the_page_pass_and_print_what_it_shows(printed):
    examples = re.findall(r"^def test_\w+", PAGE, re.M)
    assert f"2 failed, {len(examples)} passed" in printed, printed
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.M | re.S)
    for output in (text for language, text in fenced if not language and "pip install" not in text):
        lines = [line for line in masked(output) if not line.startswith(("$", "test_"))]
        assert len(lines) > 3 and [line for line in lines if line not in masked(printed)] == [], printed
