"""Accepted length by written tokens, on steps worked out by hand."""

import pandas as pd
import pytest

from analysis import length
from analysis.artefact import complete
from analysis.labels import Label
from analysis.load import read_plan
from resispec.errors import InvalidInput
from tests.toy_cells import PROVENANCE, ToyCell, make_cell, make_row, save, write_plan


def test_a_step_counts_where_it_began():
    """15 tokens are written before the step that ends at 17, 17 before the next.

    A prompt that ended early has no later steps.
    """
    rows = pd.DataFrame({"step_emitted": [[15, 2, 4], [16], [3, 3]]})
    first, second = length.steps_of(rows).values()
    assert list(length.steps_of(rows)) == [0, 16]
    assert [first[0].tolist(), first[1].tolist()] == [[17, 16, 6], [2, 1, 2]]
    assert [second[0].tolist(), second[1].tolist()] == [[4, 0, 0], [1, 0, 0]]


def cell(root, sizes, provenance=PROVENANCE, **labels):
    """A cell whose prompts emitted these tokens by steps."""
    rows = []
    for index, steps in enumerate(sizes):
        counts = [steps.count(size) for size in range(1, max(steps) + 1)]
        rows.append(make_row(index, 1.0, counts) | {"step_emitted": steps})
    return save(make_cell(root, "standard", **labels), rows, provenance=provenance)


def test_growth_and_gain_are_over_the_prompts_with_steps_in_both(tmp_path):
    """Growth is (2 / 1) / (16 / 16): the second prompt ends in the first interval.

    Recycled laws gain 2 in the last interval, over the one prompt that both have there.
    """
    own = cell(tmp_path, [[1] * 16 + [2], [4, 4]])
    recycled = cell(tmp_path, [[2] * 8 + [4], [8] * 3], decoder="recycled")
    write_plan(tmp_path, "length", [own, recycled], part="d5b3")
    made = length.make(read_plan("length", "embedded", tmp_path))
    frame = made.tables[0].frame

    def values(decoder, quantity):
        return frame.value[(frame.decoder == decoder) & (frame.quantity == quantity)].tolist()

    assert values("specinfer", "accepted_length") == pytest.approx([24 / 18, 2])
    assert values("specinfer", "last_over_first") == pytest.approx([2])
    # 16 + 16 tokens in 8 + 2 steps over 24 in 18; in the last interval 4 in 1 over 2 in 1
    assert values("recycled", "accepted_length_gain") == pytest.approx([3.2 / (24 / 18), 2])


def test_gaps_have_their_reasons_where_nothing_is_done(tmp_path):
    """Neither group has a length then, so neither is told apart by it."""
    for part in ("d5b3", "long_d5b3"):
        failed = save(make_cell(tmp_path, "standard", tree=part), None, "failed", "no memory")
        write_plan(tmp_path, "length", [failed], part=part)
    [table] = length.make(read_plan("length", "embedded", tmp_path)).tables
    assert set(table.frame.reason) == {"no memory"}


def test_long_texts_are_apart_from_usual_ones(tmp_path):
    usual, longer = cell(tmp_path, [[4, 4]]), cell(tmp_path, [[4] * 20], temperature=0.6)
    write_plan(tmp_path, "length", [usual], part="d5b3")
    write_plan(tmp_path, "length", [longer.labelled(temperature=1.0)], part="long_d5b3")
    frame = length.make(read_plan("length", "embedded", tmp_path)).tables[0].frame
    lengths = frame[frame.quantity == "accepted_length"]
    assert lengths.groupby("new_tokens").size().to_dict() == {8: 1, 80: 4}


def test_what_cannot_be_told_apart_is_not_shown(tmp_path):
    """Defects: gains of several data sets were one list, and cells of equal limits one line."""
    cells = [
        cell(tmp_path, [[size] * 20, [4, 4]], decoder=decoder, dataset=dataset)
        for size, dataset in ((2, "embedded_code"), (3, "embedded_reference"))
        for decoder in ("specinfer", "recycled")
    ]
    write_plan(tmp_path, "length", cells, part="d5b3")
    notes = " ".join(length.make(read_plan("length", "embedded", tmp_path)).tables[0].notes)
    assert "Python code" in notes.partition("Gain over own laws")[2]
    write_plan(tmp_path, "length", cells[2:3], part="long_d5b3")
    with pytest.raises(InvalidInput, match="so their rows cannot be told apart"):
        length.make(read_plan("length", "embedded", tmp_path))


def test_every_share_of_recycled_laws_is_drawn_as_such(tmp_path):
    """Defect: those with a share of their own had the names and lines of the draft's own laws."""
    shares = [Label("recycled", {"drafter.recycled": share}) for share in (0.3, 0.5)]
    decoders = ("specinfer", *shares)
    cells = [
        cell(tmp_path, [[1 + place] * 20, [4, 4]], decoder=decoder)
        for place, decoder in enumerate(decoders)
    ]
    write_plan(tmp_path, "length", cells, part="d5b3")
    made = length.make(read_plan("length", "embedded", tmp_path))
    lines = [one.lines[0].get_linestyle() for one in made.figures["length"]().axes[0].containers]
    assert sorted(lines) == ["-", "--", "--"]
    gains = made.tables[0].frame.query("quantity == 'accepted_length_gain'")
    assert {*gains.decoder.map(str)} == {*map(str, shares)}


def test_audits_are_no_lines_and_known_bias_is_named(tmp_path):
    """Defect: an audited method had two lines, and nothing said that a rule is biased."""
    known = PROVENANCE | {"shown_bias": "it is"}
    biased = cell(tmp_path, [[4, 4]], known, verifier="resispec")
    audit = ToyCell(tmp_path, "audit", biased.labels | {"audit": True})
    write_plan(tmp_path, "length", [biased, audit], part="d5b3")
    plan = read_plan("length", "embedded", tmp_path)
    [table] = complete(length.make, plan).tables
    assert len(table.rows) == 1
    assert "Biased, as enumeration shows: SpecInfer + ResiSpec." in list(table.notes)
