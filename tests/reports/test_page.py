"""The page of a profile: every number is its table's, gaps are shown,
nothing is fetched, nothing is lost.
"""

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from analysis.artefact import Artefact
from analysis.audits import ENUMERATED
from analysis.page import documentation, overview, sections, steps
from analysis.page.__main__ import main, write
from analysis.page.render import VARIATION, Entry, entry, folded, heights, render
from analysis.page.sections import Section
from analysis.table import Audit, Column, Gap, Key, Number, Paper, Table
from tests.reports.toy_page import REASON, parse, rows, section, text, write_results
from tests.toy_cells import METHODS, make_cell, planned, rows_of, save, write_artefact, write_plan

BIASED = "ResiSpec's rows that audit as biased"
BEST = "Best gain without a bias seen"
SPEEDS = "Speed without a bias seen, no speculation = 1"
GAIN = "ResiSpec's accepted length over SpecInfer's"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    write_results(folder)
    write_artefact("table1", "--results", str(folder))
    return folder


@pytest.fixture(scope="module")
def source(results):
    return write("embedded", results).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(source):
    return parse(source)


def shown(*tables):
    """A page of artefacts that have one table each, called like it."""
    made = [Section(table.stem, made=Artefact((table,))) for table in tables]
    return parse(render(made, "embedded", {}, Path("nowhere")))


def facts(page):
    """Value and sentence of every fact, by its label."""
    labels, values, sentences = (
        [text(one) for one in page.iterfind(f".//dl[@class='facts']/div/{path}")]
        for path in ("dt", "dd[1]", "dd[2]")
    )
    return dict(zip(labels, zip(values, sentences, strict=True), strict=True))


def bars(page):
    """The class and the number of every bar."""
    items = page.iterfind(".//figure[@class='bars']//li")
    return [
        (one.get("class"), text(one.find("span[@class='number']")).partition(" ")[0])
        for one in items
    ]


def test_every_number_is_that_of_its_table(page, results):
    read = [sections.read(name, "embedded", results) for name in sections.artefacts()]
    measured = [one for one in read if one.made]
    assert [one.name for one in measured] == ["table1", "table4", "table5", "figure1", "frontier"]
    for one in measured:
        for table in (*one.made.tables, *one.steps):
            if table.rows:
                texts = [sorted(row.values()) for row in rows(page, table.stem)]
                assert texts == [sorted(map(str, row)) for row in table.rows], table.stem
            else:  # like the frontier's shapes, of which there are none
                assert page.find(f".//table[@id='data-{table.stem}']") is None
    # the files have another order
    headers = [one for one in rows(page, "table1")[0] if "paper" not in one]
    assert headers[:6] == ["Data set", "Method", "Audit", "Accepted length", "Gain", "Speedup"]


def test_cells_are_shown_by_what_they_are():
    cells = {
        Number(2.514, 2.4, 2.6): Entry("2.51", " [2.40, 2.60]", "", "2.514"),
        Number(float("nan")): Entry("–", "", "absent"),
        Paper(1.55, 1.86): Entry("1.55–1.86", "", "", "1.55"),
        Audit("biased", (9.7, 12.3), 1536): Entry(
            "biased", " (z 9.7, 12.3; 1,536 tokens)", "biased"
        ),
        Audit("audit failed"): Entry("audit failed"),
        Audit("biased (enumerated)"): Entry("biased (enumerated)", "", "biased"),
        Gap("failed", "no memory"): Entry("failed: no memory", "", "gap"),
        Key(0.6, "0.6"): Entry("0.6", "", "", "0.6"),
        Key("c4", "C4"): Entry("C4"),
        "–": Entry("–", "", "absent"),
    }
    assert {cell: entry(cell) for cell in cells} == cells


NUMBER, INTERVAL, AUDIT = Number(1.0), Number(1.0, 0.9, 1.1), Audit("biased", (9.0, 9.0), 10)


