"""The search for the best shape: its stages, its choices, and a file from end to end on a tiny pair."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from test_grow_map_search import quiet, refuse
from toy_costs import proportional, save_costs
from toys import save_tiny_search

from experiments.plan import cells_of
from experiments.search.best_shape import BestShapeSearch
from experiments.search.candidates import leaders
from experiments.search.measuring import mean_and_error
from experiments.search.stages import DECISION, FINAL
from experiments.store import CellStore
from experiments.tasks.drafted import EmittedRow
from experiments.worker import measured
from resispec.errors import InvalidInput
from resispec.trees import Topology, from_widths, grow_map

SEARCH = BestShapeSearch(num_prompts=15, num_levels=5)
LONGER = BestShapeSearch(num_prompts=30, num_levels=5)
SEEDS = (0, 10, 20)  # of toy pairs, so that what holds of one by chance is seen


def stages_of(overrides, search):
    """The stages of the file that a command line names."""
    cells = cells_of(overrides)
    search.check(cells[0].tree_file, cells)
    return search.stages(cells, quiet)


def test_a_stage_measures_every_data_set_on_documents_of_its_own(tmp_path):
    overrides = [
        "dataset=embedded_code,embedded_reference", "tree=best_16", "first_tuning_prompt=7",
        "temperature=0.6", "verifier=standard,resispec", f"results={tmp_path}",
    ]  # fmt: skip
    stages, shapes = stages_of(overrides, LONGER), [from_widths((3, 2)), from_widths((5,))]
    first, third = stages.comparing(0, shapes), stages.comparing(2, shapes)
    for cells, start in ((first, 7), (third, 15)):
        assert [cell.labels["dataset"] for cell in cells] == ["embedded_code", "embedded_reference"]
        assert {(cell.config["first_prompt"], cell.config["num_prompts"]) for cell in cells} == {(start, 4)}
        labels = {(cell.labels["temperature"], cell.labels["verifier"]) for cell in cells}
        assert labels == {(0.6, "traversal_optimal")}
        for cell in cells:
            assert [Topology(tuple(parents)) for parents in cell.config["task"]["topologies"]] == shapes
    ids = {cell.cell_id for cell in (*first, *third, *stages.comparing(0, shapes[:1]))}
    assert len(ids) == 6  # topologies and documents count


@pytest.mark.parametrize(
    ("decoder", "draws", "verifier"),
    [
        ("sequoia", "without_replacement", "traversal"),
        ("top_k", "point_mass", "naive"),
        ("specinfer", "iid", "traversal_optimal"),
    ],
)
def test_every_kind_of_draws_has_a_file_and_a_verifier_of_its_own(decoder, draws, verifier, tmp_path):
    overrides = [f"decoder={decoder}", "tree=best_64", f"results={tmp_path}"]
    [cell] = cells_of(overrides)
    assert cell.tree_file.name == f"embedded.{decoder}.T1.0.best_64.json"
    stages = stages_of(overrides, LONGER)
    [usual] = cells_of([f"verifier={verifier}", "tree=d5b3", f"results={tmp_path}"])
    for measuring in stages.kind.first(stages):
        assert (measuring.labels["decoder"], measuring.labels["verifier"]) == (decoder, verifier)
        assert measuring.config["decoder"]["drafter"]["draws"] == draws
        assert measuring.config["decoder"]["verifier"] == usual.config["decoder"]["verifier"]
        assert measuring.config["task"].get("draws", draws) == draws


@pytest.fixture(scope="module")
def toys(tmp_path_factory):
    """For every seed overrides of a tiny pair with 20 documents; a search uses 15, and made-up costs."""
    found = {seed: save_tiny_search(tmp_path_factory.mktemp("best"), 20, seed) for seed in SEEDS}
    for overrides in found.values():
        save_costs(cells_of(overrides)[0].config, proportional)
    return found


@pytest.fixture
def toy(toys):
    return toys[SEEDS[0]]


@pytest.mark.parametrize(
    ("decoder", "verifier", "seed"),
    [("specinfer", "traversal_optimal", 0), *(("sequoia", "traversal", seed) for seed in SEEDS)],
)
def test_a_file_says_what_was_measured_and_decodes(toys, decoder, verifier, seed):
    chosen = [*toys[seed], "tree=best_16", f"decoder={decoder}", f"verifier={verifier}"]
    [cell] = cells_of(chosen)
    path = cell.tree_file
    SEARCH(path, [cell], quiet)
    topology, about = grow_map.load(path, num_nodes=16), json.loads(path.read_text())["about"]
    assert about["widths"] == [len(level) for level in topology.levels[1:]] and about["verifier"] == verifier
    assert topology.num_levels == about["num_levels"] <= 5
    frontier = about["frontier"]
    assert frontier[str(topology.num_levels)]["expected_tokens"] == about["expected_tokens"]
    for levels, one in frontier.items():
        assert sum(one["widths"]) == 15 and len(one["widths"]) + 1 == int(levels)
    assert min(map(int, frontier)) >= 2 and set(about["fastest_up_to_ratio"]) <= set(frontier)
    for one in frontier.values():
        seconds = (len(one["widths"]) * about["draft_s"] + about["target_s"]["16"]) / one["expected_tokens"]
        assert one["s_per_token"] == pytest.approx(seconds, rel=0.02)
    # The last stage's cell is found again, and holds what the file says, on documents of its own.
    stages = stages_of(chosen, SEARCH)
    decided = leaders(stages.compare(DECISION, stages.kind.candidates(stages)))
    [final] = stages.comparing(FINAL, list(decided))
    rows = CellStore(final.folder).rows(EmittedRow)
    assert [row.prompt_id for row in rows] == ["p14", "p15", "p16", "p17"]
    mean, error = mean_and_error(rows, "emitted")
    assert [one["expected_tokens"] for one in frontier.values()] == pytest.approx(mean, abs=1e-4)
    assert [one["standard_error"] for one in frontier.values()] == pytest.approx(error, abs=1e-4)
    assert about["made_from"] == ["tokens", *(one.cell_id for one in stages.kind.first(stages))]
    assert [row.prompt_id for row in measured(cell, quiet)] == ["p0", "p1", "p2"]


def test_the_fastest_is_chosen_by_time(toy, tmp_path):
    cells = cells_of([*toy, "tree=best_16", f"tree.path={tmp_path}/best.json"])
    path = tmp_path / "best.json"
    BestShapeSearch(15, 5, by="time")(path, cells, quiet)
    about = json.loads(path.read_text())["about"]
    assert about["made_from"][0] == "time" and grow_map.load(path).num_nodes == 16


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_prompts": 14}, "search.num_prompts is 14; allowed: from 15"),
        ({"num_levels": 2}, "search.num_levels is 2; allowed: from 3"),
        ({"num_levels": -1}, "search.num_levels is -1; allowed: from 3"),
        ({"by": "speed"}, "search.by is 'speed'; allowed: tokens, time"),
    ],
)
def test_parameters_out_of_range_are_refused_when_the_search_is_made(values, message):
    with pytest.raises(InvalidInput, match=message):
        BestShapeSearch(**values)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["tree.num_nodes=3"], "tree.num_nodes is 3; allowed: from 4"),
        (["tree.num_nodes=null"], "tree.num_nodes must be given"),
        (["tree.num_nodes=2000000"], "tree.num_nodes is 2000000; allowed: 1 to 1082401"),
        (
            ["decoder=greedy"],
            "searched for draws iid, without_replacement, point_mass; decoder=greedy has greedy",
        ),
        (["tree.path=one.pt"], "one.pt does not exist; a search writes .json files only"),
        (
            ["temperature=0.6,1.0", "tree.path=one.json"],
            "one.json is asked for with temperature 0.6, 1.0; allowed: a tree.path for each",
        ),
        (["decoder=specinfer,sequoia", "tree.path=one.json"], "asked for with decoder specinfer, sequoia"),
    ],
)
def test_what_cannot_be_searched_for_is_refused_before_anything_is_measured(
    toy, overrides, message, monkeypatch
):
    refuse(monkeypatch)
    cells = cells_of([*toy, "tree=best_16", *overrides])
    with pytest.raises(InvalidInput, match=re.escape(message)):
        SEARCH(cells[0].tree_file, cells, quiet)


def test_searches_are_checked_without_torch():
    modules = "experiments.search.best_shape, experiments.search.grow_map"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
