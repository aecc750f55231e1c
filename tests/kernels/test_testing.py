"""`assert_exact_sampler`: exact kernels pass, and what a failure says."""

import math
import re

import pytest
import torch
from toy_kernels import (
    QUICK,
    Batched,
    GoesOn,
    Greedy,
    Kernel,
    Racing,
    ResidualIsTarget,
    Siblings,
    accept_one,
    gumbel_draft,
    numpy_sampler,
)

from resispec.testing import assert_exact_sampler
from resispec.verifiers import Draws


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
    assert 0 < report.smallest_bias < 0.2 and str(report).endswith(f"; seed {seed}")
    p_values = [float(found) for found in re.findall(r"p = ([\d.e-]+),", str(report))]
    assert len(p_values) == 2 and min(p_values) > 1e-3


def test_an_exact_kernel_passes_at_the_wide_vocabulary():
    report = right(0, Kernel(), samples=3000, vocabularies=(32_000,), bias=0.3)
    assert "V = 32000: 750 calls, " in str(report)


@pytest.mark.parametrize("vocab", [6, 16, 100])
def test_laws_depend_on_the_token_before_and_rows_of_a_batch_differ(vocab):
    """So rows that are mixed up show, and verifiers that go on with rows of a refused token."""

    def sampler(p, q, drafted, generator):
        for position in (1, 2):
            for token in drafted[:, position - 1].unique():
                here = drafted[:, position - 1] == token
                assert bool((p[here, position] == p[here, position][0]).all())
        assert len(p[:, 0].unique(dim=0)) > 3 and len(q[:, 1].unique(dim=0)) > 3
        return Batched()(p, q, drafted, generator)

    right(0, sampler, batch=100, vocabularies=(vocab,), samples=1000, bias=0)


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


def test_one_token_of_probability_0_is_enough():
    def once(p, q, drafted, generator):  # noqa: ARG001 - the contract's
        calls.append(0)
        return [1] if len(calls) == 1234 else [2 * int(torch.rand((), generator=generator) < p[0, 2])]

    calls: list[int] = []
    p, q = torch.tensor([[0.7, 0.0, 0.3]] * 2), torch.tensor([[0.5, 0.25, 0.25]])
    cell = r"position 0: token 1 \(target 0, draft 0.25\): impossible, but emitted"
    with pytest.raises(AssertionError, match=cell):
        assert_exact_sampler(once, p, q, samples=3000)


@pytest.mark.parametrize("options", [{}, {"batch": 10}, {"siblings": 2}, {"siblings": 2, "batch": 10}])
def test_the_noise_that_is_handed_over_is_that_of_the_row_and_the_position(options):
    """Here the noise is the token itself."""
    siblings = options.get("siblings", 0)

    def draft(q, generator):
        tokens = torch.multinomial(q, siblings or 1, replacement=True, generator=generator)
        return tokens if siblings else tokens[..., 0], tokens

    def sampler(p, q, drafted, generator, noise):  # noqa: ARG001 - the contract's
        assert torch.equal(noise if siblings else torch.cat(noise, -1), drafted)
        return torch.multinomial(p if siblings else p.select(-2, 0), 1, generator=generator)

    assert "1000 calls" in str(right(0, sampler, draft=draft, samples=1000, bias=0.5, **options))


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
    assert report.details[2].split(", p")[0] == alone.details[1].split(", p")[0]
