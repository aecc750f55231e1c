"""`assert_exact_sampler` finds planted faults, with so many samples and no more."""

import re

import pytest
from toy_kernels import FAULTS, QUICK

from referee.testing import assert_exact_sampler

ORDERS = {
    "residual cut, wide": "places, by falling p",
    "bonus at T = .9, wide": "mean place, at the last position by falling p",
    "the draft's noise again": "places, by falling p / q",
    "the accept test's number again": "places, by token",
}
"""Which order shows a fault."""


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(fault):
    sampler, options = FAULTS[fault]
    if fault in ORDERS:
        options = {"vocabularies": (16,)} | options
    with pytest.raises(AssertionError) as error:
        assert_exact_sampler(sampler, seed=0, **(QUICK | options))
    first, *lines = str(error.value).splitlines()
    assert "is biased; p is allowed down to 1e-06" in first and lines[-1].startswith("  again: seed=0, ")
    assert f"    {ORDERS.get(fault, '')}" in lines[1] and "chi-square" in lines[1]
    assert re.search(
        r"worst cell: .*: (expected \d+\.\d, found \d+, [+-]\d+\.\d standard errors|impossible, )", lines[2]
    )
