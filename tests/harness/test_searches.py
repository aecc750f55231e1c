"""Searches for trees, without a measurement: requests, stages, choices, and the file of the fastest."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from toy_costs import flat, made_up, proportional

from experiments.cell import Cell
from experiments.costs.configuration import METHODS, ON_CHAINS, ONE_TOKEN, Configuration
from experiments.costs.model import CostModel
from experiments.grid import cells_of
from experiments.search import best_shape, chosen, fastest
from experiments.search.best_shape import BestShapeSearch
from experiments.search.candidates import Value
from experiments.search.fastest import FastestSearch, Judge
from experiments.search.grow_map import GrowMapSearch
from resispec.errors import InvalidInput
from resispec.trees import Topology, chain, complete, from_widths

VECTOR = [0.6, 0.15, 0.05, *[0.005] * 29]
SEARCHES = {
    "growmap": (GrowMapSearch(4, 5), ["tree=growmap_64", "decoder=sequoia"]),
    "best": (BestShapeSearch(15, 5), ["tree=best_16"]),
    "fastest": (FastestSearch(5, 4), ["tree=fastest"]),
}


def quiet(*_):
    """A report that nobody reads."""


@pytest.mark.parametrize(
    ("search", "overrides", "message"),
    [
        ("growmap", ["tree.num_nodes=0"], "tree.num_nodes is 0; allowed: 1 to 1082401"),
        (
            "growmap",
            ["tree.path=a.json", "dataset=embedded_code,embedded_reference"],
            "with dataset embedded",
        ),
        ("best", ["tree.num_nodes=3"], "tree.num_nodes is 3; allowed: from 4"),
        ("best", ["tree.num_nodes=null"], "tree.num_nodes must be given"),
        ("best", ["tree.num_nodes=2000000"], "tree.num_nodes is 2000000; allowed: 1 to 1082401"),
        ("best", ["decoder=greedy"], "draws iid, without_replacement, point_mass; decoder=greedy has greedy"),
        ("best", ["tree.path=one.pt"], "one.pt does not exist; a search writes .json files only"),
        (
            "best",
            ["decoder=specinfer,sequoia", "tree.path=a.json"],
            "with decoder specinfer, sequoia; allowed",
        ),
        ("fastest", ["decoder=specinfer"], "what drafts and verifies; decoder=specinfer does so, too"),
        ("fastest", ["temperature=0.6,1.0", "tree.path=one.json"], "asked for with temperature 0.6, 1.0"),
    ],
)
def test_a_request_that_cannot_be_searched_for_is_refused_before_anything_is_measured(
    search, overrides, message, monkeypatch
):
    monkeypatch.setattr("experiments.worker.measured", lambda *_: pytest.fail("something was measured"))
    find, given = SEARCHES[search]
    cells = cells_of([*given, *overrides])
    with pytest.raises(InvalidInput, match=re.escape(message)):
        find(cells[0].tree_file, cells, quiet)


@pytest.mark.parametrize(
    ("search", "values", "message"),
    [
        (GrowMapSearch, {"num_prompts": 0}, "search.num_prompts is 0; allowed: from 1"),
        (GrowMapSearch, {"num_levels": 1}, "search.num_levels is 1; allowed: from 2"),
        (
            BestShapeSearch,
            {"num_prompts": 14},
            "search.num_prompts is 14; allowed: from 15, split over 5 stages",
        ),
        (BestShapeSearch, {"num_levels": 2}, "search.num_levels is 2; allowed: from 3"),
        (BestShapeSearch, {"by": "speed"}, "search.by is 'speed'; allowed: tokens, time"),
        (FastestSearch, {"num_prompts": 4}, "search.num_prompts is 4; allowed: from 5"),
    ],
)
def test_parameters_out_of_range_are_refused_when_the_search_is_made(search, values, message):
    with pytest.raises(InvalidInput, match=message):
        search(**values)


def test_searches_are_checked_without_torch():
    modules = ", ".join(f"experiments.search.{name}" for name in ("best_shape", "grow_map", "fastest"))
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_stage_measures_every_data_set_on_documents_of_its_own(tmp_path):
    overrides = [
        "dataset=embedded_code,embedded_reference", "tree=best_16", "first_tuning_prompt=7",
        "temperature=0.6", "verifier=standard,resispec", f"results={tmp_path}",
    ]  # fmt: skip
    shapes = [from_widths((3, 2)), from_widths((5,))]
    measurements = BestShapeSearch(30, 5).measurements(cells_of(overrides), quiet)
    first, third = (best_shape.comparing(measurements, stage, shapes) for stage in (0, 2))
    for cells, start in ((first, 7), (third, 15)):
        assert [cell.labels["dataset"] for cell in cells] == ["embedded_code", "embedded_reference"]
        assert {(cell.config["first_prompt"], cell.config["num_prompts"]) for cell in cells} == {(start, 4)}
        labels = {(cell.labels["temperature"], cell.labels["verifier"]) for cell in cells}
        assert labels == {(0.6, "traversal_optimal")}
        for cell in cells:
            assert [Topology(tuple(parents)) for parents in cell.config["task"]["topologies"]] == shapes
    ids = {cell.cell_id for cell in (*first, *third, *best_shape.comparing(measurements, 0, shapes[:1]))}
    assert len(ids) == 6  # topologies and documents count


@pytest.mark.parametrize(("decoder", "draws"), [("sequoia", "without_replacement"), ("specinfer", "iid")])
def test_every_kind_of_draws_has_a_file_and_a_verifier_of_its_own(decoder, draws, tmp_path):
    [cell] = cells_of([f"decoder={decoder}", "tree=best_64", f"results={tmp_path}"])
    assert cell.tree_file.name == f"embedded.{decoder}.T1.0.best_64.json"
    verifier = best_shape.VERIFIERS[draws][0]
    [usual] = cells_of([f"verifier={verifier}", "tree=d5b3", f"results={tmp_path}"])
    measurements = BestShapeSearch().measurements([cell], quiet)
    [measuring] = best_shape.comparing(measurements, 0, [chain(3)])
    assert (measuring.labels["decoder"], measuring.labels["verifier"]) == (decoder, verifier)
    assert measuring.config["decoder"]["drafter"]["draws"] == draws
    assert measuring.config["decoder"]["verifier"] == usual.config["decoder"]["verifier"]


# The fastest configuration.


def judge_of(target_s, draft_s=1e-4):
    return Judge(CostModel.fitted(made_up(target_s, draft_s)), 44.0)


def values(judge):
    """Every candidate with tokens a step that grow with its depth."""
    trees = fastest.candidates(dict.fromkeys(METHODS, VECTOR), judge, 6)
    return {
        one: Value(1 + 0.7 * (one.topology.num_levels - 1) ** 0.5 + 0.01 * (one != ONE_TOKEN), 0.0)
        for one in (ONE_TOKEN, *trees)
    }


def test_the_choice_follows_from_what_forwards_cost():
    """Nothing is drafted where every position costs as much, the deepest tree where all forwards do."""
    costly, cheap = (fastest.choose(values(judge), judge) for judge in map(judge_of, (proportional, flat)))
    assert costly.fastest == ONE_TOKEN
    every = [one.topology.num_levels for own in cheap.best.values() for one in own]
    assert cheap.fastest.topology.num_levels == max(every)
    judge, tree = judge_of(flat, draft_s=0.0), Configuration("iid", "standard", chain(1))
    for error, expected in ((0.01, tree), (0.5, ONE_TOKEN)):  # one that may only look faster is not chosen
        found = {ONE_TOKEN: Value(1.0, 0.0), tree: Value(1.2, error)}
        assert fastest.choose(found, judge).fastest == expected


def test_candidates_are_of_every_kind_and_the_fastest_of_every_kind_and_size_are_kept():
    judge = judge_of(proportional)
    found = values(judge)
    chains = {Configuration("iid", verifier, chain(count)) for count in range(1, 9) for verifier in ON_CHAINS}
    assert chains <= set(found)
    sizes = {(one.draws, one.verifier, one.topology.num_nodes) for one in found}
    for draws, verifiers in METHODS.items():
        every = {(draws, name, size) for name in verifiers for size in (2, 4, 8, 16, 32, 64, 128)}
        assert every <= sizes
    leading = fastest.leading(found, judge)
    kept = {(fastest.kind_of(one), one.topology.num_nodes): one for one in reversed(leading)}
    for one in found.keys() - {ONE_TOKEN}:
        best = kept[fastest.kind_of(one), one.topology.num_nodes]
        assert judge.rate(best, found[best]) >= judge.rate(one, found[one]) * (1 - 1e-12)
    best = fastest.choose({one: found[one] for one in leading}, judge).best
    assert set(best) == {"chain", *METHODS}
    assert [one.topology.num_nodes for one in best["iid"]] == [2, 4, 8, 16, 32, 64, 128]
    assert [one.topology.num_nodes for one in best["chain"]] == [*range(2, 10)]


def example():
    tree = Configuration("iid", "optimal", from_widths((3, 2)))
    return chosen.Chosen(tree, {"iid": [tree], "chain": [Configuration("iid", "block", chain(2))]})


def test_a_file_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "new" / "fastest.json"
    chosen.save(example(), path, {"pair": "toy"})
    assert chosen.load(path) == example()
    assert chosen.decoder(chosen.load(path)).drafter.topology == from_widths((3, 2))
    with pytest.raises(InvalidInput, match="decoder=fastest goes with tree=fastest"):
        chosen.decoder(complete(3, 2))
    written = json.loads(path.read_text())
    for change in (
        {"format": "resispec grow map 1"},
        {"fastest": None},
        {"fastest": {"draws": "iid", "verifier": "standard", "child_counts": [[1, 1]]}},
        {"best": []},
    ):
        path.write_text(json.dumps(written | change))
        with pytest.raises(
            InvalidInput, match=f"{path} is no file of tree=fastest .*delete it to search again"
        ):
            chosen.load(path)


def test_the_file_s_configurations_name_a_cell_and_where_they_come_from_does_not(tmp_path):
    def cell_id(found, about):
        path = tmp_path / "fastest.json"
        chosen.save(found, path, about)
        return Cell({}, {"decoder": {"_target_": "x", "tree": {"path": str(path)}}}).cell_id

    first = cell_id(example(), {"started": 1})
    assert cell_id(example(), {"started": "later"}) == first
    slower = replace(example(), fastest=Configuration("iid", "standard", from_widths((3, 2))))
    assert len({first, cell_id(slower, {}), cell_id(replace(example(), best={}), {})}) == 3
