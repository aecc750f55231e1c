"""Searches from end to end on a tiny pair: files say what was measured, and their trees decode."""

import itertools
import json
import statistics

import pandas as pd
import pytest
import torch

from experiments.configurations import load
from experiments.grid import cells_of
from experiments.search import fastest
from experiments.search.fastest import FastestSearch
from experiments.search.tree_search import BestShapeSearch, GrowMapSearch, OwnShapeSearch, means
from experiments.store import CellStore
from experiments.tasks.acceptance import Acceptance, AcceptanceRow
from experiments.tasks.base import Workload
from experiments.tasks.forwards import Forwards, ForwardsRow
from experiments.tasks.race import ENGINES, Race, RaceRow, tokens_per_s
from experiments.tasks.shapes import EmittedRow
from experiments.worker import measured
from resispec.decode import Decoder, Sampling
from resispec.drafters import DraftModel, NoDraft
from resispec.draws import Draws
from resispec.models import Pair
from resispec.trees import from_widths, grow_map
from resispec.trees.search import expected_tokens
from resispec.verifiers import get_rule, get_verifier
from tests.harness.toy_runs import ignore, run, save_toys, toy_overrides
from tests.harness.toy_shapes import comparing, workload
from tests.toys import same_everywhere, tiny_llama

TREES = (2, 4, 16)
"""Positions of trees that are searched for here, in place of those up to 128."""


def about(path):
    return json.loads(path.read_text())["about"]


def as_it_is(cell):
    """The cell with its tree's file as it is, which has fewer levels than its own search's."""
    return cell.changed(cell.labels, search=None)


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """Overrides of a tiny pair with 20 documents."""
    folder = save_toys(tmp_path_factory.mktemp("search"), 20)
    return [*toy_overrides(folder, folder / "results"), "first_tuning_prompt=3"]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_forwards_are_timed_by_decoding(device, monkeypatch):
    pair = Pair(
        *(type(model)(model.module.to(device)) for model in (tiny_llama(), tiny_llama(seed=1))),
        None,
    )
    trees, generate = [], Decoder.generate

    def counting(decoder, *arguments, **options):
        trees.append(decoder.drafter.topology.num_nodes)
        return generate(decoder, *arguments, **options)

    monkeypatch.setattr(Decoder, "generate", counting)
    setting = workload(pair, prompts=2, length=5)
    row, other = (Forwards([1, 4, 9])(setting, index) for index in range(2))
    assert sorted(trees[:4]) == sorted(trees[4:]) == [1, 4, 9, 49] and trees[:4] != trees[4:]
    assert min(*row.target_s, row.draft_s) > 0 and len(row.target_s) == len(other.target_s) == 3


def test_a_map_is_made_from_a_measurement_and_decodes(toy):
    [cell] = cells_of([*toy, "decoder=sequoia", "tree=growmap_64"])
    path = cell.tree_file
    GrowMapSearch(4, 5)(path, [cell], ignore)
    topology, said = grow_map.load(path, num_nodes=64), about(path)
    vector = pd.read_csv(
        path.with_name(path.name.replace("64.json", "acceptance.csv")), comment="#"
    )
    assert list(vector.position) == list(range(1, 33))
    assert topology.num_levels == said["num_levels"] <= 5
    expected = expected_tokens(topology, vector.probability.clip(lower=0).tolist())
    assert said["expected_tokens"] == pytest.approx(expected, abs=1e-3)
    times = CellStore(cell.folder.parent / said["forwards_cell"]).rows(ForwardsRow)
    medians = {
        size: statistics.median(row.target_s[place] for row in times)
        for place, size in enumerate(("1", "64"))
    }
    assert len(times) == 4 and said["target_s"] == pytest.approx(medians, rel=0.01)
    assert said["draft_s"] == pytest.approx(statistics.median(row.draft_s for row in times), 0.01)
    rows = CellStore(cell.folder.parent / said["acceptance_cell"]).rows(AcceptanceRow)
    # Documents that the cell itself does not measure.
    assert [row.prompt_id for row in rows] == ["p3", "p4", "p5", "p6"]
    assert vector.probability[0] == pytest.approx(means(rows, "selected")[0].tokens, abs=1e-6)
    assert [row.prompt_id for row in measured(as_it_is(cell), ignore)] == ["p0", "p1", "p2"]
    larger = cells_of([*toy, "decoder=sequoia", "tree=growmap_121"])
    GrowMapSearch(4, 5)(larger[0].tree_file, larger, ignore)
    # The measurement is that of every size.
    assert about(larger[0].tree_file)["acceptance_cell"] == said["acceptance_cell"]


