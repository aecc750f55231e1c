"""Rules as laws: properties of all, at the simplex's corners, by hand, and by name."""

import itertools

import pytest
import torch
from hydra.utils import instantiate
from hypothesis import given, settings
from omegaconf import OmegaConf
from torch.fx.experimental.proxy_tensor import make_fx

from experiments.schema import CONF
from resispec.audit.battery import KINDS, pair_of_laws, supported_draws
from resispec.audit.ceiling import ceiling
from resispec.core import Draws
from resispec.errors import InvalidInput
from resispec.verifiers import (
    Dial,
    Greedy,
    Optimal,
    Standard,
    TopDown,
    Traversal,
    as_verifier,
    available,
    get_rule,
    get_verifier,
)
from resispec.verifiers.dial import Strength
from resispec.verifiers.kseq import _least_factor
from resispec.verifiers.optimal import _largest_root
from tests.accounts import corners, law, over_tuples, random_law, rng
from tests.library.exact_toys import RULES, SUPPORTED

pytestmark = pytest.mark.numerics

RESISPEC = [{}, {"spread": "water_fill"}, {"budget": "capacity"}]
ALL = [*RULES, *(("resispec", options, Draws.WITHOUT_REPLACEMENT) for options in RESISPEC)]


def laws_of(name, p, q, siblings, draws=Draws.IID, **options):
    """The laws of several tuples of siblings (K, B), or of one (B,), under the same p and q."""
    siblings = torch.tensor(siblings)
    p, q = (law.expand(*siblings.shape[:-1], -1) for law in (p, q))
    return get_rule(name, **options).law(p, q, siblings, draws)


# Properties of every rule


@pytest.mark.parametrize("name", list(SUPPORTED))
def test_other_draws_are_refused(name):
    assert supported_draws(get_rule(name)) == SUPPORTED[name]
    p = law(1, 1, 1) / 3
    for draws in set(Draws) - set(SUPPORTED[name]):
        message = (
            f"{name} is not exact for draws '{draws}'; supported: {', '.join(SUPPORTED[name])}$"
        )
        with pytest.raises(InvalidInput, match=message):
            get_rule(name).law(p, p, torch.tensor([0, 1]), draws)


@pytest.mark.parametrize(
    ("name", "options", "draws"), [case for case in ALL if case[0] != "khisti"]
)
def test_a_law_is_batched_and_no_branch_looks_at_the_data(name, options, draws):
    """Tracing refuses to read values; a trace of some laws is right for others, corners, too."""

    def traced(p, q, siblings):
        laws = get_rule(name, **options).law(p, q, siblings, draws)
        return laws.select, laws.residual

    pairs = [torch.stack(pair_of_laws(kind, 5, rng(seed))) for seed, kind in enumerate(KINDS)]
    inputs = [(p, q, draws.draw(q, 3, rng(0))) for p, q in pairs]
    graph = make_fx(traced, tracing_mode="fake")(*inputs[0])
    single = [traced(*one) for one in inputs]
    for one, wanted in zip(inputs, single, strict=True):
        before = [value.clone() for value in one]
        assert all(torch.equal(a, b) for a, b in zip(graph(*one), wanted, strict=True))
        assert all(torch.equal(a, b) for a, b in zip(one, before, strict=True))
    whole = traced(
        *(torch.stack(column).unflatten(0, (3, 3)) for column in zip(*inputs, strict=True))
    )
    for batch, rows in zip(whole, zip(*single, strict=True), strict=True):
        assert torch.allclose(batch.flatten(0, 1), torch.stack(rows))


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


def test_a_nan_is_not_hidden():
    """A NaN at a token that was not drafted left the law before it, as if nothing were wrong."""
    p, q = law(0.5, 0.3, 0.2), law(0.2, 0.4, torch.nan)
    for name in ("standard", "resispec"):
        assert laws_of(name, p, q, [1, 0]).residual.isnan().any()
    for bins, laws in itertools.product((0, 8), ((p, q), (q, p))):
        assert laws_of("optimal", *laws, [0, 1], bins=bins).select.isnan().all()


# ResiSpec


def test_a_point_mass_leaves_no_freedom():
    """Recursive rules are exact for deterministic candidates; ResiSpec is the standard rule."""
    p, q, siblings = random_law(6, rng(1), 1), random_law(6, rng(2)), [4, 0, 2]
    for name, options in [("standard", {}), *(("resispec", options) for options in RESISPEC)]:
        laws = laws_of(name, p, q, siblings, Draws.POINT_MASS, **options)
        assert torch.allclose(laws.select, p[siblings], atol=1e-12)
        undrafted = p.scatter(0, torch.tensor(siblings), 0)
        assert torch.allclose(laws.residual, undrafted / undrafted.sum(), atol=1e-12)


def algorithm_1(p, q, siblings):
    """The paper's Algorithm 1 with GetProxy, on floats: (acceptance of each sibling, last R)."""

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
def test_a_residual_meets_its_budget_below_capacity(options):
    generator, reshape = rng(3), get_rule("resispec", **options).reshape
    for _ in range(60):
        p, q = random_law(6, generator, 1), random_law(6, generator, 1)
        x0 = int((q - p).argmax())
        budget = float(q[x0] - p[x0])
        if "budget" in options:
            budget = max(budget, min(float(a / b) for a, b in zip(p, q, strict=True) if b > 0))
        r = reshape(p, q, torch.tensor([x0]))
        room = float(p.sum() - p[x0])
        assert (
            r.sum().item() == pytest.approx(min(budget, room))
            and (r <= p + 1e-12).all()
            and r[x0] == 0
        )
        if "spread" in options:
            level = (r / q)[(q > 0) & (r < p - 1e-12) & (r > 0)]
            assert level.numel() == 0 or level.max() - level.min() < 1e-9 or (r[q == 0] > 0).any()


