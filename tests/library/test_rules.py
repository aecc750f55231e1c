"""Rules as laws: exact by enumeration, at the simplex's corners, by hand, and by name."""

import itertools
from pathlib import Path

import pytest
import torch
from accounts import corners, emitted_law, law, random_law, rng, tuples
from hydra.utils import instantiate
from hypothesis import given, settings
from omegaconf import OmegaConf
from torch.fx.experimental.proxy_tensor import make_fx
from toys import table_pair

from resispec import verifiers
from resispec.audit.battery import KINDS, pair_of_laws, supported_draws
from resispec.audit.ceiling import ceiling
from resispec.audit.row_checks import accepted
from resispec.core import Draws
from resispec.drafters import DraftModel
from resispec.errors import InvalidInput
from resispec.models import Warp
from resispec.trees import complete, from_child_counts
from resispec.verifiers import Optimal, Standard, TopDown, Traversal, available, get_rule, get_verifier
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
RESISPEC = [{}, {"spread": "water_fill"}, {"budget": "capacity"}]
ALL = [*RULES, *(("resispec", options, Draws.WITHOUT_REPLACEMENT) for options in RESISPEC)]


def over_tuples(rule, p, q, num_siblings, draws):
    """By an independent account of the draws: emitted law, mass of no token at all, acceptance."""
    drafted = tuples(q.tolist(), num_siblings, draws)
    tokens = torch.tensor([list(siblings) for siblings, _ in drafted])
    weights = torch.tensor([weight for _, weight in drafted], dtype=torch.float64)
    laws = rule.law(p.expand(len(tokens), -1), q.expand(len(tokens), -1), tokens, draws)
    rest = 1 - laws.select.sum(-1)
    emitted = weights @ (rest[:, None] * laws.residual)
    emitted = emitted.index_add(0, tokens.flatten(), (weights[:, None] * laws.select).flatten())
    missing = float(weights @ (rest * (1 - laws.residual.sum(-1))))
    return emitted, missing, float(weights @ accepted(laws, tokens))


# Properties of every rule


