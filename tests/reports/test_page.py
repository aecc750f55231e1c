"""The page of a profile and of a sweep: every number is its table's, and gaps are shown.

Nothing is fetched, and the headline follows from the rows.
"""

import json
import re

import pandas as pd
import pytest

from analysis import SWEEP
from analysis.audits import ENUMERATED
from analysis.page import headline, sections
from analysis.page.__main__ import main, write
from analysis.page.render import Entry, entry
from analysis.table import Audit, Gap, Key, Number, Paper
from tests.reports.toy_page import REASON, parse, rows, section, text, write_results
from tests.toy_cells import (
    METHODS,
    make_audit,
    make_cell,
    rows_of,
    save,
    save_methods,
    write_plan,
)

BIASED = "ResiSpec's rows that are biased"
BEST = "Best gain without a bias seen, T = 1"
SPEEDS = "Speed, no speculation = 1"
GAIN = "ResiSpec's accepted length over SpecInfer's, d5b3, T = 1"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    write_results(folder)
    return folder


@pytest.fixture(scope="module")
def source(results):
    return write("embedded", results)[0].read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(source):
    return parse(source)


def test_every_number_is_that_of_its_table(page, results):
    read = [sections.read(name, "embedded", results) for name in sections.artefacts()]
    measured = [one for one in read if one.made]
    assert [one.name for one in measured] == ["table1", "table4", "table5", "figure1", "frontier"]
    for table in (table for one in measured for table in one.made.tables):
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
        Number(float("nan")): Entry("–"),
        Paper(1.55, 1.86): Entry("1.55–1.86", "", "", "1.55"),
        Audit("biased", (9.7, 12.3), 1536): Entry(
            "biased", " (z 9.7, 12.3; 1,536 tokens)", "biased"
        ),
        Audit("audit failed"): Entry("audit failed"),
        Audit(ENUMERATED): Entry(ENUMERATED, "", "biased"),
        Audit(): Entry("–"),
        Gap("failed", "no memory"): Entry("failed: no memory", "", "gap"),
        Key(0.6, "0.6"): Entry("0.6", "", "", "0.6"),
        Key("c4", "C4"): Entry("C4"),
        "undecided": Entry("undecided", "", "undecided"),  # in the table of a sweep
        "–": Entry("–"),
    }
    assert {cell: entry(cell) for cell in cells} == cells


def test_gaps_are_shown_as_gaps(page, source):
    table = section(page, "table1")
    assert "6 of 8 cells measured, 1 failed, 1 missing · audits: 1 biased, 1 no bias seen" in table
    assert f"failed: {REASON}" in table and "<b>memory</b>" not in source
    assert "Incomplete: 2 of 6 cells are missing, failed or interrupted." in table
    for name in ("table2", "table3", "table6"):
        assert f"Not measured yet; make reproduce-{name} measures it." in section(page, name)


def test_what_is_stale_or_cannot_be_read_is_said_in_its_section(tmp_path, monkeypatch, capsys):
    cell = save(make_cell(tmp_path, "standard"), rows_of(METHODS["standard"]))
    write_plan(tmp_path, "table1", [cell], sources={"conf/run.yaml": "0" * 64})
    damaged = save(make_cell(tmp_path, "standard", temperature=0.6), rows_of(METHODS["standard"]))
    (damaged.folder / "rows.jsonl").write_text("{}\n", encoding="utf-8")
    write_plan(tmp_path, "table4", [damaged])
    write_plan(tmp_path, "table5", []).write_text("{", encoding="utf-8")
    write_plan(tmp_path, "stats", [])  # a module that is no script
    monkeypatch.setattr(sections, "artefacts", lambda: ["table4", "table5", "stats", "table1"])
    assert main(["--results", str(tmp_path)]) == 1  # defect: it was 0
    assert "page lacks table4, table5, stats, which cannot" in capsys.readouterr().err
    path, _ = write("embedded", tmp_path)
    page = parse(path.read_text(encoding="utf-8"))
    problems = [text(one) for one in page.iterfind(".//section/*[@class='problem']")]
    assert (
        f"cell {damaged.cell_id}: status.json says that rows.jsonl is not what was" in problems[0]
    )
    assert "table5.json is damaged" in problems[1]
    assert problems[2].startswith("analysis/stats is no script with a make(plan)")
    assert "The plan of table1 is older than conf/run.yaml" in problems[3]


def test_artefacts_are_in_the_order_of_the_paper(page, tmp_path):
    names = [one.get("id") for one in page.iterfind(".//section")]
    assert names == ["verdict", *sections.artefacts(), "provenance"]
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


def test_a_section_begins_with_its_documentation(tmp_path):
    (tmp_path / "table9.md").write_text(
        "# Table 9: more\n\nSee [Table 1](table1.md),\n<!--=gain-->1.9<!--/--> times.\n\n## How\n"
    )
    assert sections.about("table9", tmp_path) == ("Table 9: more", "See Table 1,\n1.9 times.")
    assert sections.about("my_sweep", tmp_path) == ("My sweep", "")


