"""Figure 3 from rows of profiled prompts, on cells worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from matplotlib.figure import Figure
from toy_cells import RESISPEC, ToyCell, make_cell, planned, rows_of, save, write_plan

from analysis.figure3 import figure, table
from resispec.errors import InvalidInput

# Seconds of two prompts of 2 and 3 steps. By hand: 5 steps in 0.100 s, 20 ms each.
STANDARD = [
    {"steps": 2, "profiled": 0.040, "draft": 0.012, "target": 0.020, "verify": 0.006, "shaping": 0.002},
    {"steps": 3, "profiled": 0.060, "draft": 0.018, "target": 0.030, "verify": 0.009, "shaping": 0.003},
]
# 4 steps in 0.100 s, 25 ms each, of which 5 ms shape: 1, 2.5 and 1 of them by part
RESISPEC_SPLIT = [
    {"steps": 2, "profiled": 0.050, "draft": 0.012, "target": 0.020, "verify": 0.016, "shaping": 0.010}
    | {"budget": 0.002, "redistribution": 0.005, "proxy": 0.002},
    {"steps": 2, "profiled": 0.050, "draft": 0.012, "target": 0.020, "verify": 0.016, "shaping": 0.010}
    | {"budget": 0.002, "redistribution": 0.005, "proxy": 0.002},
]
PARTS = ("profiled", "draft", "target", "verify", "shaping", "budget", "redistribution", "proxy")


def profile_rows(measured: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"prompt_index": index, "prompt_id": f"p{index}", "seed": index, "num_prompt_tokens": 64}
        | {"num_emitted": 2 * found["steps"], "num_steps": found["steps"], "tokens_sha256": "0" * 16}
        | {f"{part}_s": found.get(part, 0.0) for part in PARTS}
        | {"commit_s": 0.001, "num_timed": 10 * found["steps"], "clock_s": 0.02 * found["profiled"]}
        for index, found in enumerate(measured)
    ]


@pytest.fixture
def cells(tmp_path: Path) -> list[ToyCell]:
    """Two decoders; of the second one a rule has failed and the other one was never run."""
    return [
        save(make_cell(tmp_path, "standard"), profile_rows(STANDARD)),
        save(make_cell(tmp_path, "resispec"), profile_rows(RESISPEC_SPLIT)),
        save(make_cell(tmp_path, "resispec", decoder="sequoia"), None, "failed", "no memory"),
        make_cell(tmp_path, "standard", decoder="sequoia"),
    ]


@pytest.fixture
def frame(cells: list[ToyCell]) -> pd.DataFrame:
    [made] = table.make(planned(cells[0].results, "figure3", cells)).tables
    return made.frame


def values(frame: pd.DataFrame, verifier: str, quantity: str) -> dict[str, float]:
    rows = frame[(frame.verifier == verifier) & (frame.quantity == quantity)]
    return dict(zip(rows.part, rows.value, strict=True))


def test_every_split_is_that_of_the_rows_and_sums_to_its_whole(frame: pd.DataFrame) -> None:
    spent = values(frame, "resispec", "ms_per_step")
    by_hand = {"step": 25, "draft": 6, "target": 10, "verification": 3, "shaping": 5, "other": 1}
    by_hand |= {"budget": 1, "redistribution": 2.5, "proxy": 1, "between": 0.5, "clock": 0.5}
    assert spent == pytest.approx(by_hand)
    by_hand = {"step": 20, "draft": 6, "target": 10, "verification": 2, "shaping": 1, "other": 1}
    spent = values(frame, "standard", "ms_per_step")
    assert {part: spent[part] for part in by_hand} == pytest.approx(by_hand)
    assert values(frame, "standard", "percent_of_shaping") == {}
    split = values(frame, "resispec", "percent_of_shaping")
    assert split == pytest.approx({"budget": 20, "redistribution": 50, "proxy": 20, "between": 10})
    for verifier in ("standard", "resispec"):
        share, spent = (values(frame, verifier, name) for name in ("percent_of_step", "ms_per_step"))
        assert sum(share[part] for part in figure.STEP) == pytest.approx(100)
        assert sum(spent[part] for part in figure.STEP) == pytest.approx(spent["step"])
        assert sum(spent[part] for part in figure.SHAPING) == pytest.approx(spent["shaping"])
    over = frame[frame.quantity == "percent_over_standard"]
    assert over.verifier.tolist() == ["resispec"] and over.value.tolist() == pytest.approx([25])
    assert values(frame, "standard", "accepted_length") == {"step": 2.0}
    assert values(frame, "standard", "timed_parts") == {"step": 10.0}


def test_numbers_have_intervals_over_prompts(cells: list[ToyCell]) -> None:
    rows = profile_rows(STANDARD)
    rows[1]["profiled_s"] = 0.120  # 40 ms a step beside 20
    save(cells[0], rows)
    frame = table.make(planned(cells[0].results, "figure3", cells[:2])).tables[0].frame
    step = frame[(frame.part == "step") & (frame.quantity == "ms_per_step")].set_index("verifier")
    assert step.loc["standard", ["value", "lower", "upper"]].tolist() == pytest.approx([32, 20, 40])
    [over] = frame[frame.quantity == "percent_over_standard"].to_dict("records")
    assert (over["lower"], over["upper"]) == pytest.approx((100 * (25 / 40 - 1), 25))


def test_the_table_and_its_notes(cells: list[ToyCell], capsys: pytest.CaptureFixture[str]) -> None:
    results = cells[0].results
    write_plan(results, "figure3", cells)
    assert table.main(["--results", str(results)]) == 0
    paths = [results / "embedded" / f"figure3.{suffix}" for suffix in ("csv", "md", "png", "pdf")]
    text = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line[:1] == "|"]
    assert len(rows) == 2 + len(cells)
    shown = {row[0]: dict(zip(rows[0], row, strict=True)) for row in rows[2:]}
    own = shown["SpecInfer + ResiSpec"]
    assert own["Step, ms"] == "25.00 [25.00, 25.00]" and own["Drafting, ms"] == "6.00"
    assert own["Shaping, % of step"] == "20.0 [20.0, 20.0]"
    assert own["Step over standard's, %"] == "+25.0 [+25.0, +25.0]"
    assert own["Redistribution, % of shaping"] == "50" and own["Between them, % of shaping"] == "10"
    assert shown["SpecInfer (standard)"]["Budget, % of shaping"] == "–"
    assert shown["Sequoia + ResiSpec"]["Step, ms"] == "failed: no memory"
    assert shown["Sequoia (standard)"]["Step, ms"] == "missing"
    for said in (
        "implies 43.8 ms for SpecInfer and 48.5 ms for ResiSpec on CNN/DM at T = 1: +10.8 %",
        "Here: SpecInfer + ResiSpec +25.0 [+25.0, +25.0] %.",
        "It times 10 parts a step; as many empty ones take 2.0 % of the step",
        "no throughput is taken from them",
        "ResiSpec is the standard rule",
        "Incomplete: 2 of 4 cells",
    ):
        assert said in text, said
    first = [path.read_bytes() for path in paths]
    assert table.main(["--results", str(results)]) == 0
    assert [path.read_bytes() for path in paths] == first
    assert not (results / "embedded" / "figure3.tex").exists()


def test_the_note_names_the_setting_of_every_step_that_is_compared(cells: list[ToyCell]) -> None:
    flat = {"tree": "d3b11"}
    other = [
        save(make_cell(cells[0].results, "standard", **flat), profile_rows(STANDARD)),
        save(make_cell(cells[0].results, "resispec", **flat), profile_rows(RESISPEC_SPLIT)),
    ]
    [made] = table.make(planned(cells[0].results, "figure3", [*cells[:2], *other])).tables
    found = "+25.0 [+25.0, +25.0] %"
    said = f"Here: d5b3, SpecInfer + ResiSpec {found}; d3b11, SpecInfer + ResiSpec {found}."
    assert any(note.endswith(said) for note in made.notes)


def drawn(frame: pd.DataFrame) -> Figure:
    made = figure.draw(frame, ["tree"])
    made.draw_without_rendering()
    return made


def test_the_bars_are_as_long_as_the_numbers(frame: pd.DataFrame) -> None:
    left, right = drawn(frame).axes
    ends = [(bar.get_x(), bar.get_width()) for bar in left.patches]
    assert [width for _, width in ends] == pytest.approx([6, 10, 2, 1, 1, 6, 10, 3, 5, 1])
    assert [start for start, _ in ends] == pytest.approx([0, 6, 16, 18, 19, 0, 6, 16, 19, 24])
    assert [bar.get_width() for bar in right.patches] == pytest.approx([20, 50, 20, 10])
    said = [text.get_text().strip() for text in left.texts]
    assert "25.0 ms, shaping 20.0 %" in said and "20.0 ms, shaping 5.0 %" in said
    assert said.count("failed") == said.count("missing") == 1
    assert [text.get_text() for text in right.texts].count("not split") == 1
    assert [label.get_text() for label in left.get_yticklabels()] == ["standard", "ResiSpec"] * 2
    for axes, parts in ((left, figure.STEP), (right, figure.SHAPING)):
        named = [text.get_text() for text in axes.get_legend().get_texts()]
        assert named == [label for label, _ in parts.values()]
        assert len({colour for _, colour in parts.values()}) == len(parts)


def test_figures_of_few_cells_are_drawn(cells: list[ToyCell], frame: pd.DataFrame) -> None:
    for some in (frame[frame.status != "done"], frame[frame.verifier == "resispec"]):
        drawn(some)
    save(cells[0], profile_rows(STANDARD[:1]))  # one prompt has no interval
    drawn(table.make(planned(cells[0].results, "figure3", cells[:1])).tables[0].frame)


def test_cells_whose_throughput_was_measured_are_refused(tmp_path: Path) -> None:
    cell = save(make_cell(tmp_path, "resispec"), rows_of(RESISPEC))
    with pytest.raises(InvalidInput, match="its rows lack num_timed, profiled_s, draft_s"):
        table.make(planned(tmp_path, "figure3", [cell]))
