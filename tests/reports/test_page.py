"""The page of a profile: every number is its table's, gaps are shown, nothing is fetched, nothing is lost."""

from __future__ import annotations

import errno
import re
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
import toy_page
from toy_cells import make_cell, planned, rows_of, save, write_plan
from toy_page import Page, write_results

from analysis import labels, metrics, table1
from analysis.page import claim, facts, sections, steps, text, view, words
from analysis.page.__main__ import main, write
from analysis.page.render import status
from analysis.report import Table
from analysis.stats import Interval


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


def expected(table: Table) -> list[dict[str, str]]:
    """The rows of a table under the headers that a screen reader hears."""
    names = [str(name) for name in table.shown.columns]
    heard = [f"{names[place - 1]} (paper)" if name == "(paper)" else name for place, name in enumerate(names)]
    return [dict(zip(heard, map(str, row), strict=True)) for row in table.shown.to_numpy().tolist()]


def test_every_number_is_that_of_its_table(page: Page, gathered: dict[str, sections.Section]) -> None:
    measured = [section for section in gathered.values() if section.made]
    assert {section.name for section in measured} == {"table1", "table4", "table5", "figure1", "frontier"}
    for section in measured:
        more = (section.steps.shares, section.steps.positions) if section.steps else ()
        for table in (*section.made.tables, *more):
            if len(table.shown):
                assert page.rows(table.stem) == expected(table), table.stem


def test_every_number_is_that_of_its_csv(page: Page, results: Path) -> None:
    """From the file, through the format of a column, to the text of a cell."""
    frame = pd.read_csv(results / "embedded" / "table1.csv", keep_default_na=True)
    rows, cells = page.rows("table1"), list(frame.groupby("cell_id", sort=False))
    assert len(rows) == len(cells) == 6
    compared = 0
    for row, (_, own) in zip(rows, cells, strict=True):
        for metric in metrics.METRICS:
            found = own[own.quantity == metric.name].iloc[0]
            if found.status == "done":
                interval = Interval(found.value, found.lower, found.upper)
                assert row[metric.label] == labels.interval(interval, metric.spec)
                compared += 1
            if f"{metric.label} (paper)" in row:
                paper = labels.between(found.paper_low, found.paper_high, metric.paper_spec)
                assert row[f"{metric.label} (paper)"] == paper
    assert compared == 4 * len(metrics.METRICS)


def test_what_the_audit_says_comes_right_after_what_names_a_row(page: Page) -> None:
    assert list(page.rows("table1")[0])[:4] == ["Data set", "Method", "Audit", "Accepted length"]
    badges = [row["Audit"].partition(" ")[0] for row in page.rows("table1")]
    assert Counter(badges) == {"–": 4, "exact": 1, "biased": 1}


def test_audits_of_several_verifiers_come_right_after_what_names_a_row() -> None:
    shown = pd.DataFrame(
        {"Tree": ["d5b3"], "Audited TV": ["0.1"], "Step over standard's, %": ["+10.8 [+8.0, +13.5]"]}
        | {"Audit of standard": ["exact"], "Audit of ResiSpec": ["biased"]}
    )
    found = view.grid(Table("any", pd.DataFrame(), shown, 1, ""))
    assert [(column.label, column.kind) for column in found.columns] == [
        ("Tree", "key"),
        ("Audit of standard", "text"),
        ("Audit of ResiSpec", "text"),
        ("Audited TV", "number"),
        ("Step over standard's, %", "number"),
    ]


def test_gaps_are_shown_as_gaps(page: Page, source: str) -> None:
    gaps = [cell.text for row in page.tables["table1"] for cell in row if "gap" in cell.kind]
    assert gaps == [f"failed: {toy_page.REASON}", "missing"]
    assert "<b>memory</b>" not in source
    assert "6 of 8 cells measured, 1 failed, 1 missing" in page.sections["table1"].replace("\n", "")
    assert "Incomplete: 2 of 6 cells are missing, failed or interrupted." in page.sections["table1"]
    for name in ("table2", "table3", "table6"):
        assert f"Not measured yet; make reproduce-{name} PROFILE=embedded measures it." in page.sections[name]


