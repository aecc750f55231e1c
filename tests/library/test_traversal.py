"""Verification from the leaves up: exact by enumeration, drawn as its law says, and lazy."""

import itertools

import pytest
import torch
from accounts import BROKEN, Broken, accepted_tokens, rng
from scipy.stats import chisquare

from resispec.audit.battery import KINDS, pair_of_laws, worst_tree_error
from resispec.audit.enumerate import chain_law, tree_law
from resispec.core import Draws, Tree
from resispec.distributions import probabilities
from resispec.errors import InvalidInput
from resispec.trees import Topology, chain, complete, from_child_counts, root_only
from resispec.verifiers import Law, TopDown, get_rule, get_verifier
from resispec.verifiers.lookahead import _can_accept
from resispec.verifiers.traversal import Traversal

WEIGHTS = [
    *(("standard", draws) for draws in Draws),
    ("kseq", Draws.IID),
    ("optimal", Draws.IID),
    ("naive", Draws.WITHOUT_REPLACEMENT),
    ("greedy", Draws.GREEDY),
]
DEEP = [
    chain(3),
    from_child_counts([[2], [1, 1], [1, 0]]),
    from_child_counts([[1], [2], [1, 1]]),
    from_child_counts([[2], [2, 1], [0, 1, 0]]),
    from_child_counts([[2], [0, 1], [2]]),
    from_child_counts([[3], [0, 2, 1], [0, 1]]),
]


def two_level_shapes(widest: int, most_nodes: int) -> list[Topology]:
    """Every tree with up to `widest` children a node on two levels below the root; leaves at any depth."""
    counts = (row for width in (1, 2, 3) for row in itertools.product(range(widest + 1), repeat=width))
    shapes = [from_child_counts([[len(row)], list(row)]) for row in counts]
    return [shape for shape in shapes if shape.num_nodes <= most_nodes]


def rows_of(kind, vocab, generator):
    rows = [pair_of_laws(kind, vocab, generator) for _ in range(vocab)]
    return [torch.stack(laws) for laws in zip(*rows, strict=True)]


def error(verifier, topology, rows, draws):
    target, draft = rows
    law = tree_law(verifier, topology, target, draft, draws)
    return float((law - chain_law(target, topology.num_levels)).abs().max())


@pytest.mark.parametrize(("weights", "draws"), WEIGHTS)
def test_exact_on_the_battery(weights, draws):
    assert worst_tree_error(get_verifier("traversal", weights=weights), draws).error < 1e-12


@pytest.mark.parametrize(("widest", "most_nodes"), [(2, 10), (3, 9)])
def test_exact_on_every_tree_of_two_levels_with_repeated_children(widest, most_nodes):
    """Two tokens and up to three i.i.d. children, so almost every tree repeats a child."""
    generator = torch.Generator().manual_seed(1)
    for topology, kind in zip(two_level_shapes(widest, most_nodes), itertools.cycle(KINDS), strict=False):
        assert error(get_verifier("traversal"), topology, rows_of(kind, 2, generator), Draws.IID) < 1e-12, (
            topology,
            kind,
        )


@pytest.mark.parametrize("draws", [Draws.WITHOUT_REPLACEMENT, Draws.POINT_MASS, Draws.GREEDY])
def test_exact_on_every_tree_of_two_levels_with_other_draws(draws):
    generator = torch.Generator().manual_seed(2)
    for topology, kind in zip(two_level_shapes(3, 6), itertools.cycle(KINDS), strict=False):
        assert error(get_verifier("traversal"), topology, rows_of(kind, 3, generator), draws) < 1e-12, (
            topology,
            kind,
        )


@pytest.mark.parametrize(
    ("weights", "draws"),
    [("standard", Draws.IID), ("standard", Draws.WITHOUT_REPLACEMENT), ("kseq", Draws.IID)],
)
@pytest.mark.parametrize("kind", KINDS)
def test_exact_on_deeper_uneven_trees(weights, draws, kind):
    generator = torch.Generator().manual_seed(3)
    for topology in DEEP:
        vocab = 3 if draws is not Draws.IID and max(map(len, topology.children)) > 2 else 2
        if vocab ** (topology.num_nodes - 1) <= 1000:
            assert (
                error(
                    get_verifier("traversal", weights=weights),
                    topology,
                    rows_of(kind, vocab, generator),
                    draws,
                )
                < 1e-12
            )


