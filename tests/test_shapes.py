"""Shapes for verification from the leaves up: candidates, their comparison on one drafted tree, and the search for the best."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from argparse import Namespace
from collections import Counter
from dataclasses import asdict

import pytest
import torch
from toys import TableModel, ToyTokenizer, save_tiny_pair, table_pair

from experiments.best_shape import FEWEST_LEVELS, Stage, Value, fastest, leaders
from experiments.cells import plan
from experiments.law_trees import Root, part
from experiments.maps import by_path, mean_and_error
from experiments.shapes import Shapes, filled, neighbours, regular
from experiments.tasks import Context
from resispec import growmap
from resispec.audit.enumerate import sibling_weights
from resispec.core import Draws
from resispec.decode import Decoder, Sampling
from resispec.drafters import DraftModel, NoDraft
from resispec.errors import InvalidInput
from resispec.models import Pair
from resispec.topology import chain, complete, from_child_counts, from_widths, parallel_chains, root_only, union
from resispec.tree_search import Winner, winners
from resispec.verifiers import get_verifier


def test_widths_spread_children_evenly_and_narrower_levels_go_on_below_the_first_nodes():
    #        0
    #   1    2    3
    #  4 5  6 7   8
    #  9 10
    assert from_widths([3, 5, 2]).parents == (-1, 0, 0, 0, 1, 1, 2, 2, 3, 4, 5)
    assert from_widths([3, 9, 27, 81]) == complete(5, 3) and from_widths([4, 4, 4]) == parallel_chains(4, 3)
    assert from_widths([1, 1]) == chain(2) and from_widths([]) == root_only()
    assert from_widths([8, *[16] * 7]).num_nodes == 121
    with pytest.raises(InvalidInput, match=r"at least 1; found \[3, 0\]"):
        from_widths([3, 0])


def test_a_union_holds_every_shape_and_no_more():
    #       0               0                 0
    #    1     2          1 2 3           1   2   3
    #   3 4                 4            4 5  6
    whole = union([from_child_counts([[2], [2]]), from_child_counts([[3], [0, 1]])])
    assert whole.parents == (-1, 0, 0, 0, 1, 1, 2)
    assert union([complete(3, 2), parallel_chains(2, 2), root_only()]) == complete(3, 2)
    with pytest.raises(InvalidInput, match="at least one shape"):
        union([])


def chi_square_bound(degrees: int) -> float:
    return degrees + 4 * (2 * degrees) ** 0.5  # 4 standard deviations


@pytest.mark.parametrize("draws", [Draws.IID, Draws.WITHOUT_REPLACEMENT, Draws.POINT_MASS])
def test_a_part_of_a_union_follows_the_law_of_a_direct_draft(draws):
    """Root 0 with children a, b and a's child c: frequencies against the product of the sibling laws, all tuples enumerated."""
    pair, generator, count = table_pair(vocab=4, seed=3), torch.Generator().manual_seed(0), 4000
    q = torch.softmax(pair.draft.logits, -1)
    shape = from_widths([2, 1])
    whole = union([shape, from_widths([3, 1]), from_widths([1, 2, 2])])
    root, found = Root(pair, [1], 1.0, 64), Counter()
    for _ in range(count):
        drafted, _ = part(draft := root.draft(whole, generator, draws), draft.probs, shape)
        found[tuple(drafted.tree.tokens[1:].tolist())] += 1
    assert drafted.tree.draws is draws and torch.allclose(drafted.probs[:2], q[drafted.tree.tokens[:2]])
    if draws is Draws.POINT_MASS:
        first, second = q[1].topk(2).indices.tolist()
        assert set(found) == {(first, second, int(q[first].argmax()))}
        return
    expected = {}
    for a, b in itertools.product(range(4), repeat=2):
        both = float(sibling_weights(q[1][None], torch.tensor([[a, b]]), draws))
        for c in range(4):
            expected[a, b, c] = both * float(q[a, c]) * count
    possible = {tokens: value for tokens, value in expected.items() if value > 0}
    assert set(found) <= set(possible)
    statistic = sum((found[tokens] - value) ** 2 / value for tokens, value in possible.items())
    assert statistic < chi_square_bound(len(possible) - 1)


