"""Metrics of cells and the tables of them, on cells worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from toy_cells import (
    AUTOREGRESSIVE,
    DATASETS,
    METHODS,
    STANDARD,
    ToyCell,
    make_audit,
    make_cell,
    planned,
    rows_of,
    save,
    save_methods,
    shown,
    write_plan,
)

from analysis import audits, metrics, table1, table2, table3, table6
from analysis.load import load
from analysis.metric_table import measure
from analysis.metrics import METRICS, Metric
from analysis.stats import RUN_SPREAD, Interval, across_runs
from analysis.table import Table
from resispec.errors import InvalidInput

EXACT = [(0.5, [1, 1, 1]), (1.0, [0, 0, 3])]  # 6 in 3 steps + 9 in 3: 15/6 = 2.5; in 1.5 s: 10


@pytest.fixture
def cells(tmp_path: Path) -> list[ToyCell]:
    """One data set that is complete; another whose three cells were run, failed and never run."""
    other = [make_cell(tmp_path, method, "embedded_reference") for method in METHODS]
    save(other[0], rows_of(METHODS["autoregressive"]))
    save(other[1], None, "failed", "out of memory:\n 1_000 | 2 GB & more")
    return [*save_methods(tmp_path), *other]


def frame_of(cells: list[ToyCell]) -> pd.DataFrame:
    return measure(load(planned(cells[0].results, "table1", cells), metrics.fields()))


def table_of(module, cells: list[ToyCell], place: int = 0) -> Table:
    name = module.__name__.rpartition(".")[2]
    return module.make(planned(cells[0].results, name, cells)).tables[place]


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
        (resispec, "accepted_length_gain"): (16 / 6) / (13 / 7),
        (resispec, "speedup"): (16 / 0.75) / (13 / 1.5),
        (resispec, "speedup_vs_autoregressive"): 16 / 0.75 / 6,
    }
    for (cell_id, quantity), number in expected.items():
        assert value(frame, cell_id, quantity) == pytest.approx(number, rel=1e-12), (cell_id, quantity)
    for cell_id in (autoregressive, standard):  # a baseline is not compared with itself
        assert np.isnan(value(frame, cell_id, "speedup"))
    assert len(frame) == len(cells) * (len(METRICS) + len(audits.QUANTITIES))
    measured = frame[frame.value.notna() & ~frame.quantity.isin(audits.QUANTITIES)]
    assert ((measured.lower <= measured.value) & (measured.value <= measured.upper)).all()
    # A quarter of the resamples draws one prompt twice, so bounds are the prompts' own ratios.
    assert shown(table_of(table1, cells)).iloc[5].tolist()[2:] == [
        *("2.67 [2.50, 3.00]", "4.67–4.69", "21.3 [20.0, 24.0]", "96.06–96.90"),
        *("1.44 [1.25, 1.80]", "1.77–1.86", "2.46 [2.40, 2.50]", "1.59–1.69", "3.56 [2.50, 6.00]"),
    ]


def test_the_paper_setting_is_matched_exactly(tmp_path: Path) -> None:
    setting = {"pair": "llama2_7b__jf68m", "dataset": "openwebtext"}
    cells = [make_cell(tmp_path, method, temperature=t, **setting) for t in (0.6, 1.0) for method in METHODS]
    table = table_of(table1, cells)
    rows = shown(table)
    # high to low, as in the paper, whatever the sweep's order
    assert rows["T"].tolist() == ["1"] * 3 + ["0.6"] * 3
    assert rows["(paper)"].iloc[2].tolist() == ["4.69", "96.06", "1.86", "1.69"]
    assert rows["(paper)"].iloc[4].tolist() == ["2.49", "56.48", "–", "–"]
    assert table1.TEXTS["same_setting"] in table.notes and "Data set: OpenWebText" in table.caption
    own = {"pair": "sheared_2.7b__tinyllama_1.1b", "temperature": 0.6, "tree": "d4b4"}
    found = shown(table_of(table6, [make_cell(tmp_path, "standard", "c4", **own)]))
    assert found[["Target", "Draft"]].values.tolist() == [["Sheared-2.7B", "TinyLlama-1.1B"]]
    assert found["SpecInfer accepted length (paper)"].tolist() == ["3.32"]


def test_a_metric_is_a_field_and_a_definition(cells: list[ToyCell], monkeypatch: pytest.MonkeyPatch) -> None:
    added = Metric("returned", "Tokens a prompt token", "as asked for", "num_returned", "num_prompt_tokens")
    monkeypatch.setattr(metrics, "METRICS", (*METRICS, added))
    table = table_of(table1, cells)
    assert shown(table)["Tokens a prompt token"].tolist()[4] == "0.10 [0.08, 0.12]"  # 13 / 128
    assert any("Tokens a prompt token: as asked for." in note for note in table.notes)


def test_one_cell_asked_for_under_two_names_and_seeds_have_rows_of_their_own(
    tmp_path: Path, cells: list[ToyCell]
) -> None:
    """tree=d5b3 and tree=complete tree.depth=5 tree.branching=3 are one cell (defect B)."""
    twins = [cell.labelled(tree={"option": "complete", "parameters": {"depth": 5}}) for cell in cells[1:3]]
    results = load(planned(tmp_path, "table1", [*cells[:3], *twins, twins[0]]))
    assert len(results.cells) == 5 and len(results.rows) == 3
    frame = measure(results)
    gains = frame[(frame.quantity == "accepted_length_gain") & frame.value.notna()]
    assert gains.tree.tolist() == ["d5b3", "complete(depth=5)"]
    assert gains.value.tolist() == [pytest.approx((16 / 6) / (13 / 7))] * 2
    seeds = []
    for seed in (0, 100):
        for method, measured in METHODS.items():
            rows = [row | {"seed": row["seed"] + seed} for row in rows_of(measured)]
            seeds.append(save(make_cell(tmp_path, method, seed=seed), rows))
    table = table_of(table1, seeds)
    assert shown(table).columns[:2].tolist() == ["seed", "Method"] and table.num_keys == 2
    assert shown(table)["seed"].tolist() == ["0"] * 3 + ["100"] * 3


def test_an_ambiguous_baseline_is_refused(tmp_path: Path) -> None:
    one = save(make_cell(tmp_path, "autoregressive"), rows_of(AUTOREGRESSIVE))
    twin = save(ToyCell(tmp_path, "twin", one.labels), rows_of(AUTOREGRESSIVE))
    with pytest.raises(InvalidInput, match="^cell twin: has the labels of"):
        frame_of([one, twin, save(make_cell(tmp_path, "standard"), rows_of(STANDARD))])


def test_audit_cells_become_a_verdict_on_the_row_that_they_audit(cells: list[ToyCell]) -> None:
    """z = shift * tokens / sqrt(tokens) over 2 x 600 tokens: 0.1 gives 3.5, 0.2 gives 6.9."""
    both = [*cells, make_audit(cells[1], 600, 0.1), make_audit(cells[2], 600, 0.2)]
    frame = frame_of(both)
    assert value(frame, cells[1].cell_id, "z_surprisal") == pytest.approx(0.1 * 1200**0.5)
    assert value(frame, cells[2].cell_id, "z_overdraft") == pytest.approx(0.2 * 1198**0.5)
    verdicts = ["–", "no bias seen (z 3.5, 3.5; 1,200 tokens)", "biased (z 6.9, 6.9; 1,200 tokens)"]
    assert shown(table_of(table1, both))["Audit"].tolist()[3:] == verdicts
    # six statistics, of which three are out at 6.9: a share of .01 / 3 is left for those at 3.5
    assert audits.of_many(load(planned(cells[0].results, "table1", both), metrics.fields())) == [
        "2 audits have 6 statistics; 0.0004 of them are expected beyond 4 where all verifiers are exact. By "
        "Holm's rule, with a false alarm in 1% of such tables, also embedded 2M + 80k, Python code, 1, "
        "SpecInfer, d5b3, standard are biased."
    ]
    lost = ToyCell(cells[2].results, "lost", cells[2].labels | {"audit": True})
    verdict = frame_of([*cells, make_audit(cells[1], 300, 0.0), lost]).groupby("cell_id").verdict.first()
    assert verdict[cells[1].cell_id] == "undecided" and verdict[cells[2].cell_id] == "audit missing"


def test_audits_of_other_tokens_or_without_a_statistic_are_refused(cells: list[ToyCell]) -> None:
    with pytest.raises(InvalidInput, match="decoded other tokens of prompt 0 than the timed cell"):
        frame_of([*cells, make_audit(cells[1], 600, 0.0, sha="other")])
    audit = make_audit(cells[1], 600, 0.0)
    rows = [json.loads(line) for line in (audit.folder / "rows.jsonl").read_text().splitlines()]
    save(audit, [{name: value for name, value in row.items() if name != "rank_variance"} for row in rows])
    with pytest.raises(InvalidInput, match=f"{audit.cell_id}: its rows lack the statistics rank_variance"):
        frame_of([*cells, audit])


def test_the_softmax_reading_of_eagle_is_compared_with_eagles_own_and_takes_the_papers_row(
    tmp_path: Path,
) -> None:
    cells = [
        save(make_cell(tmp_path, rule, decoder=decoder, tree="eagle2"), rows_of(METHODS[rule]))
        for decoder, rule in (
            ("eagle", "standard"),
            ("eagle_softmax", "standard"),
            ("eagle_softmax", "resispec"),
        )
    ]
    rows = {row[0]: row[1:] for row in shown(table_of(table2, cells)).to_numpy().tolist()}
    assert [rows["EAGLE, softmax as q + ResiSpec"][place] for place in (1, 3, 5, 7)] == [
        *("3.85", "71.17", "1.23", "1.15")
    ]
    assert rows["EAGLE, softmax as q (standard)"][4].startswith("1.00 [")


@pytest.mark.parametrize("module", [table3, table6])
def test_decoders_are_told_apart_and_what_has_no_column_is_named(tmp_path: Path, module) -> None:
    cells = [save(make_cell(tmp_path, "standard"), rows_of(STANDARD))]
    cells += [
        save(make_cell(tmp_path, rule, decoder="greedy"), rows_of(EXACT)) for rule in ("standard", "kseq")
    ]
    cells.append(save(make_cell(tmp_path, "autoregressive"), rows_of(AUTOREGRESSIVE)))
    table = table_of(module, cells)
    lengths = shown(table).set_index("Decoder")["SpecInfer accepted length"].str.partition(" ")[0]
    assert lengths.to_dict() == {"SpecInfer": "1.86", "Greedy draws": "2.50"}
    left_out = "Not in this table: Autoregressive, Greedy draws + K-SEQ; the CSV has them."
    assert next(iter(table.notes)) == left_out and set(table.frame.verifier) == {"", "standard", "kseq"}
    assert len(table_of(module, cells[-1:]).rows) == 0


def test_table6_compares_drafts_on_the_same_data_sets_only(tmp_path: Path) -> None:
    """Of three drafts the middle one has two of two data sets, the weakest one of them, the best none."""
    cells = [
        make_cell(tmp_path, "standard", dataset, pair=f"embedded_800k__{size}")
        for size in ("80k", "180k", "420k")
        for dataset in DATASETS
    ]
    for cell in cells[1:4]:
        save(cell, rows_of(STANDARD))

    def lines() -> list[list[str]]:
        names = ["Draft", "Accepted length", "Over the weaker draft", "Data sets"]
        rows = shown(table_of(table6, cells, 1))[names].values.tolist()
        return [[text.partition(" [")[0] for text in row] for row in rows]

    weak, middle, best = lines()
    assert weak == ["80k", "1.86", "–", "1 of 2"] and middle == ["180k", "1.86", "–", "2 of 2"]
    assert best == ["420k", "missing", "–", "0 of 2"]
    save(cells[0], rows_of(EXACT))
    save(cells[1], rows_of(EXACT))
    assert lines()[1] == ["180k", "1.86", "0.743", "2 of 2"]  # 13/7 over 2.5


def test_a_table_that_cannot_be_written_is_one_line(
    cells: list[ToyCell], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    write_plan(tmp_path, "table1", cells)
    monkeypatch.setattr("analysis.table.write_atomically", full)
    assert table1.main(["--results", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "table1: [Errno 28] No space left on device\n"


def test_numbers_of_a_cell_are_those_worked_out_by_hand() -> None:
    """5 tokens in 3 steps of 4, 2 and 3 ms, and 4 in one of 8 ms; trees of 4 drafted tokens."""
    emitted, seconds = [[2, 2, 1], [4]], [[0.004, 0.002, 0.003], [0.008]]
    more = [
        {"num_drafted": 4 * len(sizes), "step_emitted": sizes, "step_s": times}
        for sizes, times in zip(emitted, seconds, strict=True)
    ]
    rows = rows_of([(0.009, [1, 2]), (0.008, [0, 0, 0, 1])])
    numbers = metrics.of_cell(pd.DataFrame([row | one for row, one in zip(rows, more, strict=True)]))
    expected = {"acceptance_rate": 5 / 16, "step_ms_p50": 3.5, "step_ms_p99": 7.88, "token_ms_p90": 2.2}
    expected |= {f"acceptance_histogram_{k}": count for k, count in enumerate([1, 2, 0, 1])}
    expected |= {
        f"acceptance_rate_per_position_{k}": share for k, share in ((1, 3 / 4), (2, 1 / 4), (3, 1 / 4))
    }
    assert {name: numbers[name] for name in expected} == pytest.approx(expected)
    of_earlier_versions = metrics.of_cell(pd.DataFrame(rows))
    assert {name.rpartition("_")[0] for name in of_earlier_versions} == {
        "acceptance_histogram",
        "acceptance_rate_per_position",
    }


def test_ratios_of_times_of_two_runs_carry_the_larger_interval() -> None:
    """Of cells that one process did not time in turn; accepted lengths have the same one."""
    spread = 1.96 * 2**0.5 * RUN_SPREAD
    wide = across_runs(Interval(2.0, 2 * np.exp(-0.1), 2 * np.exp(0.2)))
    assert np.log([wide.lower / 2, wide.upper / 2]) == pytest.approx(
        [-np.hypot(0.1, spread), np.hypot(0.2, spread)]
    )
    together, baseline = (pd.DataFrame(rows_of(METHODS[name])) for name in ("resispec", "standard"))
    narrow = metrics.SPEEDUP.of(together, baseline)
    for other in (
        ["toy", "other"],
        ["toy", None],
        None,
    ):  # a process that took over, one alone, an earlier version
        apart = baseline.drop(columns="timed_by") if other is None else baseline.assign(timed_by=other)
        assert metrics.SPEEDUP.of(together, apart) == across_runs(narrow) != narrow
        assert metrics.GAIN.of(together, apart) == metrics.GAIN.of(together, baseline)
    assert (
        metrics.SPEEDUP.of(together.assign(timed_by=["a", "b"]), baseline.assign(timed_by=["a", "b"]))
        == narrow
    )
