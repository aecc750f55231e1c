"""The artefact `speed` from toy rows: its numbers by hand, what it says of its goal, and its figure."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from toy_cells import make_cell, planned, save

from analysis import report
from analysis.speed import figure, measured, predicted, table
from analysis.speed.table import goal
from resispec.errors import InvalidInput

ENTRIES = {
    # draws, verifier, nodes, levels; for each prompt seconds, returned, decoding seconds, emitted, steps
    "one_token": ("iid", "standard", 1, 1, (2.0, 8, 1.6, 8, 8), (2.0, 8, 1.6, 8, 8)),
    "fastest": ("iid", "block", 3, 3, (1.0, 8, 0.8, 10, 5), (1.5, 8, 1.2, 8, 3)),
    "d5b3 standard": ("iid", "standard", 121, 5, (4.0, 8, 3.8, 9, 3), (4.0, 8, 3.8, 9, 3)),
    "chain 3": ("iid", "block", 3, 3, (1.0, 8, 0.8, 10, 5), (1.0, 8, 0.8, 8, 3)),
    "generate": ("", "", 0, 0, (2.5, 8, 0.0, 0, 0), (1.5, 8, 0.0, 0, 0)),
}
SUMS = ("whole_s", "num_returned", "decode_s", "num_emitted", "num_steps")


def rows(entries=ENTRIES):
    found = []
    for index in range(2):
        row = {"prompt_index": index, "prompt_id": f"p{index}", "seed": index, "num_prompt_tokens": 4}
        row["entry"] = list(entries)
        for place, name in enumerate(("draws", "verifier", "num_nodes", "num_levels")):
            row[name] = [own[place] for own in entries.values()]
        for place, name in enumerate(SUMS):
            row[name] = [own[4 + index][place] for own in entries.values()]
        found.append(row)
    return found


def race(tmp_path, **changed):
    return make_cell(tmp_path, "autoregressive", decoder="fastest", tree="fastest", **changed)


def made(tmp_path, *cells):
    return table.make(planned(tmp_path, "speed", list(cells)))


def expecting(tmp_path, cell, step_s=0.2, tokens=2.0):
    """The cell, and the file of its tree, which expects something of the chain and of one token."""
    path = tmp_path / "fastest.json"
    chain = {"draws": "iid", "verifier": "block", "child_counts": [[1], [1]], "num_nodes": 3}
    single = {"draws": "iid", "verifier": "standard", "child_counts": [], "num_nodes": 1}
    expected = [
        chain | {"expected_tokens": tokens, "step_s": step_s},
        single | {"expected_tokens": 1.0, "step_s": 0.1},
    ]
    path.write_text(json.dumps({"about": {"expected": expected, "length": 8}}))
    return type(cell)(cell.results, cell.cell_id, cell.labels, path)


def test_speed_by_hand(tmp_path: Path) -> None:
    artefact = made(tmp_path, save(race(tmp_path), rows()))
    frame = artefact.tables[0].frame
    got = {(row.entry, row.quantity): row.value for row in frame.itertuples()}
    assert got["one_token", "tokens_per_s"] == 16 / 4
    assert got["fastest", "tokens_per_s"] == 16 / 2.5 and got["chain 3", "tokens_per_s"] == 8
    assert got["fastest", "ms_per_token"] == pytest.approx(1e3 * 2.5 / 16)
    assert got["fastest", "accepted_length"] == 2.25 and got["one_token", "accepted_length"] == 1
    assert got["fastest", "speedup_vs_one_token"] == pytest.approx(1.6)
    assert got["fastest", "share_of_best"] == pytest.approx(0.8)
    assert got["fastest", "decoded_per_s"] == 18 / 2 and got["fastest", "step_ms"] == pytest.approx(2e3 / 8)
    for name, quantity in (("generate", "accepted_length"), ("one_token", "speedup_vs_one_token")):
        assert math.isnan(got[name, quantity])
    assert len(frame) == len(ENTRIES) * len(measured.QUANTITIES)


def test_the_cost_ratio_from_which_on_an_entry_wins(tmp_path: Path) -> None:
    """Seconds a token: d5b3 (1 + 4 r) / 3, the chain (1 + 2 r) / 2.25, which meet at r = 1/4; one token 1."""
    frame = made(tmp_path, save(race(tmp_path), rows())).tables[0].frame
    ranges = {row.entry: (row.wins_from_ratio, row.wins_up_to_ratio) for row in frame.itertuples()}
    assert ranges["d5b3 standard"] == (0.0, pytest.approx(0.25))
    assert ranges["chain 3"] == pytest.approx((0.25, 0.625))
    assert ranges["one_token"] == (pytest.approx(0.625), math.inf)
    assert all(math.isnan(ranges[name][0]) for name in ("fastest", "generate"))


def test_the_table_says_how_near_the_fastest_came(tmp_path: Path) -> None:
    def said(temperature: float, entries: Any) -> str:
        cell = save(race(tmp_path, temperature=temperature), rows(entries))
        return report.markdown(made(tmp_path, cell).tables[0])

    text = said(1.0, ENTRIES)
    near = "tree=fastest is 3 positions, 0.80 [0.67, 1.00] of the fastest entry"
    assert f"{near} (chain 3, the same configuration)" in text
    for part in ("one token at a time", "transformers, generate", "4 [4, 4]", "0.000 to 0.250", "speed.png"):
        assert part in text, part
    single = ENTRIES | {"fastest": ENTRIES["one_token"], "chain 3": ENTRIES["d5b3 standard"]}
    assert "At T=0.6 tree=fastest is no speculation" in said(0.6, single)
    assert "of the fastest entry (chain 3)" in said(0.3, ENTRIES | {"fastest": ENTRIES["d5b3 standard"]})


def test_a_cell_that_is_not_done_has_a_row_that_says_so(tmp_path: Path) -> None:
    cells = [save(race(tmp_path), rows()), save(race(tmp_path, temperature=0.6), None, "failed", "no memory")]
    artefact = made(tmp_path, *cells)
    text = report.markdown(artefact.tables[0])
    assert text.count("failed: no memory") == 1 and "1 of 2 cells" in text
    empty = made(tmp_path, race(tmp_path, temperature=0.2))
    assert "missing" in report.markdown(empty.tables[0]) and goal(empty.tables[0].frame) == ()


def test_predictions_are_compared_with_what_was_measured(tmp_path: Path) -> None:
    """The chain: expected 2 / 0.2 = 10 tokens a second; measured 18 / 1.6, 8 steps of 200 ms."""
    cell = expecting(tmp_path, save(race(tmp_path), rows()))
    artefact = made(tmp_path, cell)
    frame = artefact.tables[1].frame
    chain = frame[frame.entry == "chain 3"].set_index("quantity")
    assert chain.expected.to_dict() == {"decoded_per_s": 10.0, "step_ms": 200.0, "accepted_length": 2.0}
    assert chain.measured.to_list() == pytest.approx([18 / 1.6, 200, 2.25])
    assert chain.expected_over_measured["decoded_per_s"] == pytest.approx(16 / 18)
    assert set(frame.entry) == {"one_token", "chain 3", "fastest"}
    [said] = predicted.summary(frame)
    assert (
        "tokens/s: 0 of 3 within 10%" in said and "tokens a step: 1 of 3 within 10%, at most 11% off" in said
    )
    assert said in artefact.tables[0].notes


def test_without_a_file_nothing_was_expected(tmp_path: Path) -> None:
    artefact = made(tmp_path, save(race(tmp_path), rows()))
    assert artefact.tables[1].frame.empty and predicted.summary(artefact.tables[1].frame) == ()
    path = tmp_path / "none.json"
    path.write_text('{"about": {}}')
    with pytest.raises(InvalidInput, match="does not say what was expected"):
        predicted.read(path)


def test_the_figure_has_a_line_for_every_kind(tmp_path: Path) -> None:
    cells = [save(race(tmp_path, temperature=temperature), rows()) for temperature in (1.0, 0.6)]
    frame = made(tmp_path, *cells).tables[0].frame
    drawn = figure.draw(frame)
    assert len(drawn.axes) == 2 and "T = 1" in drawn.axes[0].get_title()
    names = drawn.axes[0].get_legend_handles_labels()[1]
    assert {"chain", "tree=fastest", "one token at a time", "d5b3, standard"} <= set(names)
    assert figure.draw(pd.DataFrame(frame[:0])).axes  # nothing measured yet
