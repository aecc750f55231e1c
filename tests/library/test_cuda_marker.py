"""`make test-gpu` runs all tests that are skipped where there is no CUDA device, and no others."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SKIPPED = re.compile(r"@(on_cuda$|pytest\.mark\.skipif\(not torch\.cuda\.is_available\(\))")


def test_what_needs_a_device_has_the_marker(pytestconfig):
    folders = [ROOT / folder for folder in pytestconfig.getini("testpaths")]
    for path in (path for folder in folders for path in folder.rglob("test_*.py")):
        lines = path.read_text().splitlines()
        marked = {number for number, line in enumerate(lines) if line == "@pytest.mark.cuda"}
        skipped = {number for number, line in enumerate(lines) if SKIPPED.match(line)}
        assert {number + 1 for number in marked} == skipped, path
