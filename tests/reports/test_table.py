"""Cells as tables print them, and digits and characters in files."""

import math

import pandas as pd
import pytest

from analysis import table
from analysis.latex import escape
from analysis.table import Audit, Number, Paper


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (Number(-0.001), "0.00"),
        (Number(-1.0), "-1.00"),
        (Paper(1.068, 1.072), "1.07"),
        (Audit("biased", (9.71, math.nan), 1536), "biased (z 9.7; 1,536 tokens)"),
    ],
)
def test_cells_as_printed(cell, text):
    assert str(cell) == text


def test_files_have_no_digits_in_which_processors_differ():
    frame = pd.DataFrame({"temperature": [1.0, 0.6], "value": [0.1 + 0.2, math.nan]})
    assert table.csv(table.plain("toy", frame, "")) == "temperature,value\n1.0,0.3\n0.6,\n"


def test_special_characters_are_escaped():
    assert escape("a_b & 5% {~^\\} <$#>") == (
        r"a\_b \& 5\% \{\textasciitilde{}\textasciicircum{}\textbackslash{}\} "
        r"\textless{}\$\#\textgreater{}"
    )
