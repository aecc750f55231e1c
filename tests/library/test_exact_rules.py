"""The other exact rules, naive, kseq and greedy, and what every exact rule has in common."""

import itertools

import pytest
import torch
from accounts import corners, random_law, rng, tuples
from hypothesis import given, settings
from torch.fx.experimental.proxy_tensor import make_fx
from toys import table_pair

from resispec.audit.battery import KINDS, pair_of_laws, supported_draws, worst_error, worst_tree_error
from resispec.audit.ceiling import ceiling
from resispec.audit.laws import accepted
from resispec.core import Draws
from resispec.drafters.draft_model import DraftModel
from resispec.errors import InvalidInput
from resispec.models import Warp
from resispec.trees import complete, from_child_counts
from resispec.verifiers import get_rule, get_verifier
from resispec.verifiers.kseq import _least_factor

SUPPORTED = {
    "standard": tuple(Draws),
    "naive": tuple(Draws),
    "kseq": (Draws.IID,),
    "greedy": (Draws.GREEDY,),
    "optimal": (Draws.IID,),
}
RULES = [(name, {}, draws) for name, every in SUPPORTED.items() for draws in every] + [
    ("optimal", {"bins": 0}, Draws.IID)
]


def law(*weights):
    return torch.tensor(weights, dtype=torch.float64) / sum(weights)


def over_tuples(rule, p, q, num_siblings, draws):
    """By an independent account of the draws: emitted law, mass of no token at all, acceptance."""
    drafted = tuples(q.tolist(), num_siblings, draws)
    tokens = torch.tensor([list(siblings) for siblings, _ in drafted])
    weights = torch.tensor([weight for _, weight in drafted], dtype=torch.float64)
    found = rule.law(p.expand(len(tokens), -1), q.expand(len(tokens), -1), tokens, draws)
    rest = 1 - found.select.sum(-1)
    emitted = weights @ (rest[:, None] * found.residual)
    emitted = emitted.index_add(0, tokens.flatten(), (weights[:, None] * found.select).flatten())
    return (
        emitted,
        float(weights @ (rest * (1 - found.residual.sum(-1)))),
        float(weights @ accepted(found, tokens)),
    )


# Exactness


@pytest.mark.parametrize(("name", "options", "draws"), RULES)
def test_exact_on_the_battery_and_in_trees(name, options, draws):
    assert worst_error(get_rule(name, **options), draws).error < 1e-12
    if draws is Draws.GREEDY:  # optimal and the older kinds of draws have their own
        assert worst_tree_error(get_verifier(name, **options), draws).error < 1e-12


