"""The cost model's arithmetic on made-up times, its file, and that nobody measures twice."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from toy_costs import entry_of, flat, made_up, proportional
from toys import save_tiny_search, tiny_llama

from experiments.costs import cost_cache, time_steps
from experiments.costs.configuration import METHODS, ON_CHAINS, ONE_TOKEN, Configuration
from experiments.costs.model import CostModel, Timed
from experiments.grid import cells_of
from experiments.provenance import device_stem
from resispec.errors import InvalidInput
from resispec.models import Pair
from resispec.trees import chain, complete, from_widths, root_only


def quiet(*_):
    """A report that nobody reads."""


def iid(topology, verifier="standard"):
    return Configuration("iid", verifier, topology)


def test_a_configuration_is_what_its_facts_say():
    for topology in (root_only(), chain(3), complete(3, 2), from_widths((4, 2, 5))):
        one = Configuration("without_replacement", "traversal", topology)
        assert Configuration.of(json.loads(json.dumps(one.facts))) == one


@pytest.mark.parametrize("size", [1, 3, 5, 24, 100, 128, 200])
def test_forwards_between_the_timed_sizes_are_interpolated(size):
    """Times on a line in the number of positions and the cached length are found again everywhere."""
    timed = [
        replace(one, target_s=seconds, step_s=one.step_s - one.target_s + seconds)
        for one in made_up(flat)
        for seconds in [1e-3 + 2e-5 * one.configuration.topology.num_nodes + 1e-6 * one.length]
    ]
    model = CostModel.fitted(timed)
    for length in (10.0, 100.0, 300.0):
        expected = 1e-3 + 2e-5 * size + 1e-6 * length
        assert model.times([size], length).target_s[size] == pytest.approx(expected, rel=1e-3)
        assert model.part_s("target", iid(from_widths((size - 1,)) if size > 1 else root_only()), length) == (
            pytest.approx(expected, rel=1e-3)
        )


def test_a_step_is_the_sum_of_its_parts():
    """A draft level takes 0.1 ms, a walk and the rest 0.01 ms each; the shapes were not among the timed."""
    model = CostModel.fitted(made_up(proportional))
    for draws, verifiers in METHODS.items():
        for verifier in verifiers:
            one = Configuration(draws, verifier, from_widths((3, 5, 6, 6)))
            assert model.step_s(one, 44.0) == pytest.approx(4 * 1e-4 + 21e-3 + 2e-5, rel=1e-2)
            assert model.tokens_per_s(one, 2.5, 44.0) == pytest.approx(2.5 / model.step_s(one, 44.0))
    for verifier in ON_CHAINS:
        assert model.step_s(iid(chain(6), verifier), 44.0) == pytest.approx(6e-4 + 7e-3 + 2e-5, rel=1e-2)
    assert model.step_s(ONE_TOKEN, 44.0) == pytest.approx(1e-3 + 2e-5, rel=1e-2)


def test_a_walk_costs_what_its_levels_siblings_and_nodes_cost():
    def verify_s(one):
        below, levels = one.topology.num_nodes - 1, one.topology.num_levels - 1
        slow = 3.0 if one.verifier == "traversal_optimal" else 1.0
        return slow * (1e-4 + 1e-4 * levels + 1e-5 * below)

    timed = [replace(one, verify_s=verify_s(one.configuration)) for one in made_up(flat)]
    model = CostModel.fitted([replace(one, step_s=one.step_s + one.verify_s) for one in timed])
    for verifier in METHODS["iid"]:
        one = iid(from_widths((2, 3, 4, 4)), verifier)
        assert model.part_s("verify", one, 44.0) == pytest.approx(verify_s(one), rel=1e-3)


def test_a_drafted_level_counts_the_nodes_that_have_children():
    """16 nodes of which 4 have children are a forward over 4."""
    timed = []
    for one in made_up(flat):
        levels = one.configuration.topology.levels
        inner = [sum(bool(one.configuration.topology.children[node]) for node in level) for level in levels]
        draft_s = sum(1e-3 * count for count in inner[1:] if count) + 1e-3 * (inner[0] > 0)
        timed.append(replace(one, draft_s=draft_s, step_s=one.step_s - one.draft_s + draft_s))
    model = CostModel.fitted(timed)
    one = iid(from_widths((16, 4)))
    assert model.part_s("draft", one, 44.0) == pytest.approx(1e-3 + 4e-3, rel=1e-2)
    assert model.part_s("draft", ONE_TOKEN, 44.0) == 0


def test_no_part_takes_less_than_no_time():
    """However noisy the times are: the largest of a growing sequence is timed far too short."""
    timed = [
        replace(one, target_s=1e-5 if one.configuration.topology.num_nodes == 64 else one.target_s)
        for one in made_up(proportional)
    ]
    model = CostModel.fitted(timed)
    assert all(seconds >= 0 for name, seconds in model.seconds.items() if not name.startswith("rest"))


@pytest.mark.parametrize(
    ("one", "message"),
    [
        (iid(chain(2), "kseq"), "no cost of 'walk iid kseq' was measured; allowed: .*walk iid standard"),
        (Configuration("greedy", "greedy", chain(2)), "no cost of 'draw greedy' was measured; allowed: draw"),
    ],
)
def test_what_was_not_timed_is_not_predicted(one, message):
    with pytest.raises(InvalidInput, match=message):
        CostModel.fitted(made_up(flat)).step_s(one, 44.0)
    with pytest.raises(InvalidInput, match="no step was timed"):
        CostModel.fitted([])


@pytest.mark.parametrize("is_noisy", [True, False])
def test_every_probe_has_its_turn_in_every_round(is_noisy):
    order = list(time_steps._order(5, 2, is_noisy))
    assert sorted(order) == [(turn, place) for turn in (-1, 0, 1) for place in range(5)]
    rounds = [turn for turn, _ in order]
    assert rounds == (sorted(rounds) if is_noisy else 5 * [-1, 0, 1])


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_probes_are_timed_on_a_gpu():
    pair = Pair(*(type(model)(model.module.cuda()) for model in (tiny_llama(), tiny_llama(seed=1))), None)
    timed = time_steps.time_probes(pair, [1, 2, 3], quiet, rounds=1)
    assert CostModel.fitted(timed).step_s(ONE_TOKEN, 44.0) > 0


@pytest.fixture
def toy(tmp_path):
    """Overrides of a tiny pair with 20 documents."""
    return save_tiny_search(tmp_path, 20)


def counted(monkeypatch):
    """Made-up times in place of measured ones; the list grows with every measurement."""
    calls = []

    def time_probes(*_):
        calls.append(1)
        return made_up(proportional)

    monkeypatch.setattr("experiments.costs.time_steps.time_probes", time_probes)
    return calls


def test_a_pair_is_measured_at_first_use_and_then_read(toy, monkeypatch):
    calls, [cell] = counted(monkeypatch), cells_of(toy)
    first, again = cost_cache.costs_of(cell, quiet), cost_cache.costs_of(cell, quiet)
    assert len(calls) == 1 and first == again
    path = cost_cache.file_of(cell.config)
    assert path.name == f"{device_stem(torch.device('cpu'))}.json" and path.parent.name == "timing"
    assert first.model.seconds == pytest.approx(CostModel.fitted(made_up(proportional)).seconds, rel=1e-3)
    entry = json.loads(path.read_text())["pairs"][first.source["entry"]]
    assert entry["pair"] == cell.labels["pair"] and {"load_average", "git_commit", "versions"} <= set(entry)
    cost_cache.costs_of(cell, quiet, again=True)
    assert len(calls) == 2


def test_costs_without_a_verifier_are_measured_again(toy, monkeypatch):
    """They were taken for complete, and what needs the new one found no cost of it."""
    calls, [cell] = counted(monkeypatch), cells_of(toy)
    with monkeypatch.context() as before:
        before.setattr(cost_cache, "METHODS", {"iid": ("standard",)})
        cost_cache.costs_of(cell, quiet)
    cost_cache.costs_of(cell, quiet)
    assert len(calls) == 2


def test_pairs_share_a_file_and_what_determines_times_tells_them_apart(toy, monkeypatch):
    calls = counted(monkeypatch)
    overrides = ("seed=7", "temperature=0.3", "num_threads=2", "dtype=bfloat16")
    cells = [cells_of([*toy, override])[0] for override in overrides]
    for cell in cells:
        cost_cache.costs_of(cell, quiet)
    assert len(calls) == 3  # neither seed nor temperature counts
    path = cost_cache.file_of(cells[0].config)
    assert len(cost_cache.read(path)) == 3
    cost_cache.write(path, "other", entry_of(made_up(flat)))
    assert len(cost_cache.read(path)) == 4 and "other" in cost_cache.read(path)


def test_threads_that_are_torch_s_choice_are_told_apart_by_what_it_heeds(toy, monkeypatch):
    """After a run on one thread another one on all cores read its costs."""
    chosen, [cell] = [], cells_of([*toy, "num_threads=null"])
    for threads in (None, "1", "2"):
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        if threads:
            monkeypatch.setenv("OMP_NUM_THREADS", threads)
        chosen.append(cost_cache.key_of(cell.config))
    assert len(set(chosen)) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "holds a list"),
        ('{"decoders": {}}', "holds no costs: its format is None; allowed: 'resispec costs 1'"),
        ('{"format": "resispec costs 1", "pairs": []}', "holds no costs"),
    ],
)
def test_a_damaged_file_is_one_line_and_stays(toy, text, message, monkeypatch):
    calls, [cell] = counted(monkeypatch), cells_of(toy)
    path = cost_cache.file_of(cell.config)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(InvalidInput, match=message) as error:
        cost_cache.costs_of(cell, quiet)
    assert "delete it" in str(error.value) and str(path) in str(error.value)
    assert not calls and path.read_text() == text


@pytest.mark.parametrize("steps", [[], [{"draws": "iid"}], [{}], None, [{"step_s": "long"}]])
def test_a_damaged_entry_is_one_line(toy, steps):
    [cell] = cells_of(toy)
    path, key = cost_cache.file_of(cell.config), cost_cache.key_of(cell.config)
    cost_cache.write(path, key, entry_of(made_up(flat)) | {"steps": steps})
    with pytest.raises(InvalidInput, match=f"entry {key} is damaged"):
        cost_cache.costs_of(cell, quiet)


def test_steps_survive_the_file():
    for one in made_up(proportional):
        again = Timed.of(json.loads(json.dumps(one.facts)))
        assert again.configuration == one.configuration and again.step_s == pytest.approx(
            one.step_s, rel=1e-4
        )
    with pytest.raises(ValueError, match="allowed: positive seconds"):
        Timed.of(replace(one, step_s=0.0).facts)