def test_the_page_needs_nothing_beside_it_and_is_a_document(page, source):
    loaded = [one.get("src") for one in page.iter("img")] + [
        one.get("href") for one in page.iter("link")
    ]
    assert len(loaded) == 3 and all(link.startswith("data:") for link in loaded)
    assert not re.search(r"<script src|@import|url\(|fetch\(", source)
    links = [one.get("href") for one in page.iter("a")]
    ids = [name for one in page.iter() if (name := one.get("id"))]
    assert {link.removeprefix("#") for link in links} <= set(ids) and len({*ids}) == len(ids)
    headings = [int(one.tag[1]) for one in page.iter() if re.fullmatch("h[1-6]", one.tag)]
    assert headings[0] == 1 and set(headings[1:]) == {2}
    for table in page.iterfind(".//table[@id]"):
        head, *body = table.iter("tr")
        assert text(table.find("caption")) and all(cell.get("scope") == "col" for cell in head)
        assert all(row.find("th[@scope='row']") is not None for row in body), table.get("id")
    figure1, frontier = (one.get("alt") for one in page.iter("img"))
    assert "later siblings are accepted less" in figure1 and "Python code, T = 0.4" in figure1
    assert "Accepted length of exact verification" in frontier


def test_the_same_cells_give_the_same_page_and_its_origin_stands_beside_it(results, page, source):
    assert write("embedded", results)[0].read_text(encoding="utf-8") == source
    known = json.loads((results / "embedded" / "provenance.json").read_text())
    assert known == {
        "Cells measured": "10",  # and one has failed
        "Commit": "abc1234567890 (changed)",
        "Device": "test CPU",
    }
    provenance = section(page, "provenance")
    assert all(f"{name} {value}" in provenance for name, value in known.items())
    assert "make report PROFILE=embedded" in provenance


def test_what_keeps_the_page_from_being_written_is_one_line(tmp_path, capsys):
    for arguments, line in (
        (["--profile", "mine"], "error: unknown profile 'mine'; allowed: embedded, "),
        (["--profile", "paper"], f"error: nothing of profile paper is measured in {tmp_path}; "),
        (["--profile", "paper", "--sweep", "a"], "error: no sweeps in "),
    ):
        assert main(["--results", str(tmp_path), *arguments]) == 1
        assert capsys.readouterr().err.splitlines()[-1].startswith(line)
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_has_a_page_of_its_own(tmp_path, capsys):
    """By its name or the beginning of it; every row, and no claim of the paper."""
    cells = save_methods(tmp_path)
    asked = [*cells, make_audit(cells[2], 600, 0.2), make_cell(tmp_path, "naive")]
    write_plan(tmp_path, SWEEP, asked, part="mine", command="python -m experiments.run name=mine")
    options = ["--results", str(tmp_path), "--profile", "embedded", "--sweep"]
    path = tmp_path / "embedded" / "sweeps" / "mine.html"
    for name in ("mine", "mi"):
        assert main([*options, name]) == 0
        assert f"wrote {path}" in capsys.readouterr().out
    page = parse(path.read_text(encoding="utf-8"))
    states = [(row["Audit"], row["State"]) for row in rows(page, "mine")]
    done = [("–", "done"), ("not audited", "done"), ("biased", "done")]
    assert states == [*done, ("–", "missing")]
    assert text(page.find(".//span[@class='badge biased']")) == "biased"
    assert "4 of 5 cells measured, 1 missing" in section(page, "mine")
    assert "experiments.run name=mine" in section(page, "mine")
    assert page.find(".//section[@id='verdict']") is None
    assert "make report SWEEP=mine PROFILE=embedded" in section(page, "provenance")
    assert main([*options, "other"]) == 1
    assert "begin with 'other'; allowed: mine" in capsys.readouterr().err


def test_the_headline_of_a_page(page, tmp_path):
    verdict = section(page, "verdict")
    assert text(page.find(".//p[@class='headline biased']")) == (
        "ResiSpec is not lossless: its output does not have the target's law."
    )
    claim = "1.86 times the accepted length of SpecInfer and 1.69 times its throughput"
    assert claim in verdict and "The paper has 1.55–1.86" in verdict
    labels, values = (
        [text(one) for one in page.iterfind(f".//dl[@class='facts']/div/{path}")]
        for path in ("dt", "dd[1]")
    )
    assert dict(zip(labels, values, strict=True)) == {
        BIASED: "1 of 1",
        "Other rows that are biased": "0 of 1",
        GAIN: "1.44×",  # (16/6) / (13/7)
        SPEEDS: "1.44×",
    }
    write_plan(tmp_path, "table2", []).write_text("{", encoding="utf-8")
    page = parse(write("embedded", tmp_path)[0].read_text(encoding="utf-8"))
    undecided = text(page.find(".//section[@id='verdict']/p[2]"))
    assert undecided == "No audit of ResiSpec is decided here yet."


