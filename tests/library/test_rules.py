"""Rules as laws: exactness by enumeration, ResiSpec against the algorithm's text, the simplex's corners."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from accounts import corners, emitted_law, random_law
from hydra.utils import instantiate
from hypothesis import given, settings
from omegaconf import OmegaConf

import resispec
from resispec.core import Draws
from resispec.errors import InvalidInput
from resispec.verifiers import (
    Block,
    Greedy,
    KSeq,
    LevelOptimal,
    Naive,
    Optimal,
    ResiSpec,
    Standard,
    TopDown,
    Traversal,
    as_verifier,
    available,
    get_rule,
    get_verifier,
)

RULES = [
    ("standard", {}),
    ("resispec", {}),
    ("resispec", {"spread": "water_fill"}),
    ("resispec", {"budget": "capacity"}),
]


@pytest.mark.parametrize("draws", [Draws.IID, Draws.WITHOUT_REPLACEMENT])
@pytest.mark.parametrize(("vocab", "num_siblings"), [(1, 1), (2, 1), (2, 2), (3, 1), (3, 3), (4, 2), (5, 3)])
@pytest.mark.parametrize("zeros", [0, 1])
def test_standard_is_exact(draws, vocab, num_siblings, zeros):
    if draws is Draws.WITHOUT_REPLACEMENT and vocab - zeros < num_siblings:
        pytest.skip("fewer tokens than siblings")
    generator = torch.Generator().manual_seed(vocab * 10 + num_siblings)
    zeros = min(zeros, vocab - 1)
    for _ in range(5):
        p, q = random_law(vocab, generator, zeros), random_law(vocab, generator, zeros)
        law = emitted_law(get_rule("standard"), p, q, num_siblings, draws)
        assert (law - p).abs().max() < 1e-12


@pytest.mark.parametrize(("name", "options"), RULES)
def test_a_point_mass_leaves_no_freedom(name, options):
    """For deterministic candidates every recursive rule is exact, and ResiSpec equals the standard rule."""
    generator = torch.Generator().manual_seed(1)
    p, q = random_law(6, generator, 1), random_law(6, generator)
    siblings = torch.tensor([4, 0, 2])
    law = get_rule(name, **options).law(p, q, siblings, Draws.POINT_MASS)
    standard = get_rule("standard").law(p, q, siblings, Draws.POINT_MASS)
    assert torch.allclose(law.select, p[siblings], atol=1e-12) and torch.allclose(
        law.select, standard.select, atol=1e-12
    )
    assert torch.allclose(law.residual, p.scatter(0, siblings, 0) / (1 - p[siblings].sum()), atol=1e-12)


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


@pytest.mark.parametrize("seed", range(2, 5))
def test_resispec_is_algorithm_1(seed):
    generator = torch.Generator().manual_seed(seed)
    for vocab, num_siblings in [(2, 1), (3, 2), (4, 3), (5, 3), (8, 4)]:
        for _ in range(10):
            p, q = random_law(vocab, generator), random_law(vocab, generator)
            siblings = torch.randint(vocab, (num_siblings,), generator=generator)
            law = get_rule("resispec").law(p, q, siblings, Draws.IID)
            select, residual = algorithm_1(p.tolist(), q.tolist(), siblings.tolist())
            assert law.select.tolist() == pytest.approx(select, abs=1e-12)
            assert law.residual.tolist() == pytest.approx(residual, abs=1e-10)


@pytest.mark.parametrize(("name", "options"), RULES[1:])
def test_the_three_token_example_is_biased(name, options):
    """p = (.5, .3, .2), q = (.2, .4, .4), one candidate: acceptance gives token 3 all p(3); then more."""
    p, q = (
        torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64),
        torch.tensor([0.2, 0.4, 0.4], dtype=torch.float64),
    )
    law = emitted_law(get_rule(name, **options), p, q, 1, Draws.IID)
    assert law[2] > 0.2 + 1e-3 and (law - p).abs().sum() / 2 > 1e-3
    if not options:
        # By hand: x=2 is refused w.p. .4 * 1/4 = .1 and leaves r = (.02, 0, .04) + .04 * (.48, 0, .16) / .64
        # = (.05, 0, .05); x=3 is refused w.p. .4 * 1/2 = .2 and leaves r = (.04, .08, 0) + .08 * (.46, .22,
        # 0) / .68, of mass .2.
        first, second = (
            torch.tensor([0.05, 0, 0.05]),
            torch.tensor([0.04 + 0.0368 / 0.68, 0.08 + 0.0176 / 0.68, 0]),
        )
        by_hand = torch.minimum(p, q) + 0.1 * first / 0.1 + 0.2 * second / 0.2
        assert law.tolist() == pytest.approx(by_hand.tolist(), abs=1e-7)


@pytest.mark.parametrize("seed", range(3, 6))
def test_water_filling_meets_its_budget_below_capacity(seed):
    generator = torch.Generator().manual_seed(seed)
    reshape = get_rule("resispec", spread="water_fill").reshape
    for _ in range(50):
        p, q = random_law(6, generator, 1), random_law(6, generator, 1)
        x0 = int((q - p).argmax())
        r = reshape(p, q, torch.tensor([x0]))
        level = (r / q)[(q > 0) & (r < p - 1e-12) & (r > 0)]
        assert r.sum().item() == pytest.approx(float(q[x0] - p[x0])) and (r <= p + 1e-12).all() and r[x0] == 0
        assert level.numel() == 0 or (level.max() - level.min() < 1e-9 or (r[q == 0] > 0).any())


@pytest.mark.parametrize("draws", list(Draws))
@pytest.mark.parametrize(("name", "options"), RULES)
def test_a_batch_equals_its_rows_and_inputs_stay(name, options, draws):
    generator = torch.Generator().manual_seed(4)
    p = torch.stack([random_law(7, generator, 1) for _ in range(6)])
    q = torch.stack([random_law(7, generator, 1) for _ in range(6)])
    siblings = torch.stack([torch.randperm(7, generator=generator)[:3] for _ in range(6)])
    before = p.clone(), q.clone(), siblings.clone()
    rule = get_rule(name, **options)
    whole = rule.law(p.view(2, 3, 7), q.view(2, 3, 7), siblings.view(2, 3, 3), draws)
    assert all(torch.equal(old, new) for old, new in zip(before, (p, q, siblings), strict=True))
    for row in range(6):
        law = rule.law(p[row], q[row], siblings[row], draws)
        assert torch.allclose(whole.select.view(6, 3)[row], law.select)
        assert torch.allclose(whole.residual.view(6, 7)[row], law.residual)


@pytest.mark.parametrize("draws", list(Draws))
@pytest.mark.parametrize(("name", "options"), RULES)
@settings(max_examples=80, deadline=None)
@given(case=corners())
def test_laws_are_laws(name, options, draws, case):
    p, q, siblings = case
    if draws is not Draws.IID:
        siblings = torch.tensor(list(dict.fromkeys(siblings.tolist())))
    law = get_rule(name, **options).law(p, q, siblings, draws)
    assert (law.select >= 0).all() and law.select.sum() <= 1 + 1e-6
    assert (law.residual >= 0).all() and law.residual.sum().item() == pytest.approx(1, abs=1e-5)
    assert (law.residual[p == 0] == 0).all() and (law.select[p[siblings] == 0] == 0).all()


def test_equal_laws_accept_the_first_and_one_hot_laws_agree():
    p = torch.tensor([0.2, 0.5, 0.3])
    for name, options in RULES:
        law = get_rule(name, **options).law(p, p, torch.tensor([2, 0]), Draws.IID)
        assert law.select.tolist() == [1, 0]
        one_hot = torch.tensor([0.0, 1.0, 0.0])
        law = get_rule(name, **options).law(one_hot, p, torch.tensor([0, 1]), Draws.IID)
        assert law.select.tolist() == [0, 1]


def test_a_target_of_less_than_full_mass_leaves_a_rejection():
    """Two tokens of a third each: the null outcome of the last third is a token that no draft proposes."""
    p, q = torch.tensor([1 / 3, 1 / 3], dtype=torch.float64), torch.tensor([0.9, 0.1], dtype=torch.float64)
    padded = (
        torch.tensor([1 / 3, 1 / 3, 1 / 3], dtype=torch.float64),
        torch.tensor([0.9, 0.1, 0.0], dtype=torch.float64),
    )
    for siblings in ([0], [1], [0, 0], [1, 0]):
        law = get_rule("standard").law(p, q, torch.tensor(siblings), Draws.IID)
        full = get_rule("standard").law(*padded, torch.tensor(siblings), Draws.IID)
        assert law.select.tolist() == pytest.approx(full.select.tolist())
        assert law.residual.tolist() == pytest.approx(full.residual[:2].tolist())


YAMLS = Path(__file__).parents[2] / "conf" / "verifier"
IN_YAMLS = {
    "block": Block(),
    "greedy": Greedy(),
    "kseq": KSeq(),
    "level_optimal": LevelOptimal(),
    "naive": Naive(),
    "optimal": Optimal(bins=1024),
    "resispec": ResiSpec(spread="proportional", budget="gap"),
    "standard": Standard(),
    "traversal": Traversal(Standard()),
    "traversal_optimal": Traversal(Optimal()),
}


@pytest.mark.parametrize("name", ["standard", "resispec"])
def test_a_nan_of_the_draft_is_not_hidden(name):
    """Where it was at a token that was not drafted, the law before it stood, as if nothing were wrong."""
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.4, torch.nan])
    law = get_rule(name).law(p, q, torch.tensor([1, 0]), Draws.IID)
    assert law.residual.isnan().any()


def test_the_class_that_a_yaml_names_is_the_one_of_that_name():
    assert {path.stem for path in YAMLS.glob("*.yaml")} >= {*IN_YAMLS, "custom"}
    assert set(IN_YAMLS) <= set(available())
    for name, wanted in IN_YAMLS.items():
        made = instantiate(OmegaConf.load(YAMLS / f"{name}.yaml"))
        assert made == wanted and as_verifier(made) == get_verifier(name)
    custom = OmegaConf.load(YAMLS / "custom.yaml")
    custom.name = "standard"
    assert instantiate(custom) == TopDown(Standard())


VERIFIER_FILE = """
from dataclasses import dataclass
from resispec.verifiers.naive import Naive
from resispec.verifiers.registry import register

