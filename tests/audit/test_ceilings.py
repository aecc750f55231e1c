"""Ceilings against brute force and numbers worked by hand."""

import itertools
import math

import numpy as np
import pytest
import torch

from resispec.audit.battery import pair_of_laws
from resispec.audit.ceiling import ceiling, tree_log_ratios
from resispec.audit.path_bound import path_bound
from resispec.core import Draws, Tree
from resispec.errors import InvalidInput
from resispec.trees import complete
from tests.accounts import law, rng, tuples

pytestmark = pytest.mark.numerics

RANDOM_DRAWS = [Draws.IID, Draws.WITHOUT_REPLACEMENT]


def brute_force(p, q, count, draws):
    """1 + min over all sets H of P(H) - Pr(all siblings in H); of tied choices the best one."""
    if draws is Draws.POINT_MASS:
        return max(float(p[chosen].sum()) for chosen in likeliest(q, count))
    sets = [
        list(h) for size in range(len(p) + 1) for h in itertools.combinations(range(len(p)), size)
    ]

    def least(q):
        drafted = tuples(q.tolist(), count, draws)
        inside = [sum(weight for siblings, weight in drafted if {*siblings} <= {*h}) for h in sets]
        return 1 + min(float(p[h].sum()) - mass for h, mass in zip(sets, inside, strict=True))

    if draws is Draws.GREEDY and count > 1:
        marks = [
            torch.zeros_like(q).index_fill(0, torch.tensor(h), 1.0) for h in likeliest(q, count - 1)
        ]
        return max(least(q + 2 * mark) for mark in marks)
    return least(q)


def likeliest(q, count):
    """All choices of `count` tokens that are as likely as any."""
    least = q.sort(descending=True).values[count - 1]
    choices = map(list, itertools.combinations(range(len(q)), count))
    return [chosen for chosen in choices if min(q[chosen]) >= least]


@pytest.mark.parametrize("draws", list(Draws))
@pytest.mark.parametrize("kind", ["random", "sparse", "ties", "disjoint"])
def test_the_ceiling_is_the_minimum_over_sets(draws, kind):
    for seed, (vocab, count) in enumerate(itertools.product((3, 4, 5), (1, 2, 3))):
        given = *pair_of_laws(kind, vocab, rng(seed)), count, draws
        assert float(ceiling(*given)) == pytest.approx(brute_force(*given), abs=1e-10)


@pytest.mark.parametrize("tiny", [1e-3, 1e-8, 1e-14])
@pytest.mark.parametrize("count", [2, 3])
def test_the_ceiling_without_replacement_for_peaked_drafts(tiny, count):
    """The second sibling follows the draft's tail even where that has hardly any mass."""
    q = law(0, 0.4, 0.3, 0.2, 0.1) * tiny + law(1 - tiny, 0, 0, 0, 0)
    given = law(0.1, 0.1, 0.3, 0.2, 0.3), q, count, Draws.WITHOUT_REPLACEMENT
    assert float(ceiling(*given)) == pytest.approx(brute_force(*given), abs=1e-7)


def test_ceilings_of_a_large_vocabulary_and_of_batches():
    logits = torch.randn(2, 32000, generator=rng(0))
    p, q = torch.softmax(2 * logits[:1], -1), torch.softmax(2 * logits[:1] + logits[1:], -1)
    iid, without = (float(ceiling(p, q, 3, draws)) for draws in RANDOM_DRAWS)
    assert torch.minimum(p, q).sum() < iid <= without + 1e-9 < 1
    rows = torch.stack([torch.stack(pair_of_laws("random", 5, rng(seed))) for seed in range(6)])
    p, q = rows.view(2, 3, 2, 5).unbind(2)
    for draws in Draws:
        whole = ceiling(p, q, 2, draws)
        assert whole.shape == (2, 3) and whole[1, 2] == ceiling(p[1, 2], q[1, 2], 2, draws)


# Whole trees


def test_the_path_bound_of_one_level_is_the_ceiling():
    p, q = pair_of_laws("random", 5, rng(2))
    ratio = (p / q).log()
    rollouts = ratio[torch.multinomial(p, 20000, True, generator=rng(0))][:, None]
    trees = ratio[Draws.IID.draw(q.expand(20000, -1), 2, rng(1))].amax(1, keepdim=True)
    accepted, error = path_bound(rollouts.numpy(), trees.numpy())
    assert abs(accepted - float(ceiling(p, q, 2, Draws.IID))) < 4 * error < 0.03


def test_path_ratios_may_be_infinite():
    ratios = np.array([[0.0], [-math.inf], [math.inf], [1.0]])
    assert 0 <= path_bound(ratios, ratios)[0] <= 2
    tree = Tree(complete(2, 2), torch.tensor([0, 0, 1]), Draws.WITHOUT_REPLACEMENT)
    p, q, even = (law(*masses).expand(3, -1) for masses in ((0.0, 1.0), (1.0, 0.0), (0.5, 0.5)))
    for given, ratio in (((p, q), math.inf), ((q, p), math.inf), ((p, even), math.log(2))):
        assert tree_log_ratios(tree, *given).tolist() == pytest.approx([ratio])


def test_what_is_no_law_has_no_ceiling():
    p, q = torch.tensor([0.5, 0.5]), torch.tensor([0.5, math.nan])
    for laws in ((p, q), (p, p * 2)):
        with pytest.raises(InvalidInput, match="draft probabilities"):
            ceiling(*laws, 2, Draws.IID)
