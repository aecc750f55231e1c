"""Tokens a step against overlap, on overlaps and tokens worked out by hand."""

import math

import numpy as np
import pytest

from analysis import agreement, crossing
from analysis.load import read_plan
from analysis.stats import Interval
from resispec.errors import InvalidInput
from tests import toy_artefacts
from tests.toy_cells import identity, make_audit, make_cell, make_row, save, shown, write_plan

PAIRS = ("embedded_800k__420k", "embedded_800k__180k", "embedded_800k__80k")
PATHS = {"tree": "chains_121"}


def write(root, overlaps, exact, biased, config=None, more=(), num_prompts=8):
    """A pair for each overlap, with so many tokens a step.

    config: of the exact method's cells. more: further cells of the part that measures the overlap,
    each a verifier, labels and an overlap. num_prompts: of that part.
    """
    drawn, cells = [], []
    for pair, overlap, *lengths in zip(PAIRS, overlaps, exact, biased, strict=False):
        for verifier, labels, share in (("standard", {}, overlap), *more):
            cell = make_cell(root, verifier, pair=pair, **labels)
            rows = [
                identity(index, 10) | {"selected": [10 * share, 0.0]}
                for index in range(num_prompts)
            ]
            drawn.append(save(cell, rows).labelled())
        for (name, more), length in zip(
            (("level_optimal", PATHS), ("resispec", {})), lengths, strict=True
        ):
            histogram = [*[0] * (length - 1), 10]
            cell = make_cell(root, name, pair=pair, **more)
            rows = [make_row(index, 1.0, histogram) for index in range(8)]
            cells.append(save(cell, rows, config=(config or {}) if more else {}))
            cells.append(make_audit(cells[-1], 600, 0.2 if name == "resispec" else 0.0))
    write_plan(root, "agreement", drawn, part="overlap")
    write_plan(root, "agreement", cells, part="d5b3")
    return agreement.make(read_plan("agreement", "embedded", root)).tables


@pytest.mark.parametrize(
    ("exact", "biased", "words"),
    [
        # log2 of 2, 4, 8 is 1, 2, 3: above the 4 of the other one from the second overlap on
        ([2, 4, 8], [4, 4, 4], "above ResiSpec from an overlap of 0.50 [0.50, 0.50] on."),
        (
            [8, 16, 32],
            [4, 4, 4],
            "above ResiSpec in the whole range (the lines would cross at 0.30 [0.30, 0.30])",
        ),
        (
            [2, 4, 8],
            [32, 32, 32],
            "below ResiSpec in the whole range (the lines would cross at 0.80 [0.80, 0.80])",
        ),
        ([4, 4, 4], [2, 2, 2], "above ResiSpec in the whole range (its lead does not grow"),
        ([2, 2, 2], [4, 4, 4], "not above ResiSpec in the whole range, and no nearer"),
        ([4, 4, 4], [2, 4, 8], "above ResiSpec up to an overlap of 0.50."),
    ],
)
def test_the_crossing_is_where_the_fits_are_equal(tmp_path, exact, biased, words):
    table, _ = write(tmp_path, [0.4, 0.5, 0.6], exact, biased)
    assert words in table.notes.about[0]


def test_a_line_has_the_overlap_and_the_best_method_without_a_bias(tmp_path):
    table, datasets = write(tmp_path, [0.6, 0.5, 0.4], [8, 4, 2], [4, 4, 16])
    printed = shown(table)
    assert printed["Overlap"].str[:5].tolist() == ["0.400", "0.500", "0.600"]
    # ResiSpec's 16 tokens are more, and biased
    assert printed["Best exact / ResiSpec"].str[:4].tolist() == ["0.12", "1.00", "2.00"]
    assert set(datasets.frame.verdict) == {"", "biased", "no bias seen"}
    assert "(biased)" not in " ".join(printed.columns)


def test_the_overlap_is_the_standard_rule_s_and_counts_a_prompt_once(tmp_path):
    """A sweep over verifiers and trees asks for that part, too, with each of them."""
    more = [("lenience", {}, 0.9), ("standard", {"tree": "d4b4"}, 0.9)]
    table, _ = write(tmp_path, [0.4, 0.5, 0.6], [2, 4, 8], [4, 4, 4], more=more)
    overlaps = table.frame[table.frame.quantity == "overlap"]
    assert overlaps.value.tolist() == pytest.approx([0.4, 0.5, 0.6])
    assert set(overlaps.num_prompts) == {8}