def same_everywhere(vocab=6, seed=5):
    """A pair whose laws do not depend on the context, so that every step has the same expectation."""
    models = table_pair(vocab, seed)
    p, q = (model.logits[:1].expand(vocab, vocab) for model in (models.target, models.draft))
    return Pair(TableModel(p), TableModel(q), ToyTokenizer())


def context(pair, verifier="traversal_optimal", prompts=1, length=1):
    named = [(f"p{index}", [index % 3] * length) for index in range(prompts)]
    return Context(pair, Decoder(NoDraft(), get_verifier(verifier)), Sampling(1.0, 8, 64), named, seed=0)


@pytest.mark.parametrize("verifier", ["traversal_optimal", "traversal", "standard"])
def test_expected_tokens_are_what_decoding_emits(verifier):
    pair, candidates = same_everywhere(), [[2, 3, 3], [2, 4, 2, 1]]
    task, setting = Shapes(1, candidates, "iid"), context(pair, verifier, prompts=300)
    rows = [asdict(task(setting, index)) for index in range(300)]
    mean, error = mean_and_error(rows, "emitted")
    for place, widths in enumerate(candidates):
        decoder = Decoder(DraftModel(from_widths(widths)), get_verifier(verifier))
        done = decoder.generate(pair, [0], Sampling(1.0, 2000, 4000), torch.Generator().manual_seed(1))
        emitted = torch.tensor(done.num_emitted[:-1], dtype=torch.float64)
        both = (error[place] ** 2 + float(emitted.var()) / len(emitted)) ** 0.5
        assert abs(mean[place] - float(emitted.mean())) < 4 * both < 0.4


def test_shapes_are_compared_on_the_same_draws_whatever_the_verifier():
    pair = table_pair(vocab=6, seed=3)
    task = Shapes(2, [[2, 2], [3], [2, 2]], "without_replacement")
    one, two, again = (task(context(pair, name, length=6), 0) for name in ("standard", "traversal", "standard"))
    assert one == again and one.num_contexts == 2 and one.widths == [[2, 2], [3], [2, 2]]
    assert one.emitted[0] == one.emitted[2] and two.emitted[1] == pytest.approx(
        one.emitted[1]
    )  # a star has no depth to gain from
    assert two.emitted[0] != one.emitted[0]
    row = asdict(one)
    assert json.loads(json.dumps(row)) == row and task.progress([row]) == {"best": f"{max(one.emitted) / 2:.2f}"}


@pytest.mark.parametrize(
    ("widths", "draws", "message"),
    [
        ([], "iid", "at least one shape"), ([[2], [0]], "iid", "at least 1; found"),
        ([[2]], "greedy", "allowed: iid, without_replacement"),
    ],
)  # fmt: skip
def test_bad_candidates_are_one_line(widths, draws, message):
    with pytest.raises(InvalidInput, match=message):
        Shapes(1, widths, draws)


def test_shapes_are_filled_at_the_bottom():
    assert filled((8, 16), 120) == (8, *[16] * 7)
    assert filled((4, 8, 8, 3), 25) == (4, 8, 8, 5) and filled((4, 8, 8, 3), 30) == (4, 8, 8, 8, 2)
    assert filled((5, 10), 12) == (5, 7) and filled((5, 10, 10), 5) == (5,) and filled((3,), 7) == (3, 3, 1)


