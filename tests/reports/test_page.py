"""The page of a profile: every number is its table's, gaps are shown, nothing is fetched, nothing is lost."""

from __future__ import annotations

import errno
import json
import re
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
import toy_page
from toy_cells import make_cell, planned, rows_of, save, write_plan
from toy_page import Page, write_results

from analysis import table1
from analysis.page import documentation, headline, sections, sentences, steps
from analysis.page.__main__ import main, write
from analysis.page.render import Entry, entry, grid
from analysis.table import Audit, Column, Gap, Key, Notes, Number, Paper, Table, Text


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    write_results(folder)
    table1.main(["--results", str(folder)])
    return folder


@pytest.fixture(scope="module")
def source(results: Path) -> str:
    return write("embedded", results).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(source: str) -> Page:
    return Page(source)


@pytest.fixture(scope="module")
def gathered(results: Path) -> dict[str, sections.Section]:
    return {section.name: section for section in sections.gather("embedded", results, lambda _: None)}


def test_every_number_is_that_of_its_table(page: Page, gathered: dict[str, sections.Section]) -> None:
    measured = [section for section in gathered.values() if section.made]
    assert {section.name for section in measured} == {"table1", "table4", "table5", "figure1", "frontier"}
    for section in measured:
        for table in (*section.made.tables, *section.steps):
            if table.rows:
                texts = [sorted(cell.text.strip() for cell in row) for row in page.cells(table.stem)]
                assert texts == [sorted(map(str, row)) for row in table.rows], table.stem
            else:
                assert table.stem not in page.tables  # like the frontier's shapes, of which there are none


CELLS = {
    Number(2.514, 2.4, 2.6): Entry("2.51", " [2.40, 2.60]", "", "2.514"),
    Number(float("nan")): Entry("–", "", "absent"),
    Paper(1.55, 1.86): Entry("1.55–1.86", "", "", "1.55"),
    Audit("biased", (9.7, 12.3), 1536): Entry("biased", " (z 9.7, 12.3; 1,536 tokens)", "biased"),
    Audit("audit failed"): Entry("audit failed"),
    Audit(): Entry("–", "", "absent"),
    Gap("failed", "no memory"): Entry("failed: no memory", "", "gap"),
    Key(0.6, "0.6"): Entry("0.6", "", "", "0.6"),
    Key("c4", "C4"): Entry("C4"),
    Text(): Entry("–", "", "absent"),
}


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: type(cell).__name__)
def test_cells_are_shown_by_what_they_are(cell) -> None:
    shown = entry(cell)
    assert shown == CELLS[cell] and shown.text + shown.beside == str(cell)


def test_a_table_begins_with_keys_audits_and_gains_and_explains_its_columns() -> None:
    columns = (
        Column("method", "Method", "key"),
        Column("tokens_per_s", "Tokens/s", "number"),
        Column("accepted_length_gain", "Gain", "number"),
        Column("accepted_length_gain", "(paper)", "paper"),
        Column("audit", "Audit", "audit"),
    )
    row = (Key("a", "A"), Number(9.0), Number(1.4), Paper(1.5, 1.5), Audit("biased", (9.0,), 1000))
    meanings = {"Gain": "accepted length over the baseline's"}
    notes = Notes(("About *it*.",), None, "Made by: make it.", (meanings, "How."), "Incomplete.")
    shown = grid(Table("toy", columns, (row,), "Caption", notes=notes))
    assert [column.header for column in shown.columns] == ["Method", "Audit", "Gain", "(paper)", "Tokens/s"]
    assert [cell.text for cell in shown.rows[0]] == ["A", "biased", "1.40", "1.50", "9.00"]
    assert shown.definitions == meanings and shown.notes == ("About *it*.", "How.")


def test_gaps_are_shown_as_gaps(page: Page, source: str, gathered: dict[str, sections.Section]) -> None:
    assert gathered["table1"].status == "6 of 8 cells measured, 1 failed, 1 missing"
    assert "audits: 1 biased, 1 no bias seen" in page.sections["table1"]
    assert gathered["table1"].status in page.sections["table1"].replace("\n", "")
    assert gathered["table2"].status == "not measured" and "<b>memory</b>" not in source
    assert f"failed: {toy_page.REASON}" in page.sections["table1"]
    assert "Incomplete: 2 of 6 cells are missing, failed or interrupted." in page.sections["table1"]
    for name in ("table2", "table3", "table6"):
        assert f"Not measured yet; make reproduce-{name} PROFILE=embedded measures it." in page.sections[name]


