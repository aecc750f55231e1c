"""Tables, printed names and the paper's numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis import audits, labels, paper, report, table1
from analysis.metrics import METRICS
from analysis.stats import Interval
from resispec.errors import InvalidInput

QUANTITIES = len(METRICS) + len(audits.QUANTITIES)


def test_special_characters_are_escaped() -> None:
    assert report.escape("a_b & 5% {~^\\} <$#>") == (
        r"a\_b \& 5\% \{\textasciitilde{}\textasciicircum{}\textbackslash{}\} \textless{}\$\#\textgreater{}"
    )


def test_any_data_frame_is_a_table(tmp_path: Path) -> None:
    """What the audit and the benches write."""
    frame = pd.DataFrame(
        {"verifier": ["a|b", "c"], "error": [1e-16, np.nan], "tokens": [3, 4], "ms": [1.234, 2]}
    )
    table = report.plain("bench", frame, "What it costs.", ["A note."], specs={"error": ".1e"})
    assert table.shown.values.tolist() == [["a|b", "1.0e-16", "3", "1.23"], ["c", "–", "4", "2.00"]]
    assert table.num_keys == 1 and table.frame is frame
    report.write(table, tmp_path / "new", suffixes=("csv", "md"))
    assert (tmp_path / "new" / "bench.md").read_text() == (
        "**What it costs.**\n\n"
        "| verifier   |   error |   tokens |   ms |\n"
        "|:-----------|--------:|---------:|-----:|\n"
        "| a\\|b       | 1.0e-16 |        3 | 1.23 |\n"
        "| c          |       – |        4 | 2.00 |\n\n"
        "A note.\n"
    )


@pytest.mark.parametrize("stem", ["table1", "table2", "table3", "table4", "table5", "table6"])
def test_tables_of_the_paper_are_there(stem: str) -> None:
    assert len(paper.read(stem, ())) > 0


def test_numbers_of_the_paper_are_the_papers() -> None:
    frame = paper.read("table1", tuple(table1.PAPER_COLUMNS.values()))
    row = frame[(frame.temperature == 1.0) & (frame.dataset == "cnn_dm")].iloc[0]
    found = (row.resispec_accepted_length, row.specinfer_accepted_length, row.accepted_length_gain)
    assert found == (4.68, 2.51, 1.86)
    row = frame[(frame.temperature == 0.6) & (frame.dataset == "c4")].iloc[0]
    assert (row.resispec_tokens_per_s, row.specinfer_tokens_per_s, row.speedup) == (85.91, 61.69, 1.39)
    with pytest.raises(InvalidInput, match="lack columns.*nothing"):
        paper.read("table1", ("nothing",))
    with pytest.raises(InvalidInput, match="missing"):
        paper.read("table99", ())


def test_printed_names() -> None:
    assert labels.method("specinfer", "optimal") == "SpecInfer + optimal"
    assert labels.method("mine", "standard") == "mine (standard)"
    assert labels.method("my_decoder", "my_rule(bins=2)") == "my decoder + my rule, bins=2"
    assert labels.rank("dataset", "cnn_dm") < labels.rank("dataset", "c4") < labels.rank("dataset", "unknown")
    assert labels.interval(Interval(2.511, 2.43, 2.599), ".2f") == "2.51 [2.43, 2.60]"
    assert labels.between(1.59, 1.69, ".2f") == "1.59–1.69" and labels.between(1.68, 1.68, ".2f") == "1.68"
    assert (labels.header("temperature"), labels.header("num_prompts")) == ("T", "num prompts")


def test_a_tree_that_is_given_parameters_is_named_by_them() -> None:
    """`tree.num_drafted=3` and `=7` were both "chain of 4" (defect E)."""
    names = [
        "chain",
        "chain(num_drafted=3)",
        "chain(num_drafted=7)",
        "complete(branching=3, depth=5)",
        "my_tree",
    ]
    assert [labels.name("tree", name) for name in names] == [
        *("chain of 4", "chain, num_drafted=3", "chain, num_drafted=7"),
        *("complete, branching=3, depth=5", "my tree"),
    ]
    assert labels.rank("tree", "chain(num_drafted=3)") == labels.rank("tree", "chain")
    assert labels.name("decoder", "specinfer(drafts=2)") == "SpecInfer, drafts=2"
