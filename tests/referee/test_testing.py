"""`assert_exact_sampler`: exact kernels pass, planted faults are found, too few samples are no test."""

import math
import re

import pytest
import torch
from toy_kernels import (
    AcceptsALittleMore,
    AlwaysAccepts,
    Batched,
    BonusAt,
    GoesOn,
    Kernel,
    NextRow,
    NotRenormalised,
    OneUniform,
    Racing,
    ResidualIsTarget,
    SameSeed,
    SameUniformEverywhere,
    StaleBonusRow,
    TopResidual,
    accept_one,
    gumbel_draft,
    numpy_sampler,
)

from resispec.audit.laws import emitted
from resispec.distributions import draw
from resispec.testing import assert_exact_sampler
from resispec.verifiers import Draws, get_rule

QUICK = {"samples": 3000, "bias": 0.2, "vocabularies": (6, 16)}


class Siblings:
    """Positions with several candidates, by a rule's law; `believes`: how it thinks that they were drawn."""

    def __init__(self, believes):
        self.believes = believes

    def __call__(self, p, q, drafted, generator):
        return draw(emitted(get_rule("standard").law(p, q, drafted, self.believes), drafted), 1, generator)


class Greedy(Kernel):
    """The drafted token was chosen, not drawn: its law is a point mass."""

    def __call__(self, p, q, drafted, generator):
        q = torch.zeros_like(q).scatter(1, drafted[:, None], 1.0)
        return super().__call__(p, q, drafted, generator)


def right(seed, sampler, **options):
    return assert_exact_sampler(sampler, seed=seed, **(QUICK | options))


# Exact kernels


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("sampler", "options"),
    [
        pytest.param(Kernel(), {}, id="torch"),
        pytest.param(Kernel(), {"dtype": "float64", "length": 1}, id="float64"),
        pytest.param(Greedy(), {"draws": "point_mass"}, id="greedy"),
        pytest.param(numpy_sampler, {"numpy": True}, id="numpy"),
        pytest.param(Batched(), {"batch": 64}, id="batched"),
        pytest.param(Racing(reuses=False), {"draft": gumbel_draft}, id="own draft"),
        pytest.param(Siblings(Draws.IID), {"siblings": 2, "batch": 50}, id="siblings"),
        pytest.param(
            Siblings(Draws.WITHOUT_REPLACEMENT),
            {"siblings": 3, "draws": "without_replacement", "batch": 50},
            id="without replacement",
        ),
    ],
)
def test_exact_kernels_pass(sampler, options, seed):
    report = right(seed, sampler, **options)
    assert 1e-4 < report.p_value <= 1 and 0 < report.smallest_bias < 0.2
    assert report.num_samples >= 3000 and f"seed {seed}" in str(report)


def test_an_exact_kernel_passes_at_the_wide_vocabulary():
    report = right(0, Kernel(), samples=3000, vocabularies=(32_000,), bias=0.3)
    assert report.num_samples == 750 and report.p_value > 1e-4


# Planted faults: what must be found, and where

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
    "independent draws, supposedly": (
        Siblings(Draws.IID),
        {"siblings": 3, "draws": "without_replacement", "batch": 50},
    ),
    "greedy draft told as drawn": (Kernel(), {"draws": "point_mass"}),
}


@pytest.mark.parametrize("fault", FOUND)
def test_faults_are_found(fault):
    sampler, options = FOUND[fault]
    with pytest.raises(AssertionError) as error:
        right(0, sampler, **options)
    first, *lines = str(error.value).splitlines()
    assert "is not exact; p is allowed down to 1e-06" in first and lines[-1].startswith("  again: seed=0, ")
    assert re.search(
        r"worst cell: .*: expected \d+\.\d, found \d+, [+-](\d+\.\d|inf) standard errors", lines[2]
    )


def test_going_on_behind_a_refused_token_is_no_question_of_statistics():
    message = (
        r"GoesOn is not exact: V = 6, seed 0: emitted \[.*\] where \[.*\] was drafted: it went on behind"
    )
    with pytest.raises(AssertionError, match=message):
        right(0, GoesOn())


def test_a_draft_that_does_not_follow_q_is_named():
    def flat(q, generator):
        return int(torch.randint(len(q), (), generator=generator))

    with pytest.raises(AssertionError, match="tokens that draft= gives do not follow q"):
        right(0, Kernel(), draft=flat)


def test_a_failure_names_the_cell_and_the_numbers():
    """p = (.5, .3, .2), q = (.2, .4, .4): what accepts always emits q, .2 of 4,000 where .5 is expected."""
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.4, 0.4])
    with pytest.raises(AssertionError) as error:
        assert_exact_sampler(accept_one, p, q, samples=4000)
    line = next(line for line in str(error.value).splitlines() if "worst cell" in line)
    assert "position 0: token 0 (target 0.5, draft 0.2): expected 2000.0, found " in line
    found, errors = int(line.split("found ")[1].split(",")[0]), float(line.split()[-3])
    assert abs(found - 800) < 5 * math.sqrt(4000 * 0.16)
    assert errors == pytest.approx((found - 2000) / math.sqrt(1000), abs=0.06)


def test_a_seed_reproduces_everything():
    def numbers(seed):
        with pytest.raises(AssertionError) as error:
            right(seed, ResidualIsTarget(), vocabularies=(16,))
        return str(error.value)

    assert numbers(3) == numbers(3) != numbers(4)


def test_a_vocabulary_by_itself_repeats_what_it_was_among_others():
    report, alone = (right(0, Kernel(), vocabularies=sizes) for sizes in ((6, 16), (16,)))
    assert report.details[1].split(", p")[0] == alone.details[0].split(", p")[0]