def test_a_plan_that_is_older_than_its_configuration_is_said_openly(tmp_path: Path) -> None:
    cell = save(make_cell(tmp_path, "standard"), rows_of(toy_page.METHODS["standard"]))
    write_plan(tmp_path, "table1", [cell], sources={"conf/run.yaml": "0" * 64})
    source = write("embedded", tmp_path).read_text(encoding="utf-8")
    assert '<p class="problem">The plan of table1 is older than conf/run.yaml' in source


def test_artefacts_are_in_the_order_of_the_paper(page: Page, tmp_path: Path) -> None:
    shown = [name for name in page.sections if name not in ("verdict", "overview", "provenance")]
    assert shown == sections.artefacts() and shown[:2] == ["table1", "table2"]
    for name in ("my_sweep.yaml", "figure10.yaml", "figure2.yaml", "frontier.yaml", "table12.yaml"):
        (tmp_path / name).touch()
    names = sections.artefacts(tmp_path)
    assert names == ["table12", "figure2", "figure10", "frontier", "my_sweep"]
    assert [*map(sections.titled, names)] == ["Table 12", "Figure 2", "Figure 10", "Frontier", "My sweep"]


def test_nothing_is_measured_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--results", str(tmp_path / "new")]) == 0
    captured = capsys.readouterr()
    assert "report.html (0." in captured.out and "report: table1 (1 of " in captured.err
    page = Page((tmp_path / "new" / "embedded" / "report.html").read_text(encoding="utf-8"))
    assert page.tables == {} and page.sections["verdict"].count("not measured yet") == 6
    assert "No audit of ResiSpec is decided here yet" in page.sections["verdict"]
    assert "make reproduce-frontier PROFILE=embedded" in page.sections["verdict"]


def test_what_cannot_be_read_is_said_in_its_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_results(tmp_path)
    cell = make_cell(tmp_path, "standard", temperature=0.6)
    (cell.folder / "rows.jsonl").write_text("{}\n", encoding="utf-8")
    write_plan(tmp_path, "table5", []).write_text("{", encoding="utf-8")
    write_plan(tmp_path, "stats", [])  # a module that is no script
    monkeypatch.setattr(sections, "artefacts", lambda: ["table4", "table5", "stats", "table1"])
    problems = [section.problem for section in sections.gather("embedded", tmp_path, lambda _: None)]
    assert f"cell {cell.cell_id}: status.json says that rows.jsonl is not what was" in problems[0]
    assert "table5.json is damaged" in problems[1] and problems[3] == ""
    assert problems[2].startswith("analysis/stats is no script with a make(plan)")


def test_the_page_needs_nothing_beside_it_and_is_a_document(page: Page, source: str) -> None:
    assert page.loaded and all(link.startswith("data:") for link in page.loaded)
    assert "@import" not in source and "url(" not in source and "fetch(" not in source
    assert [link for link in page.links if not link.startswith("#")] == ["table1.csv"]
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    assert [name for name, count in Counter(page.ids).items() if count > 1] == []
    assert page.headings[0] == "h1" and page.headings.count("h1") == 1
    for before, after in zip(page.headings, page.headings[1:], strict=False):
        assert int(after[1]) <= int(before[1]) + 1
    for stem, rows in page.tables.items():
        assert page.captions[stem].strip(), stem
        assert {(cell.tag, cell.scope) for cell in rows[0]} == {("th", "col")}
        assert all([cell.scope for cell in row if cell.tag == "th"].count("row") for row in rows[1:]), stem
    [figure1, frontier] = page.alts
    assert (
        "Panels: Python code, T = 0.4. Across: sibling" in figure1 and "Shown: standard; ceiling" in figure1
    )
    assert "Accepted length of exact verification" in frontier
    classes = {name for names in re.findall(r'class="fact ([^"]*)"', source) for name in names.split()}
    assert classes == {"no-bias-seen", "biased"} and ".badge.no-bias-seen {" in source


