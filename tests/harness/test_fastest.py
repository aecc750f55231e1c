"""`tree=fastest`: what it chooses when forwards cost this or that, its file, and a run with it."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from toy_costs import flat, made_up, proportional, save_costs
from toy_runs import run
from toys import save_tiny_search

from experiments.cells import Cell
from experiments.costs.configuration import METHODS, ON_CHAINS, ONE_TOKEN, Configuration
from experiments.costs.model import CostModel
from experiments.plan import cells_of
from experiments.search import chosen, fastest
from experiments.search.candidates import Value
from experiments.search.fastest import FastestSearch, Judge
from experiments.store import CellStore
from experiments.tasks.drafted import EmittedRow
from experiments.tasks.race import ENGINES, Race
from experiments.worker import measured
from resispec.errors import InvalidInput
from resispec.trees import chain, complete, from_widths

SEARCH = FastestSearch(num_prompts=5, num_levels=4)
VECTOR = [0.6, 0.15, 0.05, *[0.005] * 29]


def quiet(*_):
    """A report that nobody reads."""


def judge_of(target_s, draft_s=1e-4):
    return Judge(CostModel.fitted(made_up(target_s, draft_s)), 44.0)


def tokens_of(one):
    """Tokens a step that grow with the tree, by nothing but its size and depth."""
    return 1 + 0.7 * (one.topology.num_levels - 1) ** 0.5 + 0.01 * (one.topology.num_nodes > 1)


def values(judge):
    """Every candidate with its tokens."""
    trees = fastest.candidates(dict.fromkeys(METHODS, VECTOR), judge, 6)
    return {one: Value(tokens_of(one), 0.0) for one in (ONE_TOKEN, *trees)}


def chosen_for(judge):
    return fastest.choose(values(judge), judge)


def test_where_every_position_costs_as_much_nothing_is_drafted():
    assert chosen_for(judge_of(proportional)).fastest == ONE_TOKEN


def test_where_a_forward_costs_the_same_for_all_sizes_a_tree_is_drafted():
    found = chosen_for(judge_of(flat)).fastest
    assert found.topology.num_levels == max(
        one.topology.num_levels for own in chosen_for(judge_of(flat)).best.values() for one in own
    )


def test_a_configuration_that_may_only_look_faster_is_not_chosen():
    judge = judge_of(flat, draft_s=0.0)
    tree = Configuration("iid", "standard", chain(1))
    for error, expected in ((0.01, tree), (0.5, ONE_TOKEN)):
        found = {ONE_TOKEN: Value(1.0, 0.0), tree: Value(1.2, error)}
        assert fastest.choose(found, judge).fastest == expected


def test_candidates_are_of_every_kind():
    found = fastest.candidates(dict.fromkeys(METHODS, VECTOR), judge_of(flat), 6)
    assert ONE_TOKEN not in found and len(set(found)) == len(found)
    for count in range(1, 9):
        for verifier in ON_CHAINS:
            assert Configuration("iid", verifier, chain(count)) in found
    trees = {(one.draws, one.verifier, one.topology.num_nodes) for one in found}
    for draws, verifiers in METHODS.items():
        for verifier in verifiers:
            assert {size for d, v, size in trees if (d, v) == (draws, verifier)} >= {2, 4, 8, 16, 32, 64, 128}


def test_the_fastest_of_every_kind_and_size_are_kept():
    judge = judge_of(proportional)
    found = values(judge)
    leading = fastest.leading(found, judge)
    for one in found.keys() - {ONE_TOKEN}:
        same = [other for other in leading if fastest.kind_of(other) == fastest.kind_of(one)]
        same = [other for other in same if other.topology.num_nodes == one.topology.num_nodes]
        assert same and judge.rate(same[0], found[same[0]]) >= judge.rate(one, found[one]) * (1 - 1e-12)
    best = fastest.choose({one: found[one] for one in leading}, judge).best
    assert set(best) == {"chain", *METHODS}
    assert [one.topology.num_nodes for one in best["iid"]] == [2, 4, 8, 16, 32, 64, 128]
    assert [one.topology.num_nodes for one in best["chain"]] == [*range(2, 10)]


# The file.


def example():
    best = {
        "iid": [Configuration("iid", "optimal", from_widths((3, 2)))],
        "chain": [Configuration("iid", "block", chain(2))],
    }
    return chosen.Chosen(best["iid"][0], best)


def test_a_file_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "new" / "fastest.json"
    chosen.save(example(), path, {"pair": "toy"})
    assert chosen.load(path) == example()
    assert chosen.decoder(chosen.load(path)).drafter.topology == from_widths((3, 2))
    with pytest.raises(InvalidInput, match="decoder=fastest goes with tree=fastest"):
        chosen.decoder(complete(3, 2))


@pytest.mark.parametrize(
    "change",
    [
        {"format": "resispec grow map 1"},
        {"fastest": None},
        {"fastest": {"draws": "iid", "verifier": "standard"}},
        {"fastest": {"draws": "iid", "verifier": "standard", "child_counts": [[1, 1]]}},
        {"best": []},
    ],
)
def test_a_damaged_file_is_one_line(tmp_path, change):
    path = tmp_path / "fastest.json"
    chosen.save(example(), path, {})
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InvalidInput, match=f"{path} is no file of tree=fastest .*delete it to search again"):
        chosen.load(path)


def test_what_was_found_names_a_cell_and_where_it_comes_from_does_not(tmp_path):
    def cell_id(found, about):
        path = tmp_path / "fastest.json"
        chosen.save(found, path, about)
        return Cell({}, {"decoder": {"_target_": "x", "tree": {"path": str(path)}}}).cell_id

    first = cell_id(example(), {"started": 1})
    assert cell_id(example(), {"started": "later"}) == first
    slower = replace(example(), fastest=Configuration("iid", "standard", from_widths((3, 2))))
    assert cell_id(slower, {"started": 1}) != first
    assert cell_id(replace(example(), best={}), {"started": 1}) != first


# Searches and runs on a tiny pair.


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """Overrides of a tiny pair with 20 documents, on which `tree=fastest` is searched for."""
    overrides = save_tiny_search(tmp_path_factory.mktemp("fastest"), 20)
    return [*overrides, "tree=fastest", "search.num_prompts=5", "search.num_levels=4"]


def searched(toy, folder, target_s):
    """The cell of the fastest configuration, searched for in a folder of its own, and what its file says."""
    [cell] = cells_of([*toy, f"results={folder}"])
    save_costs(cell.config, target_s)
    SEARCH(cell.tree_file, [cell], quiet)
    return cell, json.loads(cell.tree_file.read_text())


def test_a_search_says_no_speculation_and_the_cell_decodes_one_token_a_step(toy, tmp_path):
    cell, content = searched(toy, tmp_path, proportional)
    assert chosen.load(cell.tree_file).fastest == ONE_TOKEN
    about = content["about"]
    assert about["costs"]["entry"] and about["datasets"] == [cell.labels["dataset"]] and about["made_from"]
    [one_token] = [facts for facts in about["expected"] if facts["num_nodes"] == 1]
    assert one_token["expected_tokens"] == 1 and one_token["standard_error"] == 0
    for row in measured(cell, quiet):
        assert row.num_emitted == row.num_steps


def test_a_search_says_a_tree_and_what_it_is_made_from(toy, tmp_path):
    cell, content = searched(toy, tmp_path, flat)
    found = chosen.load(cell.tree_file).fastest
    assert found.topology.num_nodes > 2
    about = content["about"]
    rates = [
        max(1, facts["expected_tokens"] - facts["standard_error"]) / facts["step_s"]
        for facts in about["expected"]
    ]
    place = rates.index(max(rates))
    assert {name: about["expected"][place][name] for name in found.facts} == found.facts
    folder = cell.folder.parent
    stages = [json.loads((folder / name / "cell.json").read_text()) for name in about["made_from"]]
    tasks = [one["config"]["task"]["_target_"].rpartition(".")[2] for one in stages]
    assert sorted(tasks) == ["Acceptance"] * 3 + ["Configurations"] * 2
    # What the file expects is what the last stage measured, and the stages share no document.
    last = stages[-1]["config"]["task"]["configurations"]
    rows = CellStore(folder / about["made_from"][-1]).rows(EmittedRow)
    prefixes = sum(row.num_prefixes for row in rows)
    for number, facts in enumerate(last):
        [said] = [one for one in about["expected"] if all(one[name] == facts[name] for name in facts)]
        mean = sum(row.emitted[number] for row in rows) / prefixes
        assert said["expected_tokens"] == pytest.approx(mean, abs=1e-4)
    seen = [(one["config"]["first_prompt"], one["config"]["num_prompts"]) for one in stages]
    assert sorted(set(seen)) == [(3, 1), (4, 2), (6, 2)]
    assert [row.prompt_id for row in measured(cell, quiet)] == ["p0", "p1", "p2"]


def test_the_same_search_finds_the_same(toy, tmp_path):
    first, again = (searched(toy, tmp_path / name, flat) for name in ("a", "b"))
    assert first[0].cell_id == again[0].cell_id


def test_every_prompt_is_decoded_by_all_entries(toy, tmp_path):
    [cell] = cells_of([*toy, "task=race", f"results={tmp_path}", "num_prompts=2", "sampling.ignore_eos=true"])
    save_costs(cell.config, flat)
    SEARCH(cell.tree_file, [cell], quiet)
    rows = measured(cell, quiet)
    found = chosen.load(cell.tree_file)
    names = list(Race(found, 4).entries)
    assert {"one_token", "fastest", "d5b3 standard", "iid 16", "chain 5", *ENGINES} <= set(names)
    for row in rows:
        assert row.entry == names and set(row.num_returned) == {6} and min(row.whole_s) > 0
        for name, nodes, emitted, steps, whole_s, decode_s in zip(
            row.entry, row.num_nodes, row.num_emitted, row.num_steps, row.whole_s, row.decode_s, strict=True
        ):
            is_ours = name not in ENGINES
            assert (nodes > 0) == (steps > 0) == (emitted >= 6) == is_ours and decode_s <= whole_s
    one_token = rows[0].entry.index("one_token")
    assert rows[0].num_steps[one_token] == 6


def test_a_run_searches_and_then_decodes(toy, tmp_path):
    results = f"results={tmp_path}"
    save_costs(cells_of([*toy, results])[0].config, proportional)
    done = run(*toy, results)
    assert done.returncode == 0, done.stderr
    assert "1 cell: 1 done" in done.stderr and "searching for the tree" in done.stderr
    other = run(*toy, results, "num_threads=2")
    assert other.returncode == 1 and other.stderr.count("\n") == 1
    assert "was searched for with num_threads=1; found num_threads=2" in other.stderr


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["decoder=specinfer"], "tree=fastest says what drafts and verifies; decoder=specinfer does so, too"),
        (["temperature=0.6,1.0", "tree.path=one.json"], "asked for with temperature 0.6, 1.0"),
        (["tree.path=one.pt"], "a search writes .json files only"),
    ],
)
def test_what_cannot_be_searched_for_is_refused(toy, overrides, message):
    cells = cells_of([*toy, *overrides])
    with pytest.raises(InvalidInput, match=re.escape(message)):
        SEARCH.check(cells[0].tree_file, cells)


@pytest.mark.parametrize(
    ("given", "message"), [({"num_prompts": 4}, "from 5"), ({"num_levels": 1}, "from 2")]
)
def test_parameters_out_of_range_are_refused(given, message):
    with pytest.raises(InvalidInput, match=message):
        FastestSearch(**given)