@pytest.mark.parametrize(("name", "options", "draws"), RULES)
def test_exact_by_an_account_of_its_own(name, options, draws):
    """V up to 6, B up to 4, zeros in p and q; and a target of mass a: V gets a p, and no token gets 1 - a."""
    for seed, (vocab, num_siblings, mass) in enumerate(
        [(6, 2, 1), (4, 4, 1), (4, 3, 0.4), (5, 2, 0.05), (3, 1, 0.9), (4, 2, 0)]
    ):
        for zeros in (0, 1, vocab - 1):
            p = mass * random_law(vocab, rng(seed), zeros % vocab)
            q = random_law(vocab, rng(seed + 9), zeros // 2)
            emitted, missing, _ = over_tuples(get_rule(name, **options), p, q, num_siblings, draws)
            assert (emitted - p).abs().max() < 1e-12 and missing == pytest.approx(1 - mass, abs=1e-12)


@pytest.mark.parametrize("name", list(SUPPORTED))
def test_other_draws_are_refused(name):
    assert supported_draws(get_rule(name)) == SUPPORTED[name]
    p = law(1, 1, 1) / 3
    for draws in set(Draws) - set(SUPPORTED[name]):
        message = f"{name} is not exact for draws '{draws}'; supported: {', '.join(SUPPORTED[name])}$"
        with pytest.raises(InvalidInput, match=message):
            get_rule(name).law(p, p, torch.tensor([0, 1]), draws)


@pytest.mark.parametrize(("name", "options", "draws"), ALL)
def test_a_batch_equals_its_rows_and_inputs_stay(name, options, draws):
    p, q = (torch.stack([random_law(7, rng(seed + one), 1) for seed in range(6)]) for one in (0, 9))
    siblings = draws.draw(q, 3, rng(4))
    before = p.clone(), q.clone(), siblings.clone()
    rule = get_rule(name, **options)
    whole = rule.law(p.view(2, 3, 7), q.view(2, 3, 7), siblings.view(2, 3, 3), draws)
    assert all(torch.equal(old, new) for old, new in zip(before, (p, q, siblings), strict=True))
    for row in range(6):
        single = rule.law(p[row], q[row], siblings[row], draws)
        assert torch.allclose(whole.select.view(6, 3)[row], single.select)
        assert torch.allclose(whole.residual.view(6, 7)[row], single.residual)


@pytest.mark.parametrize(("name", "options", "draws"), ALL)
def test_no_branch_looks_at_the_data(name, options, draws):
    """Tracing refuses to read a value; a trace made with some laws gives the law of others, corners too."""

    def traced(p, q, siblings):
        laws = get_rule(name, **options).law(p, q, siblings, draws)
        return laws.select, laws.residual

    pairs = [torch.stack(pair_of_laws(kind, 5, rng(seed))) for seed, kind in enumerate(KINDS)]
    inputs = [(p, q, draws.draw(q, 3, rng(0))) for p, q in pairs]
    graph = make_fx(traced, tracing_mode="fake")(*inputs[0])
    for one in inputs:
        assert all(torch.equal(a, b) for a, b in zip(graph(*one), traced(*one), strict=True))


@pytest.mark.parametrize(("name", "options", "draws"), ALL)
@settings(max_examples=40, deadline=None)
@given(case=corners())
def test_laws_are_laws(name, options, draws, case):
    p, q, siblings = case
    if draws != Draws.IID:
        siblings = torch.tensor(list(dict.fromkeys(siblings.tolist())))
    laws = get_rule(name, **options).law(p, q, siblings, draws)
    assert (laws.select >= 0).all() and laws.select.sum() <= 1 + 1e-6
    assert (laws.residual >= 0).all() and laws.residual.sum().item() == pytest.approx(1, abs=1e-5)
    assert (laws.residual[p == 0] == 0).all() and (laws.select[p[siblings] == 0] == 0).all()


@pytest.mark.parametrize("name", ["standard", "resispec"])
def test_a_nan_of_the_draft_is_not_hidden(name):
    """Where it was at a token that was not drafted, the law before it stood, as if nothing were wrong."""
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.4, torch.nan])
    assert get_rule(name).law(p, q, torch.tensor([1, 0]), Draws.IID).residual.isnan().any()


def test_equal_laws_accept_the_first_and_one_hot_laws_agree():
    p, one_hot = torch.tensor([0.2, 0.5, 0.3]), torch.tensor([0.0, 1.0, 0.0])
    for name, options in [("standard", {}), *(("resispec", options) for options in RESISPEC)]:
        rule = get_rule(name, **options)
        assert rule.law(p, p, torch.tensor([2, 0]), Draws.IID).select.tolist() == [1, 0]
        assert rule.law(one_hot, p, torch.tensor([0, 1]), Draws.IID).select.tolist() == [0, 1]


# ResiSpec


@pytest.mark.parametrize("options", RESISPEC)
def test_a_point_mass_leaves_no_freedom(options):
    """For deterministic candidates every recursive rule is exact, and ResiSpec equals the standard rule."""
    p, q, siblings = random_law(6, rng(1), 1), random_law(6, rng(2)), torch.tensor([4, 0, 2])
    for rule in (get_rule("standard"), get_rule("resispec", **options)):
        laws = rule.law(p, q, siblings, Draws.POINT_MASS)
        assert torch.allclose(laws.select, p[siblings], atol=1e-12)
        assert torch.allclose(laws.residual, p.scatter(0, siblings, 0) / (1 - p[siblings].sum()), atol=1e-12)


def algorithm_1(p, q, siblings):
    """The paper's Algorithm 1 with GetProxy, on Python floats: (acceptance of each sibling, last R)."""

    def get_proxy(p, q, x0):
        budget = q[x0] - p[x0]
        r = [0.0 if i == x0 else min(budget * q[i], p[i]) for i in range(len(p))]
        missing = budget - sum(r)
        room = [0.0 if i == x0 else p[i] - r[i] for i in range(len(p))]
        if sum(room) > 0:
            r = [r[i] + missing * room[i] / sum(room) for i in range(len(p))]
        k = [p[i] - r[i] for i in range(len(p))]
        k[x0] = q[x0]
        return k

    current, alive, select = list(p), 1.0, []
    for x in siblings:
        accept = min(1.0, current[x] / q[x])
        select.append(alive * accept)
        alive *= 1 - accept
        if accept < 1:
            k = get_proxy(current, q, x)
            left = [max(current[i] - k[i], 0.0) for i in range(len(p))]
            current = [value / sum(left) for value in left]
    return select, current


