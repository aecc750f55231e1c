"""Cells as tables print them, and digits and characters in files."""

import json
import math
from dataclasses import replace

import pandas as pd
import pytest

from analysis import table
from analysis.labels import Label
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


def test_a_json_has_numbers_and_nulls_and_its_origin(tmp_path):
    frame = pd.DataFrame({"verifier": [Label("custom", {"name": "a:B"}), "standard"], "n": [1, 2]})
    frame = frame.assign(is_on=[True, False], value=[0.1 + 0.2, math.nan], end=[math.inf, 1.0])
    facts = {"profile": "embedded", "commit": ["a"]}
    made = replace(table.plain("toy", frame, "A toy."), facts=facts)
    paths = table.write(made, tmp_path, ["csv", "md"])
    assert [path.name for path in paths] == ["toy.csv", "toy.json", "toy.md"]
    content = json.loads(paths[1].read_text(), parse_constant=pytest.fail)
    assert content == {
        "header": {"table": "toy", "caption": "A toy.", "profile": "embedded", "commit": ["a"]},
        "records": [
            {"verifier": "custom(name=a:B)", "n": 1, "is_on": True, "value": 0.3, "end": "inf"},
            {"verifier": "standard", "n": 2, "is_on": False, "value": None, "end": 1.0},
        ],
    }
