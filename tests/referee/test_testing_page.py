"""docs/kernel-tests.md: its examples are run as the tests of another repository, with fewer samples."""

import re
from pathlib import Path

from test_testing_plugin import run

PAGE = (Path(__file__).parents[2] / "docs" / "kernel-tests.md").read_text()
FEWER = (
    (
        "assert_exact_sampler(verify",
        "assert_exact_sampler(verify, samples=2500, bias=0.3, vocabularies=(6, 16)",
    ),
    ("assert_exact(naive", "assert_exact(naive, tuples=400, bias=0.2, vocabulary=2000"),
)


def test_every_example_passes(tmp_path):
    blocks = re.findall(r"(?:^`(\w+\.py)`:\n\n)?^```python\n(.*?)^```$", PAGE, re.M | re.S)
    for number, (name, text) in enumerate(blocks):
        for many, few in FEWER:
            text = text.replace(many, few)
        (tmp_path / (name or f"test_{number}.py")).write_text(text)
    assert (tmp_path / "my_engine.py").exists() and (tmp_path / "test_kernel.py").exists()
    done = run(tmp_path, "-q")
    assert "would have shown" not in done.stdout
    assert done.returncode == 0 and f"{len(blocks) - 1} passed" in done.stdout, done.stdout + done.stderr
