"""Searches from end to end on a tiny pair: what their files say is what was measured, and decodes."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pandas as pd
import pytest
from toy_costs import flat, proportional, save_costs
from toy_runs import run
from toys import save_tiny_search

from experiments.cell import file_name
from experiments.costs.configuration import ONE_TOKEN
from experiments.grid import cells_of
from experiments.search import chosen
from experiments.search.best_shape import FINAL, BestShapeSearch, comparing
from experiments.search.fastest import FastestSearch
from experiments.search.grow_map import GrowMapSearch
from experiments.search.tree_search import mean_and_error
from experiments.store import CellStore
from experiments.tasks.acceptance import AcceptanceRow
from experiments.tasks.race import ENGINES, Race
from experiments.tasks.shapes import EmittedRow
from experiments.worker import CellFailed, measured
from resispec.trees import from_widths, grow_map
from resispec.trees.search import expected_tokens

GROW_MAP = GrowMapSearch(num_prompts=4, num_levels=5)
BEST_SHAPE = BestShapeSearch(num_prompts=15, num_levels=5)
FASTEST = FastestSearch(num_prompts=5, num_levels=4)


def quiet(*_):
    """A report that nobody reads."""


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """Overrides of a tiny pair with 20 documents, and made-up costs."""
    overrides = save_tiny_search(tmp_path_factory.mktemp("search"), 20)
    save_costs(cells_of(overrides)[0].config, proportional)
    return overrides


def test_a_map_is_made_from_a_measurement_and_decodes(toy):
    [cell] = cells_of([*toy, "decoder=sequoia", "tree=growmap_64"])
    path, told = cell.tree_file, []
    names = f"{file_name(cell.labels['pair'])}.{file_name(cell.labels['dataset'])}"
    assert str(path).endswith(f"results/embedded/growmap/{names}.T1.0.64.json")
    GROW_MAP(path, [cell], lambda *facts: told.append(facts))
    assert {facts[0].partition(",")[0] for facts in told} == {"acceptance of siblings"}
    topology, about = grow_map.load(path, num_nodes=64), json.loads(path.read_text())["about"]
    vector = pd.read_csv(path.with_name(path.name.replace("64.json", "acceptance.csv")), comment="#")
    assert list(vector.position) == list(range(1, 33)) and 0 < vector.probability.sum() <= 1 + 1e-5
    assert topology.num_levels == about["num_levels"] <= 5
    expected = expected_tokens(topology, vector.probability.clip(lower=0).tolist())
    assert about["expected_tokens"] == pytest.approx(expected, abs=1e-3)
    assert about["target_s"] == {"1": 1e-3, "64": pytest.approx(0.064)} and about["costs"]["entry"]
    assert about["acceptance_cell"] != cell.cell_id
    rows = CellStore(cell.folder.parent / about["acceptance_cell"]).rows(AcceptanceRow)
    # Documents that the cell itself does not measure.
    assert [row.prompt_id for row in rows] == ["p3", "p4", "p5", "p6"]
    first = sum(row.selected[0] for row in rows) / sum(row.num_prefixes for row in rows)
    assert vector.probability[0] == pytest.approx(first, abs=1e-6)
    assert [row.prompt_id for row in measured(cell, quiet)] == ["p0", "p1", "p2"]
    larger = cells_of([*toy, "decoder=sequoia", "tree=growmap_121"])
    GROW_MAP(larger[0].tree_file, larger, quiet)
    again = json.loads(larger[0].tree_file.read_text())["about"]
    assert again["acceptance_cell"] == about["acceptance_cell"]  # the measurement is that of every size


def test_the_number_of_nodes_is_searched_where_it_is_not_given_and_a_failure_says_why(toy, tmp_path):
    path = tmp_path / "new" / "best.json"
    [cell] = cells_of([*toy, "decoder=sequoia", "tree=growmap", f"tree.path={path}"])
    GROW_MAP(path, [cell], quiet)
    about = json.loads(path.read_text())["about"]
    assert set(about["target_s"]) == {"1", "2", "4", "8", "16", "32", "64", "128"}
    assert str(grow_map.load(path).num_nodes) in about["target_s"] and about["expected_speedup"] >= 1
    dataset = cell.config["dataset"] | {"path": str(tmp_path / "none.jsonl")}
    broken = replace(cell, config=cell.config | {"dataset": dataset})
    with pytest.raises(CellFailed, match="none.jsonl"):
        GROW_MAP(tmp_path / "none.json", [broken], quiet)
    assert not (tmp_path / "none.json").exists()


@pytest.mark.parametrize(
    ("decoder", "verifier", "by"),
    [
        ("specinfer", "traversal_optimal", "tokens"),
        ("specinfer", "traversal_optimal", "time"),
        ("sequoia", "traversal", "tokens"),
    ],
)
def test_the_best_shape_s_file_says_what_was_measured_and_decodes(toy, decoder, verifier, by, tmp_path):
    path = tmp_path / "best.json"
    [cell] = cells_of(
        [*toy, "tree=best_16", f"tree.path={path}", f"decoder={decoder}", f"verifier={verifier}"]
    )
    replace(BEST_SHAPE, by=by)(path, [cell], quiet)
    topology, about = grow_map.load(path, num_nodes=16), json.loads(path.read_text())["about"]
    assert about["widths"] == [len(level) for level in topology.levels[1:]] and about["verifier"] == verifier
    assert topology.num_levels == about["num_levels"] <= 5 and about["made_from"][0] == by
    frontier = about["frontier"]
    assert frontier[str(topology.num_levels)]["expected_tokens"] == about["expected_tokens"]
    for levels, facts in frontier.items():
        assert sum(facts["widths"]) == 15 and len(facts["widths"]) + 1 == int(levels)
        seconds = len(facts["widths"]) * about["draft_s"] + about["target_s"]["16"]
        assert facts["s_per_token"] == pytest.approx(seconds / facts["expected_tokens"], rel=0.02)
    assert set(about["fastest_up_to_ratio"]) <= set(frontier)
    # The first stage's cell is named, and the last one's, on documents of its own, is found again.
    first = json.loads((cell.folder.parent / about["made_from"][1] / "cell.json").read_text())["config"]
    name = "Shapes" if decoder == "specinfer" else "Acceptance"
    assert first["task"]["_target_"].endswith(name) and len(about["made_from"]) == 2
    if decoder == "specinfer":  # trees whose draws have an order are not given by their widths
        final = [from_widths(facts["widths"]) for facts in frontier.values()]
        [last] = comparing(BEST_SHAPE.measurements([cell], quiet), FINAL, final)
        rows = CellStore(last.folder).rows(EmittedRow)
        assert [row.prompt_id for row in rows] == ["p14", "p15", "p16", "p17"]
        for name, values in zip(
            ("expected_tokens", "standard_error"), mean_and_error(rows, "emitted"), strict=True
        ):
            assert [facts[name] for facts in frontier.values()] == pytest.approx(values, abs=1e-4)
    assert [row.prompt_id for row in measured(cell, quiet)] == ["p0", "p1", "p2"]


def fastest_cell(toy, folder, target_s, *overrides):
    """The cell of the fastest configuration, searched for in a folder of its own, and its file."""
    given = [*toy, "tree=fastest", "search.num_prompts=5", "search.num_levels=4", f"results={folder}"]
    [cell] = cells_of([*given, *overrides])
    save_costs(cell.config, target_s)
    FASTEST(cell.tree_file, [cell], quiet)
    return cell, json.loads(cell.tree_file.read_text())["about"]


def test_without_speculation_the_cell_decodes_one_token_a_step(toy, tmp_path):
    cell, about = fastest_cell(toy, tmp_path, proportional)
    assert chosen.load(cell.tree_file).fastest == ONE_TOKEN
    assert about["costs"]["entry"] and about["datasets"] == [cell.labels["dataset"]]
    [one_token] = [facts for facts in about["expected"] if facts["num_nodes"] == 1]
    assert one_token["expected_tokens"] == 1 and one_token["standard_error"] == 0
    assert all(row.num_emitted == row.num_steps for row in measured(cell, quiet))


def test_the_fastest_file_says_what_was_measured_and_the_same_search_finds_the_same(toy, tmp_path):
    cell, about = fastest_cell(toy, tmp_path / "a", flat)
    assert fastest_cell(toy, tmp_path / "b", flat)[0].cell_id == cell.cell_id
    found = chosen.load(cell.tree_file).fastest
    rates = [
        max(1, facts["expected_tokens"] - facts["standard_error"]) / facts["step_s"]
        for facts in about["expected"]
    ]
    best = about["expected"][rates.index(max(rates))]
    assert {name: best[name] for name in found.facts} == found.facts and found.topology.num_nodes > 2
    folder = cell.folder.parent
    stages = [json.loads((folder / name / "cell.json").read_text())["config"] for name in about["made_from"]]
    tasks = [config["task"]["_target_"].rpartition(".")[2] for config in stages]
    assert tasks == ["Acceptance"] * 3 + ["Configurations"] * 2
    seen = [(config["first_prompt"], config["num_prompts"]) for config in stages]
    assert sorted(set(seen)) == [(3, 1), (4, 2), (6, 2)]  # the stages share no document
    rows = CellStore(folder / about["made_from"][-1]).rows(EmittedRow)
    means, _ = mean_and_error(rows, "emitted")
    for mean, facts in zip(means, stages[-1]["task"]["configurations"], strict=True):
        [said] = [one for one in about["expected"] if all(one[name] == facts[name] for name in facts)]
        assert said["expected_tokens"] == pytest.approx(mean, abs=1e-4)


def test_every_prompt_is_decoded_by_all_entries(toy, tmp_path):
    cell, _ = fastest_cell(toy, tmp_path, flat, "task=race", "num_prompts=2", "sampling.ignore_eos=true")
    rows = measured(cell, quiet)
    names = list(Race(chosen.load(cell.tree_file), 4).entries)
    assert {"one_token", "fastest", "d5b3 standard", "iid 16", "chain 5", *ENGINES} <= set(names)
    for row in rows:
        assert row.entry == names and set(row.num_returned) == {6} and min(row.whole_s) > 0
        for name, nodes, emitted, steps, whole_s, decode_s in zip(
            row.entry, row.num_nodes, row.num_emitted, row.num_steps, row.whole_s, row.decode_s, strict=True
        ):
            is_ours = name not in ENGINES
            assert (nodes > 0) == (steps > 0) == (emitted >= 6) == is_ours and decode_s <= whole_s
    assert rows[0].num_steps[rows[0].entry.index("one_token")] == 6


def test_runs_search_and_then_decode(toy, tmp_path):
    given = [*toy, "tree=fastest", "search.num_prompts=5", "search.num_levels=4", f"results={tmp_path}"]
    save_costs(cells_of(given)[0].config, proportional)
    done = run(*given)
    assert done.returncode == 0, done.stderr
    assert "1 cell: 1 done" in done.stderr and "searching for the tree" in done.stderr
    other = run(*given, "num_threads=2")
    assert other.returncode == 1 and other.stderr.count("\n") == 1
    assert "was searched for with num_threads=1; found num_threads=2" in other.stderr
    command = [sys.executable, "-m", "experiments.run", *toy, "decoder=sequoia", "tree=growmap"]
    bad = [*command, "search.num_levels=-1", f"tree.path={tmp_path}/bad.json"]
    done = subprocess.run(bad, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "search.num_levels is -1; allowed: from 2" in done.stderr
    assert "Traceback" not in done.stderr
