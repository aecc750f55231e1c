"""The table that a run ends with, its CSV, and what tables say of times that do not compare."""

import json

import numpy as np
import pandas as pd

from analysis import frontier, sweep, sweep_figure, table1
from analysis.load import ROOT, find_sweep, read_plan
from analysis.metric_table import RUNS_DIFFER
from analysis.stats import FEW_PROMPTS, RUN_SPREAD
from analysis.table import write
from tests import toy_artefacts
from tests.toy_cells import (
    METHODS,
    PROVENANCE,
    make_audit,
    make_cell,
    planned,
    repeated,
    rows_of,
    save,
    save_methods,
    shown,
    write_plan,
)


def saved(results, method, faster=1.0, **changed):
    """A finished cell of a method, its times divided by `faster`; nobody timed it in turn."""
    rows = [
        {key: value for key, value in row.items() if key != "timed_by"}
        | {"decode_s": row["decode_s"] / faster}
        for row in repeated(rows_of(METHODS[method]))
    ]
    return save(make_cell(results, method, **changed), rows)


def table_of(results, cells, report=lambda _: ""):
    return sweep.table_of([planned(results, "table1", cells)], "own", report)


def test_a_run_ends_with_lengths_speeds_gains_verdicts_and_states(tmp_path):
    cells = [
        *save_methods(tmp_path),
        save(make_cell(tmp_path, "naive"), None, "failed", "out of memory"),
    ]
    made = table_of(tmp_path, [*cells, make_audit(cells[2], 600, 0.2)])
    printed = shown(made)
    assert list(printed)[1:] == [
        *("Accepted length", "Tokens/s", "Gain", "Speedup vs autoregressive", "Audit", "State")
    ]
    speedup = "3.56"
    assert printed.iloc[2].tolist()[1:] == [
        "2.67",
        "21.3",
        "1.44",
        speedup,
        "biased",
        "done",
    ]
    assert printed.iloc[3].tolist()[1:] == ["–", "–", "–", "–", "–", "failed: out of memory"]
    assert list(made.notes) == [sweep.OF_GAINS, FEW_PROMPTS]
    text = sweep.written(made, tmp_path / "sweeps")
    assert text.endswith(f"wrote {tmp_path}/sweeps/own.csv: every cell with every number\n")
    assert pd.read_csv(tmp_path / "sweeps" / "own.csv").status.tolist() == ["done"] * 3 + ["failed"]


def test_known_bias_is_marked_and_rows_without_an_audit_say_so(tmp_path):
    """In a run's table, its CSV, and an artefact's table; the audit's own finding comes first."""
    sentence = "ResiSpec is biased"
    origin = PROVENANCE | {"shown_bias": sentence}
    cells = save_methods(tmp_path)
    biased = save(cells[2], rows_of(METHODS["resispec"]), provenance=origin)
    made = table_of(tmp_path, cells)
    assert shown(made)["Audit"].tolist() == ["–", "not audited", "biased (enumerated)"]
    assert list(made.notes) == [sweep.OF_GAINS, FEW_PROMPTS, sentence]
    assert made.frame.shown_bias.dropna().tolist() == [sentence]
    [artefact] = table1.make(planned(tmp_path, "table1", cells)).tables
    assert "biased (enumerated)" in shown(artefact).to_string()

    for shift, verdict in ((0.0, "biased (enumerated)"), (0.2, "biased")):
        audit = make_audit(biased, 600, shift)
        assert shown(table_of(tmp_path, [*cells, audit]))["Audit"].tolist()[2] == verdict


def test_known_bias_is_marked_where_an_audit_alone_is_asked_for(tmp_path):
    """Also in the frontier's note of longer audits."""
    audit = make_audit(save(make_cell(tmp_path, "resispec"), rows_of(METHODS["resispec"])), 600, 0)
    rows = [json.loads(line) for line in (audit.folder / "rows.jsonl").read_text().splitlines()]
    save(audit, rows, provenance=PROVENANCE | {"shown_bias": "ResiSpec is biased"})
    assert shown(table_of(tmp_path, [audit]))["Audit"].tolist() == ["biased (enumerated)"]
    write_plan(tmp_path, "frontier", [audit], part="long")
    plan = read_plan("frontier", "embedded", tmp_path)
    [note] = [note for note in frontier.make(plan).tables[0].notes if "Longer audits" in str(note)]
    assert ": biased (enumerated)" in note


