"""The planted faults: what each of them says about its bias is true."""

import pytest

from tests.faults import FAULTS, Where
from tests.faults.truth import simulated, truth


def of(*places):
    """Test cases: the faults that live in one of these places."""
    return [pytest.param(fault, id=name) for name, fault in FAULTS.items() if fault.where in places]


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