@pytest.mark.parametrize("num_nodes", [4, 16, 64, 121])
def test_regular_shapes_fill_the_budget(num_nodes):
    found = regular(num_nodes, 12, 6)
    assert len(set(found)) == len(found) and all(sum(shape) + 1 == num_nodes for shape in found)
    depths = Counter(map(len, found))
    assert found and set(depths) <= set(range(2, 12)) and max(depths.values()) <= 6
    assert (8, *[16] * 7) in found if num_nodes == 121 else (4, 4, 4, 3) in found if num_nodes == 16 else True
    for shape in found:  # branchings that do not increase: no node has more children than its parent
        children = [-(-below // above) for above, below in itertools.pairwise((1, *shape))]
        assert all(now <= before for before, now in itertools.pairwise(children))


def test_neighbours_keep_the_budget_and_the_limit_of_levels():
    around = neighbours((4, 8, 8, 8, 2), 0.25, 6)
    assert (5, 8, 8, 8, 1) in around and (5, 9, 9, 7) in around and (4, 8, 6, 8, 4) in around
    assert all(sum(shape) == 30 and 2 <= len(shape) <= 5 and min(shape) >= 1 for shape in around)
    assert len(set(around)) == len(around) and (4, 8, 8, 8, 2) not in around
    assert (3, 7, 7, 7, 6) in neighbours((4, 8, 8, 8, 2), 0.25, 7)


def test_winners_against_brute_force():
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        count = int(torch.randint(1, 9, (1,), generator=generator))
        levels = torch.randint(1, 13, (count,), generator=generator).tolist()
        shapes = [(level, 1 + float(torch.rand(1, generator=generator)) * level) for level in levels]
        found = winners(shapes)
        assert found[0].from_ratio == 0 and found[-1].to_ratio == float("inf")
        assert all(before.to_ratio == after.from_ratio for before, after in itertools.pairwise(found))
        for ratio in (0, 0.001, 0.01, 0.03, 0.1, 0.17, 0.3, 1, 3, 10, 1000):
            rates = [tokens / (1 + ratio * (level - 1)) for level, tokens in shapes]
            [win] = [win for win in found if win.from_ratio <= ratio < win.to_ratio]
            assert rates[win.index] == pytest.approx(max(rates), rel=1e-12)


def test_winners_by_hand():
    # 4 / (1 + 3 r) = 3 / (1 + r) at r = 0.2, and 3 / (1 + r) = 1 at r = 2; (3, 3.1) is below at both sides.
    assert winners([(1, 1.0), (4, 4.0), (2, 3.0), (3, 3.1), (2, 3.0)]) == [
        Winner(1, 0.0, pytest.approx(0.2)),
        Winner(2, pytest.approx(0.2), pytest.approx(2)),
        Winner(0, pytest.approx(2), float("inf")),
    ]
    assert winners([(5, 2.0), (3, 2.0)]) == [Winner(1, 0.0, float("inf"))]  # as many tokens from fewer levels
    for bad in ([], [(0, 1.0)], [(2, 0.0)], [(2, float("nan"))]):
        with pytest.raises(InvalidInput, match="at least one, each of at least 1 level and positive tokens"):
            winners(bad)


def test_leaders_and_the_fastest_of_what_was_found():
    found = {(2, 4): Value(2.0, 0.1), (3, 3): Value(2.1, 0.1), (2, 2, 2): Value(2.15, 0.1), (6,): Value(1.9, 0.1)}
    assert leaders(found) == [(6,), (3, 3), (2, 2, 2)]
    assert list(fastest(found)) == [(2, 2, 2), (3, 3), (6,)] and fastest(found)[(6,)] == float("inf")


def test_a_stage_measures_every_data_set_on_documents_of_its_own():
    overrides = ["dataset=embedded_code,embedded_reference", "tree=best_16", "first_tuning_prompt=7", "temperature=0.6,1.0"]
    maps = by_path(overrides, are_best=True)
    assert [path.name for path in maps] == ["embedded.T0.6.best_16.json", "embedded.T1.0.best_16.json"]
    stage = Stage(next(iter(maps.values())), Namespace(overrides=overrides, prompts=20))
    first, second = stage.cells(0, [(3, 2)]), stage.cells(2, [(3, 2)])
    for cells, start in ((first, 7), (second, 17)):
        assert [cell.labels["dataset"] for cell in cells] == ["embedded_code", "embedded_reference"]
        assert {(cell.config["first_prompt"], cell.config["num_prompts"]) for cell in cells} == {(start, 5)}
        assert all(cell.config["task"]["widths"] == [[3, 2]] and cell.labels["temperature"] == 0.6 for cell in cells)


def test_each_search_makes_its_own_maps():
    overrides = ["tree=growmap_64,best_64,d5b3"]
    assert [path.name for path in by_path(overrides, are_best=True)] == ["embedded.T1.0.best_64.json"]
    assert [path.name for path in by_path(overrides, are_best=False)] == ["embedded.embedded_reference.T1.0.64.json"]


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("best")
    save_tiny_pair(folder)
    lines = [json.dumps({"id": f"p{index}", "text": "abc def gh " * 3 + "abcdefgh"[index % 8]}) for index in range(16)]
    (folder / "prompts.jsonl").write_text("\n".join(lines) + "\n")
    return [
        "pair=llama2_7b__jf68m", f"pair.target={folder}/target", f"pair.draft={folder}/draft", "device=cpu", "dtype=float32",
        "dataset=jsonl", f"dataset.path={folder}/prompts.jsonl", "num_prompts=3", "first_tuning_prompt=3", "warmup_prompts=0",
        "prompt_tokens=12",
        "sampling.max_new_tokens=6", "sampling.max_length=40", "num_threads=1", f"results={folder}/results",
    ]  # fmt: skip


def make(*arguments):
    command = [sys.executable, "-m", "experiments.best_shape", "--prompts", "8", "--levels", "5", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def rows_of(cell):
    return [json.loads(line) for line in (cell.folder / "rows.jsonl").read_text().splitlines()]


def test_a_map_is_made_once_says_what_was_measured_and_decodes(toy):
    done = make(*toy, "tree=best_16")
    assert done.returncode == 0, done.stderr
    [(path, cells)] = by_path([*toy, "tree=best_16", "verifier=traversal_optimal"], are_best=True).items()
    assert str(path).endswith("results/embedded/growmap/llama2_7b__jf68m.T1.0.best_16.json")
    topology, about = growmap.load(path, num_nodes=16), json.loads(path.read_text())["about"]
    assert topology == from_widths(about["widths"]) and topology.num_levels == about["num_levels"] <= 5
    assert about["frontier"][str(topology.num_levels)]["expected_tokens"] == about["expected_tokens"]
    frontier = about["frontier"]
    assert all(sum(one["widths"]) == 15 and len(one["widths"]) + 1 == int(levels) for levels, one in frontier.items())
    assert min(map(int, frontier)) >= FEWEST_LEVELS and set(about["fastest_up_to_ratio"]) <= set(frontier)
    for one in frontier.values():
        seconds = (len(one["widths"]) * about["draft_s"] + about["target_s"]["16"]) / one["expected_tokens"]
        assert one["s_per_token"] == pytest.approx(seconds, rel=0.02)
    # The last stage's cell is found again, and holds what the map says, on documents of its own.
    stage = Stage(cells, Namespace(overrides=toy, prompts=8))
    [final] = stage.cells(3, [tuple(one["widths"]) for one in frontier.values()])
    rows = rows_of(final)
    assert [row["prompt_id"] for row in rows] == ["p9", "p10"]
    mean, error = mean_and_error(rows, "emitted")
    assert [one["expected_tokens"] for one in frontier.values()] == pytest.approx(mean, abs=1e-4)
    assert [one["standard_error"] for one in frontier.values()] == pytest.approx(error, abs=1e-4)
    written = path.read_text()
    again = make(*toy, "tree=best_16")
    assert again.returncode == 0 and "made from the same measurement already" in again.stderr and path.read_text() == written
    command = [sys.executable, "-m", "experiments.run", *toy, "tree=best_16", "verifier=traversal_optimal"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    [cell] = plan([*toy, "tree=best_16", "verifier=traversal_optimal"])
    assert sum(row["num_emitted"] for row in rows_of(cell)) >= 18


def test_the_fastest_is_chosen_by_time(toy, tmp_path):
    done = make(*toy, "--by", "time", "tree=best_16", f"tree.path={tmp_path}/best.json")
    assert done.returncode == 0, done.stderr
    about = json.loads((tmp_path / "best.json").read_text())["about"]
    assert about["made_from"][0] == "time"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompts", "3", "tree=best_16"], "--prompts is 3; allowed: at least 4"),
        (["--levels", "2", "tree=best_16"], "16 nodes in up to 2 levels; allowed: levels from 3"),
        (["tree=best_16", "tree.num_nodes=3"], "3 nodes in up to 5 levels; allowed"),
        (["tree=best_16", "tree.num_nodes=null"], "tree.num_nodes must be given"),
        (["tree=best_16", "pair.draft=/nowhere/at/all"], "model folder /nowhere/at/all does not exist"),
    ],
)
def test_what_cannot_be_made_is_one_line(toy, arguments, message):
    given = [argument.split("=")[0] for argument in arguments]
    done = make(*(override for override in toy if override.split("=")[0] not in given), *arguments)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and last.startswith("error: ") and message in last and "Traceback" not in done.stderr


def test_a_cell_whose_map_is_missing_says_how_to_make_it(toy, tmp_path):
    command = [sys.executable, "-m", "experiments.run", *toy, "tree=best_16", f"tree.path={tmp_path}/none.json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "experiments.best_shape those named best" in done.stderr
