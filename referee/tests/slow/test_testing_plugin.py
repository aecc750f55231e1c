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
NO_TORCH = """
import sys

def test_nothing():
    assert "torch" not in sys.modules and "referee.testing.plugin" in sys.modules
"""


def run(folder, *options):
    """pytest in a folder of its own, where the entry point alone says that there is a plug-in."""
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTEST_ADDOPTS", None)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, *options],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_nothing_is_written_where_nothing_was_asserted_and_torch_stays_away(tmp_path):
    (tmp_path / "test_other.py").write_text(NO_TORCH)
    found = run(tmp_path)
    assert found.returncode == 0 and "exactness" not in found.stdout, found.stdout + found.stderr
    listed = run(tmp_path, "--help").stdout
    assert "--resispec-seed=SEED" in listed and "--resispec-samples=NUMBER" in listed
    assert "resispec_server (linelist):" in listed
    assert "resispec_server" in run(tmp_path, "--fixtures").stdout


PAGE = (ROOT / "docs" / "kernel-tests.md").read_text()
FEWER = (
    ("assert_exact_sampler(verify", "assert_exact_sampler(verify, bias=0.5"),
    ("assert_exact(standard", "assert_exact(standard, samples=100"),
    ('assert_exact("traversal"', 'assert_exact("traversal", samples=20'),
    (
        "import assert_exact\n",
        "import assert_exact\nfrom resispec.audit import battery\n\nbattery.TREES = "
        "battery.TREES[:6]\n",
    ),
)
"""Changes of the examples, as (old, new): fewer samples; the audit's tests have the deep trees."""
OPTIONS = ("-n1", "--resispec-seed=5", "--resispec-samples=1200", "--junit-xml=report.xml")
# the fault that the page speaks of
CUT = re.search(r"The same kernel with `(.*)` before the draw", PAGE)[1]


def masked(text):
    """The lines of a text, with # for every number."""
    return [re.sub(r"[+-]?\d[\d.]*(e-\d+)?|inf", "#", line) for line in text.splitlines()]


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """Pytest's output and XML report for all files of the page and the two faults it speaks of."""
    folder = tmp_path_factory.mktemp("engine")
    blocks = re.findall(r"(?:^`(\w+\.py)`:\n\n)?^```python\n(.*?)^```$", PAGE, re.M | re.S)
    files = {name or f"test_{number}.py": text for number, (name, text) in enumerate(blocks)}
    draw = "            return [\n"
    assert files["my_engine.py"].count(draw) == 1
    engine = files["my_engine.py"].replace(draw, f"            {CUT}\n{draw}")
    (noise,) = (text for text in files.values() if "noise[i] here" in text)
    call = "assert_exact_sampler(verify, vocabularies=(32_000,), samples=6000)"
    called = f"\n\ndef test_top_100():\n    {call}\n"
    for name, text in files.items():
        for old, new in FEWER:
            text = text.replace(old, new)
        (folder / name).write_text(text)
    importing = "from referee.testing import assert_exact_sampler\n"
    (folder / "test_top_100.py").write_text(
        importing + (engine + called).replace("verify", "verify_top_100")
    )
    enough = "draft=draft, vocabularies=(16,), samples=12_000"
    noise = noise.replace("/ fresh", "/ noise[i]").replace("draft=draft", enough)
    (folder / "test_noise.py").write_text(noise.replace("verify", "verify_with_noise"))
    return run(folder, *OPTIONS).stdout, (folder / "report.xml").read_text()


def test_the_examples_of_the_page_pass_and_print_what_it_shows(printed):
    text, _ = printed
    examples = re.findall(r"^def test_\w+", PAGE, re.M)
    assert f"2 failed, {len(examples)} passed" in text, text
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.M | re.S)
    for output in (text for language, text in fenced if not language and "pip install" not in text):
        lines = [line for line in masked(output) if not line.startswith(("$", "test_"))]
        assert len(lines) > 3 and [line for line in lines if line not in masked(text)] == [], text
    assert "samplers.py" not in text.replace("/referee/testing/samplers.py:", "", 2)  # not our code


def test_options_hold_where_nothing_else_is_said_and_other_processes_are_heard(printed):
    text, xml = printed
    lines = text.splitlines()
    start = lines.index("test_kernel.py::test_verify_is_exact")
    assert " exactness of speculative decoding " in text and lines[start + 5] == "    seed 5"
    assert lines[start + 2].startswith("    V = 6: 1200 calls, ")
    # a quarter where laws are wide
    assert lines[start + 4].startswith("    V = 32000: 300 calls, ")
    assert "again: seed=5, samples=6000" in text
    assert '<property name="resispec" value="verify: no bias seen; ' in xml