def test_a_plan_that_is_older_than_its_configuration_is_said_openly(tmp_path: Path) -> None:
    cell = save(make_cell(tmp_path, "standard"), rows_of(toy_page.METHODS["standard"]))
    write_plan(tmp_path, "table1", [cell], sources={"conf/run.yaml": "0" * 64})
    source = write("embedded", tmp_path).read_text(encoding="utf-8")
    assert source.count("The plan of table1 is older than conf/run.yaml") == 1
    assert '<p class="problem">The plan of table1 is older' in source


def test_artefacts_are_in_the_order_of_the_paper(page: Page, tmp_path: Path) -> None:
    named = ["table1", "table2", "table3", "table4", "table5", "table6", "figure1", "figure2", "figure3"]
    shown = [name for name in page.sections if name not in ("verdict", "overview", "provenance")]
    assert shown == [name for name in [*named, "frontier", "levels", "speed"] if name in shown]
    for name in ("my_sweep.yaml", "figure10.yaml", "figure2.yaml", "frontier/part.yaml", "table12.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = sections.artefacts(tmp_path)
    assert found == ["table12", "figure2", "figure10", "frontier", "my_sweep"]
    assert [sections.titled(name) for name in found] == [
        *("Table 12", "Figure 2", "Figure 10", "Frontier", "My sweep")
    ]


def test_nothing_is_measured_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--results", str(tmp_path / "new")]) == 0
    said = capsys.readouterr()
    assert "report.html (0." in said.out and "report: table1 (1 of " in said.err
    page = Page((tmp_path / "new" / "embedded" / "report.html").read_text(encoding="utf-8"))
    assert page.tables == {} and page.sections["verdict"].count("not measured yet") == 6
    assert "No audit of ResiSpec is decided here yet" in page.sections["verdict"]
    assert "make reproduce-frontier PROFILE=embedded" in page.sections["verdict"]


def test_what_cannot_be_read_is_said_in_its_section(tmp_path: Path) -> None:
    write_results(tmp_path)
    cell = make_cell(tmp_path, "standard", temperature=0.6)
    (cell.folder / "rows.jsonl").write_text("{}\n", encoding="utf-8")
    path = write_plan(tmp_path, "table5", [])
    path.write_text("{", encoding="utf-8")
    page = Page(write("embedded", tmp_path).read_text(encoding="utf-8"))
    assert f"cell {cell.cell_id}: status.json says that rows.jsonl is not what was" in page.sections["table4"]
    assert "table5.json is damaged" in page.sections["table5"]
    assert len(page.rows("table1")) == 6


def test_an_artefact_without_a_script_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_plan(tmp_path, "no_script", [])
    monkeypatch.setattr(sections, "artefacts", lambda: ["no_script", "stats"])
    write_plan(tmp_path, "stats", [])
    problems = [one.problem for one in sections.gather("embedded", tmp_path, lambda _: None)]
    assert [problem.partition(" (")[0] for problem in problems] == [
        "analysis/no_script is no script with a make(plan)",
        "analysis/stats is no script with a make(plan)",
    ]


def test_the_page_needs_nothing_beside_it(page: Page, source: str) -> None:
    assert page.loaded and all(link.startswith("data:") for link in page.loaded)
    assert "@import" not in source and "url(" not in source and "fetch(" not in source
    local = [link for link in page.links if not link.startswith("#")]
    assert local == ["table1.csv"]
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    assert len(source.encode()) < 3e6


def test_its_structure_is_that_of_a_document(page: Page) -> None:
    assert [name for name, count in Counter(page.ids).items() if count > 1] == []
    assert page.headings[0] == "h1" and page.headings.count("h1") == 1
    for before, after in zip(page.headings, page.headings[1:], strict=False):
        assert int(after[1]) <= int(before[1]) + 1
    for stem, rows in page.tables.items():
        assert page.captions[stem].strip(), stem
        assert {(cell.tag, cell.scope) for cell in rows[0]} == {("th", "col")}
        for row in rows[1:]:
            assert [cell.scope for cell in row if cell.tag == "th"].count("row") >= 1, stem
    [figure1, frontier] = page.alts
    assert figure1.startswith("Acceptance by sibling index. Panels: Python code, T = 0.4. Across: sibling")
    assert "Shown: standard; ceiling" in figure1
    assert frontier.startswith("Accepted length of exact verifiers. Accepted length of exact verification")


def test_the_same_cells_give_the_same_page(results: Path, source: str) -> None:
    assert write("embedded", results).read_text(encoding="utf-8") == source


def test_a_csv_of_other_cells_is_told_apart(tmp_path: Path) -> None:
    write_results(tmp_path)
    table1.main(["--results", str(tmp_path)])
    path = tmp_path / "embedded" / "table1.csv"
    note = "which has other numbers than this page"
    assert note not in write("embedded", tmp_path).read_text(encoding="utf-8")
    path.write_text(path.read_text(encoding="utf-8").replace("1.857", "1.858"), encoding="utf-8")
    assert note in write("embedded", tmp_path).read_text(encoding="utf-8")


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
    [*progress, line] = capsys.readouterr().err.splitlines()
    assert "No space left on device" in line and all(" of " in one for one in progress)
    assert old.read_text(encoding="utf-8") == "old" and [path.name for path in old.parent.iterdir()] == [
        old.name
    ]


def test_an_unknown_profile_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--results", str(tmp_path), "--profile", "mine"]) == 1
    allowed = "embedded, inflated, inflated_cpu, paper"
    assert capsys.readouterr().err == f"report: unknown profile 'mine'; allowed: {allowed}\n"
    assert list(tmp_path.iterdir()) == []


def test_the_verdict_follows_from_the_rows(gathered: dict[str, sections.Section], page: Page) -> None:
    found = claim.judge(list(gathered.values()))
    assert found.finding == "biased" and found.headline.startswith("ResiSpec is not lossless")
    values = {fact.label: fact.value for fact in found.facts}
    assert values == {
        "ResiSpec's rows that audit as biased": "1 of 1",
        "ResiSpec's accepted length over SpecInfer's": "1.44×",  # (16/6) / (13/7)
        "ResiSpec above the ceiling of every exact verifier": "not measured yet",
        "Best gain of a verifier that audits as exact": "not measured yet",
        "Other rows that audit as exact": "1 of 1",
        "The paper's own check, and a random proxy in it": "3e-07 and 2e-07",
    }
    assert "the paper has 1.55–1.86" in found.facts[1].sentence
    assert (
        "up to 1.86 times the accepted length of SpecInfer and 1.69 times its throughput in its Table 1, and "
        "up to 1.92 times on other trees (Table 3)."
    ) in found.claim
    assert [(bar.text.partition(" ")[0], bar.kind) for bar in found.bars] == [
        ("1.86", "exact"),
        ("2.67", "biased"),
    ]
    assert "1 of 1" in page.sections["verdict"]


def test_the_picture_compares_cells_of_one_setting(tmp_path: Path) -> None:
    """A seed that was swept, too, is part of the setting."""
    asked = (("resispec", 1), ("resispec", 0), ("standard", 0))
    cells = [make_cell(tmp_path, method, seed=seed) for method, seed in asked]
    for cell, (method, _) in zip(cells, asked, strict=True):
        save(cell, rows_of(toy_page.METHODS[method]))
    write_plan(tmp_path, "table1", cells)
    found = claim.judge(sections.gather("embedded", tmp_path, lambda _: None))
    assert found.setting == "embedded 2M + 80k, Python code, T = 1, seed = 1"
    assert [bar.text.partition(" ")[0] for bar in found.bars] == ["2.67"]


def test_without_a_decided_audit_there_is_no_verdict(tmp_path: Path) -> None:
    cells = [save(make_cell(tmp_path, method), rows_of(rows)) for method, rows in toy_page.METHODS.items()]
    write_plan(tmp_path, "table1", cells)
    found = claim.judge(sections.gather("embedded", tmp_path, lambda _: None))
    assert found.finding == "" and found.facts[0].value == "not measured yet"
    assert found.facts[1].value == "1.44×" and "biased" not in found.facts[1].sentence


def frontier_rows(verifier: str, verdict: str, gain: float, length: float) -> list[dict[str, object]]:
    """A cell on d5b3 whose ceiling is 4.0 [3.8, 4.2], in a setting of its own for every gain."""
    cell = {
        "cell_id": f"{verifier}{gain}",
        "pair": "embedded",
        "dataset": "embedded_code",
        "temperature": 1.0,
    }
    cell |= {"decoder": "specinfer", "tree": "d5b3", "verifier": verifier, "verdict": verdict}
    numbers = {"accepted_length_gain": gain, "accepted_length": length, "ceiling": 4.0}
    return [
        cell | {"quantity": name, "value": one, "lower": one - 0.2, "upper": one + 0.2}
        for name, one in numbers.items()
    ]


def test_exact_verifiers_and_the_ceiling() -> None:
    """The highest gain counts only where the audit is exact; above the ceiling is above its upper bound."""
    frame = pd.DataFrame(
        [
            *frontier_rows("resispec", "biased", 1.9, 4.5),
            *frontier_rows("resispec", "biased", 1.8, 4.3),
            *frontier_rows("optimal", "exact", 1.5, 3.5),
            *frontier_rows("optimal", "exact", 1.3, 3.1),
            *frontier_rows("traversal", "undecided", 1.7, 3.9),
        ]
    )
    measured = facts.Measured({"frontier": frame}, {"frontier": "make reproduce-frontier"})
    best, above = facts.best_exact(measured), facts.above_ceiling(measured)
    assert (best.value, best.finding) == ("1.50×", "exact")
    assert best.sentence == (
        "SpecInfer + optimal, d5b3: 1.30–1.50 times over 2 settings. At its best it emits 3.50 [3.30, 3.70] "
        "tokens a step; no exact verifier emits more than 4.00 [3.80, 4.20] on such trees."
    )
    assert above.value == "1 of 2" and "4.30–4.50 tokens a step beside ceilings of 4.00" in above.sentence
    assert facts.losslessness(measured).value == "2 of 2"
    assert facts.others(measured).value == "2 of 2" and "decide 1 more" in facts.others(measured).sentence


def test_the_papers_numbers_stand_beside_the_range_of_ours(page: Page) -> None:
    rows = {(row["Artefact"], row["Method"], row["Quantity"]): row for row in page.rows("overview")}
    own = rows["Table 1", "SpecInfer + ResiSpec", "Accepted length"]
    assert own["Paper"] == "4.67–4.69" and own["Here"] == "2.67" and own["Measured"] == "1 of 2"
    assert own["Audit"] == "biased (1 of 2 rows)"
    assert rows["Table 5", "standard", "Expected accepted length"]["Here"] == "1.50–3.50"
    assert rows["Table 4", "SpecInfer + ResiSpec", "D_KL as published"]["Here"] == "3.0e-07"


def test_steps_are_those_counted_by_hand(tmp_path: Path) -> None:
    """STANDARD: 7 steps, of which 3 emitted one token, 2 two and 2 three."""
    done = save(make_cell(tmp_path, "standard"), rows_of(toy_page.METHODS["standard"]))
    plan = planned(
        tmp_path, "table1", [done, make_cell(tmp_path, "resispec"), make_cell(tmp_path, "autoregressive")]
    )
    found = steps.of("table1", plan)
    shares, positions = found.shares.frame, found.positions.frame
    assert shares.value.tolist() == pytest.approx([3 / 7, 2 / 7, 2 / 7])
    assert positions.value.tolist() == pytest.approx([4 / 7, 2 / 4])
    assert found.shares.shown.to_numpy().tolist() == [
        ["SpecInfer (standard)", "42.9%", "28.6%", "28.6%"],
        ["SpecInfer + ResiSpec", "missing", "–", "–"],
    ]
    assert (
        steps.of("table1", planned(tmp_path, "table1", [make_cell(tmp_path, "standard", temperature=0.3)]))
        is None
    )


def test_audits_in_words(gathered: dict[str, sections.Section]) -> None:
    said = {one.row: one for one in words.said(gathered["table1"].made.tables[0].frame)}
    biased = said["Python code, SpecInfer + ResiSpec"]
    assert (
        biased.verdict == "biased" and "tokens that the draft overrates come out too often" in biased.sentence
    )
    assert said["Python code, SpecInfer (standard)"].sentence == (
        "No deviation from the target's law in 1,200 tokens: surprisal 0.0, overdraft 0.0 standard errors, "
        "all within 4."
    )
    assert said["Python reference, SpecInfer (standard)"].verdict == "not audited"
    assert "Python code, Autoregressive" not in said
    found = words.said(gathered["table4"].made.tables[0].frame)
    assert [one.verdict for one in found] == ["no bias seen", "biased"]
    assert "total variation 0.825" in found[1].sentence
    [one] = words.said(gathered["table5"].made.tables[0].frame)[:1]
    assert one.row == "arrangement = complete" and one.verdict == "biased"
    assert one.sentence == "Above what any exact rule can reach at num candidates = 2, 4, 8."


def test_a_table_of_other_columns_says_nothing_of_exactness() -> None:
    """What an artefact of one's own may hold."""
    for frame in (
        pd.DataFrame({"setting": ["a"], "value": [1.0]}),
        pd.DataFrame({"verifier": ["ceiling"], "quantity": ["overlap"], "value": [1.0]}),
        pd.DataFrame({"cell_id": ["a"], "status": ["done"], "verdict": ["exact"], "quantity": ["overlap"]}),
    ):
        assert words.said(frame) == []


def test_states_are_counted(gathered: dict[str, sections.Section]) -> None:
    assert status(gathered["table1"]) == "6 of 8 cells measured, 1 failed, 1 missing"
    assert status(gathered["table2"]) == "not measured"


def test_the_documentation_of_an_artefact_is_part_of_the_page(tmp_path: Path) -> None:
    (tmp_path / "table9.md").write_text(
        "# Table 9: *more*\n\n<!-- note -->\nWhat it is, see [Table 1](table1.md).\n\n## How\n\n"
        "See [exactness](../exactness.md), [docs/eagle.md](../eagle.md) and <script>alert(1)</script>.\n\n"
        "<!-- table9 -->\n| a |\n|---|\n| quoted |\n<!-- /table9 -->\n\n![a picture](x.png)\n\n"
        "## What came out\n\n<!-- frontier -->\nprose\n<!-- /frontier -->\n\n## Last\n\n### Kept\n\nwords\n\n"
        "## At the end\n\n<!-- frontier -->\nprose\n<!-- /frontier -->\n",
        encoding="utf-8",
    )
    about = text.about("table9", ["table1", "table9"], tmp_path)
    assert about.title == "Table 9: *more*"
    assert about.lead == '<p>What it is, see <a href="#table1">Table 1</a>.</p>\n'
    assert "<h3>How</h3>" in about.rest
    assert "exactness (<code>docs/exactness.md</code>), docs/eagle.md and" in about.rest
    assert "&lt;script&gt;" in about.rest
    assert "quoted" not in about.rest and "<img" not in about.rest
    assert re.findall(r"<h\d>(.*)</h\d>", about.rest) == ["How", "Last", "Kept"]
    assert text.about("table8", [], tmp_path) is None


def test_provenance_names_every_commit_and_device(page: Page) -> None:
    said = " ".join(page.sections["provenance"].split())
    assert "Commit abc1234567890 (changed)" in said and "Device test CPU" in said
    assert "make reproduce-table1 PROFILE=embedded" in said
    assert "Cells measured 11" in said


def test_columns_are_defined_by_notes_that_begin_with_them(page: Page) -> None:
    said = " ".join(page.sections["table1"].split())
    assert "Accepted length tokens emitted per forward of the target" in said
    assert "Gain accepted length over the baseline's" in said
    assert "Notes (" in said and "Brackets: 95 % percentile bootstrap" in said
