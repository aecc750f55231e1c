"""Laws of drafted trees against frequencies of drawn ones, and of decoding."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import pytest
import torch
from test_shapes import comparing
from test_shapes import workload as shapes_workload
from test_tasks import TEMPERATURE, bigram_rows, residuals, workload
from toys import same_everywhere, save_tiny_search, table_pair

from experiments.grid import cells_of
from experiments.search.tree_search import means
from experiments.tasks.acceptance import Acceptance
from experiments.tasks.base import Workload
from experiments.tasks.bound import Bound
from experiments.tasks.sampled_trees import Root, part
from experiments.tasks.scaling import Scaling
from experiments.worker import measured
from resispec.decode import Decoder, Sampling
from resispec.drafters import DraftModel, NoDraft
from resispec.draws import Draws
from resispec.models import Pair, Warp
from resispec.trees import complete, from_widths, parallel_chains, union
from resispec.trees.search import expected_tokens, search
from resispec.verifiers import get_rule, get_verifier

WARP = Warp(temperature=TEMPERATURE)


def chi_square_bound(degrees: int) -> float:
    return degrees + 4 * (2 * degrees) ** 0.5  # 4 standard deviations


@pytest.mark.parametrize("draws", [Draws.IID, Draws.WITHOUT_REPLACEMENT, Draws.POINT_MASS])
def test_a_part_of_a_union_follows_the_law_of_a_direct_draft(draws):
    """A root with children a, b and a's child c: frequencies against the product of the sibling laws."""
    pair, generator, count = table_pair(vocab=4, seed=3), torch.Generator().manual_seed(0), 4000
    q = torch.softmax(pair.draft.logits, -1)
    shape = from_widths([2, 1])
    whole = union([shape, from_widths([3, 1]), from_widths([1, 2, 2])])
    root, found = Root(pair, [1], Warp()), Counter()
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
        both = float(draws.weights(q[1][None], torch.tensor([[a, b]])))
        for c in range(4):
            expected[a, b, c] = both * float(q[a, c]) * count
    possible = {tokens: value for tokens, value in expected.items() if value > 0}
    assert set(found) <= set(possible)
    statistic = sum((found[tokens] - value) ** 2 / value for tokens, value in possible.items())
    assert statistic < chi_square_bound(len(possible) - 1)


@pytest.mark.parametrize(
    ("verifier", "draws"),
    [
        ("traversal_optimal", "iid"), ("traversal", "iid"), ("standard", "iid"), ("resispec", "iid"),
        ("traversal", "without_replacement"), ("naive", "point_mass"),
    ],
)  # fmt: skip
def test_expected_tokens_are_what_decoding_emits(verifier, draws):
    pair, candidates = same_everywhere(), [[2, 3, 3], [2, 4, 2, 1]]
    task = comparing(candidates)
    setting = shapes_workload(pair, verifier, prompts=300, new_tokens=1, draws=draws)
    rows = [task(setting, index) for index in range(300)]
    for widths, value in zip(candidates, means(rows, "emitted"), strict=True):
        decoder = Decoder(DraftModel(from_widths(widths), draws), get_verifier(verifier))
        done = decoder.generate(pair, [0], Sampling(1.0, 2000, 4000), torch.Generator().manual_seed(1))
        emitted = torch.tensor(done.num_emitted[:-1], dtype=torch.float64)
        both = (value.error**2 + float(emitted.var()) / len(emitted)) ** 0.5
        assert abs(value.tokens - float(emitted.mean())) < 4 * both < 0.4


def test_target_paths_have_the_ratios_of_their_tokens():
    """With p = q every path ratio is 1; else the mean of q / p over paths drawn from p is 1 everywhere."""
    pair, generator = table_pair(vocab=4, seed=5, gap=0.5), torch.Generator().manual_seed(2)
    same = Root(Pair(pair.target, pair.target, pair.tokenizer), [1], WARP)
    assert float(same.target_path_ratios(parallel_chains(3, 2), generator).abs().max()) < 1e-6
    ratios = Root(pair, [1], WARP).target_path_ratios(parallel_chains(1500, 2), generator)
    weights = (-ratios).exp()
    assert ratios.shape == (1500, 2)
    assert bool(((weights.mean(0) - 1).abs() < 4 * weights.std(0) / 1500**0.5).all())


