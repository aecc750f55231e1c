"""The frontier from raw cells, and the task that measures its ceilings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_law_tasks import context
from toy_cells import AUTOREGRESSIVE, RESISPEC, STANDARD, FakeCell, make_audit, make_cell, rows_of, save

from analysis import frontier, frontier_shapes, report
from experiments.tasks.bound import Bound
from experiments.tasks.kl import Scaling
from resispec.trees import grow_map
from resispec.core import Draws
from resispec.decode import Decoder, Sampling
from resispec.drafters import DraftModel
from resispec.errors import InvalidInput
from resispec.trees import complete, from_widths
from resispec.verifiers import get_verifier

TRAVERSAL = [(0.5, [0, 1, 1]), (1.0, [0, 0, 0, 2])]  # 5 in 2 steps + 8 in 2: 13/4 = 3.25


def decoding(cell: FakeCell, num_prompts: int = 2) -> FakeCell:
    return replace(
        cell,
        config={
            "task": {"_target_": "experiments.tasks.Decode"},
            "tree": {"path": "none.json"},
            "num_prompts": num_prompts,
            "prompt_counts": {"frontier": 2, "long": 9},
        },
    )


def bound_cell(root: Path, tree: str, ratio: float) -> FakeCell:
    """Rollouts and trees whose first level always lies above a threshold of `ratio`: nothing bounds it below one."""
    cell = replace(
        make_cell(root / "bounds", "traversal_optimal", tree=tree),
        config={"task": {"_target_": frontier.BOUND}, "num_prompts": 4},
    )
    rows = [
        {
            "prompt_index": index,
            "prompt_id": f"p{index}",
            "seed": index,
            "num_prompt_tokens": 8,
            "num_contexts": 2,
            "num_nodes": 3,
            "emitted": 3.0,
            "tree_log_ratios": [[ratio], [ratio]],
            "rollout_log_ratios": [[1.0], [1.0]],
        }
        for index in range(4)
    ]
    return save(cell, rows)


@pytest.fixture
def cells(tmp_path: Path) -> list[FakeCell]:
    """The reference, a cell on its own tree, a biased one, the autoregressive baseline, one that is missing, and two ceilings."""
    made = [
        save(make_cell(tmp_path, "autoregressive"), rows_of(AUTOREGRESSIVE)),
        save(make_cell(tmp_path, "standard"), rows_of(STANDARD)),
        save(make_cell(tmp_path, "resispec"), rows_of(RESISPEC)),
        save(make_cell(tmp_path, "traversal_optimal", tree="best_121"), rows_of(TRAVERSAL)),
        make_cell(tmp_path, "optimal"),
    ]
    audited = [decoding(make_audit(made[2], 600, 0.2)), decoding(make_audit(made[3], 600, 0.0))]
    longer = make_audit(save(make_cell(tmp_path / "longer", "standard"), rows_of(STANDARD)), 5100, 0.0)
    # every rollout's ratio, 1.0, lies above all ratios of d5b3's trees and below those of the other: A_1 is 0, and 1
    bounds = [bound_cell(tmp_path, "d5b3", 0.0), bound_cell(tmp_path, "best_121", 2.0)]
    return [*map(decoding, made), *audited, decoding(longer, num_prompts=9), *bounds]


def table_rows(cells: list[Any]) -> dict[tuple[str, str], list[str]]:
    shown = report.display(frontier.build(frontier.read(cells), "embedded", "command").table)
    assert list(shown.columns) == [
        *(
            "Tree",
            "Method",
            "Accepted length",
            "Ceiling",
            "Gain",
            "Tokens/s",
            "Speedup",
            "Speedup vs autoregressive",
            "Audit",
        ),
    ]
    return {(row[0], row[1]): row for row in shown.to_numpy().tolist()}


def test_every_row_is_compared_with_the_standard_rule_on_d5b3(cells: list[FakeCell]) -> None:
    rows = table_rows(cells)
    assert len(rows) == 5
    best = rows["best of 121", "SpecInfer + traversal, optimal weights"]
    assert best[2].startswith("3.25 [") and best[4].startswith("1.75 [")  # (13/4) / (13/7)
    assert rows["d5b3", "SpecInfer + ResiSpec"][4].startswith("1.44 [")
    assert "biased" in rows["d5b3", "SpecInfer + ResiSpec"][8] and "exact" in best[8]
    assert rows["d5b3", "SpecInfer + optimal"][2] == "missing"
    assert rows["d5b3", "SpecInfer (standard)"][4] == "–" and rows["–", "Autoregressive"][3] == "–"


def test_the_ceiling_is_that_of_the_tree(cells: list[FakeCell]) -> None:
    rows = table_rows(cells)
    for method in ("SpecInfer (standard)", "SpecInfer + ResiSpec", "SpecInfer + optimal"):
        assert rows["d5b3", method][3] == "1.00 [1.00, 1.00]", method
    assert rows["best of 121", "SpecInfer + traversal, optimal weights"][3] == "2.00 [2.00, 2.00]"


def test_longer_audits_are_a_note_and_no_row(cells: list[FakeCell], tmp_path: Path) -> None:
    made = frontier.build(frontier.read(cells), "embedded", "command")
    [note] = [note for note in made.table.notes if note.startswith("Longer audits")]
    assert "Python code, d5b3, T = 1, SpecInfer (standard): exact (z" in note and "10,200 tokens" in note
    text, paths = frontier.publish(made, tmp_path / "out")
    assert [path.suffix for path in paths] == [".csv", ".md", ".tex"] * 2 + [
        ".png",
        ".pdf",
    ] and "frontier.png" in text
    assert all(path.stat().st_size > 100 for path in paths)


def shape(widths: list[int], tokens: float) -> dict[str, Any]:
    return {"widths": widths, "expected_tokens": tokens, "standard_error": 0.1, "s_per_token": 0.002}


def searched(root: Path, decoder: str, temperature: float) -> FakeCell:
    """A cell whose map says that three levels are the fastest from a cost ratio of 0.2 on, five below it, and four nowhere."""
    path = root / f"{decoder}.{temperature}.json"
    about = {
        "temperature": temperature, "verifier": "traversal", "device": "a machine", "draft_s": 0.001,
        "target_s": {"1": 1, "9": 0.02}, **shape([2, 2, 2, 2], 3.0),
        "frontier": {"3": shape([3, 5], 2.0), "4": shape([2, 3, 3], 2.1), "5": shape([2, 2, 2, 2], 3.0)},
        "fastest_up_to_ratio": {"5": 0.2, "3": None},
    }  # fmt: skip
    grow_map.save(from_widths([2, 2, 2, 2]), path, about)
    cell = make_cell(root, "traversal", tree="best_9", decoder=decoder, temperature=temperature)
    return replace(cell, config={"tree": {"path": str(path)}})


def test_searched_shapes_are_listed_with_the_costs_at_which_they_are_the_fastest(tmp_path: Path) -> None:
    cells = [
        searched(tmp_path, *case)
        for case in (("sequoia", 1.0), ("specinfer", 0.6), ("specinfer", 1.0), ("specinfer", 1.0))
    ]
    missing = replace(cells[0], config={"tree": {"path": str(tmp_path / "none.json")}})
    shapes = frontier_shapes.read(
        [*cells, missing, make_cell(tmp_path, "standard"), make_cell(tmp_path, "autoregressive")]
    )
    table = frontier_shapes.build(shapes, "embedded")
    assert [row[:4] + row[7:] for row in table.shown.to_numpy().tolist()] == [
        ["1", "SpecInfer + traversal", "9", "3", "from 0.200"], ["1", "SpecInfer + traversal", "9", "5", "0.000 to 0.200"],
        ["1", "Sequoia + traversal", "9", "3", "from 0.200"], ["1", "Sequoia + traversal", "9", "5", "0.000 to 0.200"],
        ["0.6", "SpecInfer + traversal", "9", "3", "from 0.200"], ["0.6", "SpecInfer + traversal", "9", "5", "0.000 to 0.200"],
    ]  # fmt: skip
    assert table.shown.iloc[0].tolist()[4:7] == ["1, 3, 5", "2.00 (0.10)", "2.00"]
    assert (
        len(table.frame) == 9 and table.frame.fastest_up_to_ratio.isna().sum() == 3
    )  # four levels, in each of three maps
    [note] = frontier_shapes.by_cost(shapes)
    assert (
        "at T = 1 5 levels up to 0.200, 3 levels beyond (this pair, here: 0.050); at T = 0.6 5 levels" in note
    )
    assert frontier_shapes.by_cost([]) == () and frontier_shapes.build([], "embedded").shown.empty


def test_a_bound_is_the_one_that_scaling_measures() -> None:
    """After one token there is no other context, and for a complete tree both tasks draw the same trees and rollouts."""
    base = context(length=1)
    setting = replace(base, sampling=Sampling(base.sampling.temperature, 1, 64))
    drafter = DraftModel(complete(3, 2), Draws.IID)
    own = replace(setting, decoder=Decoder(drafter, get_verifier("standard")))
    bounds = [Bound(contexts=1, rollouts=2)(replace(own, seed=seed), 0) for seed in range(300)]
    scaling = Scaling(contexts=1, num_candidates=[2], num_levels=3, rollouts=2)
    rows = [scaling(replace(setting, seed=seed), 0) for seed in range(300)]
    assert {bound.num_nodes for bound in bounds} == {7} and {bound.num_contexts for bound in bounds} == {1}
    found = (
        ([bound.emitted for bound in bounds], [row.emitted[0] for row in rows]),
        ([bound.tree_log_ratios[0][1] for bound in bounds], [row.tree_log_ratios[0][0][1] for row in rows]),
        (
            [bound.rollout_log_ratios[1][1] for bound in bounds],
            [row.rollout_log_ratios[1][1] for row in rows],
        ),
    )
    for ours, theirs in found:
        one, other = torch.tensor(ours, dtype=torch.float64), torch.tensor(theirs, dtype=torch.float64)
        error = float((one.var() / len(one) + other.var() / len(other)).sqrt())
        assert 0 < abs(float(one.mean() - other.mean())) < 4 * error


def test_a_bound_needs_independent_siblings() -> None:
    for drafter in (DraftModel(complete(3, 2), Draws.WITHOUT_REPLACEMENT), context().decoder.drafter):
        setting = replace(context(), decoder=Decoder(drafter, get_verifier("standard")))
        with pytest.raises(InvalidInput, match="allowed: decoder=specinfer"):
            Bound(contexts=1, rollouts=1)(setting, 0)
