"""Simulation: what `verify` draws, counted against the laws that it should have."""

import math
from dataclasses import dataclass

import pytest
import torch
from accounts import law, rng
from faults import FAULTS, Where
from scipy.stats import chi2, chisquare

from resispec.audit.chi_square import ChiSquare, chi_square
from resispec.audit.scenes import scenes
from resispec.audit.settled import simulated
from resispec.audit.simulate import Scene, simulate
from resispec.audit.verdict import LEAST_P
from resispec.core import Draws
from resispec.trees import chain, root_only
from resispec.verifiers import Block, as_verifier, get_verifier

# Counts


def test_with_one_law_it_is_pearsons_chi_square():
    weights = law(0.4, 0.3, 0.2, 0.1)
    cells = torch.multinomial(weights, 500, replacement=True, generator=rng(0))
    found = chi_square(weights.expand(500, -1), cells)
    wanted = chisquare(torch.bincount(cells, minlength=4), 500 * weights)
    assert found.statistic == pytest.approx(wanted.statistic) and found.degrees == 3 and found.n == 500
    assert found.p_value == pytest.approx(wanted.pvalue)


def test_its_p_values_are_uniform_when_laws_change():
    """300 tables of 400 outcomes, each outcome with one of five laws, rare cells among them."""
    laws = torch.softmax(2 * torch.randn(5, 12, generator=rng(1), dtype=torch.float64), -1)
    found = []
    for seed in range(300):
        rows = laws[torch.randint(5, (400,), generator=rng(seed))]
        found.append(chi_square(rows, torch.multinomial(rows, 1, generator=rng(1000 + seed))[:, 0]).p_value)
    ordered = torch.tensor(sorted(found))
    distance = (ordered - torch.arange(1, 301) / 300).abs().max()
    assert distance < 1.63 / math.sqrt(300)  # Kolmogorov-Smirnov, 1 %
    assert ordered[0] > 1e-4


def test_what_cannot_happen_is_infinite_and_what_must_happen_is_nothing():
    sure = law(1.0, 0.0).expand(50, -1)
    assert chi_square(sure, torch.zeros(50, dtype=torch.int64)).p_value == 1
    assert chi_square(sure, torch.ones(50, dtype=torch.int64)) == ChiSquare(math.inf, 1, 50)
    assert ChiSquare(math.inf, 1, 50).p_value == 0
    assert ChiSquare(9.0, 4, 50).p_value == pytest.approx(chi2.sf(9.0, 4))


# Exact verifiers are not accused

EXACT = [
    (name, draws)
    for name, kinds in {
        "standard": list(Draws),
        "kseq": [Draws.IID],
        "naive": list(Draws),
        "optimal": [Draws.IID],
        "traversal": [Draws.IID, Draws.WITHOUT_REPLACEMENT],
        "traversal_optimal": [Draws.IID],
        "level_optimal": [Draws.IID],
        "greedy": [Draws.GREEDY],
    }.items()
    for draws in kinds
]


@pytest.mark.parametrize(("name", "draws"), EXACT)
def test_exact_verifiers_of_trees(name, draws):
    found = simulate(get_verifier(name), scenes(8), draws, 150, rng(0))
    assert len(found) == 36 and min(one.p_value for one in found.values()) >= LEAST_P, found


@pytest.mark.parametrize("draws", list(Draws))
def test_exact_verifiers_of_chains(draws):
    found = simulate(get_verifier("block"), scenes(1), draws, 200, rng(0))
    assert len(found) == 30 and min(one.p_value for one in found.values()) >= LEAST_P, found


def test_a_root_alone_has_no_siblings_and_emits_the_target():
    scene = Scene("it", root_only(), law(0.5, 0.5).float()[None], law(1, 0).float()[None], torch.arange(2))
    found = simulate(get_verifier("standard"), [scene], Draws.IID, 100, rng(0))
    assert found["siblings, it"] == ChiSquare(0.0, 0, 0) and found["tokens, it"].n == 100
    assert min(one.p_value for one in found.values()) > 0.01


# Faults that no law shows

UNSEEN_IN_LAWS = [
    name for name, fault in FAULTS.items() if fault.is_biased and fault.where in (Where.VERIFY, Where.LOOP)
]


@pytest.mark.parametrize("name", UNSEEN_IN_LAWS)
def test_a_verifier_that_draws_from_another_law_is_caught(name):
    fault = FAULTS[name]
    verifier = as_verifier(fault.make())
    max_siblings = 1 if isinstance(verifier, Block) else 8

    def least_p(num_turns):
        found = simulated(verifier, scenes(max_siblings), fault.draws, num_turns, rng(0))
        return min(one.p_value for one in found.values())

    # Most show within a few turns, which take a fraction of the time.
    assert any(least_p(num_turns) < LEAST_P for num_turns in (60, 500))


@dataclass
class Alternating:
    """The standard verifier, but every second call repeats the random numbers of the call before."""

    state: torch.Tensor | None = None

    def verify(self, tree, target_probs, draft_probs, generator):
        now = generator.get_state()
        if self.state is not None:
            generator.set_state(self.state)
        found = get_verifier("standard").verify(tree, target_probs, draft_probs, generator)
        self.state = now if self.state is None else None
        generator.set_state(now)
        torch.rand(8, generator=generator)
        return found

    def outcomes(self, tree, target_probs, draft_probs):
        return get_verifier("standard").outcomes(tree, target_probs, draft_probs)


def test_verdicts_that_follow_one_another_are_caught_by_turns():
    laws = law(0.6, 0.3, 0.1).float()[None], law(0.1, 0.3, 0.6).float()[None]
    found = simulate(Alternating(), [Scene("it", chain(1), *laws, torch.arange(3))], Draws.IID, 1000, rng(0))
    assert found["turns, it"].p_value < LEAST_P <= found["verdicts, it"].p_value


def test_siblings_that_are_drawn_otherwise_than_told_are_caught():
    class Flat(type(Draws.IID)):
        name = "flat"

        def draw(self, draft_probs, count, generator):
            return super().draw(draft_probs.sqrt(), count, generator)

    found = simulate(get_verifier("standard"), scenes(8)[:1], Flat(), 300, rng(0))
    assert found["siblings, far"].p_value < LEAST_P


def test_the_random_stream_is_the_verifiers_alone():
    """Fewer steps are the beginning of more steps: nothing else draws from the generator in between."""
    drawn = []

    class Spy(type(get_verifier("standard"))):
        def verify(self, tree, target_probs, draft_probs, generator):
            found = super().verify(tree, target_probs, draft_probs, generator)
            drawn[-1].append((tuple(tree.tokens.tolist()), found))
            return found

    spy = Spy(get_verifier("standard").rule)
    for steps in (5, 9):
        drawn.append([])
        simulate(spy, scenes(8)[:2], Draws.IID, steps, rng(0))
    assert drawn[0] == drawn[1][:10] and len(drawn[1]) == 18


def test_scenes_suit_the_number_of_siblings():
    assert [max(map(len, scene.topology.children)) for scene in scenes(1)] == [1] * 5
    assert max(max(map(len, scene.topology.children)) for scene in scenes(8)) == 8
    for scene in (*scenes(1), *scenes(8)):
        for rows in (scene.target_rows, scene.draft_rows):
            assert torch.allclose(rows.sum(-1), torch.ones(len(rows)), atol=1e-5)
        assert len(scene.classes) == scene.target_rows.shape[1]
        assert set(scene.classes.tolist()) == set(range(int(scene.classes.max()) + 1))
    assert scenes(8)[2].classes.max() == 8  # nine classes of a wide vocabulary
