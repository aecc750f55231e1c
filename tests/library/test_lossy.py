"""Verifiers that are biased on purpose: what they accept, how far they are off, and no further."""

import itertools

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from resispec.audit.as_sibling_rule import rule_of
from resispec.audit.battery import KINDS, is_defined, pair_of_laws
from resispec.audit.ceiling import ceiling
from resispec.audit.enumerate import chain_law, drafted_trees, drafted_tuples, tree_law
from resispec.audit.row_checks import emitted
from resispec.core import Draws, Tree
from resispec.errors import InvalidInput
from resispec.trees import chain, complete, from_child_counts, parallel_chains
from resispec.verifiers import Dial, TreeDial, as_verifier, available, get_rule, get_verifier
from tests.accounts import assert_drawn_from, drafted, law, over_tuples, random_law, rng
from tests.library.exact_toys import RULES

pytestmark = pytest.mark.numerics

UNEVEN = from_child_counts([[2], [2, 1], [0, 1, 0]])


def worlds(seed=0):
    """Pairs of laws of every kind, with numbers of siblings."""
    for (index, kind), count in itertools.product(enumerate(KINDS), (1, 2, 3)):
        yield *pair_of_laws(kind, 4, rng(100 * seed + index)), count


def selected(rule, p, q, count, draws):
    """The probability that a rule selects a sibling, residual draws aside."""
    tokens, weights = drafted_tuples(q, count, draws)
    laws = rule.law(p.expand(len(tokens), -1), q.expand(len(tokens), -1), tokens, draws)
    return float(weights @ laws.select.sum(-1))


def distance(law, wanted):
    return float((law - wanted).abs().sum() / 2)


# The dial at a node


@pytest.mark.parametrize(("name", "options", "draws"), RULES)
def test_a_dial_accepts_what_is_proved_and_is_off_by_at_most_as_much(name, options, draws):
    """Acceptance A + k (1 - A), bias k (1 - A) at most; attained by optimal and standard."""
    rule = get_rule(name, **options)
    is_attained = draws == Draws.IID and (name == "standard" or options == {"bins": 0})
    for chance, (p, q, count) in itertools.product((0.3, 1.0), worlds()):
        dialled = get_rule("dial", rule=rule, chance=chance)
        accepts = selected(rule, p, q, count, draws)
        moved = chance * (1 - accepts)
        assert selected(dialled, p, q, count, draws) == pytest.approx(accepts + moved, abs=1e-12)
        found, missing, acceptance = over_tuples(dialled, p, q, count, draws)
        assert abs(missing) < 1e-12 and acceptance > accepts + moved - 1e-12
        bias = distance(found, p)
        assert bias < moved + 1e-12
        if is_attained:
            assert bias == pytest.approx(moved, abs=1e-12) and acceptance == pytest.approx(
                accepts + bias, abs=1e-12
            )


def test_a_naive_rule_dialled_is_off_by_less_than_it_moves():
    p, q = law(0.5, 0.3, 0.2), law(0.2, 0.4, 0.4)
    naive = get_rule("naive")
    assert selected(naive, p, q, 1, Draws.IID) == pytest.approx(0.3, abs=1e-12)
    found, _, acceptance = over_tuples(get_rule("dial", rule=naive, chance=1), p, q, 1, Draws.IID)
    assert acceptance == pytest.approx(1, abs=1e-12)
    assert distance(found, p) == pytest.approx(0.3, abs=1e-12)  # and .7 is moved


