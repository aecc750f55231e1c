"""From a pair to a grow map: acceptance by place in draw order, the search, and what its tree then emits."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from dataclasses import replace

import pandas as pd
import pytest
import torch
from toy_costs import proportional, save_costs
from toys import TableModel, ToyTokenizer, same_everywhere, save_tiny_search

from experiments.plan import cells_of
from experiments.search.grow_map import GrowMapSearch, acceptance
from experiments.store import CellStore
from experiments.tasks.acceptance import Acceptance, AcceptanceRow
from experiments.tasks.base import Workload
from experiments.worker import CellFailed, measured
from resispec.decode import Decoder, Sampling
from resispec.drafters import DraftModel, NoDraft
from resispec.draws import Draws
from resispec.errors import InvalidInput
from resispec.models import Pair
from resispec.trees import grow_map
from resispec.trees.search import expected_tokens, search
from resispec.verifiers import get_rule, get_verifier


def quiet(*_):
    """A report that nobody reads."""


def true_vector(pair, count):
    """The acceptance of each place in draw order, summed over every tuple that could be drawn."""
    p, q = (torch.softmax(model.logits[0], -1) for model in (pair.target, pair.draft))
    tuples = torch.tensor(list(itertools.permutations(range(len(p)), count)))
    weights = Draws.WITHOUT_REPLACEMENT.weights(q.expand(len(tuples), -1), tuples)
    shape = (len(tuples), len(p))
    law = get_rule("standard").law(p.expand(shape), q.expand(shape), tuples, Draws.WITHOUT_REPLACEMENT)
    return weights @ law.select


def test_the_measured_vector_is_the_enumerated_one():
    pair, task = same_everywhere(), Acceptance(3, "without_replacement")
    decoder = Decoder(NoDraft(), get_verifier("standard"))
    workload = Workload(pair, decoder, Sampling(1.0, 4000, 4050), [("p0", [0, 1])], seed=0)
    row = task(workload, 0)
    assert row.num_prefixes == 4000
    measured = torch.tensor(row.selected, dtype=torch.float64) / 4000
    assert (measured - true_vector(pair, 3)).abs().max() < 0.02  # about 4 standard errors


def test_positions_follow_the_prompt_and_laws_belong_to_what_was_written():
    """The target counts up, the draft is right after odd tokens only: every other first child is accepted."""
    vocab = 6
    target = torch.full((vocab, vocab), -1e9)
    target[torch.arange(vocab), (torch.arange(vocab) + 1) % vocab] = 0.0
    draft = target.clone()
    draft[::2] = draft[::2].roll(1, dims=1)
    workload = Workload(
        Pair(TableModel(target), TableModel(draft), ToyTokenizer()),
        Decoder(NoDraft(), get_verifier("standard")),
        Sampling(1.0, 9, 64),
        [("p0", [3, 4, 5])],
        seed=0,
    )
    row = Acceptance(1, "without_replacement")(workload, 0)
    # After 5, 1, 3, 5, 1 of 5, 0, 1, 2, 3, 4, 5, 0, 1.
    assert row.num_prefixes == 9 and row.selected == [5.0]


def test_a_found_tree_emits_what_the_search_expects():
    """Where the model of the search holds, decoding agrees with it within 4 standard errors."""
    pair = same_everywhere()
    vector = true_vector(pair, 5).tolist()
    topology = search(vector, 12, 5).topology(12, 5)
    decoder = Decoder(DraftModel(topology, Draws.WITHOUT_REPLACEMENT), get_verifier("standard"))
    found = decoder.generate(pair, [0], Sampling(1.0, 3000, 4000), torch.Generator().manual_seed(0))
    emitted = torch.tensor(found.num_emitted[:-1], dtype=torch.float64)
    error = float(emitted.std() / len(emitted) ** 0.5)
    assert abs(float(emitted.mean()) - expected_tokens(topology, vector)) < 4 * error < 0.2


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """Overrides of a tiny pair with documents, on which maps are searched for with 4 of them; its costs are
    on file.
    """
    overrides = [*save_tiny_search(tmp_path_factory.mktemp("growmap"), 8), "decoder=sequoia"]
    save_costs(cells_of(overrides)[0].config, proportional)
    return overrides


SEARCH = GrowMapSearch(num_prompts=4, num_levels=5)


def test_a_map_is_made_from_a_measurement_and_decodes(toy):
    [cell] = cells_of([*toy, "tree=growmap_64"])
    path, told = cell.tree_file, []
    names = cell.config["names"]
    assert str(path).endswith(f"results/embedded/growmap/{names['pair']}.{names['dataset']}.T1.0.64.json")
    SEARCH(path, [cell], lambda *facts: told.append(facts))
    assert {facts[0] for facts in told} == {"acceptance of siblings"}
    topology = grow_map.load(path, num_nodes=64)
    about = json.loads(path.read_text())["about"]
    vector = pd.read_csv(path.with_name(path.name.replace("64.json", "acceptance.csv")), comment="#")
    assert list(vector.position) == list(range(1, 33)) and 0 < vector.probability.sum() <= 1 + 1e-5
    assert topology.num_levels == about["num_levels"] <= 5
    expected = expected_tokens(topology, vector.probability.clip(lower=0).tolist())
    assert about["expected_tokens"] == pytest.approx(expected, abs=1e-3)
    assert set(about["target_s"]) == {"1", "64"} and about["draft_s"] > 0
    measuring = SEARCH.measuring(cell)
    assert measuring.cell_id == about["acceptance_cell"] != cell.cell_id
    rows = CellStore(measuring.folder).rows(AcceptanceRow)
    # Documents that the cell itself does not measure.
    assert [row.prompt_id for row in rows] == ["p3", "p4", "p5", "p6"]
    first = sum(row.selected[0] for row in rows) / sum(row.num_prefixes for row in rows)
    assert acceptance(rows)[0].probability == pytest.approx(first)
    assert vector.probability[0] == pytest.approx(first, abs=1e-6)
    assert [row.prompt_id for row in measured(cell, quiet)] == ["p0", "p1", "p2"]


def test_the_measurement_is_that_of_every_size(toy):
    cells = [cells_of([*toy, f"tree=growmap_{size}", "seed=3"])[0] for size in (64, 121)]
    assert SEARCH.measuring(cells[0]).cell_id == SEARCH.measuring(cells[1]).cell_id


def test_the_number_of_nodes_is_searched_where_it_is_not_given(toy, tmp_path):
    cells = cells_of([*toy, "tree=growmap", f"tree.path={tmp_path}/new/best.json"])
    path = tmp_path / "new" / "best.json"
    SEARCH(path, cells, quiet)
    about = json.loads(path.read_text())["about"]
    assert set(about["target_s"]) == {"1", "2", "4", "8", "16", "32", "64", "128"}
    found = grow_map.load(path).num_nodes
    assert found in map(int, about["target_s"]) and about["expected_speedup"] >= 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_prompts": 0}, "search.num_prompts is 0; allowed: from 1"),
        ({"num_levels": -1}, "search.num_levels is -1; allowed: from 2"),
        ({"num_levels": 1}, "search.num_levels is 1; allowed: from 2"),
    ],
)
def test_parameters_out_of_range_are_refused_when_the_search_is_made(values, message):
    with pytest.raises(InvalidInput, match=message):
        GrowMapSearch(**values)


def refuse(monkeypatch):
    """Make any measurement fail the test."""

    def measure(*_):
        raise AssertionError("something was measured")

    monkeypatch.setattr("experiments.worker.measured", measure)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["tree=growmap_64", "tree.num_nodes=0"], "tree.num_nodes is 0; allowed: 1 to 1082401"),
        (["tree=growmap_64", "tree.num_nodes=2000000"], "tree.num_nodes is 2000000; allowed: 1 to 1082401"),
        (["tree=growmap", "tree.path=none.pt"], "none.pt does not exist; a search writes .json files only"),
        (
            ["tree=growmap", "tree.path=none.json", "temperature=0.6,1.0"],
            "none.json is asked for with temperature 0.6, 1.0; allowed: a tree.path for each",
        ),
    ],
)
def test_what_cannot_be_searched_for_is_refused_before_anything_is_measured(
    toy, overrides, message, monkeypatch
):
    refuse(monkeypatch)
    cells = cells_of([*toy, *overrides])
    with pytest.raises(InvalidInput, match=re.escape(message)):
        SEARCH(cells[0].tree_file, cells, quiet)


def test_a_failed_measurement_says_why(toy, tmp_path):
    [cell] = cells_of([*toy, "tree=growmap", f"tree.path={tmp_path}/none.json"])
    dataset = cell.config["dataset"] | {"path": str(tmp_path / "none.jsonl")}
    broken = replace(cell, config=cell.config | {"dataset": dataset})
    with pytest.raises(CellFailed, match="none.jsonl"):
        SEARCH(tmp_path / "none.json", [broken], quiet)
    assert not (tmp_path / "none.json").exists()


def test_a_run_searches_for_the_map_that_it_misses(toy, tmp_path):
    given = ["tree=growmap", f"tree.path={tmp_path}/run.json", "search.num_prompts=2", "search.num_levels=3"]
    command = [sys.executable, "-m", "experiments.run", *toy, *given, "tree.num_nodes=8"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert grow_map.load(tmp_path / "run.json").num_nodes == 8
    bad = [*command[:-1], "search.num_levels=-1", f"tree.path={tmp_path}/bad.json"]
    done = subprocess.run(bad, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "search.num_levels is -1; allowed: from 2" in done.stderr
    assert "Traceback" not in done.stderr