@pytest.mark.parametrize(
    ("columns", "row", "words", "places"),
    [
        (
            [("b", "number"), ("b", "paper"), ("c", "audit")],
            (INTERVAL, Paper(1.0, 1.0), AUDIT),
            "intervals, scores of audits and the paper's figures",
            {1},
        ),
        ([(str(place), "number") for place in range(13)], (NUMBER,) * 13, "", set()),
        (
            [(str(place // 4), "number") for place in range(14)],
            (NUMBER,) * 14,
            "more columns",
            {12, 13},
        ),
    ],
)
def test_what_folds_out_of_a_table(columns, row, words, places):
    """A quantity is folded whole: of 14 columns the last two, which are of one quantity."""
    shown = tuple(Column(key, key, kind) for key, kind in columns)
    assert folded(Table("toy", shown, (row,), "")) == (words, places)


def test_gaps_are_shown_as_gaps(page, source):
    table = section(page, "table1")
    assert "6 of 8 cells measured, 1 failed, 1 missing · audits: 1 biased, 1 no bias seen" in table
    assert f"failed: {REASON}" in table and "<b>memory</b>" not in source
    assert "Incomplete: 2 of 6 cells are missing, failed or interrupted." in table
    for name in ("table2", "table3", "table6"):
        assert f"Not measured yet; make reproduce-{name} PROFILE=embedded measures it." in section(
            page, name
        )


def test_what_is_stale_or_cannot_be_read_is_said_in_its_section(tmp_path, monkeypatch):
    cell = save(make_cell(tmp_path, "standard"), rows_of(METHODS["standard"]))
    write_plan(tmp_path, "table1", [cell], sources={"conf/run.yaml": "0" * 64})
    damaged = save(make_cell(tmp_path, "standard", temperature=0.6), rows_of(METHODS["standard"]))
    (damaged.folder / "rows.jsonl").write_text("{}\n", encoding="utf-8")
    write_plan(tmp_path, "table4", [damaged])
    write_plan(tmp_path, "table5", []).write_text("{", encoding="utf-8")
    write_plan(tmp_path, "stats", [])  # a module that is no script
    monkeypatch.setattr(sections, "artefacts", lambda: ["table4", "table5", "stats", "table1"])
    page = parse(write("embedded", tmp_path).read_text(encoding="utf-8"))
    problems = [text(one) for one in page.iterfind(".//section/p[@class='problem']")]
    assert (
        f"cell {damaged.cell_id}: status.json says that rows.jsonl is not what was" in problems[0]
    )
    assert "table5.json is damaged" in problems[1]
    assert problems[2].startswith("analysis/stats is no script with a make(plan)")
    assert problems[3].startswith("The plan of table1 is older than conf/run.yaml")


def test_artefacts_are_in_the_order_of_the_paper(page, tmp_path):
    names = [one.get("id") for one in page.iterfind(".//section")]
    assert names == ["verdict", "overview", *sections.artefacts(), "glossary", "provenance"]
    for name in ("my_sweep.yaml", "figure10.yaml", "figure2.yaml", "frontier.yaml", "table12.yaml"):
        (tmp_path / name).touch()
    names = sections.artefacts(tmp_path)
    assert names == ["table12", "figure2", "figure10", "frontier", "my_sweep"]
    assert [*map(sections.titled, names)] == [
        "Table 12",
        "Figure 2",
        "Figure 10",
        "Frontier",
        "My sweep",
    ]


def test_no_cell_is_measured_yet(tmp_path, capsys):
    write_plan(tmp_path, "table2", []).write_text("{", encoding="utf-8")
    assert main(["--results", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert "report.html (0." in captured.out and "report: table1 (1 of " in captured.err
    page = parse((tmp_path / "embedded" / "report.html").read_text(encoding="utf-8"))
    verdict = section(page, "verdict")
    assert page.find(".//table[@id]") is None and verdict.count("not measured yet") == 6
    assert "No audit of ResiSpec is decided here yet" in verdict
    assert "make reproduce-frontier PROFILE=embedded" in verdict


def test_the_page_needs_nothing_beside_it_and_is_a_document(page, source):
    loaded = [one.get("src") for one in page.iter("img")] + [
        one.get("href") for one in page.iter("link")
    ]
    assert (
        loaded and all(link.startswith("data:") for link in loaded) and "<script src" not in source
    )
    assert "@import" not in source and "url(" not in source and "fetch(" not in source
    links = [one.get("href") for one in page.iter("a")]
    ids = [name for one in page.iter() if (name := one.get("id"))]
    assert [link for link in links if not link.startswith("#")] == ["table1.csv"]
    assert {link[1:] for link in links if link.startswith("#")} <= set(ids) and len({*ids}) == len(
        ids
    )
    headings = [int(one.tag[1]) for one in page.iter() if re.fullmatch("h[1-6]", one.tag)]
    assert headings[0] == 1 and headings.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(headings, headings[1:], strict=False))
    for table in page.iterfind(".//table[@id]"):
        head, *body = table.iter("tr")
        assert text(table.find("caption")) and all(cell.get("scope") == "col" for cell in head)
        assert all(row.find("th[@scope='row']") is not None for row in body), table.get("id")
    figure1, frontier = (one.get("alt") for one in page.iter("img"))
    assert (
        "later siblings are accepted less. Panels: Python code, T = 0.4. Across: sibling" in figure1
    )
    assert (
        "Shown: standard; ceiling" in figure1
        and "Accepted length of exact verification" in frontier
    )


def test_the_same_cells_give_the_same_page_and_other_csvs_are_told_apart(results, source):
    note = ", which has other numbers than this page: it was written from other cells"
    path = results / "embedded" / "table1.csv"
    content = path.read_text(encoding="utf-8")
    path.write_text(content.replace("1.857", "1.858"), encoding="utf-8")
    anew = write("embedded", results).read_text(encoding="utf-8")
    path.write_text(content, encoding="utf-8")
    assert anew.count(note) == 1 and anew.replace(note, "") == source


def test_what_keeps_the_page_from_being_written_is_one_line(tmp_path, capsys):
    assert main(["--results", str(tmp_path), "--profile", "mine"]) == 1
    assert capsys.readouterr().err.startswith("error: unknown profile 'mine'; allowed: embedded, ")
    assert main(["--results", str(tmp_path), "--profile", "paper"]) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(f"error: nothing of profile paper is measured in {tmp_path}; ")
    assert list(tmp_path.iterdir()) == []


def test_the_verdict_follows_from_the_rows(page):
    found, verdict = facts(page), section(page, "verdict")
    assert text(page.find(".//p[@class='headline biased']")) == (
        "ResiSpec is not lossless: its output does not have the target's law. "
        "In Table 1 and Frontier verifiers without a bias seen are 1.44 times as fast as no "
        "speculation."
    )
    classes = {one.get("class").strip() for one in page.iterfind(".//dl[@class='facts']/div")}
    assert classes == {"fact", "fact biased", "fact no-bias-seen"}
    assert {label: value for label, (value, _) in found.items()} == {
        BIASED: "1 of 1",
        BEST: "not measured yet",
        SPEEDS: "1.44×",
        GAIN: "1.44×",  # (16/6) / (13/7)
        "Other rows without a bias seen": "1 of 1",
        "The paper's own check, and a random proxy in it": "3e-07 and 2e-07",
    }
    assert "the paper has 1.55–1.86" in found[GAIN][1]
    claim = (
        "1.86 times the accepted length of SpecInfer and 1.69 times its throughput in its Table 1"
    )
    assert claim in verdict and "up to 1.92 times on other trees (Table 3)." in verdict
    assert bars(page) == [("no-bias-seen", "1.86"), ("biased", "2.67")]


def test_the_picture_compares_cells_of_one_setting_and_undecided_audits_give_no_verdict(tmp_path):
    """A seed that was swept, too, is part of the setting."""
    asked = (("resispec", 1), ("resispec", 0), ("standard", 0))
    cells = [
        save(make_cell(tmp_path, name, seed=seed), rows_of(METHODS[name])) for name, seed in asked
    ]
    write_plan(tmp_path, "table1", cells)
    page = parse(write("embedded", tmp_path).read_text(encoding="utf-8"))
    setting = "Accepted length, tokens a step: embedded 2M + 80k, Python code, T = 1, seed = 1"
    assert text(page.find(".//figcaption")) == setting and bars(page) == [("plain", "2.67")]
    assert (
        text(page.find(".//p[@class='headline unknown']"))
        == "No audit of ResiSpec is decided here yet."
    )
    value, sentence = facts(page)[GAIN]
    assert value == "1.44×" and "biased" not in sentence


def frontier_rows(verifier, verdict, gain, length):
    """A cell on d5b3 whose ceiling is 4.0 [3.8, 4.2], in a setting of its own for every gain."""
    cell = {
        "cell_id": f"{verifier}{gain}",
        "pair": "embedded",
        "dataset": f"of {gain}",
        "temperature": 1.0,
    }
    cell |= {"decoder": "specinfer", "tree": "d5b3", "verifier": verifier, "status": "done"}
    numbers = {
        "accepted_length_gain": gain,
        "accepted_length": length,
        "speedup": gain / 2,
        "ceiling": 4.0,
    }
    numbers |= {"speedup_vs_autoregressive": gain / 4}
    width = 0.0 if gain == 1 else 0.2
    return [
        cell
        | {
            "quantity": name,
            "value": one,
            "lower": one - width,
            "upper": one + width,
            "verdict": verdict,
        }
        for name, one in numbers.items()
    ]


def test_exact_verifiers_and_the_ceiling():
    """The highest gain counts only where the audit is exact;
    above the ceiling is above its upper bound.
    """
    cells = [
        *frontier_rows("resispec", "biased", 1.9, 4.5),
        *frontier_rows("resispec", "biased", 1.8, 4.3),
        *frontier_rows("optimal", "no bias seen", 1.5, 3.5),
        *frontier_rows("optimal", "no bias seen", 1.3, 3.1),
        *frontier_rows("traversal", "undecided", 1.7, 3.9),
    ]
    frontier = Table("frontier", (), (), "", pd.DataFrame(cells))
    table1 = Table(
        "table1", (), (), "", pd.DataFrame(frontier_rows("resispec", "biased", 1.9, 4.5)[:1])
    )
    found = facts(shown(frontier, table1))
    assert found[BEST] == (
        "1.50×",
        "SpecInfer + optimal, d5b3: 1.30–1.50 times the tokens of SpecInfer on d5b3 over 2 "
        "settings, at 0.65–0.75 times its tokens a second. At its best it emits 3.50 [3.30, 3.70] "
        "tokens a step; no exact verifier emits more than 4.00 [3.80, 4.20] on such trees. "
        "Frontier",
    )
    above = "In 1 of 2 settings of the frontier its accepted length lies above"
    assert (
        above in found[GAIN][1]
        and "4.30–4.50 tokens a step beside ceilings of 4.00" in found[GAIN][1]
    )
    assert found[SPEEDS][0] == "0.33–0.38×" and "ResiSpec's rows have 0.45–0.47" in found[SPEEDS][1]
    assert found[BIASED][0] == "2 of 2"
    value, sentence = found["Other rows without a bias seen"]
    assert value == "2 of 2" and "decide 1 more" in sentence
    assert bars(shown(frontier)) == [("biased", "4.50"), ("ceiling", "4.00")]
    levels = pd.DataFrame(frontier_rows("level_optimal", "no bias seen", 1.6, 3.7)[:2])
    page = shown(frontier, Table("levels", (), (), "", levels.assign(dataset="of 1.9")))
    assert facts(page)[BEST][1] == (
        "SpecInfer + whole levels, optimal, d5b3: 1.60 times the tokens of SpecInfer on d5b3 over "
        "1 setting. At its best it emits 3.70 [3.50, 3.90] tokens a step. Levels"
    )
    assert bars(page) == [("biased", "4.50"), ("no-bias-seen", "3.70"), ("ceiling", "4.00")]


def test_rows_of_resispec_without_a_bias_are_the_standard_rule_or_misses_of_the_test():
    cells = [
        *frontier_rows("resispec", "biased", 1.9, 4.5),
        *frontier_rows("resispec", "no bias seen", 1.2, 4.3),
        *[
            row | {"decoder": "eagle"}
            for row in frontier_rows("resispec", "no bias seen", 1.0, 2.0)
        ],
    ]
    found = facts(shown(Table("frontier", (), (), "", pd.DataFrame(cells))))
    sentence = found[BIASED][1]
    assert found[SPEEDS][0] == found[BEST][0] == "not measured yet"  # those of exact verifiers
    assert "EAGLE + ResiSpec (1 row) is the standard rule there" in sentence
    assert "SpecInfer + ResiSpec (1 row) is a miss of the test" in sentence


def test_a_note_points_to_the_words_of_the_glossary(page):
    linked = {
        text(one) for one in page.iterfind(".//dl[@class='definitions']//a[@href='#glossary']")
    }
    assert linked == {"Accepted length", "Ceiling", "Gain", "Speedup", "Speedup vs autoregressive"}
    words = [text(one) for one in page.iterfind(".//section[@id='glossary']//dt")]
    assert len(words) == 10 and words[0] == "target, draft" and words[-1] == "ceiling"


def test_the_papers_numbers_stand_beside_the_range_of_ours(page):
    found = {
        (row["Artefact"], row["Method"], row["Quantity"]): row for row in rows(page, "overview")
    }
    row = found["Table 1", "SpecInfer + ResiSpec", "Accepted length"]
    assert row["Paper"] == "4.67–4.69" and row["Here"] == "2.67" and row["Measured"] == "1 of 2"
    assert row["Audit"] == "biased (1 of 2 rows)"
    assert found["Table 5", "standard", "Expected accepted length"]["Here"] == "1.50–3.50"
    assert found["Table 4", "SpecInfer + ResiSpec", "D_KL as published"]["Here"] == "3.0e-07"


def test_a_bias_that_enumeration_shows_counts_as_biased():
    rows = {
        "quantity": "accepted_length",
        "verifier": "resispec",
        "value": 4.9,
        "verdict": ENUMERATED,
    }
    frame = pd.DataFrame([rows | {"paper_low": 4.67, "paper_high": 4.69}])
    [line] = overview.table({"table1": frame}).rows
    assert str(line[3]) == "biased (1 of 1 rows)"


def test_steps_are_those_counted_by_hand(tmp_path):
    """STANDARD: 7 steps, of which 3 emitted one token, 2 two and 2 three."""
    done = save(make_cell(tmp_path, "standard"), rows_of(METHODS["standard"]))
    others = [make_cell(tmp_path, "resispec"), make_cell(tmp_path, "autoregressive")]
    shares, positions = steps.of(planned(tmp_path, "table1", [done, *others]))
    assert [[*map(str, row)] for row in shares.rows] == [
        ["SpecInfer (standard)", "42.9%", "28.6%", "28.6%"],
        ["SpecInfer + ResiSpec", "missing", "–", "–"],
    ]
    assert positions.frame.value[:2].tolist() == pytest.approx([4 / 7, 2 / 4])
    assert heights(shares) == [pytest.approx((1, 2 / 3, 2 / 3)), []]
    assert (
        steps.of(planned(tmp_path, "table1", [make_cell(tmp_path, "standard", temperature=0.3)]))
        == ()
    )


def test_audits_in_words():
    columns = (
        Column("T", "T", "key"),
        Column("M", "M", "key"),
        Column("verdict", "Audit", "audit"),
    )
    found = {
        "A": Audit("no bias seen", (0.0, -0.04), 1200),
        "B": Audit("biased", (5.0, 9.7), 1536),
        "C": Audit("undecided", (1.0, float("nan")), 10),
        "–": Audit("audit failed"),
        "E": Audit(),
    }
    lines = tuple((Key(1.0, "1"), Key(name, name), audit) for name, audit in found.items())
    variation = (
        Column("verifier", "Verifier", "key"),
        *(Column(name, name, "number") for name in VARIATION),
    )
    laws = [
        (Key(z, name), Number(0.8, 0.7, 0.9, ".3f"), Number(z))
        for name, z in (("a", 9.0), ("b", 1.0))
    ]
    page = shown(Table("toy", columns, lines, ""), Table("laws", variation, tuple(laws), ""))
    assert [text(one) for one in page.iterfind(".//ul[@class='audits']/li")] == [
        "no bias seen T = 1, A. No deviation from the target's law in 1,200 tokens: surprisal "
        "0.0, overdraft 0.0 standard errors, all within 4.",
        "biased T = 1, B. Not the target's law: tokens that the draft overrates come out too "
        "often and its tokens are less likely under the target than the target's own (surprisal "
        "5.0, overdraft 9.7 standard errors over 1,536 tokens; beyond 4 is bias).",
        "undecided T = 1, C. No bias found, but too little evidence in 10 tokens to judge: "
        "surprisal 1.0, overdraft – standard errors.",
        "audit failed T = 1. No verdict: audit failed.",
        "biased T = a. Not the target's law: total variation 0.800 [0.700, 0.900], 9.0 standard "
        "errors above what an exact rule has.",
        "no bias seen T = b. No deviation at a node: total variation 0.800 [0.700, 0.900], 1.0 "
        "standard errors, within 4.",
    ]


def test_documentation_is_shown_without_what_it_quotes(tmp_path):
    (tmp_path / "table9.md").write_text(
        "# Table 9: *more*\n\nWhat it is, see [Table 1](table1.md).\n\n## How\n\n"
        "See [exactness](../exactness.md), [docs/eagle.md](../eagle.md) and "
        "<script>alert(1)</script>.\n\n"
        "Here is [ours](../../results/published/smollm2/table1.md).\n\n"
        "<!-- table9 -->\n| a |\n|---|\n| quoted |\n<!-- /table9 -->\n\n![a picture](x.png)\n\n"
        "## What came out\n\n<!-- frontier -->\nprose\n<!-- /frontier -->\n\n## Last\n\n### "
        "Kept\n\nwords\n\n"
        "## At the end\n\n<!-- frontier -->\nprose\n<!-- /frontier -->\n",
        encoding="utf-8",
    )
    about = documentation.about("table9", ["table1", "table9"], tmp_path)
    assert about.title == "Table 9: *more*"
    assert about.lead == '<p>What it is, see <a href="#table1">Table 1</a>.</p>\n'
    assert "exactness (<code>docs/exactness.md</code>), docs/eagle.md and" in about.rest
    # another profile's
    assert "ours (<code>results/published/smollm2/table1.md</code>)" in about.rest
    assert (
        "&lt;script&gt;" in about.rest and "quoted" not in about.rest and "<img" not in about.rest
    )
    assert re.findall(r"<h3>(.*)</h3>|<h4>(.*)</h4>", about.rest) == [
        ("How", ""),
        ("Last", ""),
        ("", "Kept"),
    ]
    assert documentation.about("table8", [], tmp_path) is None


def test_provenance_names_every_commit_and_device(page, results):
    known = json.loads((results / "embedded" / "provenance.json").read_text())
    assert known == {
        "Cells measured": "11",
        "Commit": "abc1234567890 (changed)",
        "Device": "test CPU",
    }
    provenance = section(page, "provenance")
    assert all(f"{name} {value}" in provenance for name, value in known.items())
    assert "make reproduce-table1 PROFILE=embedded" in provenance
