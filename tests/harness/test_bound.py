"""The task that measures the ceiling of a tree, against the one that measures ceilings of many trees."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from toys import table_pair

from experiments.tasks.base import Workload
from experiments.tasks.bound import Bound
from experiments.tasks.scaling import Scaling
from resispec.core import Draws
from resispec.decode import Decoder, Sampling
from resispec.drafters import DraftModel, NoDraft
from resispec.errors import InvalidInput
from resispec.trees import complete
from resispec.verifiers import get_verifier


def workload(drafter=None) -> Workload:
    """One prompt of one token, after which the target writes one: there is one prefix."""
    decoder = Decoder(drafter or NoDraft(), get_verifier("standard"))
    pair = table_pair(vocab=6, seed=3)
    return Workload(pair, decoder, Sampling(0.8, 1, 64), [("p0", [0])], seed=0)


def test_a_bound_is_the_one_that_scaling_measures() -> None:
    """For a complete tree both tasks draw trees and rollouts of the same laws."""
    own, other = workload(DraftModel(complete(3, 2), Draws.IID)), workload()
    bound = Bound(num_prefixes=1, rollouts=2)
    scaling = Scaling(num_prefixes=1, num_candidates=[2], num_levels=3, rollouts=2)
    bounds = [bound(replace(own, seed=seed), 0) for seed in range(300)]
    rows = [scaling(replace(other, seed=seed), 0) for seed in range(300)]
    assert {row.num_nodes for row in bounds} == {7} and {row.num_prefixes for row in bounds} == {1}
    found = (
        ([row.emitted for row in bounds], [row.emitted[0] for row in rows]),
        ([row.tree_log_ratios[0][1] for row in bounds], [row.tree_log_ratios[0][0][1] for row in rows]),
        ([row.rollout_log_ratios[1][1] for row in bounds], [row.rollout_log_ratios[1][1] for row in rows]),
    )
    for ours, theirs in found:
        one, two = torch.tensor(ours, dtype=torch.float64), torch.tensor(theirs, dtype=torch.float64)
        error = float((one.var() / len(one) + two.var() / len(two)).sqrt())
        assert 0 < abs(float(one.mean() - two.mean())) < 4 * error


def test_a_bound_needs_independent_siblings() -> None:
    for drafter in (DraftModel(complete(3, 2), Draws.WITHOUT_REPLACEMENT), NoDraft()):
        with pytest.raises(InvalidInput, match="allowed: decoder=specinfer"):
            Bound(num_prefixes=1, rollouts=1)(workload(drafter), 0)