def test_resispec_is_algorithm_1():
    generator = rng(2)
    for vocab, num_siblings in [(2, 1), (3, 2), (4, 3), (5, 3), (8, 4)] * 10:
        p, q = random_law(vocab, generator), random_law(vocab, generator)
        siblings = torch.randint(vocab, (num_siblings,), generator=generator)
        laws = get_rule("resispec").law(p, q, siblings, Draws.IID)
        select, residual = algorithm_1(p.tolist(), q.tolist(), siblings.tolist())
        assert laws.select.tolist() == pytest.approx(select, abs=1e-12)
        assert laws.residual.tolist() == pytest.approx(residual, abs=1e-10)


@pytest.mark.parametrize("options", RESISPEC)
def test_the_three_token_example_is_biased(options):
    """p = (.5, .3, .2), q = (.2, .4, .4), one candidate: acceptance gives token 3 all p(3); then more."""
    p, q = law(0.5, 0.3, 0.2), law(0.2, 0.4, 0.4)
    emitted = emitted_law(get_rule("resispec", **options), p, q, 1, Draws.IID)
    assert emitted[2] > 0.2 + 1e-3 and (emitted - p).abs().sum() / 2 > 1e-3
    if not options:
        # By hand: x=2 is refused w.p. .4 * 1/4 = .1 and leaves r = (.02, 0, .04) + .04 * (.48, 0, .16) / .64
        # = (.05, 0, .05); x=3 is refused w.p. .4 * 1/2 = .2 and leaves r = (.04, .08, 0) + .08 * (.46, .22,
        # 0) / .68, of mass .2.
        first, second = law(0.05, 0, 0.05), law(0.04 + 0.0368 / 0.68, 0.08 + 0.0176 / 0.68, 0)
        assert emitted.tolist() == pytest.approx((torch.minimum(p, q) + first + second).tolist(), abs=1e-7)


def test_water_filling_meets_its_budget_below_capacity():
    generator, reshape = rng(3), get_rule("resispec", spread="water_fill").reshape
    for _ in range(60):
        p, q = random_law(6, generator, 1), random_law(6, generator, 1)
        x0 = int((q - p).argmax())
        r = reshape(p, q, torch.tensor([x0]))
        level = (r / q)[(q > 0) & (r < p - 1e-12) & (r > 0)]
        assert r.sum().item() == pytest.approx(float(q[x0] - p[x0])) and (r <= p + 1e-12).all() and r[x0] == 0
        assert level.numel() == 0 or (level.max() - level.min() < 1e-9 or (r[q == 0] > 0).any())


def test_a_target_of_less_than_full_mass_leaves_a_rejection():
    """Two tokens of a third each: the null outcome of the last third is a token that no draft proposes."""
    p, q = law(1 / 3, 1 / 3), law(0.9, 0.1)
    padded = law(1 / 3, 1 / 3, 1 / 3), law(0.9, 0.1, 0.0)
    for siblings in ([0], [1], [0, 0], [1, 0]):
        laws = get_rule("standard").law(p, q, torch.tensor(siblings), Draws.IID)
        full = get_rule("standard").law(*padded, torch.tensor(siblings), Draws.IID)
        assert laws.select.tolist() == pytest.approx(full.select.tolist())
        assert laws.residual.tolist() == pytest.approx(full.residual[:2].tolist())


# naive, kseq and greedy


