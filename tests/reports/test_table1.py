"""From raw cells to Table 1: metrics, gaps and the printed form, on cells worked out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from toy_cells import METHODS, STANDARD, ToyCell, make_audit, make_cell, planned, rows_of, save, write_plan

from analysis import audits, metrics, report, script, table1
from analysis.decoded import measure
from analysis.load import load
from analysis.metrics import METRICS, Metric
from analysis.report import Table

QUANTITIES = len(METRICS) + len(audits.QUANTITIES)


@pytest.fixture
def cells(tmp_path: Path) -> list[ToyCell]:
    """One data set that is complete; another whose three cells were run, failed and never run."""
    complete = [save(make_cell(tmp_path, method), rows_of(measured)) for method, measured in METHODS.items()]
    other = [make_cell(tmp_path, method, "embedded_reference") for method in METHODS]
    save(other[0], rows_of(METHODS["autoregressive"]))
    save(other[1], None, "failed", "out of memory:\n 1_000 | 2 GB & more")
    return [*complete, *other]


def frame_of(cells: list[ToyCell]) -> pd.DataFrame:
    return measure(load(planned(cells[0].results, "table1", cells), metrics.fields()))


def table_of(cells: list[ToyCell]) -> Table:
    return table1.make(planned(cells[0].results, "table1", cells)).tables[0]


def value(frame: pd.DataFrame, cell_id: str, quantity: str) -> float:
    return frame[(frame.cell_id == cell_id) & (frame.quantity == quantity)].value.item()


def test_quantities_are_those_worked_out_by_hand(cells: list[ToyCell]) -> None:
    frame = frame_of(cells)
    autoregressive, standard, resispec = (cell.cell_id for cell in cells[:3])
    expected = {
        (autoregressive, "accepted_length"): 1.0,
        (autoregressive, "tokens_per_s"): 6.0,
        (standard, "accepted_length"): 13 / 7,
        (standard, "tokens_per_s"): 13 / 1.5,
        (standard, "speedup_vs_autoregressive"): 13 / 1.5 / 6,
        (resispec, "accepted_length"): 16 / 6,
        (resispec, "tokens_per_s"): 16 / 0.75,
        (resispec, "accepted_length_gain"): (16 / 6) / (13 / 7),
        (resispec, "speedup"): (16 / 0.75) / (13 / 1.5),
        (resispec, "speedup_vs_autoregressive"): 16 / 0.75 / 6,
    }
    for (cell_id, quantity), number in expected.items():
        assert value(frame, cell_id, quantity) == pytest.approx(number, rel=1e-12), (cell_id, quantity)
    for cell_id in (autoregressive, standard):  # a baseline is not compared with itself
        assert np.isnan(value(frame, cell_id, "speedup"))
        assert np.isnan(value(frame, cell_id, "accepted_length_gain"))
    assert len(frame) == len(cells) * QUANTITIES
    measured = frame[frame.value.notna() & ~frame.quantity.isin(audits.QUANTITIES)]
    assert ((measured.lower <= measured.value) & (measured.value <= measured.upper)).all()


def test_table1_prints_every_cell(cells: list[ToyCell], tmp_path: Path) -> None:
    table = table_of(cells)
    shown = table.shown
    assert len(shown) == len(cells)
    assert list(shown.columns) == [
        *("Data set", "Method", "Accepted length", "(paper)", "Tokens/s", "(paper)"),
        *("Gain", "(paper)", "Speedup", "(paper)", "Speedup vs autoregressive"),
    ]
    assert shown["Method"].tolist() == ["Autoregressive", "SpecInfer (standard)", "SpecInfer + ResiSpec"] * 2
    assert shown["Data set"].tolist() == ["Python reference"] * 3 + ["Python code"] * 3
    # A quarter of the resamples draws one prompt twice, so bounds are the prompts' own ratios: 5/3 and 8/4
    # tokens a step, 8/1.0 and 5/0.5 tokens a second, (8/1.0)/(8/1.0) and (5/0.5)/(4/1.0) times faster.
    standard = ["1.86 [1.67, 2.00]", "2.51–2.64", "8.7 [8.0, 10.0]", "56.76–61.02", "–", "–", "–", "–"]
    assert shown.iloc[4].tolist()[2:] == [*standard, "1.44 [1.00, 2.50]"]
    assert shown.iloc[5].tolist()[2:] == [
        *("2.67 [2.50, 3.00]", "4.67–4.69", "21.3 [20.0, 24.0]", "96.06–96.90"),
        *("1.44 [1.25, 1.80]", "1.77–1.86", "2.46 [2.40, 2.50]", "1.59–1.69", "3.56 [2.50, 6.00]"),
    ]
    assert shown.iloc[1, 2] == "failed: out of memory: 1_000 | 2 GB & more" and shown.iloc[2, 2] == "missing"
    assert shown.iloc[1, 4] == "–" and shown.iloc[2, 3] == "4.67–4.69"

    paths = report.write(table, tmp_path / "out")
    assert [path.name for path in paths] == ["table1.csv", "table1.md", "table1.tex"]
    csv = pd.read_csv(paths[0])
    assert len(csv) == len(cells) * QUANTITIES
    assert value(csv, cells[2].cell_id, "accepted_length") == 16 / 6
    assert csv.status.value_counts().to_dict() == {
        "done": 4 * QUANTITIES,
        "failed": QUANTITIES,
        "missing": QUANTITIES,
    }


def test_markdown_and_latex_are_exact(cells: list[ToyCell]) -> None:
    table = table_of(cells)
    text = report.markdown(table)
    assert "Pair: embedded 2M + 80k, T: 1, Tree: d5b3." in text.splitlines()[0]
    gap = "failed: out of memory: 1_000 \\| 2 GB & more"
    padded = "1.86 [1.67, 2.00]".rjust(len(gap))
    assert f"| Python code      | SpecInfer (standard) | {padded} | 2.51–2.64 |   8.7 [8.0, 10.0] |" in text
    assert (
        f"| {gap} |" in text and len({len(line) for line in text.splitlines() if line.startswith("|")}) == 1
    )
    source = "Profile: embedded. Device: test CPU. Prompts per cell: 2. Commit: abc1234567 (changed)."
    assert f"{source} Made by: make reproduce-table1 PROFILE=embedded." in text
    assert "Incomplete: 2 of 6 cells" in text
    assert table1.BIASED in text and table1.OTHER_SETTING in text
    assert "Gain: accepted length over the baseline's." in text

    tex = report.latex(table)
    assert (
        r"Python reference & SpecInfer (standard) & failed: out of memory: 1\_000 | 2 GB \& more "
        "& 2.51--2.64 & -- & 56.76--61.02 & -- & -- & -- & -- & -- \\\\\n"
        "Python reference & SpecInfer + ResiSpec & missing & 4.67--4.69 & -- & 96.06--96.90 & -- "
        "& 1.77--1.86 & -- & 1.59--1.69 & -- \\\\\n"
        "\\addlinespace\n"
        "Python code & Autoregressive & 1.00 [1.00, 1.00] & -- & 6.0 [4.0, 8.0] & -- & -- "
        "& -- & -- & -- & -- \\\\\n"
    ) in tex
    assert r"\begin{tabular}{llrrrrrrrrr}" in tex and r"95 \% percentile" in tex and r"\bottomrule" in tex
    assert tex.count(r"\addlinespace") == 1 and tex.count(r" \\") == 1 + len(cells)


def test_the_paper_setting_is_matched_exactly(tmp_path: Path) -> None:
    setting = {"pair": "llama2_7b__jf68m", "dataset": "openwebtext"}
    warm, cold = (
        [make_cell(tmp_path, method, temperature=t, **setting) for method in METHODS] for t in (1.0, 0.6)
    )
    table = table_of([*cold, *warm])
    # high to low, as in the paper, whatever the sweep's order
    assert table.shown["T"].tolist() == ["1"] * 3 + ["0.6"] * 3
    assert table.shown["(paper)"].iloc[2].tolist() == ["4.69", "96.06", "1.86", "1.69"]
    assert table.shown["(paper)"].iloc[4].tolist() == ["2.49", "56.48", "–", "–"]
    assert table.shown["Accepted length"].tolist() == ["missing"] * 6
    assert table1.SAME_SETTING in table.notes and table1.OTHER_SETTING not in table.notes
    assert "Data set: OpenWebText" in table.caption
    assert "Prompts per cell: none" in report.markdown(table)


def test_one_prompt_has_no_interval(tmp_path: Path) -> None:
    cell = save(make_cell(tmp_path, "standard"), rows_of(STANDARD[:1]))
    assert table_of([cell]).shown.iloc[0, 1] == "1.67"


def test_a_long_reason_is_cut_for_people_only(tmp_path: Path) -> None:
    table = table_of([save(make_cell(tmp_path, "standard"), None, "failed", "x" * 200)])
    assert table.shown.iloc[0, 1] == "failed: " + "x" * 51 + "…"
    assert table.frame.reason.iloc[0] == "x" * 200


def test_a_metric_is_a_field_and_a_definition(cells: list[ToyCell], monkeypatch: pytest.MonkeyPatch) -> None:
    added = Metric(
        "returned", "Tokens a prompt token", "what was asked for", "num_returned", "num_prompt_tokens"
    )
    monkeypatch.setattr(metrics, "METRICS", (*METRICS, added))
    table = table_of(cells)
    assert table.shown["Tokens a prompt token"].tolist()[4] == "0.10 [0.08, 0.12]"  # 13 / 128
    assert value(table.frame, cells[1].cell_id, "returned") == 13 / 128
    assert any("Tokens a prompt token: what was asked for." in note for note in table.notes)


def test_the_script_shows_the_table_and_its_files(
    cells: list[ToyCell], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_plan(tmp_path, "table1", cells)
    assert table1.main(["--profile", "embedded", "--results", str(tmp_path)]) == 0
    written = (tmp_path / "embedded" / "table1.md").read_text(encoding="utf-8")
    captured = capsys.readouterr()
    assert captured.err == "" and captured.out.startswith(written) and captured.out.count("wrote ") == 3
    assert captured.out.splitlines()[-1].startswith("Compared with results/published/embedded/table1.csv: ")


def test_a_folder_that_cannot_be_written_is_one_line(
    cells: list[ToyCell], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> list[Path]:
        raise OSError(28, "No space left on device")

    write_plan(tmp_path, "table1", cells)
    monkeypatch.setattr(script, "_write", full)
    assert table1.main(["--results", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "table1: [Errno 28] No space left on device\n"


def test_audit_cells_become_a_verdict_on_the_row_that_they_audit(cells: list[ToyCell]) -> None:
    """z = shift * tokens / sqrt(tokens) over 2 x 600 tokens: 0.1 gives 3.5, 0.2 gives 6.9."""
    both = [*cells, make_audit(cells[1], 600, 0.1), make_audit(cells[2], 600, 0.2)]
    frame = frame_of(both)
    assert value(frame, cells[1].cell_id, "z_surprisal") == pytest.approx(0.1 * 1200**0.5)
    assert value(frame, cells[2].cell_id, "z_overdraft") == pytest.approx(0.2 * 1198**0.5)
    verdicts = frame.drop_duplicates("cell_id").set_index("cell_id").verdict
    assert verdicts[[cell.cell_id for cell in cells[:3]]].tolist() == ["", "exact", "biased"]
    assert table_of(both).shown["Audit"].tolist()[3:] == [
        "–",
        "exact (z 3.5, 3.5; 1,200 tokens)",
        "biased (z 6.9, 6.9; 1,200 tokens)",
    ]


def test_an_audit_of_few_tokens_is_undecided_and_one_that_failed_is_shown(cells: list[ToyCell]) -> None:
    lost = ToyCell(cells[2].results, "lost", cells[2].labels | {"audit": True})
    frame = frame_of([*cells, make_audit(cells[1], 300, 0.0), lost])
    verdicts = frame.drop_duplicates("cell_id").set_index("cell_id").verdict
    assert verdicts[cells[1].cell_id] == "undecided" and verdicts[cells[2].cell_id] == "audit missing"
