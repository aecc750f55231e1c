"""Tables, printed labels and the paper's numbers."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from toy_cells import shown

from analysis import labels, table, table1
from analysis.artefact import paper
from analysis.labels import Label
from analysis.table import Audit, Gap, Notes, Number, Paper
from resispec.errors import InvalidInput


def test_any_data_frame_is_a_table(tmp_path: Path) -> None:
    """What the audit and the benches write."""
    frame = pd.DataFrame(
        {"verifier": ["a|b", "c"], "error": [1e-16, np.nan], "tokens": [3, 4], "ms": [1.234, 2]}
    )
    made = table.plain("bench", frame, "What it costs.", ["A note."], specs={"error": ".1e"})
    assert shown(made).values.tolist() == [["a|b", "1.0e-16", "3", "1.23"], ["c", "–", "4", "2.00"]]
    assert made.num_keys == 1 and made.frame is frame
    table.write(made, tmp_path / "new", suffixes=("csv", "md"))
    assert (tmp_path / "new" / "bench.md").read_text() == (
        "**What it costs.**\n\n"
        "| verifier   |   error |   tokens |   ms |\n"
        "|:-----------|--------:|---------:|-----:|\n"
        "| a\\|b       | 1.0e-16 |        3 | 1.23 |\n"
        "| c          |       – |        4 | 2.00 |\n\n"
        "A note.\n"
    )


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (Number(2.511, 2.43, 2.599), "2.51 [2.43, 2.60]"),
        (Number(0.82, spec=".0%"), "82%"),
        (Number(-0.001), "0.00"),
        (Number(-1.0), "-1.00"),
        (Number(math.nan), "–"),
        (Paper(1.59, 1.69), "1.59–1.69"),
        (Paper(1.68, 1.68), "1.68"),
        (Paper(math.nan, math.nan), "–"),
        (Audit("biased", (9.71, math.nan), 1536), "biased (z 9.7; 1,536 tokens)"),
        (Audit("audit failed"), "audit failed"),
        (Audit(), "–"),
        (Gap("missing"), "missing"),
        (Gap("failed", "x" * 200), "failed: " + "x" * 51 + "…"),
    ],
)
def test_cells_as_printed(cell: table.Cell, text: str) -> None:
    assert str(cell) == text


def test_notes_are_printed_in_order() -> None:
    notes = Notes(("first", {"A": "one", "B": "two"}), gaps="Incomplete.", stale=("last",))
    assert list(notes) == ["first", "A: one. B: two.", "Incomplete.", "last"]


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
    assert labels.method("specinfer", "optimal") == "SpecInfer + optimal"
    assert labels.method("mine", "standard") == "mine (standard)"
    assert labels.method("my_decoder", Label("my_rule", {"bins": 2})) == "my decoder + my rule, bins=2"
    assert labels.name("decoder", Label("specinfer", {"drafts": 2})) == "SpecInfer, drafts=2"
    assert labels.name("pair", "llama2_7b__jf68m") == "Llama-2-7B + 68M"
    assert labels.models("llama2_7b__jf68m") == ("Llama-2-7B", "68M")
    assert labels.models("my_pair") == ("my pair", "–")
    assert labels.paper_models("embedded_800k__80k") == ("Sheared-2.7B", "Tiny-Vicuna-1B")
    order = [labels.rank("dataset", name) for name in ("cnn_dm", "c4", "unknown")]
    assert order == sorted(order) and len(set(order)) == 3
    assert (labels.header("temperature"), labels.header("num_prompts")) == ("T", "num prompts")


def test_a_tree_that_is_given_parameters_is_named_by_them() -> None:
    """`tree.num_drafted=3` and `=7` were both "chain of 4" (defect E)."""
    given = Label("complete", {"branching": 3, "depth": 5})
    named = [labels.name("tree", tree) for tree in ("chain", Label("chain", {"num_drafted": 3}), given)]
    assert named == ["chain of 4", "chain, num_drafted=3", "complete, branching=3, depth=5"]
    assert labels.rank("tree", Label("chain", {"num_drafted": 3})) == labels.rank("tree", "chain")
    trees = ("d5b3", "d7b2", "d4b5", "d3b11", "best_64", "growmap_121", given, "chain", "growmap", "eagle2")
    assert [labels.num_nodes(tree) for tree in trees] == [121, 127, 156, 133, 64, 121, 121, *[None] * 3]


def test_numbers_of_the_paper_are_the_papers() -> None:
    assert all(len(paper(f"table{number}", ())) for number in range(1, 7))
    frame = paper("table1", tuple(table1.PAPER_COLUMNS.values()))
    row = frame[(frame.temperature == 1.0) & (frame.dataset == "cnn_dm")].iloc[0]
    lengths = (row.resispec_accepted_length, row.specinfer_accepted_length, row.accepted_length_gain)
    assert lengths == (4.68, 2.51, 1.86)
    for columns, stem, message in (
        (("nothing",), "table1", "lack columns.*nothing"),
        ((), "table99", "missing"),
    ):
        with pytest.raises(InvalidInput, match=message):
            paper(stem, columns)
