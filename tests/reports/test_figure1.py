"""Figure 1 from rows of laws, on cells worked out by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from toy_cells import (
    decay_rows,
    make_cell,
    planned,
    save,
)

from analysis import figure1, load
from analysis.figures import CEILING


def test_figure1_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = decay_rows([[6.0, 1.0], [8.0, 1.0]], [[10.0, 4.0], [10.0, 2.0]])
    rare = decay_rows([[10.0, 0.0], [9.96, 0.0]], [[10.0, 0.0], [10.0, 0.04]])
    cells = [
        save(make_cell(tmp_path, "standard"), rows),
        save(make_cell(tmp_path, "resispec"), rare),
        save(make_cell(tmp_path, "resispec", temperature=0.6), None, "failed", "no memory"),
        make_cell(tmp_path, "standard", temperature=0.6),
    ]
    results = load.load(planned(tmp_path, "figure1", cells), figure1.FIELDS)
    drawn = {(line.cell["temperature"], line.verifier): line.rates for line in figure1.lines(results)}
    assert [found.value for found in drawn[1.0, "standard"].acceptance] == [14 / 20, 2 / 6]
    assert [found.value for found in drawn[1.0, "standard"].accepted] == [14 / 20, 16 / 20]
    assert drawn[1.0, "standard"].share == (1.0, 6 / 20)
    assert [found.value for found in drawn[1.0, CEILING].acceptance] == [0.5, 0.25]
    assert drawn[1.0, CEILING].share == (1.0, 0.5)
    # tested in 0.04 of 20 drafts: too rare for a rate
    assert math.isnan(drawn[1.0, "resispec"].acceptance[1].value)
    assert drawn[0.6, "resispec"] is None and (0.6, CEILING) not in drawn
    assert figure1.main(["--results", str(tmp_path)]) == 0
    paths = [tmp_path / "embedded" / f"figure1.{suffix}" for suffix in ("csv", "md", "png", "pdf")]
    assert all(path.stat().st_size > 200 for path in paths)
    assert not (tmp_path / "embedded" / "figure1.tex").exists()
    text = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line[:1] == "|"]
    assert rows[0] == ["T", "Method", "1", "2", "Any of 2"]
    assert rows[2] == ["1", "standard", "0.70", "0.33", "0.800 [0.700, 0.900]"]
    assert "failed: no memory" in text and "missing" in text
    first = [path.read_bytes() for path in paths]
    assert figure1.main(["--results", str(tmp_path)]) == 0
    assert [path.read_bytes() for path in paths] == first
