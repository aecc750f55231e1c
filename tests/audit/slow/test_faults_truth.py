"""The planted faults: what each of them says about itself is true, and nothing else is wrong with it."""

import pytest
import torch
from accounts import rng
from faults import FAULTS, Where
from faults.truth import bigrams, laws, simulated, tree_bias, truth

from resispec.audit.chi_square import chi_square
from resispec.audit.enumerate import total_variation
from resispec.core import Tree


def of(*places, biased=(True, False)):
    """Test cases: the faults that live in one of these places."""
    return [
        pytest.param(fault, id=name)
        for name, fault in FAULTS.items()
        if fault.where in places and fault.is_biased in biased
    ]


def joint(outcomes):
    """The chances (N V) of stopping at a node with a final token."""
    return (outcomes.stop[:, None] * outcomes.final).flatten()


# The truth


@pytest.mark.parametrize("fault", of(Where.LAW, Where.VERIFY, Where.DRAFTER))
def test_the_bias_is_the_one_that_the_file_says(fault):
    found = truth(fault)
    assert found == pytest.approx(fault.total_variation, abs=6e-5)
    assert found > 5e-5 if fault.is_biased else found < 1e-7  # float32 is off by some 1e-8


@pytest.mark.parametrize("fault", of(Where.LOOP))
def test_a_loop_is_biased_by_what_was_simulated(fault):
    found, error = simulated(fault, 400)
    assert abs(found - fault.total_variation) < 4 * error + 0.005
    assert found > 3 * error if fault.is_biased else found < 3 * error


# Where the fault lives


@pytest.mark.parametrize("fault", of(Where.VERIFY, Where.LOOP))
def test_outcomes_hide_what_verify_does(fault):
    assert tree_bias(fault, fault.make()) < 1e-12


@pytest.mark.parametrize("fault", of(Where.VERIFY))
def test_verify_draws_from_the_true_outcomes(fault):
    """1,000 verdicts, on that of 20 trees on which it differs most from `outcomes`; these do not fit then."""
    verifier, generator = fault.make(), rng(1)
    telling = []
    for _ in range(20):
        tokens = torch.randint(fault.vocab, (fault.topology.num_nodes,), generator=generator)
        tokens[0] = 0
        given = Tree(fault.topology, tokens, fault.draws), *(rows[tokens] for rows in bigrams(fault.vocab))
        real, said = joint(verifier.true_outcomes(*given)), joint(verifier.outcomes(*given))
        telling.append((total_variation(real, said), given, real, said))
    distance, given, real, said = max(telling, key=lambda case: case[0])
    verdicts = [verifier.verify(*given, generator) for _ in range(1000)]
    stops = torch.tensor([verdict.path[-1] if verdict.path else 0 for verdict in verdicts])
    cells = stops * fault.vocab + torch.tensor([verdict.tokens[-1] for verdict in verdicts])
    assert chi_square(real.expand(1000, -1), cells).p_value > 1e-3
    assert distance < 0.15 or chi_square(said.expand(1000, -1), cells).p_value < 1e-3


@pytest.mark.parametrize("fault", of(Where.DRAFTER))
def test_siblings_are_drawn_as_the_weights_say(fault):
    _, q = laws(6, 0)
    weights = fault.draws.weights(q.expand(36, -1), torch.cartesian_prod(*[torch.arange(6)] * 2))
    assert weights.sum().item() == pytest.approx(1)
    drawn = fault.draws.draw(q.expand(5000, -1), 2, rng(0))
    cells = drawn[:, 0] * 6 + drawn[:, 1]
    assert chi_square(weights.expand(5000, -1), cells).p_value > 1e-3