def test_a_map_behind_a_filter_is_another_file_that_says_so(toy):
    """Defect: maps were named by their temperature alone."""
    [cell] = cells_of([*toy, "decoder=sequoia", "tree=growmap_64", "sampling.top_k=3"])
    GrowMapSearch(4, 5)(cell.tree_file, [cell], ignore)
    assert cell.tree_file.name.endswith(".T1.0.top_k-3.64.json")
    said = about(cell.tree_file)
    assert said["sampling.top_k"] == 3
    vector = cell.tree_file.with_name(cell.tree_file.name.replace("64.json", "acceptance.csv"))
    assert "# sampling.top_k: 3\n" in vector.read_text()
    measurement = cell.folder.parent / said["acceptance_cell"] / "cell.json"
    assert json.loads(measurement.read_text())["config"]["sampling"]["top_k"] == 3
    assert [row.prompt_id for row in measured(as_it_is(cell), ignore)] == ["p0", "p1", "p2"]


def test_the_number_of_nodes_is_searched_where_it_is_not_given(toy, tmp_path):
    path = tmp_path / "new" / "best.json"
    [cell] = cells_of([*toy, "decoder=sequoia", "tree=growmap", f"tree.path={path}"])
    GrowMapSearch(4, 5)(path, [cell], ignore)
    said = about(path)
    assert set(said["target_s"]) == {"1", "2", "4", "8", "16", "32", "64", "128"}
    assert str(grow_map.load(path).num_nodes) in said["target_s"] and said["expected_speedup"] >= 1


@pytest.mark.parametrize(
    ("decoder", "verifier", "by"),
    [
        ("specinfer", "traversal_optimal", "tokens"),
        ("sequoia", "traversal", "time"),
        ("greedy", "univer", "tokens"),
    ],
)
def test_the_best_shape_s_file_says_what_was_measured_and_decodes(
    toy, decoder, verifier, by, tmp_path
):
    path = tmp_path / "best.json"
    search = (OwnShapeSearch if decoder == "greedy" else BestShapeSearch)(15, 5, by=by)
    given = ["tree=best_16", f"tree.path={path}", f"decoder={decoder}", f"verifier={verifier}"]
    [cell] = cells_of([*toy, *given])
    told = list[tuple[str, int, int]]()
    search(path, [cell], lambda *facts: told.append(facts))
    done = [place for _, place, _ in told]
    left_out = 2 * 2 * 4 * (decoder != "specinfer")  # of other draws no neighbours
    assert done == sorted(done) and (done[0], done[-1]) == (0, 103 - left_out)
    assert {size for *_, size in told} == {search.size([cell])} == {103}
    topology, said = grow_map.load(path, num_nodes=16), about(path)
    assert (
        said["widths"] == [len(level) for level in topology.levels[1:]]
        and said["verifier"] == verifier
    )
    assert topology.num_levels == said["num_levels"] <= 5 and said["made_from"] == [
        by,
        search.measured[0],
    ]
    frontier = said["frontier"]
    assert frontier[str(topology.num_levels)]["expected_tokens"] == said["expected_tokens"]
    for levels, facts in frontier.items():
        assert sum(facts["widths"]) == 15 and len(facts["widths"]) + 1 == int(levels)
        seconds = len(facts["widths"]) * said["draft_s"] + said["target_s"]["16"]
        assert facts["s_per_token"] == pytest.approx(seconds / facts["expected_tokens"], rel=0.02)
    assert set(said["fastest_up_to_ratio"]) <= set(frontier)
    assert len(search.measured) == (6 if decoder == "specinfer" else 4)
    # What the file says is the last measurement.
    values = means(CellStore(cell.folder.parent / search.measured[-1]).rows(EmittedRow), "emitted")
    for name, place in (("expected_tokens", 0), ("standard_error", 1)):
        expected = [value[place] for value in values]
        assert [facts[name] for facts in frontier.values()] == pytest.approx(expected, abs=1e-4)
    assert [row.prompt_id for row in measured(as_it_is(cell), ignore)] == ["p0", "p1", "p2"]


