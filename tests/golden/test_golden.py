"""Code may move and be said otherwise; toy cells keep their tokens."""

import json
import math

from tests.golden.golden import HERE, toy_rows
from tests.harness.toy_runs import save_toys

ROWS = json.loads((HERE / "rows.json").read_text())


def same(one, other):
    """Equal but for what kernels round."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    is_real = isinstance(one, float) and isinstance(other, float)
    return math.isclose(one, other, rel_tol=1e-3, abs_tol=1e-4) if is_real else one == other


def test_toy_cells_measure_the_same(tmp_path):
    found = toy_rows(save_toys(tmp_path / "golden"))
    assert found.keys() == ROWS.keys() and len(found) > 40
    assert [name for name, rows in found.items() if not same(rows, ROWS[name])] == []
