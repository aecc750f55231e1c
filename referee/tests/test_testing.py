"""`assert_exact_sampler`: exact kernels pass, what a failure says, and what is refused."""

import re

import numpy as np
import pytest
import torch

from referee.testing import assert_exact, assert_exact_sampler
from referee.tests.toy_kernels import EXACT, FAULTS, QUICK, ChainKernel, batched, greedy, siblings
from resispec.errors import InvalidInput
from resispec.verifiers import Draws, Law, Outcomes, Standard

P, Q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.4, 0.4])


def assert_quickly(sampler, seed=0, **options):
    return assert_exact_sampler(sampler, seed=seed, **(QUICK | options))


@pytest.mark.parametrize(
    ("sampler", "options"),
    [
        (EXACT, {"dtype": "float64", "length": 1}),
        (greedy, {"draws": "point_mass"}),
        (siblings(Draws.IID), {"siblings": 2, "batch": 50}),
        (
            siblings(Draws.WITHOUT_REPLACEMENT),
            {"siblings": 3, "draws": "without_replacement", "batch": 50},
        ),
    ],
)
def test_exact_kernels_pass(sampler, options):
    report = assert_quickly(sampler, **options)
    assert 0 < report.smallest_bias < 0.2 and str(report).endswith("; seed 0")
    p_values = [float(p) for p in re.findall(r"p = ([\d.e-]+),", str(report))]
    assert len(p_values) == 2 and min(p_values) > 1e-3


@pytest.mark.parametrize("kind", [torch.tensor, np.array])
def test_laws_may_be_given(kind):
    """Laws are tensors or arrays, and so is whatever the sampler gets."""
    p, q, seen = kind([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]]), kind([[0.2, 0.4, 0.4]]), set()

    def sampler(p, q, drafted, generator):
        seen.add((type(p), p.shape, q.shape, drafted.shape, type(generator)))
        if kind is torch.tensor:
            return torch.multinomial(p[0], 1, generator=generator)
        return generator.choice(3, p=p[0])

    report = assert_exact_sampler(sampler, p, q, samples=2000, bias=0.2)
    types = (
        (torch.Tensor, torch.Generator)
        if kind is torch.tensor
        else (np.ndarray, np.random.Generator)
    )
    assert seen == {(types[0], (2, 3), (1, 3), (1,), types[1])} and "V = 3: 2000 calls" in str(
        report
    )


def test_a_fault_that_needs_no_statistics():
    message = (
        r"ChainKernel is biased: V = 6, seed 0: "
        r"emitted \[.*\] where \[.*\] was drafted: it went on beh"
    )
    with pytest.raises(AssertionError, match=message):
        assert_quickly(ChainKernel(goes_on=True))

    def flat(q, generator):
        return int(torch.randint(len(q), (), generator=generator))

    with pytest.raises(AssertionError, match="tokens that draft= gives do not follow q"):
        assert_quickly(EXACT, draft=flat)
    calls: list[int] = []

    def once(p, q, drafted, generator):
        calls.append(0)
        return (
            [1] if len(calls) == 1234 else [2 * int(torch.rand((), generator=generator) < p[0, 2])]
        )

    p, q = torch.tensor([[0.7, 0.0, 0.3]] * 2), torch.tensor([[0.5, 0.25, 0.25]])
    cell = r"position 0: token 1 \(target 0, draft 0.25\): impossible, but emitted"
    with pytest.raises(AssertionError, match=cell):
        assert_exact_sampler(once, p, q, samples=2000)


def test_a_kernel_that_writes_into_the_drafted_tokens_is_compared_with_what_was_drafted():
    """Defect: it went on behind a refused token, and the test saw the token as drafted."""

    def written(p, q, drafted, generator):
        tokens = ChainKernel(goes_on=True)(p, q, drafted, generator)
        drafted[: len(tokens)] = torch.tensor(tokens)[: len(drafted)]
        return tokens

    with pytest.raises(AssertionError, match="it went on behind a token that was not drafted"):
        assert_quickly(written)


@pytest.mark.parametrize(
    "options", [{}, {"batch": 10}, {"siblings": 2}, {"siblings": 2, "batch": 10}]
)
def test_the_noise_that_is_handed_over_is_that_of_the_row_and_the_position(options):
    """Here the noise is the token itself."""
    count = options.get("siblings", 0)

    def draft(q, generator):
        tokens = torch.multinomial(q, count or 1, replacement=True, generator=generator)
        return tokens if count else tokens[..., 0], tokens

    def sampler(p, q, drafted, generator, noise):
        assert torch.equal(noise if count else torch.cat(noise, -1), drafted)
        return torch.multinomial(p if count else p.select(-2, 0), 1, generator=generator)

    assert "500 calls" in str(assert_quickly(sampler, draft=draft, samples=500, bias=0, **options))


def test_a_seed_reproduces_everything():
    messages = []
    for seed in (3, 3, 4):
        with pytest.raises(AssertionError) as error:
            assert_quickly(
                FAULTS["residual is the target"][0], seed, vocabularies=(16,), samples=2000
            )
        messages.append(str(error.value))
    assert messages[0] == messages[1] != messages[2]
    report, alone = (
        assert_quickly(EXACT, vocabularies=sizes, samples=1000, bias=0)
        for sizes in ((6, 16), (16,))
    )
    assert report.details[2].split(", p")[0] == alone.details[1].split(", p")[0]