class DrawFromTarget:
    """Selects nothing: all that is drafted is in the residual."""

    def law(self, target_probs, _draft_probs, siblings, _draws):
        return Law(torch.zeros(siblings.shape, dtype=target_probs.dtype), target_probs)


def test_a_residual_on_drafted_tokens_is_accepted_before_the_subtree_is_examined():
    """A rule that selects nothing and the naive rule say the same in two ways: the same verdicts."""
    generator = torch.Generator().manual_seed(4)
    rows = rows_of("random", 3, generator)
    assert error(Traversal(DrawFromTarget()), complete(3, 2), rows, Draws.IID) < 1e-12
    tree, target, draft = case(DEEP[3], 3, Draws.IID)
    found = Traversal(DrawFromTarget()).outcomes(tree, target, draft)
    naive = get_verifier("traversal", weights="naive").outcomes(tree, target, draft)
    assert torch.allclose(found.stop, naive.stop, atol=1e-12) and torch.allclose(
        found.final, naive.final, atol=1e-12
    )
    assert found.stop[1:].sum() > 0.1
    for node, children in enumerate(tree.topology.children):
        assert (found.final[node, tree.tokens[list(children)]] == 0).all()


def case(topology, vocab, draws, seed=0, kind="random"):
    """A drafted tree with laws of its own at every node."""
    generator = torch.Generator().manual_seed(seed)
    rows = [pair_of_laws(kind, vocab, generator) for _ in range(topology.num_nodes)]
    target, draft = (torch.stack(laws) for laws in zip(*rows, strict=True))
    tokens = torch.zeros(topology.num_nodes, dtype=torch.int64)
    for parents, children in topology.families:
        tokens[children] = draws.draw(draft[parents], children.shape[1], generator)
    return Tree(topology, tokens, draws), target, draft


SHAPES = {"root": root_only(), "chain": chain(3), "d3b3": complete(3, 3), "uneven": DEEP[3], "wide": DEEP[5]}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("weights", "draws"),
    [
        ("standard", Draws.IID),
        ("standard", Draws.WITHOUT_REPLACEMENT),
        ("naive", Draws.IID),
        ("optimal", Draws.IID),
    ],
)
def test_verify_draws_from_outcomes(shape, weights, draws):
    """Chi-square over (last node, final token), seeded; with a fresh seed it would fail at a rate of 1e-4."""
    tree, target, draft = case(SHAPES[shape], 4, draws, seed=5)
    verifier, generator = get_verifier("traversal", weights=weights), torch.Generator().manual_seed(1)
    outcomes = verifier.outcomes(tree, target, draft)
    joint = outcomes.stop[:, None] * outcomes.final
    assert joint.sum().item() == pytest.approx(1, abs=1e-12) and (joint >= 0).all()
    counts = torch.zeros_like(joint)
    for _ in range(1200):
        verdict = verifier.verify(tree, target, draft, generator)
        counts[verdict.path[-1] if verdict.path else 0, verdict.tokens[-1]] += 1
        assert [tree.topology.parents[node] for node in verdict.path] == [0, *verdict.path][:-1]
        assert tree.tokens[list(verdict.path)].tolist() == list(verdict.tokens[:-1])
    assert counts[joint == 0].sum() == 0
    expected = 1200 * joint
    large = expected > 5
    observed, wanted = (
        [*counts[large].tolist(), counts[~large].sum()],
        [*expected[large].tolist(), expected[~large].sum()],
    )
    keep = [index for index, value in enumerate(wanted) if value > 1e-9]
    assert len(keep) < 2 or chisquare([observed[i] for i in keep], [wanted[i] for i in keep]).pvalue > 1e-4


@pytest.mark.parametrize("draws", list(Draws))
def test_one_level_of_leaves_is_the_sibling_rule(draws):
    for kind in KINDS:
        tree, target, draft = case(complete(2, 3), 5, draws, seed=6, kind=kind)
        found, rule = (
            verifier.outcomes(tree, target, draft)
            for verifier in (get_verifier("traversal"), get_verifier("standard"))
        )
        joint, wanted = (outcomes.stop[:, None] * outcomes.final for outcomes in (found, rule))
        assert torch.allclose(joint, wanted, atol=1e-12)