def test_naive_by_hand():
    """A token drafted twice is emitted by its first copy; the residual is without what was drafted."""
    p, q = law(0.5, 0.3, 0.2, 0), law(0.1, 0.2, 0.3, 0.4)
    laws = get_rule("naive").law(p, q, torch.tensor([1, 3, 1, 2, 1]), Draws.IID)
    assert laws.select.tolist() == pytest.approx([0.3, 0, 0, 0.2, 0])
    assert laws.residual.tolist() == pytest.approx([1, 0, 0, 0])
    half = get_rule("naive").law(p / 2, q, torch.tensor([1, 2]), Draws.POINT_MASS)
    assert half.select.tolist() == pytest.approx([0.15, 0.1])
    assert half.residual.tolist() == pytest.approx([0.25 / 0.75, 0, 0, 0])


def test_kseq_takes_the_least_factor_that_is_exact():
    """By scanning r: the conditions of the paper, 1 - (1 - b)^B <= r b for b = sum min(p / r, q)."""
    for seed, num_siblings in itertools.product(range(4), (1, 2, 3, 8)):
        p, q = random_law(30, rng(seed), 3), random_law(30, rng(seed + 50), 3)
        factors = torch.linspace(1, num_siblings, 20001, dtype=torch.float64)
        passing = torch.minimum(p / factors[:, None], q).sum(-1)
        is_exact = 1 - (1 - passing) ** num_siblings <= factors * passing + 1e-12
        least = float(factors[is_exact].min()) if num_siblings > 1 else 1.0
        assert float(_least_factor(p, q, num_siblings)) == pytest.approx(least, abs=num_siblings / 10000)


def test_kseq_by_hand():
    """p = (1, 0), q = (1/2, 1/2), B = 2: b = 1/2 for r <= 2, 3/4 = r / 2 gives r = 3/2."""
    p, q, pairs = law(1, 0), law(0.5, 0.5), torch.tensor([[0, 1], [1, 0], [1, 1]])
    laws = get_rule("kseq").law(p.expand(3, -1), q.expand(3, -1), pairs, Draws.IID)
    assert laws.select.flatten().tolist() == pytest.approx([1, 0, 0, 1, 0, 0])
    p, q = law(0.75, 0.25), law(0.25, 0.75)  # b = 1 / 4 + 1 / (4 r), 1 - (1 - b)^2 = r b
    factor = float(_least_factor(p, q, 2))
    passing = 1 / 4 + 1 / (4 * factor)
    assert 1 - (1 - passing) ** 2 == pytest.approx(factor * passing, abs=1e-6)
    laws = get_rule("kseq").law(p, q, torch.tensor([1, 1]), Draws.IID)
    accept = (1 / 4) / (factor * 3 / 4)
    assert laws.select.tolist() == pytest.approx([accept, accept * (1 - accept)])
    assert laws.residual.tolist() == pytest.approx([1, 0], abs=1e-4)


def test_kseq_keeps_its_guarantee_and_greedy_attains_its_ceiling():
    for case, kind in enumerate(KINDS * 8):
        p, q = pair_of_laws(kind, 2 + case % 5, rng(case))
        highest = float(ceiling(p, q, 1 + case % 4, Draws.IID))
        acceptance = over_tuples(get_rule("kseq"), p, q, 1 + case % 4, Draws.IID)[2]
        assert (1 - 1 / torch.e) * highest - 1e-9 <= acceptance <= highest + 1e-9
        vocab, num_siblings = 3 + case % 4, 1 + case % 3
        p, q = pair_of_laws(kind, vocab, rng(case))
        highest = float(ceiling(p, q, num_siblings, Draws.GREEDY))
        acceptance = over_tuples(get_rule("greedy"), p, q, num_siblings, Draws.GREEDY)[2]
        # With ties the ceiling is for the best choice among them.
        has_ties = int((q == 0).sum()) > 1 or len(set(q.tolist())) < vocab
        assert acceptance <= highest + 1e-9
        assert has_ties or acceptance == pytest.approx(highest, abs=1e-9)


