"""Ceilings against brute force, a linear program and numbers worked by hand."""

import itertools
import math

import pytest
import torch
from accounts import law, rng, tuples
from scipy.optimize import linprog

from resispec.audit.battery import pair_of_laws
from resispec.audit.ceiling import ceiling, tree_log_ratios
from resispec.audit.estimate import Tuples, estimate
from resispec.audit.path_bound import path_bound
from resispec.core import Draws, Tree
from resispec.errors import InvalidInput
from resispec.trees import complete
from resispec.verifiers import get_rule, get_verifier

RANDOM_DRAWS = [Draws.IID, Draws.WITHOUT_REPLACEMENT]


def brute_force(p, q, count, draws):
    """1 + min over all sets H of P(H) - Pr(all siblings in H); of tied choices the most favourable one."""
    if draws is Draws.POINT_MASS:
        return max(float(p[chosen].sum()) for chosen in likeliest(q, count))
    if draws is Draws.GREEDY and count > 1:
        marks = [torch.zeros_like(q).scatter(0, torch.tensor(h), 1.0) for h in likeliest(q, count - 1)]
        return max(over_sets(p, tuples((q + 2 * mark).tolist(), count, draws)) for mark in marks)
    return over_sets(p, tuples(q.tolist(), count, draws))


def likeliest(q, count):
    """All choices of `count` tokens that are as likely as any."""
    least = q.sort(descending=True).values[count - 1]
    choices = map(list, itertools.combinations(range(len(q)), count))
    return [chosen for chosen in choices if min(q[chosen]) >= least]


def over_sets(p, drafted):
    drafted = [(set(siblings), weight) for siblings, weight in drafted]
    vocab = range(len(p))
    sets = [set(chosen) for size in range(len(p) + 1) for chosen in itertools.combinations(vocab, size)]
    return 1 + min(
        float(p[list(h)].sum()) - sum(weight for siblings, weight in drafted if siblings <= h) for h in sets
    )


def transport(p, q, count, draws):
    """The same by linear programming: the largest flow from tuples to their tokens, at most p each."""
    drafted = tuples(q.tolist(), count, draws)
    arcs = [(index, token) for index, (siblings, _) in enumerate(drafted) for token in sorted(set(siblings))]
    limits = torch.zeros(len(drafted) + len(p), len(arcs))
    for column, (index, token) in enumerate(arcs):
        limits[index, column] = limits[len(drafted) + token, column] = 1
    supply = [*(weight for _, weight in drafted), *p.tolist()]
    return -linprog([-1.0] * len(arcs), A_ub=limits.numpy(), b_ub=supply).fun


@pytest.mark.parametrize("draws", list(Draws))
@pytest.mark.parametrize("kind", ["random", "sparse", "ties", "disjoint"])
def test_the_ceiling_is_the_minimum_over_sets_and_the_optimal_transport(draws, kind):
    for seed, (vocab, count) in enumerate(itertools.product((3, 4, 5), (1, 2, 3))):
        p, q = pair_of_laws(kind, vocab, rng(seed))
        highest = float(ceiling(p, q, count, draws))
        assert highest == pytest.approx(brute_force(p, q, count, draws), abs=1e-10)
        if vocab == 4 and (draws in RANDOM_DRAWS or (draws is Draws.GREEDY and q.min() > 0)):
            assert highest == pytest.approx(transport(p, q, count, draws), abs=1e-8)


def test_the_ceiling_by_hand():
    """p = (1/3, 2/3), q = (2/3, 1/3). n = 1: sum min = 2/3.

    n = 2: H = {1}, 1 + 1/3 - 4/9 = 8/9; 1 if both are drafted.
    """
    p, q = law(1 / 3, 2 / 3), law(2 / 3, 1 / 3)
    assert float(ceiling(p, q, 1, Draws.IID)) == pytest.approx(2 / 3)
    assert float(ceiling(p, q, 2, Draws.IID)) == pytest.approx(8 / 9)
    assert float(ceiling(p, q, 2, Draws.WITHOUT_REPLACEMENT)) == pytest.approx(1)
    assert float(ceiling(p, q, 1, Draws.POINT_MASS)) == pytest.approx(1 / 3)


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