def test_the_same_cells_give_the_same_page_and_other_csvs_are_told_apart(results: Path, source: str) -> None:
    note = ", which has other numbers than this page: it was written from other cells"
    path = results / "embedded" / "table1.csv"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("1.857", "1.858"), encoding="utf-8")
    anew = write("embedded", results).read_text(encoding="utf-8")
    path.write_text(text, encoding="utf-8")
    assert anew.count(note) == 1 and anew.replace(note, "") == source


def test_the_old_page_stays_when_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old = tmp_path / "embedded" / "report.html"
    old.parent.mkdir()
    old.write_text("old", encoding="utf-8")
    write_text = Path.write_text

    def full(path: Path, content: str, **options: str) -> None:
        write_text(path, content[: len(content) // 2], **options)
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_text", full)
    assert main(["--results", str(tmp_path)]) == 1
    assert "No space left on device" in capsys.readouterr().err.splitlines()[-1]
    assert old.read_text(encoding="utf-8") == "old" and [*old.parent.iterdir()] == [old]


def test_an_unknown_profile_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--results", str(tmp_path), "--profile", "mine"]) == 1
    allowed = "embedded, inflated, inflated_cpu, paper"
    assert capsys.readouterr().err == f"report: unknown profile 'mine'; allowed: {allowed}\n"
    assert list(tmp_path.iterdir()) == []


def test_the_verdict_follows_from_the_rows(gathered: dict[str, sections.Section], page: Page) -> None:
    found = headline.judge(list(gathered.values()))
    assert found.finding == "biased" and found.text.startswith("ResiSpec is not lossless")
    assert {fact.label: fact.value for fact in found.facts} == {
        "ResiSpec's rows that audit as biased": "1 of 1",
        "ResiSpec's accepted length over SpecInfer's": "1.44×",  # (16/6) / (13/7)
        "ResiSpec above the ceiling of every exact verifier": "not measured yet",
        "Best gain without a bias seen": "not measured yet",
        "Other rows without a bias seen": "1 of 1",
        "The paper's own check, and a random proxy in it": "3e-07 and 2e-07",
    }
    assert "the paper has 1.55–1.86" in found.facts[1].sentence
    claim = "1.86 times the accepted length of SpecInfer and 1.69 times its throughput in its Table 1"
    assert claim in found.claim and "up to 1.92 times on other trees (Table 3)." in found.claim
    bars = [(bar.text.partition(" ")[0], bar.kind) for bar in found.bars]
    assert bars == [("1.86", "no bias seen"), ("2.67", "biased")] and "1 of 1" in page.sections["verdict"]


def test_the_picture_compares_cells_of_one_setting_and_undecided_audits_give_no_verdict(
    tmp_path: Path,
) -> None:
    """A seed that was swept, too, is part of the setting."""
    asked = (("resispec", 1), ("resispec", 0), ("standard", 0))
    cells = [make_cell(tmp_path, method, seed=seed) for method, seed in asked]
    for cell, (method, _) in zip(cells, asked, strict=True):
        save(cell, rows_of(toy_page.METHODS[method]))
    write_plan(tmp_path, "table1", cells)
    found = headline.judge(sections.gather("embedded", tmp_path, lambda _: None))
    assert found.setting == "embedded 2M + 80k, Python code, T = 1, seed = 1"
    assert [bar.text.partition(" ")[0] for bar in found.bars] == ["2.67"]
    assert found.finding == "" and found.facts[0].value == "not measured yet"
    assert found.facts[1].value == "1.44×" and "biased" not in found.facts[1].sentence


def frontier_rows(verifier: str, verdict: str, gain: float, length: float) -> list[dict[str, object]]:
    """A cell on d5b3 whose ceiling is 4.0 [3.8, 4.2], in a setting of its own for every gain."""
    cell = {"cell_id": f"{verifier}{gain}", "decoder": "specinfer", "tree": "d5b3", "verifier": verifier}
    numbers = {"accepted_length_gain": gain, "accepted_length": length, "ceiling": 4.0}
    return [
        cell | {"quantity": name, "value": one, "lower": one - 0.2, "upper": one + 0.2, "verdict": verdict}
        for name, one in numbers.items()
    ]


def test_exact_verifiers_and_the_ceiling() -> None:
    """The highest gain counts only where the audit is exact; above the ceiling is above its upper bound."""
    rows = [
        *frontier_rows("resispec", "biased", 1.9, 4.5),
        *frontier_rows("resispec", "biased", 1.8, 4.3),
        *frontier_rows("optimal", "no bias seen", 1.5, 3.5),
        *frontier_rows("optimal", "no bias seen", 1.3, 3.1),
        *frontier_rows("traversal", "undecided", 1.7, 3.9),
    ]
    measured = headline.Measured({"frontier": pd.DataFrame(rows)}, {"frontier": "make reproduce-frontier"})
    best, above = headline.best_unbiased(measured), headline.above_ceiling(measured)
    assert (best.value, best.finding) == ("1.50×", "no bias seen")
    assert best.sentence == (
        "SpecInfer + optimal, d5b3: 1.30–1.50 times over 2 settings. At its best it emits 3.50 [3.30, 3.70] "
        "tokens a step; no exact verifier emits more than 4.00 [3.80, 4.20] on such trees."
    )
    levels = pd.DataFrame(frontier_rows("level_optimal", "no bias seen", 1.6, 3.7)[:2])
    both = headline.Measured({"frontier": pd.DataFrame(rows), "levels": levels}, {})
    assert headline.best_unbiased(both).sentence == (
        "SpecInfer + whole levels, optimal, d5b3: 1.60 times over 1 settings. At its best it emits 3.70 "
        "[3.50, 3.90] tokens a step."
    )
    assert above.value == "1 of 2" and "4.30–4.50 tokens a step beside ceilings of 4.00" in above.sentence
    assert headline.losslessness(measured).value == "2 of 2"
    others = headline.others(measured)
    assert others.value == "2 of 2" and "decide 1 more" in others.sentence


def test_the_papers_numbers_stand_beside_the_range_of_ours(page: Page) -> None:
    rows = {(row["Artefact"], row["Method"], row["Quantity"]): row for row in page.rows("overview")}
    row = rows["Table 1", "SpecInfer + ResiSpec", "Accepted length"]
    assert row["Paper"] == "4.67–4.69" and row["Here"] == "2.67" and row["Measured"] == "1 of 2"
    assert row["Audit"] == "biased (1 of 2 rows)"
    assert rows["Table 5", "standard", "Expected accepted length"]["Here"] == "1.50–3.50"
    assert rows["Table 4", "SpecInfer + ResiSpec", "D_KL as published"]["Here"] == "3.0e-07"


def test_steps_are_those_counted_by_hand(tmp_path: Path) -> None:
    """STANDARD: 7 steps, of which 3 emitted one token, 2 two and 2 three."""
    done = save(make_cell(tmp_path, "standard"), rows_of(toy_page.METHODS["standard"]))
    others = [make_cell(tmp_path, "resispec"), make_cell(tmp_path, "autoregressive")]
    shares, positions = steps.of(planned(tmp_path, "table1", [done, *others]))
    assert shares.frame.value.tolist() == pytest.approx([3 / 7, 2 / 7, 2 / 7])
    assert positions.frame.value.tolist() == pytest.approx([4 / 7, 2 / 4])
    assert [[*map(str, row)] for row in shares.rows] == [
        ["SpecInfer (standard)", "42.9%", "28.6%", "28.6%"],
        ["SpecInfer + ResiSpec", "missing", "–", "–"],
    ]
    heights = grid(shares, with_bars=True).bars
    assert heights[0] == pytest.approx((1, 2 / 3, 2 / 3)) and heights[1] == ()
    assert steps.of(planned(tmp_path, "table1", [make_cell(tmp_path, "standard", temperature=0.3)])) == ()


def test_audits_in_words() -> None:
    columns = [
        Column("temperature", "T", "key"),
        Column("method", "Method", "key"),
        Column("verdict", "Audit", "audit"),
    ]
    rows = [
        (Key(1.0, "1"), Key("a", "A"), Audit("no bias seen", (0.0, -0.04), 1200)),
        (Key(1.0, "1"), Key("b", "B"), Audit("biased", (5.0, 9.7), 1536)),
        (Key(1.0, "1"), Key("c", "C"), Audit("undecided", (1.0, float("nan")), 10)),
        (Key(1.0, "1"), Key("d", "–"), Audit("audit failed")),
        (Key(1.0, "1"), Key("e", "E"), Audit()),
    ]
    found = list(sentences.of(Table("toy", tuple(columns), tuple(rows), "")))
    assert [sentence.row for sentence in found] == ["T = 1, A", "T = 1, B", "T = 1, C", "T = 1"]
    clean, biased, undecided, failed = (sentence.text for sentence in found)
    scores = "surprisal 0.0, overdraft 0.0 standard errors, all within 4."
    assert clean == f"No deviation from the target's law in 1,200 tokens: {scores}"
    reasons = (
        "tokens that the draft overrates come out too often and its tokens are less likely under the target"
    )
    scores = "(surprisal 5.0, overdraft 9.7 standard errors over 1,536 tokens; beyond 4 is bias)."
    assert biased == f"Not the target's law: {reasons} than the target's own {scores}"
    assert undecided.endswith("in 10 tokens to judge: surprisal 1.0, overdraft – standard errors.")
    assert failed == "No verdict: audit failed."
    columns = [
        Column("verifier", "Verifier", "key"),
        *(Column(name, name, "number") for name in sentences.VARIATION),
    ]
    rows = [(Key(z, name), Number(0.8, 0.7, 0.9, ".3f"), Number(z)) for name, z in (("a", 9.0), ("b", 1.0))]
    found = list(sentences.of(Table("toy", tuple(columns), tuple(rows), "")))
    assert [sentence.verdict for sentence in found] == ["biased", "no bias seen"]
    assert "total variation 0.800 [0.700, 0.900], 9.0 standard errors above" in found[0].text
    assert list(sentences.of(Table("own", tuple(columns[:1]), ((Key("a", "a"),),), ""))) == []


def test_documentation_is_shown_without_what_it_quotes(tmp_path: Path) -> None:
    (tmp_path / "table9.md").write_text(
        "# Table 9: *more*\n\nWhat it is, see [Table 1](table1.md).\n\n## How\n\n"
        "See [exactness](../exactness.md), [docs/eagle.md](../eagle.md) and <script>alert(1)</script>.\n\n"
        "<!-- table9 -->\n| a |\n|---|\n| quoted |\n<!-- /table9 -->\n\n![a picture](x.png)\n\n"
        "## What came out\n\n<!-- frontier -->\nprose\n<!-- /frontier -->\n\n## Last\n\n### Kept\n\nwords\n\n"
        "## At the end\n\n<!-- frontier -->\nprose\n<!-- /frontier -->\n",
        encoding="utf-8",
    )
    about = documentation.about("table9", ["table1", "table9"], tmp_path)
    assert about.title == "Table 9: *more*"
    assert about.lead == '<p>What it is, see <a href="#table1">Table 1</a>.</p>\n'
    assert "exactness (<code>docs/exactness.md</code>), docs/eagle.md and" in about.rest
    assert "&lt;script&gt;" in about.rest and "quoted" not in about.rest and "<img" not in about.rest
    assert re.findall(r"<h3>(.*)</h3>|<h4>(.*)</h4>", about.rest) == [("How", ""), ("Last", ""), ("", "Kept")]
    assert documentation.about("table8", [], tmp_path) is None


def test_provenance_names_every_commit_and_device(page: Page, results: Path) -> None:
    facts = json.loads((results / "embedded" / "provenance.json").read_text())
    assert facts == {"Cells measured": "11", "Commit": "abc1234567890 (changed)", "Device": "test CPU"}
    shown = " ".join(page.sections["provenance"].split())
    assert all(f"{name} {value}" in shown for name, value in facts.items())
    assert "make reproduce-table1 PROFILE=embedded" in shown