def test_greedy_by_hand():
    """q = (.5, .3, .2), B = 2: D = {0}, r = (0, .6, .4). p = (.2, .2, .6): sum min = .6, .8 with P(D)."""
    p, q = law(0.2, 0.2, 0.6), law(0.5, 0.3, 0.2)
    assert float(ceiling(p, q, 2, Draws.GREEDY)) == pytest.approx(0.8)
    pairs = torch.tensor([[0, 1], [0, 2]])
    laws = get_rule("greedy").law(p.expand(2, -1), q.expand(2, -1), pairs, Draws.GREEDY)
    # After 1 was refused, with probability 2/3, the residual is (.2, 0, .2) / .4: half of it is token 0's.
    assert laws.select.flatten().tolist() == pytest.approx([1 / 3, 1 / 3, 0, 1])
    assert laws.residual[0].tolist() == pytest.approx([0, 0, 1])
    # Without mass the last one is uniform.
    p, q = law(0.1, 0.2, 0.3, 0.4), law(0, 1, 0, 0)
    drawn = Draws.GREEDY.draw(q.expand(3000, -1), 2, rng(2))
    shares = torch.bincount(drawn[:, 1]) / 3000
    assert (drawn[:, 0] == 1).all() and torch.allclose(shares, torch.tensor([1, 0, 1, 1]) / 3, atol=0.04)
    laws = get_rule("greedy").law(p, q, torch.tensor([1, 0]), Draws.GREEDY)
    assert float(laws.select[1]) == pytest.approx(0.3)  # p = .1 and r = 1/3


@pytest.mark.parametrize(("name", "draws"), [("greedy", Draws.GREEDY), ("kseq", Draws.IID)])
def test_one_sibling_is_speculative_sampling(name, draws):
    p, q, one = (
        random_law(6, rng(0)).expand(2, -1),
        random_law(6, rng(1)).expand(2, -1),
        torch.tensor([[0], [3]]),
    )
    laws, plain = (get_rule(name).law(p, q, one, draws), get_rule("standard").law(p, q, one, Draws.IID))
    assert torch.allclose(laws.select, plain.select) and torch.allclose(laws.residual, plain.residual)


def test_greedy_siblings_are_drafted_by_the_draft_model():
    session = DraftModel(complete(3, 3), Draws.GREEDY).session(table_pair(vocab=6), Warp(), 64)
    draft = session.draft(2, rng(0))
    for node, children in enumerate(draft.tree.topology.children):
        tokens = draft.tree.tokens[list(children)].tolist()
        if children:
            assert tokens[:2] == draft.probs[node].topk(2).indices.tolist() and tokens[2] not in tokens[:2]
    with pytest.raises(InvalidInput, match="greedy draws: nodes of one level differ in their number of chil"):
        DraftModel(from_child_counts([[2], [2, 1]]), Draws.GREEDY)
    DraftModel(from_child_counts([[2], [0, 2]]), Draws.GREEDY)


# Names


YAMLS = Path(__file__).parents[2] / "conf" / "verifier"


def unlabelled(path):
    """A verifier's node without the text that tables print for it."""
    node = OmegaConf.load(path)
    node.pop("label", None)
    return node


def test_the_class_that_a_yaml_names_is_the_one_of_that_name():
    """With its defaults; those of a whole tree are `Traversal` with a rule."""
    made = {path.stem: path for path in YAMLS.glob("*.yaml")}
    trees = {"traversal": Traversal(Standard()), "traversal_optimal": Traversal(Optimal())}
    assert set(made) == {*available(), "custom"}
    for name in available():
        verifier = instantiate(unlabelled(made[name]))
        assert verifiers.as_verifier(verifier) == get_verifier(name)
        assert verifier == trees.get(name, verifier) and (name in trees or type(verifier)() == verifier)
    custom = unlabelled(made["custom"])
    custom.name = "standard"
    assert instantiate(custom) == TopDown(Standard())


def test_unknown_names_and_options_say_what_is_known():
    assert available()[:2] == ["standard", "resispec"]
    for make in (get_rule, get_verifier):
        with pytest.raises(InvalidInput, match="unknown verifier 'nope'; known: standard, resispec"):
            make("nope")
    with pytest.raises(InvalidInput, match="unknown spread 'x'; allowed: proportional, water_fill"):
        get_rule("resispec", spread="x")
    with pytest.raises(InvalidInput, match="verifier 'standard'"):
        get_rule("standard", spread="x")
