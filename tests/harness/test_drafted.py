"""Drafted trees, rollouts and their laws, and the tasks that measure on them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from test_tasks import TEMPERATURE, bigram_rows, workload
from toys import table_pair

from experiments.tasks.bound import Bound
from experiments.tasks.drafted import Root, expected_emitted, part
from experiments.tasks.scaling import Scaling
from resispec.decode import Decoder, Sampling
from resispec.drafters import DraftModel, NoDraft
from resispec.draws import Draws
from resispec.errors import InvalidInput
from resispec.models import Pair, Warp
from resispec.trees import chain, complete, parallel_chains
from resispec.verifiers import get_verifier

WARP = Warp(temperature=TEMPERATURE)


def test_scaling_of_a_tree_is_what_the_decoder_emits():
    """Expected tokens given a drafted tree against 2,000 verdicts; this rule's residual hits children."""
    pair, generator = table_pair(vocab=4, seed=2), torch.Generator().manual_seed(0)
    verifier = get_verifier("resispec")
    root = Root(pair, [1, 2], WARP)
    draft = root.draft(complete(3, 2), generator)
    laws = root.laws(pair.target, draft.tree)
    emitted = [verifier.verify(draft.tree, laws, draft.probs, generator).num_emitted for _ in range(2000)]
    assert expected_emitted(verifier, draft, laws) == pytest.approx(
        sum(emitted) / 2000, abs=4 * 0.8 / 2000**0.5
    )


def test_laws_at_nodes_and_parts_of_a_tree():
    """Both models are bigrams, so every node's law is the row of its token; leaves have the uniform law."""
    pair, generator = table_pair(vocab=5, seed=4), torch.Generator().manual_seed(1)
    root = Root(pair, [0, 3], WARP)
    whole = root.draft(complete(3, 3), generator)
    target, _ = bigram_rows(pair)
    laws = root.laws(pair.target, whole.tree)
    assert torch.allclose(laws[:4], target[whole.tree.tokens[:4]])
    assert torch.allclose(laws[4:], torch.tensor(0.2).double())
    # of nodes 0; 1 2 3; 4 to 12: 0; 1 2; first children 4 and 7
    drafted, rows = part(whole, laws, parallel_chains(2, 2))
    assert drafted.tree.tokens.tolist() == whole.tree.tokens[[0, 1, 2, 4, 7]].tolist()
    assert torch.equal(rows, laws[[0, 1, 2, 4, 7]])
    with pytest.raises(IndexError):
        part(whole, laws, complete(2, 4))


def test_target_paths_have_the_ratios_of_their_tokens():
    """With p = q every path ratio is 1; else the mean of q / p over paths drawn from p is 1 everywhere."""
    pair, generator = table_pair(vocab=4, seed=5, gap=0.5), torch.Generator().manual_seed(2)
    same = Root(Pair(pair.target, pair.target, pair.tokenizer), [1], WARP)
    assert torch.allclose(
        same.target_path_ratios(parallel_chains(3, 2), generator), torch.zeros(3, 2).double()
    )
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
    found = (
        ([bound.emitted for bound in bounds], [row.emitted[0] for row in rows]),
        ([bound.tree_log_ratios[0][1] for bound in bounds], [row.tree_log_ratios[0][0][1] for row in rows]),
        (
            [bound.rollout_log_ratios[1][1] for bound in bounds],
            [row.rollout_log_ratios[1][1] for row in rows],
        ),
    )
    for ours, theirs in found:
        one, other = torch.tensor(ours, dtype=torch.float64), torch.tensor(theirs, dtype=torch.float64)
        error = float((one.var() / len(one) + other.var() / len(other)).sqrt())
        assert 0 < abs(float(one.mean() - other.mean())) < 4 * error


def test_a_bound_needs_independent_siblings():
    for drafter in (DraftModel(complete(3, 2), Draws.WITHOUT_REPLACEMENT), NoDraft()):
        setting = replace(workload(), decoder=Decoder(drafter, get_verifier("standard")))
        with pytest.raises(InvalidInput, match="allowed: decoder=specinfer"):
            Bound(num_prefixes=1, rollouts=1)(setting, 0)


def test_trees_are_the_same_for_every_verifier_and_repeatable():
    task = Scaling(num_prefixes=2, num_candidates=[1, 2], num_levels=3, rollouts=2)
    one, two, again = (task(workload(name, length=6), 0) for name in ("standard", "resispec", "standard"))
    assert (
        one == again
        and one.tree_log_ratios == two.tree_log_ratios
        and one.rollout_log_ratios == two.rollout_log_ratios
    )
    assert two.emitted[1] > one.emitted[1]
    assert [
        len(level) for level in (one.tree_log_ratios, one.tree_log_ratios[0], one.rollout_log_ratios)
    ] == [4, 2, 4]


def test_parallel_chains():
    #      0
    #   1  2  3
    #   4  5  6
    assert parallel_chains(3, 2).parents == (-1, 0, 0, 0, 1, 2, 3)
    assert parallel_chains(1, 3) == chain(3) and parallel_chains(8, 3).num_nodes == 25
    for bad in ((0, 2), (2, 0)):
        with pytest.raises(InvalidInput, match=f"found num_chains {bad[0]}, num_drafted {bad[1]}"):
            parallel_chains(*bad)