@register("mine")
@dataclass(frozen=True)
class Mine(Naive):
    bins: int = 3
"""
DRAWS_FILE = """
from resispec.draws.base import known
from resispec.draws.iid import Iid

@known
class Mine(Iid):
    name = "mine"
"""
USE = """
from resispec.core import Draws
from resispec.verifiers import available, get_rule
assert available() == {known} + ["mine"] and get_rule("mine", bins=4).bins == 4
assert [str(draws) for draws in Draws][4:] == ["mine"] and Draws("mine") is Draws.MINE
"""


def test_a_file_in_the_package_is_all_that_a_verifier_or_a_kind_of_draws_needs(tmp_path):
    package = tmp_path / "resispec"
    skip = shutil.ignore_patterns("__pycache__", "embedded")
    shutil.copytree(Path(resispec.__file__).parent, package, ignore=skip)
    (package / "verifiers" / "mine.py").write_text(VERIFIER_FILE)
    (package / "draws" / "mine.py").write_text(DRAWS_FILE)
    code = USE.format(known=available())
    found = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


def test_unknown_names_and_options_say_what_is_known():
    assert available()[:2] == ["standard", "resispec"]
    for make in (get_rule, get_verifier):
        with pytest.raises(InvalidInput, match="unknown verifier 'nope'; known: standard, resispec"):
            make("nope")
    with pytest.raises(InvalidInput, match="unknown spread 'x'; allowed: proportional, water_fill"):
        get_rule("resispec", spread="x")
    with pytest.raises(InvalidInput, match="verifier 'standard'"):
        get_rule("standard", spread="x")
