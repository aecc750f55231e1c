"""`assert_exact_sampler` finds planted faults, with so many samples and no more."""

import re

import pytest
from toy_kernels import (
    QUICK,
    AcceptsALittleMore,
    AlwaysAccepts,
    Batched,
    BonusAt,
    Kernel,
    NextRow,
    NotRenormalised,
    OneUniform,
    Racing,
    ResidualIsTarget,
    SameSeed,
    SameUniformEverywhere,
    Siblings,
    StaleBonusRow,
    TopResidual,
    gumbel_draft,
)

from referee.testing import assert_exact_sampler
from resispec.verifiers import Draws


def right(seed, sampler, **options):
    return assert_exact_sampler(sampler, seed=seed, **(QUICK | options))


# Planted faults: what must be found, and where

OTHERS = {"draws": "without_replacement"}
FOUND = {
    "always accepts": (AlwaysAccepts(), {}),
    "accepts a little more": (AcceptsALittleMore(), {"samples": 8000}),
    "residual not renormalised": (NotRenormalised(), {}),
    "residual is the target": (ResidualIsTarget(), {}),
    "residual cut to 100, wide": (TopResidual(), {"vocabularies": (32_000,), "samples": 6000}),
    "bonus at T = .7": (BonusAt(0.7), {"samples": 8000, "vocabularies": (16,)}),
    "bonus at T = .9, wide": (BonusAt(0.9), {"samples": 8000, "vocabularies": (32_000,)}),
    "bonus from the row before": (StaleBonusRow(), {}),
    "target one row off": (NextRow(), {}),
    "the same seed every call": (SameSeed(), {}),
    "the accept test's number again": (OneUniform(), {}),
    "one number for all positions": (SameUniformEverywhere(), {}),
    "the draft's noise again": (
        Racing(reuses=True),
        {"draft": gumbel_draft, "samples": 12_000, "vocabularies": (16,)},
    ),
    "rows of another sequence": (Batched("rows"), {"batch": 64}),
    "one stream for all sequences": (Batched("one stream"), {"batch": 64}),
    "independent draws, supposedly": (Siblings(Draws.IID), {**OTHERS, "siblings": 3, "batch": 50}),
    "greedy draft told as drawn": (Kernel(), {"draws": "point_mass"}),
}


@pytest.mark.parametrize("fault", FOUND)
def test_faults_are_found(fault):
    sampler, options = FOUND[fault]
    with pytest.raises(AssertionError) as error:
        right(0, sampler, **options)
    first, *lines = str(error.value).splitlines()
    assert "is biased; p is allowed down to 1e-06" in first and lines[-1].startswith("  again: seed=0, ")
    assert re.search(
        r"worst cell: .*: (expected \d+\.\d, found \d+, [+-]\d+\.\d standard errors|impossible, )", lines[2]
    )


@pytest.mark.parametrize(
    ("fault", "order"),
    [
        ("residual cut to 100, wide", "places, by falling p"),
        ("bonus at T = .9, wide", "mean place, at the last position by falling p"),
        ("the draft's noise again", "places, by falling p / q"),
        ("the accept test's number again", "places, by token"),
    ],
)
def test_what_an_order_is_for(fault, order):
    sampler, options = FOUND[fault]
    with pytest.raises(AssertionError, match=f"    {order}: chi-square"):
        right(0, sampler, **(options | {"vocabularies": options.get("vocabularies", (16,))}))