def test_cells_of_several_tasks_are_told_apart_by_their_task(tmp_path):
    """A ceiling has the labels of the cell whose tree it bounds."""
    decoded = save(make_cell(tmp_path, "standard"), rows_of(METHODS["standard"]))
    bound = toy_artefacts.bound_cell(tmp_path, "d5b3", 0.0, "standard")
    entries = [
        {"cell_id": cell.cell_id, "labels": cell.labels, "task": task, "of": f"frontier/{part}"}
        for cell, task, part in ((decoded, "Decode", "d5b3"), (bound, "Bound", "bound"))
    ]
    for order in (entries, entries[::-1]):
        write_plan(tmp_path, "sweep", [], part="mine", cells=order)
        made = sweep.table_of([find_sweep("mine", "embedded", tmp_path)], "mine")
        found = shown(made).set_index("Task")["Accepted length"].to_dict()
        assert found == {"Decode": "1.86", "Bound": "–"}


def test_cells_that_are_told_apart_by_their_part_have_a_baseline_of_another_part(tmp_path):
    """Two audits of a cell, of which one has more prompts, as in the frontier."""
    plain, standard = (
        save(make_cell(tmp_path, method), repeated(rows_of(METHODS[method])))
        for method in ("autoregressive", "standard")
    )
    other = save(make_cell(tmp_path, "standard", seed=7), rows_of(METHODS["standard"]))
    audit = make_audit(standard, 600, 0)
    longer = make_audit(other, 600, 0).labelled(**audit.labels)
    del longer.labels["seed"]
    entries = [
        {"cell_id": cell.cell_id, "labels": cell.labels, "task": "Decode", "of": f"frontier/{part}"}
        for part, cells in {"plain": [plain], "d5b3": [standard, audit], "long": [longer]}.items()
        for cell in cells
    ]
    write_plan(tmp_path, "sweep", [], part="mine", cells=entries)
    made = sweep.table_of([find_sweep("mine", "embedded", tmp_path)], "mine")
    assert shown(made)["Speedup vs autoregressive"].str[:4].tolist() == ["–", "1.44", "–"]
    # of other prompts, or of longer texts, there is no baseline: rows were paired without a word
    rows = repeated(rows_of(METHODS["autoregressive"]))
    for count, config in ((6, {}), (8, {"sampling": {"max_new_tokens": 9}})):
        save(plain, rows[:count], config=config)
        made = sweep.table_of([find_sweep("mine", "embedded", tmp_path)], "mine")
        assert "1.44" not in shown(made).to_string()


def test_other_tasks_report_in_their_own_words_and_long_tables_are_cut(tmp_path):
    cells = [make_cell(tmp_path, "standard", seed=seed) for seed in range(sweep.MOST_ROWS + 4)]
    race = {"decode_s": [0.1, 0.2], "num_emitted": [4, 4], "num_steps": [2, 4]}
    save(cells[0], [{"prompt_index": 0, "prompt_id": "p0", "seed": 0} | race])
    made = table_of(tmp_path, cells, {cells[0].cell_id: "speedup 2.0"}.get)
    assert shown(made)["Reported"].tolist()[:2] == ["speedup 2.0", "–"]
    text = sweep.written(made, tmp_path / "sweeps")
    assert text.count("missing") == sweep.MOST_ROWS - 1 and "and 4 more in the CSV" in text
    assert len(pd.read_csv(tmp_path / "sweeps" / "own.csv")) == sweep.MOST_ROWS + 4


def test_cells_with_and_without_a_filter_are_told_apart(tmp_path):
    """Also where only cells with a filter name it, which then do not compare with the others."""
    plain = save_methods(tmp_path)
    label = {"sampling.top_p": 0.9}
    filtered = [saved(tmp_path, method, **label) for method in METHODS]
    made = table_of(tmp_path, [*plain, *filtered])
    assert shown(made)["top-p"].tolist() == ["1.0"] * len(plain) + ["0.9"] * len(filtered)
    assert "top-p" not in made.caption
    sweep.written(made, tmp_path / "sweeps")
    table = pd.read_csv(tmp_path / "sweeps" / "own.csv")
    assert table["sampling.top_p"].tolist() == [1.0] * len(plain) + [0.9] * len(filtered)
    assert "top-p: 0.9" in table_of(tmp_path, filtered).caption