def test_a_test_without_power_is_none():
    with pytest.raises(
        AssertionError, match="was not tested: a sampler with a bias of 0.05 passes as well"
    ):
        assert_exact_sampler(EXACT, samples=200, vocabularies=(6,))
    assert assert_exact_sampler(EXACT, samples=200, vocabularies=(6,), bias=0).smallest_bias > 0.1
    flat = torch.full((2, 4), 0.25)
    with pytest.raises(InvalidInput, match="no token that the target allows is drafted too often"):
        assert_exact_sampler(EXACT, flat, flat[:1], samples=100)


REFUSED = [
    ((), {"samples": 0}, "samples is 0; allowed: at least 1"),
    ((), {"bias": 1.5}, "bias is 1.5; allowed: 0 to 1"),
    (
        (),
        {"vocabularies": (1,)},
        r"vocabularies is \(1,\); allowed: one size or more, each at least 2",
    ),
    ((), {"dtype": "float16"}, "dtype is 'float16'; allowed: float32 or float64"),
    ((P, None), {}, "draft_probs is NoneType; allowed: a tensor or an array"),
    ((P, Q[:2]), {}, "draft_probs sum to 0.6.*; allowed: 1 within"),
    ((P.half(), Q.half()), {}, "target_probs is torch.float16; allowed: float32, float64"),
    (
        (P, Q),
        {"siblings": 4, "draws": "point_mass"},
        r"vocabularies is \(3,\); allowed: .* at least 4",
    ),
    (
        (P[None], Q[None]),
        {},
        r"target_probs \(1, 3\) and draft_probs \(1, 3\) with siblings=0; allowed",
    ),
]
ANSWERS = [
    (0.5, {}, InvalidInput, "tokens are 0.5; allowed: whole numbers"),
    ([-1, -1], {}, AssertionError, "emitted nothing; a verifier emits at least one token"),
    ([0, -1, 1], {}, AssertionError, "negative numbers may only stand behind the last token"),
    ([0] * 5, {}, AssertionError, r"emitted \[0, 0, 0, 0, 0\]; at most 4 tokens are possible"),
    ([99], {}, AssertionError, "emitted token 99 of 6 tokens"),
    (
        [0],
        {"batch": 8},
        InvalidInput,
        "a call with 8 rows returned 1; allowed: the tokens of every row",
    ),
]


def test_bad_input_and_answers_that_are_none_are_refused():
    for laws, options, message in REFUSED:
        with pytest.raises(InvalidInput, match=message):
            assert_exact_sampler(EXACT, *laws, **options)
    for returned, options, error, message in ANSWERS:
        with pytest.raises(error, match=message):
            assert_quickly(lambda *_, tokens=returned: tokens, **options)


def leaky(*given):
    """Loses a tenth of the residual."""
    law = Standard().law(*given)
    return Law(law.select, 0.9 * law.residual)


def alone(p, q, s, _):
    """Legal for one sibling alone."""
    return Law((p / q).gather(-1, s).clamp_max(1), p)


class Coarse(Standard):
    """Forgets the precision."""

    def reshape(self, target, draft, rejected):
        return super().reshape(target, draft, rejected).half()


class KeepAll(Standard):
    """A rule's subclass that keeps every token by a `verify` of its own."""

    def verify(self, tree, *_):
        raise AssertionError("called")


class Told(KeepAll):
    """It says what law `verify` has."""

    def outcomes(self, tree, target_probs, _draft_probs):
        stop = torch.eye(tree.topology.num_nodes, dtype=target_probs.dtype)[-1]
        return Outcomes(stop, target_probs)


def test_the_verify_of_a_rule_s_subclass_is_called():
    with pytest.raises(AssertionError, match="^called$"):
        assert_exact(Told, samples=10)


def test_subjects_that_are_no_rule_are_refused():
    for subject, options, message in (
        ("standard", {"samples": 9}, "samples is 9; allowed: at least 10"),
        (leaky, {}, "rule 'leaky': .*residual sum to 0.9; allowed: 1"),
        (alone, {}, "rule 'alone': entries of select sum to 2; allowed: at most 1"),
        (Coarse, {}, r"rule 'Coarse': .*`reshape` returns .* torch.float16"),
        (KeepAll, {}, "^KeepAll has a `verify` but no `outcomes`, .*; allowed here: a tree ver"),
    ):
        with pytest.raises(InvalidInput, match=message):
            assert_exact(subject, **({"samples": 10} | options))


@pytest.mark.cuda
def test_a_kernel_on_a_device():
    def on_device(p, q, drafted, generator):
        assert p.is_cuda and q.is_cuda and drafted.is_cuda and generator.device.type == "cuda"
        seed = int(torch.randint(1 << 60, (), generator=generator, device="cuda"))
        return batched()(
            p.cpu(), q.cpu(), drafted.cpu(), torch.Generator().manual_seed(seed)
        ).cuda()

    assert_exact_sampler(on_device, device="cuda", batch=64, **QUICK)