def test_a_chain_by_hand_accepts_more_than_token_by_token():
    """p = (1/3, 2/3), q = (2/3, 1/3) everywhere: 11/9 accepted tokens of two; 10/9 from the root down."""
    target = torch.tensor([[1 / 3, 2 / 3]] * 2, dtype=torch.float64)
    rows = target, target.flip(-1)
    assert accepted_tokens(get_verifier("traversal"), chain(2), rows, Draws.IID) == pytest.approx(
        11 / 9, abs=1e-12
    )
    assert accepted_tokens(get_verifier("standard"), chain(2), rows, Draws.IID) == pytest.approx(
        10 / 9, abs=1e-12
    )


def test_accepts_no_fewer_tokens_than_the_same_rule_from_the_root_down_on_complete_trees():
    """Measured on i.i.d. children; on chains it is a theorem (arXiv 2403.10444)."""
    generator, gains = torch.Generator().manual_seed(7), []
    for kind, (topology, vocab) in itertools.product(
        KINDS, ((complete(3, 2), 2), (chain(3), 3), (complete(2, 3), 3))
    ):
        rows = rows_of(kind, vocab, generator)
        found, walked = (
            accepted_tokens(get_verifier(name), topology, rows, Draws.IID)
            for name in ("traversal", "standard")
        )
        assert found >= walked - 1e-12, (kind, topology)
        gains.append(found - walked)
    assert max(gains) > 0.01


def test_an_uneven_tree_by_hand_accepts_fewer_than_token_by_token():
    """Traversal accepts more children there, but all of them first ones, and only second ones have a subtree.

    Token 1 is drafted with mass a = 1/2, below it 1 or 2 where only 2 is possible, and below 2 always 2. Of
    the children of 1 the first is accepted with probability 1/2 and the second never; from the root down it
    is 1/2 (1/2 + 1/4), and 1/8 twice below.
    """
    target = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    draft = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]], dtype=torch.float64)
    topology, rows = from_child_counts([[1], [2], [0, 1], [1]]), (target, draft)
    assert accepted_tokens(get_verifier("traversal"), topology, rows, Draws.IID) == pytest.approx(
        1, abs=1e-12
    )
    assert accepted_tokens(get_verifier("standard"), topology, rows, Draws.IID) == pytest.approx(
        1.125, abs=1e-12
    )


def test_laws_are_computed_at_reached_nodes_only():
    topology, sure, uniform = complete(3, 2), torch.tensor([0.0, 1.0, 0.0]), torch.full((3,), 1 / 3)
    tree = Tree(topology, torch.tensor([0, 1, 2, 0, 1, 0, 1]), Draws.IID)
    draft = uniform.expand(7, 3)
    for target, path, num_laws in (
        (
            torch.stack([sure, sure, *[uniform] * 5]),
            (1, 4),
            2,
        ),  # the first subtree is accepted: the second is never examined
        (
            torch.stack([sure.roll(1), *[sure] * 6]),
            (2, 6),
            2,
        ),  # token 1 cannot be accepted, nor what was drafted below it
        (torch.stack([sure.roll(-1), *[sure] * 6]), (), 1),  # neither can be
    ):
        rule = Counting(get_rule("standard"))
        verdict = Traversal(rule).verify(tree, target, draft, torch.Generator().manual_seed(0))
        assert verdict.path == path and rule.num_laws == num_laws


# What is passed over

BOUNDED = [
    *((name, {}, draws) for name in ("standard", "naive") for draws in Draws),
    ("greedy", {}, Draws.GREEDY),
    ("kseq", {}, Draws.IID),
    *(("optimal", {"bins": bins}, Draws.IID) for bins in (1024, 0, 4)),
]


