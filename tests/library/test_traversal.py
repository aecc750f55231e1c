"""Verification from the leaves up: by hand, and lazy without changing a verdict."""

import itertools

import pytest
import torch

from resispec.audit.battery import KINDS, pair_of_laws
from resispec.audit.enumerate import chain_law, tree_law
from resispec.core import Draws, Tree
from resispec.trees import chain, complete, from_child_counts, root_only
from resispec.verifiers import Law, Standard, get_rule, get_verifier
from resispec.verifiers.traversal import Traversal
from tests.accounts import accepted_tokens, drafted, rng
from tests.library.exact_toys import DEEP

pytestmark = pytest.mark.numerics


def test_accepted_tokens_by_hand():
    """11/9 of two on a chain, where from the root down it is 10/9; fewer on an uneven tree.

    There Traversal accepts more children, but all of them first ones, and only second ones have a
    subtree. Token 1 is drafted with mass a = 1/2, below it 1 or 2 where only 2 is possible, and
    below 2 always 2. Of the children of 1 the first is accepted with probability 1/2 and the second
    never; from the root down it is 1/2 (1/2 + 1/4), and 1/8 twice below.
    """
    target = torch.tensor([[1 / 3, 2 / 3]] * 2, dtype=torch.float64)
    uneven = (
        torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]], dtype=torch.float64),
        torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]], dtype=torch.float64),
    )
    for topology, rows, wanted in (
        (chain(2), (target, target.flip(-1)), [11 / 9, 10 / 9]),
        (from_child_counts([[1], [2], [0, 1], [1]]), uneven, [1, 1.125]),
    ):
        accepted = [
            accepted_tokens(get_verifier(name), topology, rows)
            for name in ("traversal", "standard")
        ]
        assert accepted == pytest.approx(wanted, abs=1e-12)


def test_hsd_gains_what_it_is_biased_by_on_chains_of_two_and_more():
    """12/9 of two, where exact verifiers accept 11/9 at most; the second token is 1 too rarely."""
    target = torch.tensor([[1 / 3, 2 / 3]] * 2, dtype=torch.float64)
    hsd, rows = get_verifier("hsd"), (target, target.flip(-1))
    assert accepted_tokens(hsd, chain(2), rows) == pytest.approx(12 / 9, abs=1e-12)
    pairs = tree_law(hsd, chain(2), *rows, Draws.IID).sum(-1)
    wanted = torch.tensor([[1, 2], [3, 3]], dtype=torch.float64) / 9
    assert torch.allclose(pairs, wanted, rtol=0, atol=1e-12)
    assert torch.allclose(
        tree_law(hsd, chain(1), *rows, Draws.IID), chain_law(target, 2), rtol=0, atol=1e-12
    )


# Subtrees that are skipped

BOUNDED = [
    *((name, {}, draws) for name in ("standard", "naive") for draws in Draws),
    ("greedy", {}, Draws.GREEDY),
    ("kseq", {}, Draws.IID),
    *(("optimal", {"bins": bins}, Draws.IID) for bins in (1024, 0, 4)),
]


class Counting:
    """A rule that counts its laws; it promises only what it is told to."""

    def __init__(self, rule, is_bounded=False):
        self.rule, self.is_bounded, self.num_laws = rule, is_bounded, 0

    def law(self, *given):
        self.num_laws += 1
        return self.rule.law(*given)


def test_laws_are_computed_at_reached_nodes_only():
    topology, sure, uniform = complete(3, 2), torch.tensor([0.0, 1.0, 0.0]), torch.full((3,), 1 / 3)
    tree, draft = (
        Tree(topology, torch.tensor([0, 1, 2, 0, 1, 0, 1]), Draws.IID),
        uniform.expand(7, 3),
    )
    for target, path, num_laws in (
        # The first subtree is accepted, so the second is never examined.
        (torch.stack([sure, sure, *[uniform] * 5]), (1, 4), 2),
        # Token 1 cannot be accepted, nor a token that was drafted below it.
        (torch.stack([sure.roll(1), *[sure] * 6]), (2, 6), 2),
        (torch.stack([sure.roll(-1), *[sure] * 6]), (), 1),  # neither can be
    ):
        rule = Counting(get_rule("standard"))
        assert (
            Traversal(rule).verify(tree, target, draft, rng(0)).path == path
            and rule.num_laws == num_laws
        )