@pytest.mark.parametrize("spread", ["proportional", "water_fill"])
def test_the_capacity_budget_never_exceeds_the_capacity(spread):
    p, q = torch.tensor([0.9, 0.06, 0.04]).double(), torch.tensor([0.92, 0.05, 0.03]).double()
    residual = get_rule("resispec", spread=spread, budget="capacity").reshape(
        p, q, torch.tensor([0])
    )
    assert residual.tolist() == pytest.approx([0, 0.06, 0.04])


# naive, kseq, greedy and optimal


def test_kseq_takes_the_least_factor_that_is_exact():
    """By scanning r: the paper's condition 1 - (1 - b)^B <= r b for b = sum min(p / r, q)."""
    for seed, num_siblings in itertools.product(range(4), (1, 2, 3, 8)):
        p, q = random_law(30, rng(seed), 3), random_law(30, rng(seed + 50), 3)
        factors = torch.linspace(1, num_siblings, 20001, dtype=torch.float64)
        passing = torch.minimum(p / factors[:, None], q).sum(-1)
        is_exact = 1 - (1 - passing) ** num_siblings <= factors * passing + 1e-12
        least = float(factors[is_exact].min()) if num_siblings > 1 else 1.0
        assert float(_least_factor(p, q, num_siblings)) == pytest.approx(
            least, abs=num_siblings / 10000
        )


def test_acceptances_keep_to_the_ceiling():
    """Optimal attains it, kseq all but 1/e; greedy its own, with ties that of the best choice."""
    for case, kind in enumerate(KINDS * 8):
        vocab, num_siblings = 3 + case % 4, 1 + case % 3
        p, q = pair_of_laws(kind, vocab, rng(case))
        highest = float(ceiling(p, q, num_siblings, Draws.IID))
        rules = get_rule("kseq"), get_rule("optimal", bins=0)
        kseq, optimal = (over_tuples(rule, p, q, num_siblings, Draws.IID)[2] for rule in rules)
        assert (1 - 1 / torch.e) * highest - 1e-9 <= kseq <= highest + 1e-9
        assert optimal == pytest.approx(highest, abs=1e-9)
        highest = float(ceiling(p, q, num_siblings, Draws.GREEDY))
        greedy = over_tuples(get_rule("greedy"), p, q, num_siblings, Draws.GREEDY)[2]
        has_ties = int((q == 0).sum()) > 1 or len(set(q.tolist())) < vocab
        assert greedy <= highest + 1e-9 and (has_ties or greedy == pytest.approx(highest, abs=1e-9))


@pytest.mark.parametrize("power", [2, 3, 7, 100])
def test_roots_of_lines_against_a_power(power):
    """From simple roots to double ones, known only to the square root of the precision."""
    least = power ** (-1 / (power - 1))
    near = least + torch.logspace(-9, -2, 50).double()
    root = torch.cat((torch.linspace(least, 1, 2001).double(), near)).clamp_max(1)
    for scale in (0.3, 0.9, 1.0):
        slope, wanted = torch.full_like(root, scale ** (power - 1)), scale * root
        error = (_largest_root(slope, slope * wanted - wanted**power, power) - wanted).abs()
        assert (error * (root - least) / scale < 1e-13).all() and (error < 3e-8 * scale).all()


# Names


def test_the_class_that_a_yaml_names_is_the_one_of_that_name():
    """With its defaults; those of a whole tree and a dial are made of a rule."""
    nodes = {path.stem: OmegaConf.load(path) for path in (CONF / "verifier").glob("*.yaml")}
    for node in nodes.values():
        node.pop("label", None)  # the text that tables print
    trees = {"traversal": Traversal(Standard()), "traversal_optimal": Traversal(Optimal())}
    trees |= {"univer": Traversal(Greedy()), "dial": Dial(Optimal(), Strength(chance=0.5))}
    assert set(nodes) == {*available(), "custom", "spec_hub"} and available()[:2] == [
        "standard",
        "resispec",
    ]
    for name in available():
        verifier = instantiate(nodes[name])
        assert as_verifier(verifier) == get_verifier(name)
        assert verifier == trees.get(name, verifier) and (
            name in trees or type(verifier)() == verifier
        )
    assert instantiate(nodes["custom"], name="standard") == TopDown(Standard())


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("nope", {}, "unknown verifier 'nope'; known: standard, resispec"),
        ("resispec", {"spread": "x"}, "unknown spread 'x'; allowed: proportional, water_fill"),
        ("standard", {"spread": "x"}, "verifier 'standard'"),
        ("optimal", {"bins": 1}, "optimal: 1 bins; allowed: at least 2, or 0"),
        ("level_optimal", {"bins": 1}, "level_optimal: 1 bins; allowed: at least 2"),
        ("level_optimal", {"classes": 0}, "level_optimal: 0 classes; allowed: at least 2"),
        ("traversal", {}, "'traversal' is a tree verifier, not a sibling rule"),
    ],
)
def test_what_is_no_rule_is_refused_with_what_is_known(name, options, message):
    with pytest.raises(InvalidInput, match=message):
        get_rule(name, **options)