def frontier_rows(verifier, verdict, gain, length, decoder="specinfer"):
    """A cell on d5b3 whose ceiling is 4.0 [3.8, 4.2], in a setting of its own for every gain."""
    cell = {"cell_id": f"{verifier}{gain}", "decoder": decoder, "tree": "d5b3"}
    cell |= {"verifier": verifier, "verdict": verdict, "temperature": 1.0}
    numbers = {"accepted_length_gain": gain, "accepted_length": length, "ceiling": 4.0}
    numbers |= {"speedup_vs_autoregressive": gain / 4}
    return [
        cell | {"quantity": name, "value": one, "lower": one - 0.2, "upper": one + 0.2}
        for name, one in numbers.items()
    ]


def facts(**frames):
    """Value and sentence of each fact by its label. frames: artefact -> the rows of its table."""
    joined = headline.joined({name: pd.DataFrame(rows) for name, rows in frames.items()})
    found = headline.facts(joined)
    return {fact.label: (fact.value, fact.sentence) for fact in found}


def test_exact_verifiers_and_the_ceiling():
    """The best gain counts only where audits see no bias, in the artefact that is preferred.

    Above the ceiling means above its upper bound.
    """
    cells = [
        *frontier_rows("resispec", "biased", 1.9, 4.5),
        *frontier_rows("resispec", "biased", 1.8, 4.3),
        *frontier_rows("optimal", "no bias seen", 1.5, 3.5),
        *frontier_rows("optimal", "no bias seen", 1.3, 3.1),
        *frontier_rows("traversal", "undecided", 1.7, 3.9),
    ]
    found = facts(frontier=cells, table1=cells[:1])
    of_optimal = "SpecInfer + optimal, d5b3, over SpecInfer on d5b3."
    speed = " Its speed over no speculation: 0.33–0.38."
    assert found[BEST] == ("1.30–1.50×", of_optimal + speed)
    recycled = frontier_rows("resispec", "biased", 2.4, 4.6, "recycled")
    assert facts(frontier=[*cells, *recycled])[GAIN][0] == found[GAIN][0]  # defect: it counted
    own_tree = frontier_rows("standard", "no bias seen", 1.1, 3.0)
    with_own = facts(frontier=[*cells, *own_tree])[BEST][1]
    own = " The standard rule itself has 1.10 at T = 1: SpecInfer (standard), d5b3."
    assert with_own == of_optimal + own + speed
    assert "In 1 of 2 settings of the frontier its accepted length lies above" in found[GAIN][1]
    assert found[SPEEDS][0] == "0.33–0.38×" and "ResiSpec's rows have 0.45–0.47" in found[SPEEDS][1]
    assert found[BIASED][0] == "2 of 2"
    assert found["Other rows that are biased"][0] == "0 of 2"  # one is undecided
    whole_levels = frontier_rows("level_optimal", "no bias seen", 1.6, 3.7)
    cooler = [row | {"temperature": 0.6, "value": row["value"] + 1} for row in whole_levels]
    assert facts(frontier=cells, levels=[*whole_levels, *cooler])[BEST] == (
        "1.60×",
        "SpecInfer + whole levels, optimal, d5b3, over SpecInfer on d5b3. It has 2.60 at T = 0.6."
        " Its speed over no speculation: 0.40–1.40.",
    )


def test_the_lesser_part_of_the_audits_is_named():
    cells = [
        *frontier_rows("resispec", "biased", 1.9, 4.5),
        *frontier_rows("resispec", "biased", 1.8, 4.5),
        *frontier_rows("resispec", "no bias seen", 1.0, 2.0, "eagle"),
        *frontier_rows("optimal", "no bias seen", 1.3, 3.1),
        *frontier_rows("optimal", "no bias seen", 1.2, 3.1),
        *frontier_rows("standard", "biased", 1.0, 2.0, "eagle"),
    ]
    found = facts(frontier=cells)
    assert found[BIASED] == ("2 of 3", "No bias is seen in EAGLE + ResiSpec (1).")
    assert found["Other rows that are biased"] == (
        "1 of 3",
        "Those of EAGLE (standard) (1).",
    )
    assert headline.sentence(headline.joined({"table1": pd.DataFrame(cells[8:])}))[0] == (
        "No bias of ResiSpec was found in the rows measured so far."
    )


def test_bias_that_enumeration_shows_counts_in_the_headline_and_means_of_several_cells_do_not():
    """Defect: the headline had no verdict beside red rows; a mean without a cell was a row."""
    known = frontier_rows("resispec", "biased (enumerated)", 1.9, 4.5)
    means = [
        {name: value for name, value in row.items() if name != "cell_id"}
        for row in frontier_rows("resispec", "no bias seen", 1.0, 2.0)
    ]
    frames = {"table1": pd.DataFrame(known), "agreement": pd.DataFrame(means)}
    assert headline.sentence(headline.joined(frames))[1] == "biased"
    assert facts(table1=known, agreement=means)[BIASED][0] == "1 of 1"
