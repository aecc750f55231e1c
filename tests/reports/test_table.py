"""Tables, printed labels and the paper's numbers."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from analysis import labels, table, table1
from analysis.artefact import paper
from analysis.labels import Label
from analysis.table import Audit, Gap, Number
from resispec.errors import InvalidInput


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (Number(-0.001), "0.00"),
        (Number(-1.0), "-1.00"),
        (Audit("biased", (9.71, math.nan), 1536), "biased (z 9.7; 1,536 tokens)"),
        (Gap("failed", "x" * 200), "failed: " + "x" * 51 + "…"),
    ],
)
def test_cells_as_printed(cell: table.Cell, text: str) -> None:
    assert str(cell) == text


def test_special_characters_are_escaped() -> None:
    assert table.escape("a_b & 5% {~^\\} <$#>") == (
        r"a\_b \& 5\% \{\textasciitilde{}\textasciicircum{}\textbackslash{}\} \textless{}\$\#\textgreater{}"
    )


def test_a_label_is_an_option_with_parameters() -> None:
    label = Label("chain", {"num_drafted": 7})
    assert str(label) == label == "chain(num_drafted=7)" and label in {"chain(num_drafted=7)"}
    assert Label.of(label.json()) == label != Label("chain") == "chain"
    assert not Label("") and pd.Series([label]).isin(["chain(num_drafted=7)"]).all()
    with pytest.raises(LookupError):
        Label.of({"name": "chain"})


def test_printed_names_come_from_the_options_files() -> None:
    assert labels.method("my_decoder", Label("my_rule", {"bins": 2})) == "my decoder + my rule, bins=2"
    assert labels.name("decoder", Label("specinfer", {"drafts": 2})) == "SpecInfer, drafts=2"
    assert labels.paper_models("embedded_800k__80k") == ("Sheared-2.7B", "Tiny-Vicuna-1B")
    order = [labels.rank("dataset", name) for name in ("cnn_dm", "c4", "unknown")]
    assert order == sorted(order) and len(set(order)) == 3
    assert (labels.header("temperature"), labels.header("num_prompts")) == ("T", "num prompts")


def test_a_tree_that_is_given_parameters_is_named_by_them() -> None:
    """`tree.num_drafted=3` and `=7` were both "chain of 4" (defect E)."""
    given = Label("chain", {"num_drafted": 3})
    assert [labels.name("tree", tree) for tree in ("chain", given)] == ["chain of 4", "chain, num_drafted=3"]
    assert labels.rank("tree", given) == labels.rank("tree", "chain")
    trees = ("d4b5", "best_64", "growmap_121", "growmap", "eagle2")
    assert [labels.num_nodes(tree) for tree in trees] == [156, 64, 121, None, None]


def test_numbers_of_the_paper_are_the_papers() -> None:
    assert all(len(paper(f"table{number}", ())) for number in range(1, 7))
    frame = paper("table1", tuple(table1.PAPER_COLUMNS.values()))
    row = frame[(frame.temperature == 1.0) & (frame.dataset == "cnn_dm")].iloc[0]
    lengths = (row.resispec_accepted_length, row.specinfer_accepted_length, row.accepted_length_gain)
    assert lengths == (4.68, 2.51, 1.86)
    for columns, stem, message in ((("nothing",), "table1", "lack columns.*nothing"), ((), "t99", "missing")):
        with pytest.raises(InvalidInput, match=message):
            paper(stem, columns)