def test_times_that_do_not_compare_are_marked_and_noted(tmp_path):
    """In the table of a run and in an artefact's, which measured cells one by one."""
    cells = [saved(tmp_path, method) for method in METHODS]
    made = table_of(tmp_path, cells)
    column = "Speedup vs autoregressive"
    assert shown(made)[column].tolist()[1:] == ["1.44 [0.89, 2.50] *", "3.56 [2.21, 6.07] *"]
    assert list(made.notes) == [f"\\* {RUNS_DIFFER}", sweep.OF_GAINS]
    both = "speedup speedup_vs_autoregressive"
    assert made.frame.across_runs.tolist() == ["", "speedup_vs_autoregressive", both]
    artefact = table1.make(planned(tmp_path, "table1", cells)).tables[0]
    assert RUNS_DIFFER in list(artefact.notes)

    slower = saved(tmp_path, "autoregressive", 0.4, temperature=0.6)
    artefact = table1.make(planned(tmp_path, "table1", [*cells, slower])).tables[0]
    for table in (table_of(tmp_path, [*cells, slower]), artefact):
        [note] = [note for note in table.notes if "do the same work" in note]
        assert "tokens/s lie between 2 and 6, " in note


def test_only_the_ratio_that_was_not_timed_in_turn_is_marked(tmp_path):
    """Defect: a speedup timed in turn had the mark of the row's other one."""
    cells = [saved(tmp_path, "standard")]
    for method in ("autoregressive", "resispec"):
        rows = [row | {"timed_by": "one"} for row in repeated(rows_of(METHODS[method]))]
        cells.append(save(make_cell(tmp_path, method), rows))
    made = table_of(tmp_path, cells)
    marked = [" *" in text for text in shown(made)["Speedup vs autoregressive"]]
    assert marked == [False, True, False]
    column = [one.key for one in made.columns].index("speedup_vs_autoregressive")
    assert made.rows[1][column].value == made.frame.speedup_vs_autoregressive[1]  # it sorts by that
    assert made.frame.across_runs.tolist()[2] == "speedup"


def test_times_of_two_devices_are_not_compared(tmp_path):
    """Not in the table of a run, its CSV or an artefact's table; their tokens are compared."""
    cells = [saved(tmp_path, method) for method in ("autoregressive", "standard")]
    fast = make_cell(tmp_path, "resispec")
    other = PROVENANCE | {"device": "fast GPU"}
    cells.append(save(fast, repeated(rows_of(METHODS["resispec"])), provenance=other))
    [artefact] = table1.make(planned(tmp_path, "table1", cells)).tables
    for made in (table_of(tmp_path, cells), artefact):
        [note] = [note for note in made.notes if "times do not compare" in str(note)]
        assert "measured on test CPU, fast GPU" in note
        assert shown(made)["Gain"].str[:4].tolist()[-1] == "1.44"
        speedups = shown(made)["Speedup vs autoregressive"].str[:4].tolist()
        assert speedups == ["–", "1.44", "–"]


def test_the_spread_of_runs_is_that_of_the_study():
    rates = pd.read_csv(ROOT / "docs" / "studies" / "run_spread.csv").groupby("source").tokens_per_s
    spreads = rates.agg(lambda own: np.log(own).std(ddof=1))
    assert round(spreads.max(), 2) == RUN_SPREAD


def test_a_sweeps_figure_has_a_bar_for_each_cell_that_decoded(tmp_path, monkeypatch):
    """Named by what tells them apart; those of biased rules say so. A CSV gives the same figure."""
    cells = [*save_methods(tmp_path), make_cell(tmp_path, "naive")]
    made = table_of(tmp_path, [*cells, make_audit(cells[2], 600, 0.2)])
    path, _ = write(made, tmp_path, ["csv"])
    for frame in (made.frame, pd.read_csv(path)):
        [axes] = sweep_figure.draw(frame).axes
        names = [text.get_text() for text in axes.get_yticklabels()]
        assert names == [
            "Autoregressive",
            "SpecInfer (standard)",
            "SpecInfer + ResiSpec",
        ]
        texts = [text.get_text() for text in axes.texts]
        assert texts == ["1.00", "1.86", "2.67, biased"]
        assert [bool(bar.get_hatch()) for bar in axes.patches] == [False, False, True]
    both = pd.concat([made.frame.assign(task=task) for task in ("Decode", "Text")])
    [axes] = sweep_figure.draw(both).axes
    assert len({text.get_text() for text in axes.get_yticklabels()}) == 6
    # defect: rules of two files of one name had one name
    files = {name: f"custom(name={name}/rule.py:Mine)" for name in ("standard", "resispec")}
    [axes] = sweep_figure.draw(made.frame.replace({"verifier": files})).axes
    assert len({text.get_text() for text in axes.get_yticklabels()}) == 3
    assert sweep_figure.draw(made.frame[3:]) is None  # nothing decoded
    monkeypatch.setattr(sweep_figure, "MOST_BARS", 2)
    assert "the first 2 of 3 cells" in sweep_figure.draw(made.frame).get_suptitle()
