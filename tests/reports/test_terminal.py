"""Tables at a terminal of some width, and short names of verifiers."""

import re
import sys
from dataclasses import replace

import pytest

from analysis import sweep, table1
from analysis.labels import Label, short
from analysis.load import read_plan
from analysis.published import FOLDER, archive_of, unpacked
from analysis.table import Column, Key, Notes, Number, Table, markdown
from analysis.terminal import printed
from tests.toy_cells import make_cell, planned

COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def terminal(monkeypatch):
    """Makes stdout a terminal of a width."""

    def of(width, **variables):
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        for name, value in {"COLUMNS": str(width), "TERM": "xterm-256color", **variables}.items():
            monkeypatch.setenv(name, value)

    monkeypatch.delenv("NO_COLOR", raising=False)
    return of


@pytest.fixture(scope="module")
def first():
    """Table 1 as published, which is far wider than a terminal."""
    plan = read_plan("table1", "embedded", unpacked(archive_of("table1", FOLDER / "embedded")))
    return replace(table1.make(plan).tables[0], notes=Notes())


@pytest.mark.parametrize("width", [60, 120, 160])
def test_a_table_fits_the_terminal_and_says_what_it_leaves_out(first, terminal, width):
    terminal(width)
    text = COLOUR.sub("", printed(first, "results/table1.md"))
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    words = " ".join(text.split())
    assert words.count("SpecInfer (standard)") == words.count("Autoregressive") == 6
    assert text.count("biased") >= 6 and text.count("no bias seen") >= 6
    left_out = "not shown for want of width: " in words
    assert left_out == (width < 160)
    if left_out:
        assert words.endswith("results/table1.md has all")
        for column in first.columns[first.num_keys :]:
            is_shown = column.header.split()[-1] in words.partition("not shown")[0]
            named = column.kind == "paper" or column.header in words.partition("not shown")[2]
            assert is_shown or named, column
    for row in first.rows:  # no number is cut
        assert re.search(rf"(?<![\d.]){re.escape(row[3].head)}(?![\d.])", text)


def test_elsewhere_a_table_is_markdown(first):
    assert printed(first, "results/table1.md") == markdown(first)


def test_verdicts_have_words_and_colours_but_for_no_color(first, terminal):
    terminal(100)
    assert re.search(r"\x1b\[1;31mbiased", printed(first)) and "\x1b[32mno bias seen" in printed(
        first
    )
    terminal(100, NO_COLOR="1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", printed(first)) and "biased" in printed(first)


def test_verifiers_of_ones_own_have_short_names_that_differ(terminal):
    mine, other = (Label("custom", {"name": f"{file}.py:Mine"}) for file in ("a", "b/c"))
    assert short(mine) == "Mine" and short("standard") == "standard"
    more = Label("custom", {"name": "a.py:Mine", "alpha": 2})
    assert short(more) == short(more.text) == "Mine, alpha=2"
    columns = (Column("verifier", "Verifier", "key"), Column("n", "N", "number"))

    def names(*verifiers):
        terminal(100)
        rows = tuple(
            (Key(one, f"custom, name={one.parameters['name']}", short(one)), Number(1.0))
            for one in verifiers
        )
        return COLOUR.sub("", printed(Table("own", columns, rows, "Own.")))

    assert "Mine " in names(mine) and "name=" not in names(mine)
    both = names(mine, other)
    assert "name=a.py:Mine" in both and "name=b/c.py:Mine" in both


def test_baselines_are_never_cut_from_the_table_of_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "MOST_ROWS", 2)
    names = ["resispec", "naive", "optimal", "standard", "autoregressive"]
    cells = [make_cell(tmp_path, name, tree="d3b11") for name in names[:1]]
    cells += [make_cell(tmp_path, name) for name in names]
    cells += [make_cell(tmp_path, "standard", temperature=0.6)]  # of no shown row
    made = sweep.table_of([planned(tmp_path, "table1", cells)], "own")
    frame = made.frame.assign(place=range(len(made.rows)))
    shown = [*map(made.rows.index, sweep.head(made).rows)]
    is_baseline = frame.verifier.eq("standard") | frame.decoder.eq("autoregressive")
    baselines = frame.place[is_baseline & (frame.temperature == 1.0)]
    assert shown == sorted({0, 1, *baselines}) and len(shown) < len(made.rows) - 1
    text = sweep.written(made, tmp_path / "sweeps")
    assert f"and {len(made.rows) - len(shown)} more in the CSV" in text