def test_a_fit_over_few_prompts_has_no_interval(tmp_path):
    """Overlaps of fewer prompts than tokens have no resamples that could go with theirs."""
    table, _ = write(tmp_path, [0.4, 0.5, 0.6], [2, 4, 8], [4, 4, 4], num_prompts=4)
    assert "above ResiSpec from an overlap of 0.50 on." in table.notes.about[0]


def test_the_interval_of_a_crossing_is_that_of_resamples():
    """A resample whose lines come no nearer to each other has no crossing at any overlap."""
    x = np.array([[0.4, 0.5, 0.6]] * 4)
    y = np.array([[-1.0, 0, 1], [-2.0, -1, 0], [1.0, 0, -1], [0.0, 1, 2]])
    assert crossing.root(x, y) == pytest.approx([0.5, 0.6, math.inf, 0.4])


def test_all_data_sets_together_need_all_of_them(tmp_path):
    """A pair with a failed cell has a gap, and is no point of the fit."""
    toy_artefacts.agreement(tmp_path)
    table, datasets = agreement.make(read_plan("agreement", "embedded", tmp_path)).tables
    frame = table.frame[(table.frame.temperature == 1.0) & (table.frame.quantity != "overlap")]
    failed = frame[frame.status == "failed"]
    assert set(failed.pair) == {PAIRS[0]} and failed.value.isna().all()
    overlaps = table.frame[table.frame.quantity == "overlap"].set_index("pair").value
    assert "overlaps of 0.47 to 0.68" in table.notes.about[0]
    assert overlaps[PAIRS[0]].max() == pytest.approx(0.775)
    assert "T = 0.6: a fit needs 3 pairs." in table.notes.about[1]
    assert len(datasets.rows) == 9


def test_methods_are_not_compared_across_data_sets(tmp_path):
    """Defect: "all data sets" had a method on two of them beside another one on one."""
    asked = []
    for dataset, methods in (
        ("embedded_code", ["level_optimal", "resispec"]),
        ("embedded_reference", ["resispec"]),
    ):
        for name in methods:
            cell = make_cell(tmp_path, name, dataset, pair=PAIRS[0])
            save(cell, [make_row(index, 1.0, [0, 10]) for index in range(8)])
            asked += [cell, make_audit(cell, 600, 0.2 if name == "resispec" else 0.0)]
    write_plan(tmp_path, "agreement", asked, part="d5b3")
    table, datasets = agreement.make(read_plan("agreement", "embedded", tmp_path)).tables
    frame = table.frame[table.frame.quantity == "accepted_length"].set_index("verifier")
    assert frame.status.to_dict() == {"level_optimal": "missing", "resispec": "done"}
    assert frame.reason["level_optimal"].startswith("not measured on ")
    assert len(datasets.rows) == 2


def test_several_resispecs_are_refused(tmp_path):
    """Defect: gains and sentences were over the first of them, which was not named."""
    cells = [
        save(make_cell(tmp_path, "resispec", **more), [make_row(0, 1.0, [0, 10])])
        for more in ({}, PATHS)
    ]
    write_plan(tmp_path, "agreement", cells, part="d5b3")
    with pytest.raises(InvalidInput, match="one ResiSpec; found .*; .*; allowed: a sweep with"):
        agreement.make(read_plan("agreement", "embedded", tmp_path))


def test_an_interval_without_an_end_is_said_so():
    crossing = agreement.Crossing(Interval(0.5, 0.4, math.inf), 0.3, 0.6, (-1.0, 1.0))
    assert agreement._said(crossing) == "above ResiSpec from an overlap of 0.50 [0.40, ∞] on"


def test_methods_are_not_compared_across_precisions(tmp_path):
    """Defect: gains over ResiSpec were those of another dtype, too."""
    for config, expected in (({}, "2.00 [2.00, 2.00]"), ({"dtype": "bfloat16"}, "–")):
        table, _ = write(tmp_path, [0.6], [8], [4], config)
        assert shown(table)["Best exact / ResiSpec"].tolist() == [expected]