@pytest.mark.parametrize("name", ["optimal", "standard", "naive", "kseq"])
def test_a_bias_is_held_for_every_tuple_and_chance_1_is_its_limit(name):
    allowed, rule = 0.05, get_rule(name)
    capped, full, always = (
        get_rule("dial", rule=name, **options)
        for options in ({"bias": allowed}, {"bias": 1}, {"chance": 1.0})
    )
    spent = set()
    for p, q, count in worlds():
        tokens, weights = drafted_tuples(q, count, Draws.IID)
        given = p.expand(len(tokens), -1), q.expand(len(tokens), -1), tokens, Draws.IID
        exact, lossy = rule.law(*given), capped.law(*given)
        off = (emitted(lossy, tokens) - emitted(exact, tokens)).abs().sum(-1) / 2
        refused = 1 - exact.select.sum(-1)
        assert (off < allowed + 1e-12).all()
        moved = (lossy.select - exact.select).sum(-1)
        assert torch.allclose(moved, refused.clamp(0, allowed), rtol=0, atol=1e-12)
        assert distance(weights @ emitted(lossy, tokens), p) < allowed + 1e-12
        assert torch.equal(full.law(*given).select, always.law(*given).select)
        spent |= {float(value > allowed - 1e-9) for value in moved[weights > 0]}
    assert spent == {0, 1}  # there are tuples that refuse less often, and more often


# Every tuple and every verifier


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in available()),
        ("dial", {"rule": "standard", "chance": 1}),
        ("dial", {"rule": "level_optimal", "bias": 0.1}),
        ("dial", {"rule": "greedy", "chance": 0.4}),
        ("lenience", {"factor": 0.1}),
        ("relaxed", {"top": 2, "delta": 0.1}),
        ("typical", {"threshold": 0.3, "alpha": 0.6}),
    ],
)
def test_no_verifier_accepts_more_than_the_ceiling_and_its_bias(name, options):
    rule, count = rule_of(get_verifier(name, **options)), 0
    for draws, (p, q, siblings) in itertools.product(Draws, worlds()):
        if is_defined(rule, draws, siblings):
            found, _, acceptance = over_tuples(rule, p, q, siblings, draws)
            most = float(ceiling(p, q, siblings, draws))
            assert acceptance < most + distance(found, p) + 1e-12, (draws, siblings)
            count += 1
    assert count > 10


# The dial over whole trees


TREES = [
    ("traversal", Draws.IID, UNEVEN),
    ("traversal", Draws.WITHOUT_REPLACEMENT, complete(3, 2)),
    ("traversal_optimal", Draws.IID, complete(3, 2)),
    ("level_optimal", Draws.IID, UNEVEN),
    ("univer", Draws.GREEDY, complete(3, 2)),
    ("block", Draws.IID, chain(3)),
    ("gbv", Draws.IID, parallel_chains(2, 2)),
]
STRENGTHS = [{"chance": 0.4}, {"chance": 1.0}, {"bias": 0.05}]


@pytest.mark.parametrize("strength", STRENGTHS, ids=str)
@pytest.mark.parametrize(("name", "draws", "topology"), TREES)
def test_a_tree_s_dial_draws_from_its_law(name, draws, topology, strength):
    given = drafted(topology, 4, draws, seed=5)
    verifier, generator = get_verifier("dial", rule=name, **strength), rng(1)
    assert isinstance(verifier, TreeDial)
    outcomes = verifier.outcomes(*given)
    if strength == {"chance": 1.0}:  # which ends at leaves alone
        inner = [node for node, children in enumerate(topology.children) if children]
        assert outcomes.stop[inner].abs().max() < 1e-12
    if strength == {"bias": 0.05}:
        exact = get_verifier(name).outcomes(*given)
        joint = [law.stop[:, None] * law.final for law in (exact, outcomes)]
        assert 0 < (joint[0] - joint[1]).abs().sum() / 2 < 0.05 + 1e-12
    assert_drawn_from(outcomes, lambda: verifier.verify(*given, generator), 300)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("typical", {}),
        ("dial", {}),
        ("dial", {"rule": "traversal_optimal"}),
        ("dial", {"rule": "level_optimal", "bias": 0.1}),
    ],
)
def test_outcomes_read_no_number(name, options):
    """So that a device captures them; reading one raises here."""
    tree, target, draft = drafted(UNEVEN, 4, seed=5)
    verifier = get_verifier(name, **options)

    def traced(target, draft):
        outcomes = verifier.outcomes(tree, target, draft)
        return outcomes.stop, outcomes.final

    wanted = traced(target, draft)
    for found, tensor in zip(make_fx(traced)(target, draft)(target, draft), wanted, strict=True):
        assert torch.equal(found, tensor)