@pytest.mark.parametrize(("name", "options", "draws"), BOUNDED)
def test_bounded_rules_keep_their_promise(name, options, draws):
    """See `lookahead`: a / (1 - a) bounds residuals and siblings' weights for targets of mass a."""
    generator, rule = rng(10), get_rule(name, **options)
    assert rule.is_bounded
    for kind, mass, num_siblings in itertools.product(KINDS, (1e-6, 0.3, 0.49), (1, 3)):
        p, q = pair_of_laws(kind, 5, generator)
        siblings = draws.draw(q.expand(200, -1), num_siblings, generator).unique(dim=0)
        law = rule.law(
            mass * p.expand(len(siblings), -1), q.expand(len(siblings), -1), siblings, draws
        )
        odds = mass / (1 - mass)
        assert (law.residual <= odds * p + 1e-12).all(), (kind, mass)
        weights = law.select + (1 - law.select.sum(-1, keepdim=True)) * law.residual.gather(
            -1, siblings
        )
        ratios = p[siblings] / (1 if draws == Draws.POINT_MASS else q[siblings].clamp_min(1e-99))
        assert (weights <= odds * ratios + 1e-12).all(), (kind, mass)


@pytest.mark.parametrize("shape", [complete(4, 3), chain(5), DEEP[3], root_only()], ids=str)
@pytest.mark.parametrize(
    ("name", "options", "draws"), [BOUNDED[0], BOUNDED[1], BOUNDED[8], BOUNDED[9], BOUNDED[10]]
)
def test_skipping_subtrees_changes_no_verdict(name, options, draws, shape):
    """Bit for bit, on laws of which some are close and some are far apart."""
    every, some = (Counting(get_rule(name, **options), is_bounded) for is_bounded in (False, True))
    for seed in range(40):
        given = drafted(shape, 12, draws, seed, kind=KINDS[seed % len(KINDS)])
        assert Traversal(every).verify(*given, rng(seed)) == Traversal(some).verify(
            *given, rng(seed)
        )
    assert some.num_laws <= every.num_laws and (
        shape.num_levels < 4 or some.num_laws < every.num_laws
    )


class Pairs(Standard):
    """Exact for two siblings, and accepts only equal ones."""

    def law(self, target_probs, draft_probs, siblings, draws):
        given = target_probs, draft_probs
        if siblings.shape[-1] < 2:
            return super().law(*given, siblings, draws)
        first, second = siblings.unbind(-1)
        p, q = (probs.gather(-1, first[..., None])[..., 0] for probs in given)
        chance = (p / q.square()).clamp_max(1) * (first == second)
        residual = (target_probs - draft_probs.square()).clamp_min(1e-9)
        residual = residual / residual.sum(-1, keepdim=True)
        return Law(torch.stack((chance, 0 * chance), -1), residual)


def test_a_law_of_one_s_own_inherits_no_promise():
    """Defect: its verdicts were pruned by the bound of the rule that it derives from."""
    tree = Tree(from_child_counts([[1], [2]]), torch.tensor([0, 1, 0, 0]), Draws.IID)
    p = torch.tensor([[0.8, 0.2], [0.02, 0.98], [0.5, 0.5], [0.5, 0.5]])
    q = torch.tensor([[0.5, 0.5], [0.1, 0.9], [0.5, 0.5], [0.5, 0.5]])
    verifier, generator, count = Traversal(Pairs()), rng(0), 400
    chance = float(verifier.outcomes(tree, p, q).stop[2])
    stops = [verifier.verify(tree, p, q, generator).path[-1:] == (2,) for _ in range(count)]
    error = (chance * (1 - chance) / count) ** 0.5
    assert abs(sum(stops) / count - chance) < 4 * error
