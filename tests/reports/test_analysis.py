"""From raw cells to Table 1: schema, intervals, gaps and the printed form, on cells worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from toy_cells import (
    AUTOREGRESSIVE,
    METHODS,
    RESISPEC,
    STANDARD,
    FakeCell,
    make_audit,
    make_cell,
    rows_of,
    save,
)

from analysis import labels, paper, report, script, table1
from analysis.bootstrap import ACCEPTED_LENGTH, TOKENS_PER_S, resample
from analysis.load import Results, load
from analysis.measure import AUDITED, QUANTITIES, measure
from resispec.errors import InvalidInput


@pytest.fixture
def cells(tmp_path: Path) -> list[FakeCell]:
    """One data set that is complete; another whose three cells were run, failed and never run."""
    complete = [save(make_cell(tmp_path, method), rows_of(measured)) for method, measured in METHODS.items()]
    baseline = save(make_cell(tmp_path, "autoregressive", "embedded_reference"), rows_of(AUTOREGRESSIVE))
    failed = make_cell(tmp_path, "standard", "embedded_reference")
    save(failed, None, "failed", "out of memory:\n 1_000 | 2 GB & more")
    return [*complete, baseline, failed, make_cell(tmp_path, "resispec", "embedded_reference")]


def value(frame: pd.DataFrame, cell_id: str, quantity: str) -> float:
    return frame[(frame.cell_id == cell_id) & (frame.quantity == quantity)].value.item()


def test_quantities_are_those_worked_out_by_hand(cells: list[FakeCell]) -> None:
    frame = measure(load(cells))
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
        assert np.isnan(value(frame, cell_id, "speedup")) and np.isnan(
            value(frame, cell_id, "accepted_length_gain")
        )
    assert len(frame) == len(cells) * (len(QUANTITIES) + len(AUDITED))
    measured = frame[frame.value.notna() & ~frame.quantity.isin(AUDITED)]
    assert ((measured.lower <= measured.value) & (measured.value <= measured.upper)).all()


def test_table1_prints_every_cell(cells: list[FakeCell], tmp_path: Path) -> None:
    table = table1.build(load(cells), "embedded", "python -m analysis.table1 --profile embedded")
    shown = report.display(table)
    assert len(shown) == len(cells)
    assert list(shown.columns) == [
        *("Data set", "Method", "Accepted length", "(paper)", "Tokens/s", "(paper)"),
        *("Gain", "(paper)", "Speedup", "(paper)", "Speedup vs autoregressive"),
    ]
    assert shown["Method"].tolist() == ["Autoregressive", "SpecInfer (standard)", "SpecInfer + ResiSpec"] * 2
    assert shown["Data set"].tolist() == ["Python reference"] * 3 + ["Python code"] * 3
    # A quarter of the resamples draws one of the two prompts twice, so the bounds are the two prompts' own ratios:
    # 5/3 and 8/4 tokens a step, 8/1.0 and 5/0.5 tokens a second, and (8/1.0)/(8/1.0) and (5/0.5)/(4/1.0) times faster.
    assert shown.iloc[4].tolist() == [
        *(
            "Python code",
            "SpecInfer (standard)",
            "1.86 [1.67, 2.00]",
            "2.51–2.64",
            "8.7 [8.0, 10.0]",
            "56.76–61.02",
        ),
        *("–", "–", "–", "–", "1.44 [1.00, 2.50]"),
    ]
    assert shown.iloc[5].tolist() == [
        *(
            "Python code",
            "SpecInfer + ResiSpec",
            "2.67 [2.50, 3.00]",
            "4.67–4.69",
            "21.3 [20.0, 24.0]",
            "96.06–96.90",
        ),
        *("1.44 [1.25, 1.80]", "1.77–1.86", "2.46 [2.40, 2.50]", "1.59–1.69", "3.56 [2.50, 6.00]"),
    ]
    assert shown.iloc[1, 2] == "failed: out of memory: 1_000 | 2 GB & more" and shown.iloc[2, 2] == "missing"
    assert shown.iloc[1, 4] == "–" and shown.iloc[2, 3] == "4.67–4.69"

    paths = report.write(table, tmp_path / "out")
    assert [path.name for path in paths] == ["table1.csv", "table1.md", "table1.tex"]
    csv = pd.read_csv(paths[0])
    assert len(csv) == len(cells) * (len(QUANTITIES) + len(AUDITED))
    assert value(csv, cells[2].cell_id, "accepted_length") == 16 / 6
    assert csv.status.value_counts().to_dict() == {"done": 32, "failed": 8, "missing": 8}


def test_markdown_and_latex_are_exact(cells: list[FakeCell]) -> None:
    command = "python -m analysis.table1 --profile embedded"
    table = table1.build(load(cells), "embedded", command)
    text = report.markdown(table)
    assert "Pair: embedded pair, T: 1, Tree: d5b3." in text.splitlines()[0]
    gap = " " * len("failed: out of memory: 1_000 \\| 2 GB & more")
    padded = ("1.86 [1.67, 2.00]" + gap)[: len(gap)]
    assert f"| Python code      | SpecInfer (standard) | {padded} | 2.51–2.64 | 8.7 [8.0, 10.0]   |" in text
    assert "failed: out of memory: 1_000 \\| 2 GB & more" in text
    source = "Profile: embedded. Device: test CPU. Prompts per cell: 2. Commit: abc1234567 (changed)."
    assert f"{source} Made by: {command}." in text
    assert "Incomplete: 2 of 6 cells" in text
    assert table1.BIASED in text and table1.OTHER_SETTING in text

    tex = report.latex(table)
    assert (
        r"Python reference & SpecInfer (standard) & failed: out of memory: 1\_000 | 2 GB \& more & 2.51--2.64 & -- & "
        "56.76--61.02 & -- & -- & -- & -- & -- \\\\\n"
        "Python reference & SpecInfer + ResiSpec & missing & 4.67--4.69 & -- & 96.06--96.90 & -- & 1.77--1.86 & -- & "
        "1.59--1.69 & -- \\\\\n"
        "\\addlinespace\n"
        "Python code & Autoregressive & 1.00 [1.00, 1.00] & -- & 6.0 [4.0, 8.0] & -- & -- & -- & -- & -- & -- \\\\\n"
    ) in tex
    assert r"\begin{tabular}{llrrrrrrrrr}" in tex and r"95 \% percentile" in tex and r"\bottomrule" in tex


def test_special_characters_are_escaped() -> None:
    assert report.escape("a_b & 5% {~^\\} <$#>") == (
        r"a\_b \& 5\% \{\textasciitilde{}\textasciicircum{}\textbackslash{}\} \textless{}\$\#\textgreater{}"
    )


def test_the_paper_setting_is_matched_exactly(tmp_path: Path) -> None:
    setting = {"pair": "llama2_7b__jf68m", "dataset": "openwebtext"}
    warm, cold = (
        [make_cell(tmp_path, method, temperature=t, **setting) for method in METHODS] for t in (1.0, 0.6)
    )
    table = table1.build(load([*cold, *warm]), "paper", "made")
    shown = report.display(table)
    assert (
        shown["T"].tolist() == ["1"] * 3 + ["0.6"] * 3
    )  # high to low, as in the paper, whatever the sweep's order
    assert shown["(paper)"].iloc[2].tolist() == ["4.69", "96.06", "1.86", "1.69"]
    assert shown["(paper)"].iloc[4].tolist() == ["2.49", "56.48", "–", "–"]
    assert shown["Accepted length"].tolist() == ["missing"] * 6
    assert table1.SAME_SETTING in table.notes and table1.OTHER_SETTING not in table.notes
    assert "Data set: OpenWebText" in report.caption(table)
    assert "Prompts per cell: none" in report.markdown(table)


@pytest.mark.parametrize("stem", ["table1", "table2", "table3", "table4", "table5", "table6"])
def test_published_tables_are_there(stem: str) -> None:
    assert len(paper.read(stem, ())) > 0


def test_published_numbers_are_the_papers() -> None:
    frame = paper.read("table1", tuple(table1.PUBLISHED.values()))
    row = frame[(frame.temperature == 1.0) & (frame.dataset == "cnn_dm")].iloc[0]
    assert (row.resispec_accepted_length, row.specinfer_accepted_length, row.accepted_length_gain) == (
        4.68,
        2.51,
        1.86,
    )
    row = frame[(frame.temperature == 0.6) & (frame.dataset == "c4")].iloc[0]
    assert (row.resispec_tokens_per_s, row.specinfer_tokens_per_s, row.speedup) == (85.91, 61.69, 1.39)
    with pytest.raises(InvalidInput, match="lack columns.*nothing"):
        paper.read("table1", ("nothing",))
    with pytest.raises(InvalidInput, match="missing"):
        paper.read("table99", ())


def simulated(
    generator: np.random.Generator, num_prompts: int, speed: np.ndarray, cell_id: str
) -> pd.DataFrame:
    """Prompts whose decoding times follow `speed` with 5 % noise of their own."""
    steps = generator.integers(20, 60, num_prompts)
    emitted = generator.poisson(2.5 * steps)
    seconds = emitted / speed * generator.normal(1, 0.05, num_prompts)
    ids = [f"p{index}" for index in range(num_prompts)]
    columns = {
        "cell_id": cell_id,
        "prompt_id": ids,
        "num_emitted": emitted,
        "num_steps": steps,
        "decode_s": seconds,
    }
    return pd.DataFrame(columns)


def test_intervals_equal_a_loop_over_resamples() -> None:
    generator = np.random.default_rng(1)
    prompts, baseline = (simulated(generator, 7, np.full(7, speed), str(speed)) for speed in (80.0, 50.0))
    indices = generator.integers(0, 7, (200, 7))
    counts = np.stack([np.bincount(row, minlength=7) for row in indices]).astype(float)
    alone, gains = [], []
    for row in indices:
        drawn, drawn_baseline = prompts.iloc[row], baseline.iloc[row]
        alone.append(drawn.num_emitted.sum() / drawn.decode_s.sum())
        gains.append(alone[-1] / (drawn_baseline.num_emitted.sum() / drawn_baseline.decode_s.sum()))
    for interval, looped in (
        (TOKENS_PER_S.interval(prompts, counts), alone),
        (TOKENS_PER_S.paired_gain(prompts, baseline, counts), gains),
    ):
        assert (interval.lower, interval.upper) == pytest.approx(
            np.quantile(looped, [0.025, 0.975]), rel=1e-12
        )


def test_pairing_narrows_the_interval_of_correlated_cells() -> None:
    generator = np.random.default_rng(2)
    speed = generator.uniform(20, 80, 40)  # prompts differ far more than the two cells do on one prompt
    prompts, baseline = (simulated(generator, 40, speed * factor, str(factor)) for factor in (1.5, 1.0))
    counts = resample(40, np.random.default_rng(0))
    paired = TOKENS_PER_S.paired_gain(prompts, baseline, counts)
    shuffled = baseline.sample(frac=1, random_state=0).assign(prompt_id=baseline.prompt_id.to_numpy())
    unpaired = TOKENS_PER_S.paired_gain(prompts, shuffled, counts)
    assert paired.upper - paired.lower < 0.5 * (unpaired.upper - unpaired.lower)
    assert paired.lower < 1.5 < paired.upper


def test_intervals_cover_the_truth() -> None:
    """200 simulated cells of 60 prompts: binomial(200, 0.95) has a deviation of 1.5 %; the tolerance is 2.6 of them."""
    generator, counts = np.random.default_rng(3), resample(60, np.random.default_rng(0), 2000)
    covered = 0
    for _ in range(200):
        interval = ACCEPTED_LENGTH.interval(simulated(generator, 60, np.full(60, 50.0), "cell"), counts)
        covered += interval.lower <= 2.5 <= interval.upper
    assert 0.90 <= covered / 200 <= 0.99


def test_resamples_are_reproducible_and_whole() -> None:
    counts = resample(5, np.random.default_rng(0), 100)
    assert counts.shape == (100, 5) and (counts.sum(1) == 5).all()
    assert (counts == resample(5, np.random.default_rng(0), 100)).all()


def test_one_prompt_has_no_interval(tmp_path: Path) -> None:
    cell = save(make_cell(tmp_path, "standard"), rows_of(STANDARD[:1]))
    shown = report.display(table1.build(load([cell]), "embedded", "made"))
    assert shown.iloc[0, 1] == "1.67"


def test_pairing_refuses_other_prompts() -> None:
    prompts = simulated(np.random.default_rng(0), 3, np.full(3, 50.0), "one")
    with pytest.raises(InvalidInput, match="cell one: its prompts are not those of other"):
        other = prompts.iloc[::-1].assign(cell_id="other")
        ACCEPTED_LENGTH.paired_gain(prompts, other, resample(3, np.random.default_rng(0), 10))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decode_s": None}, "wrong decode_s: None"),
        ({"decode_s": 0.0}, "decode_s 0.0"),
        ({"num_emitted": 99}, "num_emitted 99"),
        ({"num_steps": 9}, "num_steps 9"),
        ({"num_steps": True}, "wrong num_steps: True"),
        ({"prompt_index": 0}, "a prompt twice"),
        ({"prompt_id": "p0"}, "a prompt twice"),
        ({"accepted": 1}, "unknown columns .*accepted"),
    ],
)
def test_a_bad_row_names_its_cell(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    rows = rows_of(STANDARD)
    rows[1] |= change
    cell = save(make_cell(tmp_path, "standard"), rows)
    with pytest.raises(InvalidInput, match=f"^cell {cell.cell_id}: .*{message}") as caught:
        load([cell])
    assert "\n" not in str(caught.value)


def test_a_missing_column_names_its_cell(tmp_path: Path) -> None:
    rows = rows_of(STANDARD)
    del rows[0]["num_steps"]
    cell = save(make_cell(tmp_path, "standard"), rows)
    with pytest.raises(
        InvalidInput, match=rf"^cell {cell.cell_id}: rows.jsonl line 1 lacks columns \['num_steps'\]"
    ):
        load([cell])


def test_compared_cells_must_share_their_prompts(cells: list[FakeCell]) -> None:
    save(cells[2], rows_of(RESISPEC[:1]))
    with pytest.raises(
        InvalidInput, match=f"^cell {cells[2].cell_id}: has 1 prompts; {cells[0].cell_id}, .* has 2"
    ):
        load(cells)
    rows = rows_of(RESISPEC)
    rows[1]["prompt_id"] = "other"
    save(cells[2], rows)
    with pytest.raises(InvalidInput, match=f"^cell {cells[2].cell_id}: measured prompt .*'other'"):
        load(cells)


def test_cells_that_are_not_what_they_say(tmp_path: Path, cells: list[FakeCell]) -> None:
    with pytest.raises(InvalidInput, match="listed more than once"):
        load([cells[0], cells[0]])
    for file, content, message in (
        ("status.json", {"state": "fine"}, "state 'fine'"),
        ("cell.json", {"cell_id": "another", "labels": cells[0].labels}, "describes another"),
        ("provenance.json", {"device": "test CPU"}, "lacks git_commit"),
        ("cell.json", ["a list"], "not a JSON object"),
    ):
        cell = save(make_cell(tmp_path, "autoregressive"), rows_of(AUTOREGRESSIVE))
        (cell.folder / file).write_text(json.dumps(content), encoding="utf-8")
        with pytest.raises(InvalidInput, match=f"^cell {cell.cell_id}: .*{message}"):
            load([cell])
    cell = save(make_cell(tmp_path, "autoregressive"), rows_of(AUTOREGRESSIVE))
    (cell.folder / "rows.jsonl").unlink()
    with pytest.raises(InvalidInput, match="is done but has no rows.jsonl"):
        load([cell])


def test_a_long_reason_is_cut_for_people_only(tmp_path: Path) -> None:
    cell = save(make_cell(tmp_path, "standard"), None, "failed", "x" * 200)
    table = table1.build(load([cell]), "embedded", "made")
    assert report.display(table).iloc[0, 1] == "failed: " + "x" * 51 + "…"
    assert table.frame.reason.iloc[0] == "x" * 200


@pytest.mark.parametrize("state", ["interrupted", "running"])
def test_rows_of_an_unfinished_cell_are_not_used(tmp_path: Path, state: str) -> None:
    cell = save(make_cell(tmp_path, "standard"), rows_of(STANDARD), state)
    results = load([cell])
    assert results.cells.status.tolist() == ["interrupted"] and results.prompts.empty
    assert report.display(table1.build(results, "embedded", "made")).iloc[0, 1].startswith("interrupted")


def test_an_ambiguous_baseline_is_refused(tmp_path: Path) -> None:
    one = save(make_cell(tmp_path, "autoregressive"), rows_of(AUTOREGRESSIVE))
    twin = save(FakeCell("twin", one.labels, tmp_path / "twin"), rows_of(AUTOREGRESSIVE))
    with pytest.raises(InvalidInput, match="^cell twin: has the labels of"):
        measure(load([one, twin, save(make_cell(tmp_path, "standard"), rows_of(STANDARD))]))


def test_no_cells_make_an_empty_table() -> None:
    results = load([])
    assert isinstance(results, Results) and results.cells.empty and measure(results).empty


def test_printed_names() -> None:
    assert labels.method("specinfer", "optimal") == "SpecInfer + optimal"
    assert labels.method("mine", "standard") == "mine (standard)"
    assert labels.rank("dataset", "cnn_dm") < labels.rank("dataset", "c4") < labels.rank("dataset", "unknown")
    assert labels.interval("accepted_length", 2.511, 2.43, 2.599) == "2.51 [2.43, 2.60]"
    assert (
        labels.published("speedup", 1.59, 1.69) == "1.59–1.69"
        and labels.published("speedup", 1.68, 1.68) == "1.68"
    )


def test_the_script_shows_the_table_and_its_files(
    cells: list[FakeCell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, str, list[str]]] = []

    def expected_cells(experiment: str, profile: str, overrides: list[str]) -> list[FakeCell]:
        asked.append((experiment, profile, overrides))
        return cells

    monkeypatch.setattr(script, "expected_cells", expected_cells)
    arguments = ["--profile", "embedded", "--results", str(tmp_path / "results"), "num_prompts=2"]
    assert table1.main(arguments) == 0
    assert asked == [("table1", "embedded", [f"results='{tmp_path / 'results'}'", "num_prompts=2"])]
    written = (tmp_path / "results" / "embedded" / "table1.md").read_text(encoding="utf-8")
    out = capsys.readouterr().out
    assert out.startswith(written) and out.count("wrote ") == 3
    sweep = "python -m experiments.run experiment=table1 profile=embedded num_prompts=2"
    assert f"Made by: {sweep} && python -m analysis.table1 --profile embedded num_prompts=2." in written
    assert script.command("table1", "paper", []) == "make reproduce-table1 PROFILE=paper"

    (cells[0].folder / "rows.jsonl").write_text("{}\n", encoding="utf-8")
    assert table1.main(arguments) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert captured.err.startswith(f"table1: cell {cells[0].cell_id}: ")


def test_audit_cells_become_a_verdict_on_the_row_that_they_audit(cells: list[FakeCell]) -> None:
    """z = shift * tokens / sqrt(tokens) over 2 x 600 tokens: 0.1 gives 3.5, 0.2 gives 6.9."""
    audits = [make_audit(cells[1], 600, 0.1), make_audit(cells[2], 600, 0.2)]
    frame = measure(load([*cells, *audits]))
    assert value(frame, cells[1].cell_id, "z_surprisal") == pytest.approx(0.1 * 1200**0.5)
    assert value(frame, cells[2].cell_id, "z_overdraft") == pytest.approx(0.2 * 1198**0.5)
    verdicts = frame.drop_duplicates("cell_id").set_index("cell_id").verdict
    assert (
        verdicts[cells[1].cell_id] == "exact"
        and verdicts[cells[2].cell_id] == "biased"
        and verdicts[cells[0].cell_id] == ""
    )
    shown = report.display(table1.build(load([*cells, *audits]), "embedded", "make"))
    assert shown["Audit"].tolist()[3:] == [
        "–",
        "exact (z 3.5, 3.5; 1,200 tokens)",
        "biased (z 6.9, 6.9; 1,200 tokens)",
    ]


def test_an_audit_of_few_tokens_is_undecided_and_one_that_failed_is_shown(cells: list[FakeCell]) -> None:
    lost = FakeCell("lost", cells[2].labels | {"audit": True}, cells[2].folder.with_name("lost"))
    frame = measure(load([*cells, make_audit(cells[1], 300, 0.0), lost]))
    verdicts = frame.drop_duplicates("cell_id").set_index("cell_id").verdict
    assert verdicts[cells[1].cell_id] == "undecided" and verdicts[cells[2].cell_id] == "audit missing"


def test_an_audit_of_other_tokens_is_refused(cells: list[FakeCell]) -> None:
    with pytest.raises(InvalidInput, match="decoded other tokens of prompt 0 than the timed cell"):
        load([*cells, make_audit(cells[1], 600, 0.0, sha="other")])
