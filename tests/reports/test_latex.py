"""The paper form of tables: what has room, and that TeX sets it."""

import re
import shutil
import subprocess

import pytest

from analysis import artefact, latex, published
from analysis.load import read_plan
from analysis.page.sections import maker
from analysis.table import Audit, Column, Gap, Key, Notes, Number, Table

PROFILE = published.FOLDER / "embedded"
TEX = next(filter(None, map(shutil.which, ("pdflatex", "tectonic"))), None)
NO_NOTES = Notes()
DOCUMENT = r"""\documentclass[10pt%s]{article}
\usepackage[letterpaper,textwidth=%s,textheight=9in]{geometry}
\usepackage{array,booktabs}
\begin{document}
%s
\end{document}
"""


def published_tables(*names):
    """The tables of artefacts, drawn from their published cells."""
    for name in names:
        archive = published.archive_of(name, PROFILE)
        plan = read_plan(name, "embedded", published.unpacked(archive))
        yield from artefact.complete(maker(name), plan).tables


def own(rows, columns=(), notes=NO_NOTES):
    keys = (Column("temperature", "T", "key"), Column("method", "Method", "key"))
    shown = (Column("length", "Accepted length", "number"), *columns)
    return Table("own", (*keys, *shown), tuple(rows), "Own.", notes=notes)


def row(temperature, name, *cells, short=""):
    return (Key(temperature, f"{temperature:g}"), Key(name, name, short), *cells)


def test_table_1_has_at_most_seven_columns_and_keeps_lengths_and_verdicts():
    made, *_ = published_tables("table1")
    text = latex.latex(made)
    lines = [line for line in text.splitlines() if line.endswith(r" \\") and "&" in line]
    assert {line.count("&") for line in lines} == {5} and len(lines) == 1 + len(made.rows)
    assert lines[0].startswith("Method & ") and lines[0].endswith(r"Audit \\")
    for line, cells in zip(lines[1:], made.rows, strict=True):
        length, audit = cells[3], cells[-1]
        assert f"{length.head} {{" in line and latex.escape(length.interval) in line
        assert line.endswith(rf"{latex.escape(audit.head)} \\")
    assert text.count(r"\multicolumn") == 6 and r"\emph{T = 0.6, Package docstrings}" in text
    caption = re.search(r"\\caption\{(.*)\}\n", text)[1]
    assert "Not shown, but in table1.csv: (paper), Speedup vs autoregressive" in caption
    assert "ResiSpec's rows are biased" in caption and len(caption) < 1.2 * latex.MAX_CAPTION
    assert "resizebox" not in text and r"\fontsize{9}" in text and r"\begin{table*}" in text


def test_a_narrow_table_stands_in_one_column_and_gaps_are_short():
    rows = [row(1.0, "a.py:Mine", Gap("failed", "out of memory " * 4), short="Mine"),
            row(1.0, "standard", Number(3.0, 2.9, 3.1))]  # fmt: skip
    text = latex.latex(own(rows))
    assert r"\begin{table}[t]" in text and "Mine & failed" in text and "out of memory" not in text
    assert r"3.00 {\fontsize{7}{8}\selectfont [2.90, 3.10]}" in text and "Not shown" not in text


def test_intervals_go_before_columns_do():
    columns = [Column(f"n{place}", f"Number {place}", "number") for place in range(8)]
    audit = Column("verdict", "Audit", "audit")
    numbers = [Number(100.0, 90.0, 110.0)] * 9
    rows = [row(1.0, f"method {place}", *numbers, Audit("biased", (9.7,), 10)) for place in (1, 2)]
    text = latex.latex(own(rows, [*columns, audit]))
    [line, *_] = [line for line in text.splitlines() if line.startswith("method 1")]
    assert line.count("&") == latex.MAX_COLUMNS - 1 and line.count("[") == 1
    assert line.endswith(r"& biased \\") and "9.7" not in line
    assert "Number 4, Number 5, Number 6, Number 7, further intervals and scores" in text


def test_notes_that_have_no_room_are_in_the_page():
    notes = Notes(("An important note.", "x" * latex.MAX_CAPTION, "y" * 2000, "Short."))
    text = latex.latex(own([row(1.0, "a", Number(1.0))], notes=notes))
    assert "An important note." in text and "Short." in text and "xxx" not in text
    assert text.count("Further notes: own.md.") == 1


@pytest.mark.skipif(TEX is None, reason="no pdflatex and no tectonic")
@pytest.mark.parametrize(("option", "width"), [(",twocolumn", "6.75in"), ("", "5.5in")])
def test_tex_sets_every_table_within_its_width(tmp_path, option, width):
    names = ["table1", "table2", "table3", "table4", "table5", "table6", "figure2", "figure3"]
    tables = [*published_tables(*names), own([row(1.0, "50 % of #1 & _^~", Gap("failed", "$"))])]
    texts = [latex.latex(made) for made in tables]
    body = "\n\\clearpage\n".join(texts)
    (tmp_path / "all.tex").write_text(DOCUMENT % (option, width, body), encoding="utf-8")
    command = [TEX] if "tectonic" in TEX else [TEX, "-interaction=nonstopmode", "-halt-on-error"]
    done = subprocess.run(
        [*command, "all.tex"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:]
    said = done.stdout + done.stderr
    assert "Overfull \\hbox" not in said, said