@pytest.mark.parametrize(("name", "options", "draws"), BOUNDED)
def test_bounded_rules_keep_their_promise(name, options, draws):
    """See `lookahead`: for a target of mass a, residuals and siblings' weights against a / (1 - a)."""
    generator, rule = torch.Generator().manual_seed(10), get_rule(name, **options)
    assert rule.is_bounded
    for kind, mass, num_siblings in itertools.product(KINDS, (1e-6, 0.01, 0.3, 0.49), (1, 2, 3)):
        p, q = pair_of_laws(kind, 5, generator)
        siblings = draws.draw(q.expand(200, -1), num_siblings, generator).unique(dim=0)
        law = rule.law(mass * p.expand(len(siblings), -1), q.expand(len(siblings), -1), siblings, draws)
        odds = mass / (1 - mass)
        assert (law.residual <= odds * p + 1e-12).all(), (kind, mass)
        weights = law.select + (1 - law.select.sum(-1, keepdim=True)) * law.residual.gather(-1, siblings)
        ratios = p[siblings] / (1 if draws is Draws.POINT_MASS else q[siblings].clamp_min(1e-99))
        assert (weights <= odds * ratios + 1e-12).all(), (kind, mass)


class Counting:
    """A rule that counts its laws; it promises only what it is told to."""

    def __init__(self, rule, is_bounded=False):
        self.rule, self.is_bounded, self.num_laws = rule, is_bounded, 0

    def law(self, *given):
        self.num_laws += 1
        return self.rule.law(*given)


@pytest.mark.parametrize("shape", [complete(4, 3), chain(5), DEEP[3], root_only()], ids=str)
@pytest.mark.parametrize(("name", "options", "draws"), BOUNDED)
def test_passing_over_subtrees_changes_no_verdict(name, options, draws, shape):
    """Bit for bit, on laws of which some are close and some are far apart."""
    every, some = Counting(get_rule(name, **options)), Counting(get_rule(name, **options), is_bounded=True)
    for seed in range(60):
        drafted = case(shape, 12, draws, seed, kind=KINDS[seed % len(KINDS)])
        verdicts = [
            Traversal(rule).verify(*drafted, torch.Generator().manual_seed(seed)) for rule in (every, some)
        ]
        assert verdicts[0] == verdicts[1]
    assert some.num_laws <= every.num_laws and (shape.num_levels < 4 or some.num_laws < every.num_laws)


def test_what_can_be_accepted_by_hand():
    """Odds 1/3 give weights of at most .4 and .3: masses .4 and, once the first failed, .3 / .6 = .5."""
    for coins, expected in (
        ([0.4, 0.41, 0.51], False),
        ([0.4, 0.41, 0.49], True),
        ([0.4, 0.39, 0.51], True),
        ([0.3, 1, 1], True),
    ):
        assert _can_accept(((1, 2), (), ()), coins, [0.0, 1.2, 0.9], (0, 0.25)) is expected


@pytest.mark.parametrize("draws", [Draws.IID, Draws.WITHOUT_REPLACEMENT])
@pytest.mark.parametrize("seed", range(8, 11))
@pytest.mark.parametrize("scale", [0.0, 1.0, 8.0])
def test_float32_at_a_large_vocabulary(scale, draws, seed):
    """Flat, Zipf-like and peaked laws: what float64 says to within float32's rounding, and no NaN."""
    generator, topology = torch.Generator().manual_seed(seed), complete(4, 2)
    ranks = torch.arange(1, 32_001, dtype=torch.float32).log()
    logits = -scale * ranks + 0.5 * torch.randn(topology.num_nodes, 32_000, generator=generator)
    target = probabilities(logits, 1.0)
    draft = probabilities(logits + torch.randn(logits.shape, generator=generator), 1.0)
    tokens = torch.zeros(topology.num_nodes, dtype=torch.int64)
    for parents, children in topology.families:
        tokens[children] = draws.draw(draft[parents], children.shape[1], generator)
    tree = Tree(topology, tokens, draws)
    found = get_verifier("traversal").outcomes(tree, target, draft)
    exact = get_verifier("traversal").outcomes(
        tree, *(rows.double() / rows.double().sum(-1, keepdim=True) for rows in (target, draft))
    )
    assert found.stop.dtype == found.final.dtype == torch.float32
    assert (
        found.stop.sum().item() == pytest.approx(1, abs=1e-6)
        and found.final.sum(-1).sub(1).abs().max() < 1e-5
    )
    assert (found.stop - exact.stop).abs().max() < 1e-4
    for _ in range(20):
        verdict = get_verifier("traversal").verify(tree, target, draft, generator)
        assert exact.stop[verdict.path[-1] if verdict.path else 0] > 0


