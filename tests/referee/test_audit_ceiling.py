"""Ceilings against brute force, a linear program and numbers worked by hand."""

import itertools
import math

import pytest
import torch
from accounts import law, rng, tuples
from scipy.optimize import linprog

from resispec.audit.battery import KINDS, pair_of_laws
from resispec.audit.ceiling import ceiling
from resispec.audit.estimate import Tuples, estimate
from resispec.audit.path_bound import path_bound, tree_log_ratios
from resispec.core import Draws, Tree
from resispec.errors import InvalidInput
from resispec.trees import complete
from resispec.verifiers import get_rule, get_verifier

RANDOM_DRAWS = [Draws.IID, Draws.WITHOUT_REPLACEMENT]


def brute_force(p, q, count, draws):
    """1 + min over all sets H of P(H) - Pr(all siblings in H)."""
    if draws is Draws.POINT_MASS:  # the most favourable choice among ties
        chosen = itertools.combinations(range(len(p)), count)
        return max(
            float(p[list(h)].sum())
            for h in chosen
            if min(q[list(h)]) >= q.sort(descending=True).values[count - 1]
        )
    if (
        draws is Draws.GREEDY and count > 1
    ):  # likewise: every choice of equally likely largest tokens, made larger still
        chosen = [list(h) for h in itertools.combinations(range(len(p)), count - 1)]
        tied = [h for h in chosen if min(q[h]) >= q.sort(descending=True).values[count - 2]]
        marks = [torch.zeros_like(q).scatter(0, torch.tensor(h), 1.0) for h in tied]
        return max(over_sets(p, tuples((q + 2 * mark).tolist(), count, draws)) for mark in marks)
    return over_sets(p, tuples(q.tolist(), count, draws))


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
    return -linprog(
        [-1.0] * len(arcs), A_ub=limits.numpy(), b_ub=[*(weight for _, weight in drafted), *p.tolist()]
    ).fun


@pytest.mark.parametrize("draws", list(Draws))
@pytest.mark.parametrize("kind", KINDS)
def test_the_ceiling_is_the_minimum_over_sets_and_the_optimal_transport(draws, kind):
    for seed, (vocab, count) in enumerate(itertools.product((3, 4, 5), (1, 2, 3))):
        p, q = pair_of_laws(kind, vocab, rng(seed))
        found = float(ceiling(p, q, count, draws))
        assert found == pytest.approx(brute_force(p, q, count, draws), abs=1e-10)
        if vocab == 4 and (
            draws in (Draws.IID, Draws.WITHOUT_REPLACEMENT) or (draws is Draws.GREEDY and q.min() > 0)
        ):
            assert found == pytest.approx(transport(p, q, count, draws), abs=1e-8)


def test_the_ceiling_by_hand():
    """p = (1/3, 2/3), q = (2/3, 1/3). n = 1: sum min = 2/3.

    n = 2: H = {1}, 1 + 1/3 - 4/9 = 8/9; 1 if both are drafted.
    """
    p, q = law(1 / 3, 2 / 3), law(2 / 3, 1 / 3)
    assert float(ceiling(p, q, 1, Draws.IID)) == pytest.approx(2 / 3)
    assert float(ceiling(p, q, 2, Draws.IID)) == pytest.approx(8 / 9)
    assert float(ceiling(p, q, 2, Draws.WITHOUT_REPLACEMENT)) == pytest.approx(1)
    assert float(ceiling(p, q, 1, Draws.POINT_MASS)) == pytest.approx(1 / 3)


def test_the_ceiling_without_replacement_for_peaked_drafts():
    """The second sibling follows the draft's tail even where that has hardly any mass."""
    for tiny in (1e-3, 1e-8, 1e-14):
        tail = law(0, 0.4, 0.3, 0.2, 0.1) * tiny
        q = tail + law(1 - tiny, 0, 0, 0, 0)
        p = law(0.1, 0.1, 0.3, 0.2, 0.3)
        for count in (2, 3):
            wanted = brute_force(p, q, count, Draws.WITHOUT_REPLACEMENT)
            assert float(ceiling(p, q, count, Draws.WITHOUT_REPLACEMENT)) == pytest.approx(wanted, abs=1e-7)


def test_ceilings_of_a_large_vocabulary_and_of_batches():
    logits = torch.randn(2, 32000, generator=rng(0))
    p, q = torch.softmax(2 * logits[:1] + 0.0, -1), torch.softmax(2 * logits[:1] + logits[1:], -1)
    iid, without = (float(ceiling(p, q, 3, draws)) for draws in RANDOM_DRAWS)
    assert torch.minimum(p, q).sum() < iid <= without + 1e-9 < 1
    rows = torch.stack([torch.stack(pair_of_laws("random", 5, rng(seed))) for seed in range(6)]).view(
        2, 3, 2, 5
    )
    for draws in Draws:
        whole = ceiling(rows[..., 0, :], rows[..., 1, :], 2, draws)
        assert whole.shape == (2, 3) and whole[1, 2] == ceiling(rows[1, 2, 0], rows[1, 2, 1], 2, draws)


