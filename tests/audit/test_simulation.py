"""Simulation: what `verify` draws, counted against the laws that it should have."""

import math

import pytest
import torch
from scipy.stats import chi2, chisquare

from resispec.audit.chi_square import chi_square, chi_square_of_counts, chi_squared
from resispec.audit.simulate import simulate, simulated
from resispec.audit.simulation_cases import scenes
from resispec.audit.verdict import LEAST_P, Evidence, Finding, judge
from resispec.audit.walk_statistics import Scene
from resispec.core import Draws, Verdict
from resispec.errors import InvalidInput
from resispec.trees import chain, root_only
from resispec.verifiers import get_verifier
from tests.accounts import law, rng
from tests.faults import FAULTS
from tests.faults.parts import Remembering

pytestmark = pytest.mark.numerics

# Counts


def least_p(found):
    return min(count.p_value for counts in found.values() for count in counts.values())


def test_with_one_law_it_is_pearsons_chi_square():
    weights = law(0.4, 0.3, 0.2, 0.1)
    cells = torch.multinomial(weights, 500, replacement=True, generator=rng(0))
    found = chi_square_of_counts(weights[None], torch.bincount(cells, minlength=4)[None])
    wanted = chisquare(torch.bincount(cells, minlength=4), 500 * weights)
    assert found.value == pytest.approx(wanted.statistic) and found.degrees == 3 and found.n == 500
    assert found.p_value == pytest.approx(wanted.pvalue)


def test_its_p_values_are_uniform_when_laws_change():
    """300 tables of 400 outcomes, each outcome with one of five laws, rare cells among them."""
    laws = torch.softmax(2 * torch.randn(5, 12, generator=rng(1), dtype=torch.float64), -1)
    found = []
    for seed in range(300):
        rows = laws[torch.randint(5, (400,), generator=rng(seed))]
        cells = torch.multinomial(rows, 1, generator=rng(1000 + seed))[:, 0]
        found.append(chi_square(rows, cells).p_value)
    ordered = torch.tensor(sorted(found))
    distance = (ordered - torch.arange(1, 301) / 300).abs().max()
    assert distance < 1.63 / math.sqrt(300)  # Kolmogorov-Smirnov, 1 %
    assert ordered[0] > 1e-4


def test_what_cannot_happen_is_infinite_and_what_must_happen_is_nothing():
    sure = law(1.0, 0.0).expand(50, -1)
    assert chi_square_of_counts(sure, sure).p_value == 1
    assert repr(chi_square_of_counts(sure, 1 - sure)) == repr(chi_squared(math.inf, 1, 50))
    assert chi_squared(math.inf, 1, 50).p_value == 0
    assert chi_squared(9.0, 4, 50).p_value == pytest.approx(chi2.sf(9.0, 4))


# Trees


def test_a_root_alone_has_no_siblings_and_emits_the_target():
    scene = Scene(
        "it", root_only(), law(0.5, 0.5).float()[None], law(1, 0).float()[None], torch.arange(2)
    )
    found = simulate(get_verifier("standard"), [scene], Draws.IID, 100, rng(0))
    assert repr(found["it"]["siblings"]) == repr(chi_squared(0, 0, 0))
    assert found["it"]["tokens"].n == 100
    assert least_p(found) > 0.01


@pytest.mark.slow
def test_who_goes_on_at_another_copy_than_it_says_is_inconsistent_and_not_biased():
    verifier = FAULTS["last of equal siblings, the first in outcomes"].make()
    [scene] = [scene for scene in scenes(8) if scene.name == "many siblings"]
    counts = simulated(verifier, [scene], Draws.IID, 100, rng(0))
    # Defect: a tenth of the turns left no doubt of the verdicts, and so the tokens had few, too.
    assert counts["many siblings"]["token 1"].n == 16 * 100 * scene.trees_per_turn
    judgement = judge(Evidence(simulations=counts), required=("simulations",))
    assert judgement.finding is Finding.INCONSISTENT and "may be right" in judgement.reasons[-1]


def alternating(memory, verify, *given):
    """The standard verifier, whose every second call repeats the last call's random numbers."""
    generator = given[-1]
    now = generator.get_state()
    is_second = "state" in memory
    generator.set_state(memory.pop("state", now))
    found = verify(*given)
    if not is_second:
        memory["state"] = now
    generator.set_state(now)
    torch.rand(8, generator=generator)
    return found


def test_walks_that_follow_one_another_are_caught():
    laws = law(0.6, 0.3, 0.1).float()[None], law(0.1, 0.3, 0.6).float()[None]
    scene = Scene("it", chain(1), *laws, torch.arange(3))
    found = simulate(Remembering(step=alternating), [scene], Draws.IID, 1000, rng(0))
    assert found["it"]["1 back, overdraft"].p_value < LEAST_P <= found["it"]["verdicts"].p_value


@pytest.mark.parametrize("tokens", [(-1,), (4,), (0, 1, 2, 3)])
def test_a_verdict_that_cannot_be_is_refused(tokens):
    """Defect: a walk has -1 after its last token, so that a verifier's own -1 was left out."""
    wrong = Remembering(step=lambda *_: Verdict((), tokens))
    with pytest.raises(InvalidInput, match="emitted .*; allowed: their tokens .*, then one token"):
        simulate(wrong, scenes(8)[:1], Draws.IID, 1, rng(0))


def test_siblings_that_are_drawn_otherwise_than_told_are_caught():
    draws = FAULTS["draft drawn at T = .7, told T = 1"].draws
    found = simulate(get_verifier("standard"), scenes(8)[:1], draws, 30, rng(0))
    assert found["far"]["siblings"].p_value < LEAST_P


def test_the_random_stream_is_the_verifiers_alone():
    """Fewer steps are the beginning of more: nothing else draws from the generator in between."""
    drawn = []

    def spy(_, verify, tree, *given):
        drawn[-1].append((tree.tokens.tolist(), verify(tree, *given)))
        return drawn[-1][-1][1]

    for steps in (5, 9):
        drawn.append([])
        simulate(Remembering(step=spy), scenes(8)[:2], Draws.IID, steps, rng(0))
    trees_per_turn = sum(scene.trees_per_turn for scene in scenes(8)[:2])
    assert drawn[0] == drawn[1][: 5 * trees_per_turn] and len(drawn[1]) == 9 * trees_per_turn