def test_the_root_is_never_rejected(monkeypatch):
    """Its law may lack mass by rounding (exaggerated in the outcomes); the walk ends there all the same."""
    tree, generator = (
        Tree(complete(2, 2), torch.tensor([0, 0, 0]), Draws.IID),
        torch.Generator().manual_seed(0),
    )
    target, draft = torch.tensor([[0.0, 0.25, 0.25]] * 3), torch.tensor([[1.0, 0.0, 0.0]] * 3)
    assert get_verifier("traversal").outcomes(tree, target, draft).stop.tolist() == [1, 0, 0]
    most = 1 - 2**-20  # the largest coin, and a law that lacks more than it leaves
    monkeypatch.setattr(torch, "rand", lambda *size, **_: torch.full(size, most, dtype=torch.float64))
    short = torch.tensor([[0.0, 0.5, 0.49995]] * 3)
    assert get_verifier("traversal").verify(tree, short, draft, generator).tokens == (2,)


@pytest.mark.parametrize(("change", "error", "message"), BROKEN)
def test_what_is_no_law_raises_and_names_the_rule(change, error, message):
    tree, target, draft = case(complete(3, 2), 4, Draws.IID, seed=9)
    verifier = Traversal(Broken(change))
    with pytest.raises(error, match=message) as caught:
        for seed in range(200):  # some faults lie in the residual, which is looked at where it is drawn from
            verifier.verify(tree, target, draft, rng(seed))
    assert "\n" not in str(caught.value)


def test_a_rule_is_needed():
    with pytest.raises(InvalidInput, match="Traversal takes a sibling rule, which has a `law`; found Block"):
        Traversal(get_verifier("block"))


@pytest.mark.parametrize("node", [0, 1, 3])
def test_nan_raises_where_it_is_reached(node):
    """p = q everywhere, so the walk goes down the first path."""
    tree, target, _ = case(complete(3, 2), 3, Draws.IID, seed=9)
    broken = target.clone()
    broken[node] = float("nan")
    with pytest.raises(FloatingPointError):
        get_verifier("traversal").verify(tree, broken, target, torch.Generator().manual_seed(0))


def test_names_options_and_draws():
    assert (
        get_verifier("traversal")
        == get_verifier("traversal", weights="standard")
        == Traversal(get_rule("standard"))
    )
    with pytest.raises(InvalidInput, match="unknown verifier 'nope'; known: standard"):
        get_verifier("traversal", weights="nope")
    with pytest.raises(InvalidInput, match="'traversal' is a tree verifier, not a sibling rule"):
        get_verifier("traversal", weights="traversal")
    tree, target, draft = case(complete(2, 2), 3, Draws.WITHOUT_REPLACEMENT)
    for use in (
        lambda verifier: verifier.outcomes(tree, target, draft),
        lambda verifier: verifier.verify(tree, target, draft, None),
    ):
        with pytest.raises(InvalidInput, match="kseq is not exact for draws 'without_replacement'"):
            use(get_verifier("traversal", weights="kseq"))
    assert isinstance(get_verifier("standard"), TopDown)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", ["traversal", "traversal_optimal"])
def test_traversal_on_cuda(name):
    """The law of the CPU, and verdicts that are drawn from it."""
    tree, target, draft = case(complete(4, 3), 50, Draws.IID, seed=11)
    there = Tree(tree.topology, tree.tokens.cuda(), tree.draws), target.cuda(), draft.cuda()
    verifier, generator = get_verifier(name), torch.Generator("cuda").manual_seed(0)
    wanted, found = verifier.outcomes(tree, target, draft), verifier.outcomes(*there)
    assert torch.allclose(found.stop.cpu(), wanted.stop, atol=1e-9) and torch.allclose(
        found.final.cpu(), wanted.final, atol=1e-9
    )
    counts = torch.zeros_like(wanted.stop)
    for _ in range(1000):
        verdict = verifier.verify(*there, generator)
        counts[verdict.path[-1] if verdict.path else 0] += 1
        assert tree.tokens[list(verdict.path)].tolist() == list(verdict.tokens[:-1])
    spread = (1000 * wanted.stop * (1 - wanted.stop)).sqrt()
    assert (counts[wanted.stop == 0] == 0).all() and (
        (counts - 1000 * wanted.stop).abs() <= 6 * spread + 3
    ).all()