@pytest.mark.parametrize("name", ["traversal", "traversal_optimal", "level_optimal"])
def test_a_tree_s_dial_is_off_by_at_most_what_goes_on(name):
    topology, chance = from_child_counts([[2], [1, 1]]), 0.4
    exact = get_verifier(name)
    for kind in ("random", "ties", "sparse"):
        rows = [pair_of_laws(kind, 3, generator) for generator in [rng(4)] for _ in range(3)]
        target, draft = (torch.stack(laws) for laws in zip(*rows, strict=True))
        tokens, weights = drafted_trees(topology, draft, Draws.IID)
        stops = [
            exact.outcomes(Tree(topology, row, Draws.IID), target[row], draft[row]).stop[:3].sum()
            for row in tokens
        ]
        above_a_leaf = float(weights @ torch.stack(stops))
        wanted = chain_law(target, topology.num_levels)
        for strength, most in (({"chance": chance}, chance * above_a_leaf), ({"bias": 0.03}, 0.03)):
            dialled = get_verifier("dial", rule=name, **strength)
            off = distance(tree_law(dialled, topology, target, draft, Draws.IID), wanted)
            assert 1e-6 < off < most + 1e-12, (kind, strength)


def test_on_one_level_a_tree_s_dial_is_that_of_its_rule():
    for p, q, count in worlds():
        tree = rule_of(get_verifier("dial", rule="traversal", chance=0.3))
        node = get_rule("dial", rule="standard", chance=0.3)
        for found, wanted in zip(
            over_tuples(tree, p, q, count, Draws.IID),
            over_tuples(node, p, q, count, Draws.IID),
            strict=True,
        ):
            assert torch.allclose(torch.as_tensor(found), torch.as_tensor(wanted), atol=1e-12)


def test_a_dial_takes_a_name_a_rule_a_verifier_and_refuses_what_is_no_strength():
    rule = get_rule("optimal")
    assert get_rule("dial", rule="optimal") == get_rule("dial", rule=rule, chance=0.5)
    assert get_rule("dial", rule=as_verifier(rule)) == get_rule("dial")
    assert isinstance(get_rule("dial"), Dial)
    for option in ("chance", "bias"):  # at 0 it is the rule or verifier itself
        assert get_rule("dial", rule=rule, **{option: 0.0}) is rule
        whole = get_verifier("gbv")
        assert get_verifier("dial", rule=whole, **{option: 0.0}) is whole
    assert get_verifier("dial", rule="khisti").rule.reads_numbers
    assert get_verifier("dial", rule="gbv").reads_numbers
    for options, message in (
        (
            {"chance": 0.1, "bias": 0.1},
            "dial: chance=0.1 and bias=0.1; allowed: a chance or a bias",
        ),
        ({"chance": 1.5}, "dial: chance=1.5; allowed: a number from 0 to 1"),
        ({"bias": -0.1}, "dial: bias=-0.1; allowed: a number from 0 to 1"),
        ({"chance": float("nan")}, "dial: chance=nan; allowed"),
        ({"chance": "much"}, "dial: chance=much; allowed"),
        ({"rule": "nope"}, "unknown verifier 'nope'; known: standard"),
    ):
        with pytest.raises(InvalidInput, match=message):
            get_verifier("dial", **options)


# The lossy rules of the field