def test_a_bound_is_the_one_that_scaling_measures():
    """After one token there is no other prefix, and of a complete tree both tasks draw the same trees."""
    base = workload(length=1)
    setting = replace(base, sampling=Sampling(base.sampling.temperature, 1, 64))
    own = replace(setting, decoder=Decoder(DraftModel(complete(3, 2), Draws.IID), get_verifier("standard")))
    bounds = [Bound(num_prefixes=1, rollouts=2)(replace(own, seed=seed), 0) for seed in range(300)]
    scaling = Scaling(num_prefixes=1, num_candidates=[2], num_levels=3, rollouts=2)
    rows = [scaling(replace(setting, seed=seed), 0) for seed in range(300)]
    assert {bound.num_nodes for bound in bounds} == {7} and {bound.num_prefixes for bound in bounds} == {1}
    for ours, theirs in (
        (lambda bound: bound.emitted, lambda row: row.emitted[0]),
        (lambda bound: bound.tree_log_ratios[0][1], lambda row: row.tree_log_ratios[0][0][1]),
        (lambda bound: bound.rollout_log_ratios[1][1], lambda row: row.rollout_log_ratios[1][1]),
    ):
        one, other = torch.tensor([list(map(ours, bounds)), list(map(theirs, rows))], dtype=torch.float64)
        error = float((one.var() / len(one) + other.var() / len(other)).sqrt())
        assert 0 < abs(float(one.mean() - other.mean())) < 4 * error


def emitted_in_closed_form(target, draft, shape, token):
    """1 + sum over tokens of Pr(accepted as a child) times what follows.

    The standard rule's residual never hits a child.
    """
    p, q, total, alive = target[token], draft[token], 1.0, 1.0
    for law in residuals(p, q, shape[0]) if shape else ():
        accepted = torch.minimum(law, q)
        for child, mass in enumerate(alive * accepted):
            total += float(mass) * emitted_in_closed_form(target, draft, shape[1:], child)
        alive *= float(1 - accepted.sum())
    return total


def test_scaling_of_the_standard_rule_is_its_closed_recursion():
    pair = table_pair(vocab=4, seed=1)
    setting = workload(prompts=100, pair=pair)
    task = Scaling(num_prefixes=1, num_candidates=[1, 3], num_levels=3, rollouts=1)
    rows = [task(setting, index) for index in range(100)]
    assert rows[0].arrangement == ["complete", "complete", "chains", "chains"]
    assert rows[0].num_candidates == [1, 3, 1, 3] and rows[0].num_nodes == [3, 13, 3, 7]
    # one candidate is a chain in both arrangements
    assert all(row.emitted[0] == row.emitted[2] for row in rows)
    target, draft = bigram_rows(pair)
    for place, shape in ((0, (1, 1)), (1, (3, 3)), (3, (3, 1))):
        expected = [emitted_in_closed_form(target, draft, shape, index % 3) for index in range(100)]
        differences = torch.tensor([row.emitted[place] for row in rows]) - torch.tensor(expected)
        assert abs(float(differences.mean())) < 4 * float(differences.std()) / 100**0.5


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


@pytest.mark.parametrize(
    ("task", "smaller"),
    [("kl", "task.num_tuples=16"), ("decay", "task.num_tuples=4"), ("scaling", "task.num_candidates=[1,2]")],
)
def test_every_task_runs_as_a_cell(task, smaller, tmp_path):
    [cell] = cells_of([*save_tiny_search(tmp_path, 3), f"task={task}", smaller, "task.num_prefixes=2"])
    told = []
    rows = measured(cell, lambda *facts: told.append(facts))
    assert [(row.prompt_index, row.seed) for row in rows] == [(0, 0), (1, 1), (2, 2)]
    assert [facts[1:] for facts in told] == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert measured(cell, lambda *_: None) == rows
