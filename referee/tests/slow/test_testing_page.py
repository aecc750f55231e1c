"""docs/kernel-tests.md: its examples are run as the tests of another repository, with fewer samples.

What they print is compared with the page, but for the numbers.
"""

import re
from pathlib import Path

import pytest
from test_testing_plugin import run

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


def test_every_example_passes(printed):
    examples = re.findall(r"^def test_\w+", PAGE, re.M)
    assert f"2 failed, {len(examples)} passed" in printed, printed


FENCED = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.M | re.S)
OUTPUTS = [text for language, text in FENCED if not language and "pip install" not in text]


@pytest.mark.parametrize("output", OUTPUTS, ids=range(len(OUTPUTS)))
def test_what_is_printed_is_what_the_page_shows(printed, output):
    lines = [line for line in masked(output) if not line.startswith(("$", "test_"))]
    assert len(lines) > 3 and [line for line in lines if line not in masked(printed)] == [], printed