def test_lenience_emits_no_token_more_than_1_over_its_factor_too_often():
    for p, q, count in worlds(1):
        one = get_rule("lenience", factor=1.0), get_rule("standard")
        emitted_laws = [over_tuples(rule, p, q, count, Draws.IID)[0] for rule in one]
        assert torch.allclose(*emitted_laws, rtol=0, atol=1e-12)
        for factor in (0.5, 0.1):
            rule = get_rule("lenience", factor=factor)
            found, _, _ = over_tuples(rule, p, q, count, Draws.IID)
            assert (found < p / factor + 1e-12).all()
            if count == 1:  # the paper's alpha
                wanted = torch.minimum(p / factor, q).sum()
                assert selected(rule, p, q, 1, Draws.IID) == pytest.approx(float(wanted), abs=1e-12)


def longest_typical(tree, target, threshold, alpha):
    """The node at which Medusa's accepted path ends, in plain Python."""
    best = (0, 0.0, 0)
    for leaf in range(1, tree.topology.num_nodes):
        path, likelihood, node = tree.topology.path_to(leaf), 0.0, 0
        for child in path:
            probs = target[node]
            entropy = -sum(float(x) * float(x.log()) for x in probs if x > 0)
            share = float(probs[tree.tokens[child]])
            if not share > min(threshold, alpha * torch.tensor(-entropy).exp().item()):
                break
            likelihood, node = likelihood + torch.tensor(share).log().item(), child
        else:
            if (len(path), likelihood) > best[:2] or not best[0]:
                best = (len(path), likelihood, leaf)
    return best[2]


def test_typical_acceptance_keeps_the_longest_typical_path_and_then_the_likeliest():
    verifier, lengths = get_verifier("typical", threshold=0.2, alpha=0.5), set()
    for seed, topology in itertools.product(range(30), (UNEVEN, complete(3, 3))):
        tree, target, draft = drafted(topology, 5, seed=seed)
        wanted = longest_typical(tree, target, 0.2, 0.5)
        outcomes = verifier.outcomes(tree, target, draft)
        assert outcomes.stop.tolist() == [float(node == wanted) for node in range(len(target))]
        assert verifier.verify(tree, target, draft, rng(seed)).path == topology.path_to(wanted)
        lengths.add(len(topology.path_to(wanted)))
    assert lengths == {0, 1, 2, 3}


def test_relaxed_acceptance_takes_the_first_sibling_among_the_likeliest_within_delta():
    p, q = law(0.05, 0.4, 0.35, 0.2), random_law(4, rng(0))
    rule = get_rule("relaxed", top=3, delta=0.1)
    siblings = torch.tensor([[0, 2, 1], [3, 0, 3], [1, 2, 1]])
    found = rule.law(p.expand(3, -1), q.expand(3, -1), siblings, Draws.IID)
    assert found.select.tolist() == [[0, 1, 0], [0, 0, 0], [1, 0, 0]]
    assert torch.allclose(found.residual, p.expand(3, -1))
    only = get_rule("relaxed", top=1, delta=1.0).law(p, q, torch.tensor([2, 3, 1]), Draws.IID)
    assert only.select.tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("lenience", {"factor": 0}, "lenience: factor=0; allowed: above 0, at most 1"),
        ("lenience", {"factor": 1.2}, "lenience: factor=1.2; allowed"),
        ("lenience", {"factor": "a"}, "lenience: factor=a; allowed: above 0, at most 1"),
        ("relaxed", {"top": 2.5}, "relaxed: top=2.5; allowed: at least 1, a whole number"),
        ("typical", {"alpha": "a"}, "typical: alpha=a; allowed: from 0 to 1"),
        ("typical", {"alpha": 1.2}, "typical: alpha=1.2; allowed: from 0 to 1"),
        ("relaxed", {"top": 0}, "relaxed: top=0; allowed: at least 1"),
        ("relaxed", {"delta": -1}, "relaxed: delta=-1; allowed: from 0 to 1"),
    ],
)
def test_numbers_that_a_lossy_rule_does_not_take_are_refused(name, options, message):
    with pytest.raises(InvalidInput, match=message):
        get_verifier(name, **options)