def test_the_standard_rule_stays_below_its_ceiling_and_resispec_does_not():
    p, q = law(0.6, 0.2, 0.1, 0.1), law(0.1, 0.2, 0.3, 0.4)
    for draws in RANDOM_DRAWS:
        highest = float(ceiling(p, q, 2, draws))
        exact, biased = (
            estimate(get_rule(name), p, q, Tuples(2, draws, 1000), rng(0)).excess(highest)
            for name in ("standard", "resispec")
        )
        assert exact.z < 0 and biased.z > 4


# Whole trees


def test_the_first_level_of_the_path_bound_is_the_ceiling():
    p, q = pair_of_laws("random", 5, rng(2))
    ratio = (p / q).log()
    rollouts = ratio[torch.multinomial(p, 20000, True, generator=rng(0))][:, None]
    trees = ratio[Draws.IID.draw(q.expand(20000, -1), 2, rng(1))].amax(1, keepdim=True)
    bound = path_bound(rollouts, trees)
    assert bound.levels.shape == (1,) and bound.levels[0] == bound.accepted
    assert abs(bound.accepted - float(ceiling(p, q, 2, Draws.IID))) < 4 * bound.accepted_error < 0.03


def test_the_path_bound_holds_for_an_exact_verifier():
    """Bigram pair, d3b2: the accepted length of `standard` by its outcomes, against the bound."""
    rows = (pair_of_laws("random", 3, rng(seed)) for seed in range(3))
    p, q = map(torch.stack, zip(*rows, strict=True))
    topology, generator, accepted, trees, rollouts = complete(3, 2), rng(0), [], [], []
    for _ in range(300):
        tokens = torch.zeros(7, dtype=torch.int64)
        for parent, children in ((0, slice(1, 3)), (1, slice(3, 5)), (2, slice(5, 7))):
            tokens[children] = Draws.IID.draw(q[tokens[parent]], 2, generator)
        given = Tree(topology, tokens, Draws.IID), p[tokens], q[tokens]
        stop = get_verifier("standard").outcomes(*given).stop
        accepted.append(float(stop @ topology.depths.double()))
        trees.append(tree_log_ratios(*given))
        first = int(torch.multinomial(p[0], 1, generator=generator))
        second = int(torch.multinomial(p[first], 1, generator=generator))
        one = math.log(p[0, first] / q[0, first])
        rollouts.append([one, one + math.log(p[first, second] / q[first, second])])
        ratio = (p / q).log()
        by_loop = [
            sum(float(ratio[tokens[a], tokens[b]]) for a, b in ((0, parent), (parent, node)))
            for node, parent in enumerate(topology.parents)
            if node >= 3
        ]
        assert float(trees[-1][1]) == pytest.approx(max(by_loop))
    bound = path_bound(torch.tensor(rollouts), torch.stack(trees))
    assert sum(accepted) / 300 < bound.accepted + 4 * bound.accepted_error and (bound.levels <= 1.2).all()
    assert bound.accepted == pytest.approx(float(bound.levels.sum())) and (bound.standard_errors > 0).all()


def test_path_bounds_take_infinite_ratios_and_refuse_nan():
    ratios = torch.tensor([[0.0], [-math.inf], [math.inf], [1.0]])
    assert 0 <= path_bound(ratios, ratios).accepted <= 2
    with pytest.raises(InvalidInput, match="drafted trees"):
        path_bound(ratios, ratios * 0)
    with pytest.raises(InvalidInput, match="1 levels of rollouts and 2 of trees"):
        path_bound(ratios, ratios.expand(-1, 2))
    tree = Tree(complete(2, 2), torch.tensor([0, 0, 1]), Draws.WITHOUT_REPLACEMENT)
    p, q, even = (law(*masses).expand(3, -1) for masses in ((0.0, 1.0), (1.0, 0.0), (0.5, 0.5)))
    for given, ratio in (((p, q), math.inf), ((q, p), math.inf), ((p, even), math.log(2))):
        assert tree_log_ratios(tree, *given).tolist() == pytest.approx([ratio])