@pytest.fixture(scope="module")
def searched(toy, tmp_path_factory):
    """The results folder of a search for the fastest configuration."""
    folder = tmp_path_factory.mktemp("searched")
    [cell] = cells_of([*toy, "tree=fastest", f"results={folder}"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fastest, "TREES", TREES)
        FastestSearch(5, 4)(cell.tree_file, [cell], ignore)
    return folder


def test_the_fastest_file_says_what_was_measured(toy, searched):
    [cell] = cells_of([*toy, "tree=fastest", f"results={searched}"])
    said = about(cell.tree_file)
    assert said["datasets"] == [cell.labels["dataset"]]
    heat, final = (
        CellStore(cell.folder.parent / cell_id).rows(RaceRow) for cell_id in said["made_from"][-2:]
    )
    # Documents of their own, two of the five for the last race.
    assert [row.prompt_id for row in (*heat, *final)] == ["p5", "p6", "p7"]
    finalists = said["raced"][: len(final[0].entry)]
    assert [facts["tokens_per_s"] for facts in finalists] == pytest.approx(
        sorted(tokens_per_s(final), reverse=True), rel=1e-3
    )
    found = load(cell.tree_file).fastest
    assert {name: finalists[0][name] for name in found.facts} == found.facts
    [one_token] = [facts for facts in finalists if facts["num_nodes"] == 1]
    assert one_token["expected_tokens"] == 1 and one_token["standard_error"] == 0


def test_every_prompt_is_decoded_by_all_entries(toy, searched):
    race = ["task=race", "num_prompts=2", "sampling.ignore_eos=true"]
    [cell] = cells_of([*toy, "tree=fastest", f"results={searched}", *race])
    rows = measured(as_it_is(cell), ignore)
    names = [*Race(load(cell.tree_file), 4).entries, *ENGINES]
    assert {"one_token", "fastest", "d5b3 standard", "iid 16", "chain 5", *ENGINES} <= set(names)
    for row in rows:
        assert row.entry == names and set(row.num_returned) == {6} and min(row.whole_s) > 0
        for name, nodes, emitted, steps, whole_s, decode_s in zip(
            row.entry,
            row.num_nodes,
            row.num_emitted,
            row.num_steps,
            row.whole_s,
            row.decode_s,
            strict=True,
        ):
            is_ours = name not in ENGINES
            assert (nodes > 0) == (steps > 0) == (emitted >= 6) == is_ours and decode_s <= whole_s
    assert rows[0].num_steps[rows[0].entry.index("one_token")] == 6


def test_runs_search_and_then_decode(toy, tmp_path):
    given = [
        *toy,
        "tree=fastest",
        "search.num_prompts=5",
        "search.num_levels=4",
        f"results={tmp_path}",
    ]
    # the search compares after as many prefixes of a document
    given += ["sampling.max_new_tokens=2"]
    done = run(*given)
    assert done.returncode == 0, done.stderr
    assert "1 cell: 1 done" in done.stderr and "searching for the tree" in done.stderr
    again = run(*given)
    assert "1 cell: 1 done (1 before)" in again.stderr and "searching" not in again.stderr
    other = run(*given, "num_threads=2")
    assert other.returncode == 1 and other.stderr.count("\n") == 1
    assert "was searched for with num_threads=1; found num_threads=2" in other.stderr


# What searches compare, by laws, against decoding and an enumeration.


@pytest.mark.parametrize(
    ("verifier", "draws"),
    [
        ("traversal_optimal", "iid"),
        ("resispec", "iid"),
        ("traversal", "without_replacement"),
        ("naive", "point_mass"),
        ("greedy", "greedy"),
    ],
)
def test_expected_tokens_are_what_decoding_emits(verifier, draws):
    pair, candidates = same_everywhere(), [[2, 4, 4], [3, 3, 3, 3]]
    task = comparing(candidates)
    setting = workload(pair, verifier, prompts=300, new_tokens=1, draws=draws)
    rows = [task(setting, index) for index in range(300)]
    for widths, value in zip(candidates, means(rows, "emitted"), strict=True):
        decoder = Decoder(DraftModel(from_widths(widths), draws), get_verifier(verifier))
        done = decoder.generate(
            pair, [0], Sampling(1.0, 2000, 4000), torch.Generator().manual_seed(1)
        )
        emitted = torch.tensor(done.num_emitted[:-1], dtype=torch.float64)
        both = (value.error**2 + float(emitted.var()) / len(emitted)) ** 0.5
        assert abs(value.tokens - float(emitted.mean())) < 4 * both < 0.4


def test_the_measured_vector_is_the_enumerated_one():
    """Of the acceptance of each place in draw order, over every tuple that could be drawn."""
    pair, draws = same_everywhere(), Draws.WITHOUT_REPLACEMENT
    p, q = (torch.softmax(model.logits[0], -1) for model in (pair.target, pair.draft))
    tuples = torch.tensor(list(itertools.permutations(range(len(p)), 3)))
    p, q = p.expand(len(tuples), -1), q.expand(len(tuples), -1)
    expected = draws.weights(q, tuples) @ get_rule("standard").law(p, q, tuples, draws).select
    decoder = Decoder(NoDraft(), get_verifier("standard"))
    setting = Workload(pair, decoder, Sampling(1.0, 4000, 4050), [("p0", [0, 1])], seed=0)
    row = Acceptance(3, "without_replacement")(setting, 0)
    measured = torch.tensor(row.selected, dtype=torch.float64) / row.num_prefixes
    assert row.num_prefixes == 4000
    assert (measured - expected).abs().max() < 0.02  # about 4 standard errors