@pytest.mark.parametrize(("name", "options", "draws"), RULES)
def test_exact_by_an_account_of_its_own(name, options, draws):
    """V up to 6, B up to 4, zeros in p and q; and a target of mass a: V gets a p, and no token gets 1 - a."""
    for seed, (vocab, num_siblings, mass) in enumerate(
        [(6, 2, 1), (4, 4, 1), (4, 3, 0.4), (5, 2, 0.05), (3, 1, 0.9), (4, 2, 0)]
    ):
        for zeros in (0, 1, vocab - 1):
            p, q = (
                mass * random_law(vocab, rng(seed), zeros % vocab),
                random_law(vocab, rng(seed + 9), zeros // 2),
            )
            emitted, missing, _ = over_tuples(get_rule(name, **options), p, q, num_siblings, draws)
            assert (emitted - p).abs().max() < 1e-12 and missing == pytest.approx(1 - mass, abs=1e-12)


@pytest.mark.parametrize("name", list(SUPPORTED))
def test_other_draws_are_refused(name):
    assert supported_draws(get_rule(name)) == SUPPORTED[name]
    p = law(1, 1, 1)
    for draws in set(Draws) - set(SUPPORTED[name]):
        message = f"{name} is not exact for draws '{draws}'; supported: {', '.join(SUPPORTED[name])}$"
        with pytest.raises(InvalidInput, match=message):
            get_rule(name).law(p, p, torch.tensor([0, 1]), draws)


# naive


def test_naive_by_hand():
    """A token drafted twice is emitted by its first copy; what was not drafted is the residual."""
    p, q = law(0.5, 0.3, 0.2, 0), law(0.1, 0.2, 0.3, 0.4)
    found = get_rule("naive").law(p, q, torch.tensor([1, 3, 1, 2, 1]), Draws.IID)
    assert found.select.tolist() == pytest.approx([0.3, 0, 0, 0.2, 0])
    assert found.residual.tolist() == pytest.approx([1, 0, 0, 0])
    half = get_rule("naive").law(p / 2, q, torch.tensor([1, 2]), Draws.POINT_MASS)
    assert half.select.tolist() == pytest.approx([0.15, 0.1]) and half.residual.tolist() == pytest.approx(
        [0.25 / 0.75, 0, 0, 0]
    )


# kseq


def test_kseq_takes_the_least_factor_that_is_exact():
    """By scanning r: the conditions of the paper, 1 - (1 - b)^B <= r b for b = sum min(p / r, q)."""
    for seed, num_siblings in itertools.product(range(6), (1, 2, 3, 8)):
        p, q = random_law(30, rng(seed), 3), random_law(30, rng(seed + 50), 3)
        factors = torch.linspace(1, num_siblings, 20001, dtype=torch.float64)
        passing = torch.minimum(p / factors[:, None], q).sum(-1)
        is_exact = 1 - (1 - passing) ** num_siblings <= factors * passing + 1e-12
        least = factors[is_exact].min() if num_siblings > 1 else 1.0
        assert float(_least_factor(p, q, num_siblings)) == pytest.approx(
            float(least), abs=num_siblings / 10000
        )


def test_kseq_by_hand():
    """p = (1, 0), q = (1/2, 1/2), B = 2: b = 1/2 for r <= 2, 3/4 = r / 2 gives r = 3/2."""
    p, q = law(1, 0), law(1, 1)
    found = get_rule("kseq").law(
        p.expand(3, -1), q.expand(3, -1), torch.tensor([[0, 1], [1, 0], [1, 1]]), Draws.IID
    )
    assert found.select.flatten().tolist() == pytest.approx([1, 0, 0, 1, 0, 0])
    p, q = law(3, 1), law(1, 3)  # b = 1 / 4 + 1 / (4 r), 1 - (1 - b)^2 = r b
    factor = float(_least_factor(p, q, 2))
    passing = 1 / 4 + 1 / (4 * factor)
    assert 1 - (1 - passing) ** 2 == pytest.approx(factor * passing, abs=1e-6)
    found = get_rule("kseq").law(p, q, torch.tensor([1, 1]), Draws.IID)
    accept = (1 / 4) / (factor * 3 / 4)
    assert found.select.tolist() == pytest.approx([accept, accept * (1 - accept)])
    assert found.residual.tolist() == pytest.approx([1, 0], abs=1e-4)


def test_kseq_keeps_its_guarantee_and_the_ceiling():
    for case, kind in enumerate(KINDS * 15):
        p, q = pair_of_laws(kind, 2 + case % 5, rng(case))
        highest = float(ceiling(p, q, 1 + case % 4, Draws.IID))
        found = over_tuples(get_rule("kseq"), p, q, 1 + case % 4, Draws.IID)[2]
        assert (1 - 1 / torch.e) * highest - 1e-9 <= found <= highest + 1e-9


# greedy


def test_greedy_attains_its_ceiling():
    for case, kind in enumerate(KINDS * 15):
        vocab, num_siblings = 3 + case % 4, 1 + case % 3
        p, q = pair_of_laws(kind, vocab, rng(case))
        highest = float(ceiling(p, q, num_siblings, Draws.GREEDY))
        found = over_tuples(get_rule("greedy"), p, q, num_siblings, Draws.GREEDY)[2]
        # with ties the ceiling is for the best choice among them
        has_ties = int((q == 0).sum()) > 1 or len(set(q.tolist())) < vocab
        assert found <= highest + 1e-9 and (has_ties or found == pytest.approx(highest, abs=1e-9))


def test_greedy_by_hand():
    """q = (.5, .3, .2), B = 2: D = {0}, r = (0, .6, .4). p = (.2, .2, .6): sum min = .6, .8 with P(D)."""
    p, q = law(0.2, 0.2, 0.6), law(0.5, 0.3, 0.2)
    assert float(ceiling(p, q, 2, Draws.GREEDY)) == pytest.approx(0.8)
    found = get_rule("greedy").law(
        p.expand(2, -1), q.expand(2, -1), torch.tensor([[0, 1], [0, 2]]), Draws.GREEDY
    )
    # After 1 was refused, with probability 2/3, the residual is (.2, 0, .2) / .4: half of it is token 0's.
    assert found.select.flatten().tolist() == pytest.approx([1 / 3, 1 / 3, 0, 1])
    assert found.residual[0].tolist() == pytest.approx([0, 0, 1])


def test_greedy_with_one_sibling_is_speculative_sampling_and_without_mass_the_last_is_uniform():
    p, q = random_law(6, rng(0)), random_law(6, rng(1))
    one = torch.tensor([[0], [3]])
    found, plain = (
        get_rule(n).law(p.expand(2, -1), q.expand(2, -1), one, d)
        for n, d in (("greedy", Draws.GREEDY), ("standard", Draws.IID))
    )
    assert torch.allclose(found.select, plain.select) and torch.allclose(found.residual, plain.residual)
    p, q = law(0.1, 0.2, 0.3, 0.4), law(0, 1, 0, 0)
    drawn = Draws.GREEDY.draw(q.expand(3000, -1), 2, rng(2))
    assert (drawn[:, 0] == 1).all() and torch.allclose(
        torch.bincount(drawn[:, 1]) / 3000, torch.tensor([1, 0, 1, 1]) / 3, atol=0.04
    )
    found = get_rule("greedy").law(p, q, torch.tensor([1, 0]), Draws.GREEDY)
    assert float(found.select[1]) == pytest.approx(0.3)  # p = .1 and r = 1/3


@pytest.mark.parametrize("seed", range(3))
def test_greedy_siblings_are_drafted_by_the_draft_model(seed):
    pair = table_pair(vocab=6, seed=seed)
    drafted = DraftModel(complete(3, 3), Draws.GREEDY).session(pair, Warp(), 64).draft(2, rng(seed))
    for node, children in enumerate(drafted.tree.topology.children):
        tokens = drafted.tree.tokens[list(children)].tolist()
        if children:
            assert tokens[:2] == drafted.probs[node].topk(2).indices.tolist() and tokens[2] not in tokens[:2]
    with pytest.raises(
        InvalidInput, match="greedy draws: nodes of one level differ in their number of children"
    ):
        DraftModel(from_child_counts([[2], [2, 1]]), Draws.GREEDY)
    DraftModel(from_child_counts([[2], [0, 2]]), Draws.GREEDY)


# What all have in common


@pytest.mark.parametrize(("name", "options", "draws"), RULES)
def test_a_batch_equals_its_rows_and_inputs_stay(name, options, draws):
    p = torch.stack([random_law(7, rng(seed), 1) for seed in range(6)])
    q = torch.stack([random_law(7, rng(seed + 9), 1) for seed in range(6)])
    siblings = draws.draw(q, 3, rng(4))
    before = p.clone(), q.clone(), siblings.clone()
    rule = get_rule(name, **options)
    whole = rule.law(p.view(2, 3, 7), q.view(2, 3, 7), siblings.view(2, 3, 3), draws)
    assert all(torch.equal(old, new) for old, new in zip(before, (p, q, siblings), strict=True))
    for row in range(6):
        one = rule.law(p[row], q[row], siblings[row], draws)
        assert torch.allclose(whole.select.view(6, 3)[row], one.select) and whole.select.shape == (2, 3, 3)
        assert torch.allclose(whole.residual.view(6, 7)[row], one.residual)


@pytest.mark.parametrize(("name", "options", "draws"), RULES)
def test_no_branch_looks_at_the_data(name, options, draws):
    """Tracing refuses to read a value; a trace made with some laws gives the law of others, corners too."""

    def traced(p, q, siblings):
        found = get_rule(name, **options).law(p, q, siblings, draws)
        return found.select, found.residual

    pairs = [torch.stack(pair_of_laws(kind, 5, rng(seed))) for seed, kind in enumerate(KINDS)]
    inputs = [(p, q, draws.draw(q, 3, rng(0))) for p, q in pairs]
    graph = make_fx(traced, tracing_mode="fake")(*inputs[0])
    for one in inputs:
        assert all(torch.equal(a, b) for a, b in zip(graph(*one), traced(*one), strict=True))


@pytest.mark.parametrize(("name", "options", "draws"), RULES)
@settings(max_examples=60, deadline=None)
@given(case=corners())
def test_laws_are_laws(name, options, draws, case):
    p, q, siblings = case
    if draws is not Draws.IID:
        siblings = torch.tensor(list(dict.fromkeys(siblings.tolist())))
    found = get_rule(name, **options).law(p, q, siblings, draws)
    assert (found.select >= 0).all() and found.select.sum() <= 1 + 1e-6
    assert (found.residual >= 0).all() and found.residual.sum().item() == pytest.approx(1, abs=1e-5)
    assert (found.residual[p == 0] == 0).all() and (found.select[p[siblings] == 0] == 0).all()


# Numerics


def large_pairs(vocab):
    """Laws at a real vocabulary, float64, whose float32 copies are what a rule gets."""
    logits = 2.5 * torch.randn(vocab, generator=rng(0), dtype=torch.float64)
    other = logits + torch.randn(vocab, generator=rng(1), dtype=torch.float64)
    half = torch.arange(vocab) < vocab // 2
    flat, one_hot = (
        torch.full_like(logits, 1 / vocab),
        torch.zeros_like(logits).index_fill(0, torch.tensor([7]), 1.0),
    )
    zeros = torch.where(half, -torch.inf, logits).softmax(-1)
    return {
        "ordinary": (logits.softmax(-1), other.softmax(-1)),
        "peaked": ((logits / 0.1).softmax(-1), (other / 0.1).softmax(-1)),
        "peaked target": ((logits / 0.1).softmax(-1), other.softmax(-1)),
        "peaked draft": (logits.softmax(-1), (other / 0.1).softmax(-1)),
        "flat": (flat, flat),
        "flat draft": (logits.softmax(-1), flat),
        "one-hot target": (one_hot, other.softmax(-1)),
        "one-hot draft": (logits.softmax(-1), one_hot),
        "zeros in p": (zeros, other.softmax(-1)),
        "zeros in q": (other.softmax(-1), zeros),
        "p = q": (logits.softmax(-1), logits.softmax(-1)),
        "disjoint": (zeros, torch.where(half, logits, -torch.inf).softmax(-1)),
    }


@pytest.mark.parametrize("vocab", [32_000, 128_256])
@pytest.mark.parametrize("kind", list(large_pairs(10)))
@pytest.mark.parametrize(("name", "options", "draws"), RULES)
def test_laws_at_a_large_vocabulary(name, options, draws, kind, vocab):
    if options and vocab > 100_000 and kind not in ("ordinary", "peaked", "p = q"):
        pytest.skip("sorting is slow, and the kinds are tried at 32,000 tokens")
    p, q = large_pairs(vocab)[kind]
    siblings = draws.draw(q.expand(5, -1), 3, rng(2))
    rule, found = get_rule(name, **options), []
    for dtype in (torch.float32, torch.float64):
        target, draft = p.to(dtype).expand(5, -1), q.to(dtype).expand(5, -1)
        law = rule.law(target, draft, siblings, draws)
        assert (
            law.select.isfinite().all()
            and law.residual.isfinite().all()
            and law.select.dtype == law.residual.dtype == dtype
        )
        assert (law.select >= 0).all() and (law.select.sum(-1) <= 1 + 1e-6).all()
        assert (law.residual >= 0).all() and torch.allclose(law.residual.sum(-1), target.sum(-1), atol=1e-5)
        rest = 1 - law.select.double().sum(-1, keepdim=True)
        found.append((rest * law.residual.double()).scatter_add(-1, siblings, law.select.double()))
    # near p = q rounding chooses among factors that accept equally often
    is_flat = name == "kseq" and kind in ("p = q", "flat")
    assert is_flat or (found[0] - found[1]).abs().sum(-1).max() / 2 < 1e-4


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(
    ("name", "options", "draws"), [*RULES, *(("resispec", {}, draws) for draws in Draws)]
)
@pytest.mark.parametrize("nodes", [(), (5,)], ids=["one node", "batch"])
def test_a_law_in_a_cuda_graph(name, options, draws, nodes):
    """Captured once and replayed on other inputs, corners too: what the eager call says, here and on CPU."""
    rule, count = get_rule(name, **options), 3
    every = list(large_pairs(2000).values())
    every = [tuple(x.float().expand(*nodes, -1) for x in pair) for pair in every]
    inputs = [(p, q, draws.draw(q, count, rng(seed))) for seed, (p, q) in enumerate(every)]
    fixed = [value.contiguous().cuda() for value in inputs[0]]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        rule.law(*fixed, draws)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = rule.law(*fixed, draws)
    for one in inputs:
        for place, value in zip(fixed, one, strict=True):
            place.copy_(value)
        graph.replay()
        eager = rule.law(*fixed, draws)
        assert torch.allclose(replayed.select, eager.select, atol=1e-6)
        assert torch.allclose(replayed.residual, eager.residual, atol=1e-6)
        there, here = (
            (1 - law.select.double().sum(-1, keepdim=True)) * law.residual.double()
            for law in (replayed, rule.law(*one, draws))
        )
        is_flat = name == "kseq" and torch.equal(one[0], one[1])  # as above: rounding chooses among factors
        assert is_flat or (there.cpu() - here).abs().sum(-1).max() < 1e-3