def test_the_standard_rule_stays_below_its_ceiling_and_resispec_does_not():
    p, q = law(0.6, 0.2, 0.1, 0.1), law(0.1, 0.2, 0.3, 0.4)
    for draws in RANDOM_DRAWS:
        highest = float(ceiling(p, q, 2, draws))
        exact, biased = (
            estimate(get_rule(name), p, q, Tuples(2, draws, 1000), rng(0))
            for name in ("standard", "resispec")
        )
        assert exact.excess(highest).z < 0 and biased.excess(highest).z > 4


# Whole trees


def test_the_first_level_of_the_path_bound_is_the_ceiling():
    p, q = pair_of_laws("random", 5, rng(2))
    ratio = (p / q).log()
    rollouts = ratio[torch.multinomial(p, 20000, True, generator=rng(0))][:, None]
    trees = ratio[Draws.IID.draw(q.expand(20000, -1), 2, rng(1))].amax(1, keepdim=True)
    bound = path_bound(rollouts, trees)
    assert bound.levels.shape == (1,) and float(bound.levels) == bound.accepted
    assert abs(bound.accepted - float(ceiling(p, q, 2, Draws.IID))) < 4 * bound.accepted_error < 0.03


def test_the_path_bound_holds_for_an_exact_verifier():
    """Bigram pair, d3b2: the accepted length of `standard` by its outcomes, against the bound."""
    p, q = (
        torch.stack(rows)
        for rows in zip(*(pair_of_laws("random", 3, rng(seed)) for seed in range(3)), strict=True)
    )
    topology, generator, accepted, trees, rollouts = complete(3, 2), rng(0), [], [], []
    for _ in range(400):
        tokens = torch.zeros(7, dtype=torch.int64)
        for parent, children in ((0, slice(1, 3)), (1, slice(3, 5)), (2, slice(5, 7))):
            tokens[children] = Draws.IID.draw(q[tokens[parent]], 2, generator)
        tree = Tree(topology, tokens, Draws.IID)
        accepted.append(
            float(
                get_verifier("standard").outcomes(tree, p[tokens], q[tokens]).stop @ topology.depths.double()
            )
        )
        trees.append(tree_log_ratios(tree, p[tokens], q[tokens]))
        first = int(torch.multinomial(p[0], 1, generator=generator))
        second = int(torch.multinomial(p[first], 1, generator=generator))
        one = math.log(p[0, first] / q[0, first])
        rollouts.append([one, one + math.log(p[first, second] / q[first, second])])
        paths = [(node, [topology.parents[node], node]) for node in range(3, 7)]
        by_loop = [
            sum(math.log(p[tokens[a], tokens[b]] / q[tokens[a], tokens[b]]) for a, b in ((0, path[0]), path))
            for _, path in paths
        ]
        assert float(trees[-1][1]) == pytest.approx(max(by_loop))
    bound = path_bound(torch.tensor(rollouts), torch.stack(trees))
    assert sum(accepted) / 400 < bound.accepted + 4 * bound.accepted_error and (bound.levels <= 1.2).all()
    assert bound.accepted == pytest.approx(float(bound.levels.sum())) and (bound.standard_errors > 0).all()


def test_path_bounds_take_infinite_ratios_and_refuse_nan():
    ratios = torch.tensor([[0.0], [-math.inf], [math.inf], [1.0]])
    assert 0 <= path_bound(ratios, ratios).accepted <= 2
    with pytest.raises(InvalidInput, match="drafted trees"):
        path_bound(ratios, ratios * 0)
    with pytest.raises(InvalidInput, match="1 levels of rollouts and 2 of trees"):
        path_bound(ratios, ratios.expand(-1, 2))
    tokens = torch.tensor([0, 0, 1])
    tree = Tree(complete(2, 2), tokens, Draws.WITHOUT_REPLACEMENT)
    p, q = law(0.0, 1.0).expand(3, -1), law(1.0, 0.0).expand(3, -1)
    assert tree_log_ratios(tree, p, q).tolist() == [math.inf] and tree_log_ratios(tree, q, p).tolist() == [
        math.inf
    ]
    assert tree_log_ratios(tree, p, law(0.5, 0.5).expand(3, -1)).tolist() == pytest.approx([math.log(2)])
