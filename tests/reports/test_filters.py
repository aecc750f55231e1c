"""Cells with top-p, top-k or min-p beside cells without: told apart everywhere, not averaged."""

import pandas as pd
import pytest

from analysis import (
    agreement,
    categories,
    field,
    frontier,
    frontier_shapes,
    length,
    load,
    lossy,
    overview,
    published,
    speed,
    table1,
    table6,
)
from analysis.cells import tidy
from resispec.errors import InvalidInput
from tests import toy_artefacts
from tests.toy_cells import (
    METHODS,
    make_cell,
    planned,
    rows_of,
    save,
    save_methods,
    shown,
    write_plan,
)

TOP_P = {"sampling.top_p": 0.9}


def filtered(results, **changed):
    """A finished cell of each method at top-p 0.9."""
    return [
        save(make_cell(results, name, **TOP_P, **changed), rows_of(METHODS[name]))
        for name in METHODS
    ]


@pytest.mark.parametrize(("named", "measured"), [(0.9, 1.0), (1.0, 0.9), (None, 0.9), (0.9, None)])
def test_a_cell_that_was_measured_with_another_filter_than_its_plan_names_is_refused(
    named, measured, tmp_path
):
    label = {} if named is None else {"sampling.top_p": named}
    config = {} if measured is None else {"sampling": {"top_p": measured}}
    cell = make_cell(tmp_path, "standard", **label)
    save(cell, rows_of(METHODS["standard"]), config={"sampling": {}} | config)
    difference = (
        f"measured with sampling.top_p {measured or 1.0}, and its plan names it {named or 1.0}"
    )
    with pytest.raises(InvalidInput, match=difference):
        load.load(planned(tmp_path, "table1", [cell]))


def test_parts_that_name_no_filter_have_it_off_in_every_table(tmp_path):
    for part, make in (("plain", save_methods), ("top_p", filtered)):
        cells = make(tmp_path)
        for cell in cells:
            save(cell, [row | {"category": "qa"} for row in rows_of(METHODS["standard"])])
        write_plan(tmp_path, "frontier", cells, part=part)
    plan = load.read_plan("frontier", "embedded", tmp_path)
    assert set(tidy([plan])["sampling.top_p"]) == {"1.0", "0.9"}
    assert set(shown(categories.of(plan, "own"))["top-p"]) == {"1.0", "0.9"}


def test_published_numbers_without_a_filter_are_not_compared_with_those_of_one(
    tmp_path, monkeypatch
):
    """CSVs of earlier versions have no column of filters; those of slices have one."""
    monkeypatch.setattr(published, "FOLDER", tmp_path)
    (tmp_path / "embedded").mkdir()
    numbers = {
        "quantity": "accepted_length",
        "num_prompts": 20,
        "value": 2.0,
        "lower": 1.0,
        "upper": 3.0,
    }
    frame = pd.DataFrame(
        [make_cell(tmp_path, "standard").labels | numbers | {"verdict": "", "reason": ""}]
    )
    texts = {True: "1 of 1 accepted lengths agree", False: "(not compared: 1 row not published)"}
    for theirs, ours, is_same in (
        ({}, {}, True),
        ({}, {"sampling.top_p": "0.9"}, False),
        ({}, {"sampling.top_p": "1.0"}, True),
        (TOP_P, {"sampling.top_p": "0.9"}, True),
        (TOP_P, {}, False),
    ):
        frame.assign(**theirs).to_csv(tmp_path / "embedded" / "table1.csv", index=False)
        assert (
            texts[is_same] in published.compare(frame.assign(**ours), "table1", "embedded").summary
        )


@pytest.mark.parametrize(
    "make", [frontier.make, field.make, overview.make, lossy.make, agreement.make]
)
def test_what_averages_over_data_sets_is_of_one_setting(make, tmp_path):
    """A sweep of one law is named by its filter."""
    cells = save_methods(tmp_path)
    with pytest.raises(
        InvalidInput, match="of one setting; found sampling.top_p 1.0, 0.9; allowed: a sweep"
    ):
        make(planned(tmp_path, "frontier", [*cells, *filtered(tmp_path)]))
    tables = make(planned(tmp_path, "frontier", filtered(tmp_path))).tables
    shown = [table for table in tables if table.rows]
    assert shown and all("top-p: 0.9" in table.caption for table in shown)


@pytest.mark.parametrize("make", [frontier.make, field.make, overview.make, length.make])
def test_pairs_are_never_averaged(make, tmp_path):
    cells = [
        save(
            make_cell(tmp_path, name, pair=pair),
            [row | {"step_emitted": [row["num_emitted"]]} for row in rows_of(METHODS[name])],
        )
        for name in METHODS
        for pair in ("embedded", "smollm2")
    ]
    found = "of one setting; found pair embedded, smollm2; allowed"
    with pytest.raises(InvalidInput, match=found):
        make(planned(tmp_path, "frontier", cells))


def test_shapes_of_the_frontier_are_grouped_by_their_filters(tmp_path):
    """Trees that were searched for at one temperature, with top-p and without."""
    cells = [toy_artefacts.searched(tmp_path, "specinfer", 0.6, **label) for label in ({}, TOP_P)]
    plan = planned(tmp_path, "frontier", cells)
    shapes = frontier_shapes.read(plan)
    table = frontier_shapes.table(shapes, plan)
    assert shown(table)["top-p"].tolist() == ["0.9", "0.9", "1", "1"]
    assert table.frame["sampling.top_p"].value_counts().to_dict() == {0.9: 3, 1.0: 3}
    [note] = frontier_shapes.by_cost(shapes)
    assert "at T = 0.6, top-p = 1 5 levels" in note and "at T = 0.6, top-p = 0.9 5 levels" in note


def test_the_speeds_of_filtered_laws_are_named(tmp_path):
    """In its notes and its figure."""
    race = {"decoder": "fastest", "tree": "fastest"}
    cells = [
        save(make_cell(tmp_path, "autoregressive", **race, **label), rows)
        for label, rows in (({}, toy_artefacts.speed_rows()), (TOP_P, toy_artefacts.speed_rows()))
    ]
    made = speed.make(planned(tmp_path, "speed", cells))
    plain, top_p = (note for note in made.tables[0].notes if "tree=fastest is" in str(note))
    assert plain.startswith("At T=1, top-p=1.0 tree") and top_p.startswith("At T=1, top-p=0.9 tree")
    titles = [axes.get_title() for axes in made.figures["speed"]().axes]
    assert [title.partition("T = ")[2] for title in titles] == ["1, top-p = 1.0", "1, top-p = 0.9"]


def test_the_papers_figures_stand_beside_its_decoder_and_law_alone(tmp_path):
    """Defect: SpecInfer's figures stood beside recycled laws, and beside a law with top-p."""
    for more, has_figures in (
        ({}, True),
        ({"decoder": "recycled"}, False),
        (TOP_P, False),
    ):
        at = {"pair": "sheared_2.7b__sheared_1.3b", "dataset": "cnn_dm"} | more
        cells = [
            save(make_cell(tmp_path, name, **at), rows_of(METHODS[name]))
            for name in ("standard", "resispec")
        ]
        for artefact, make in (("table1", table1.make), ("table6", table6.make)):
            frame = make(planned(tmp_path, artefact, cells)).tables[0].frame
            assert frame.paper_low.notna().any() == has_figures, (artefact, more)
