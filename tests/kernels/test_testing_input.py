"""What `assert_exact_sampler` may be given, and what it refuses."""

import numpy as np
import pytest
import torch
from toy_kernels import QUICK, Batched, Kernel, numpy_sampler

from resispec.errors import InvalidInput
from resispec.testing import assert_exact_sampler


@pytest.mark.parametrize("kind", [torch.tensor, np.array])
def test_laws_may_be_given(kind):
    p = kind([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
    q = kind([[0.2, 0.4, 0.4]])
    seen = []

    def sampler(p, q, drafted, generator):
        seen.append((type(p), p.shape, q.shape, drafted.shape, type(generator)))
        return (Kernel() if kind is torch.tensor else numpy_sampler)(p, q, drafted, generator)

    report = assert_exact_sampler(sampler, p, q, samples=4000, bias=0.1)
    array, maker = (
        (torch.Tensor, torch.Generator) if kind is torch.tensor else (np.ndarray, np.random.Generator)
    )
    assert set(seen) == {(array, (2, 3), (1, 3), (1,), maker)} and len(seen) == 4000
    assert "V = 3: 4000 calls" in str(report)


# Bad input

P, Q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.4, 0.4])


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ((), {"sample": 3}, "unknown option 'sample'; known: samples, seed,"),
        ((), {"samples": 0}, "samples is 0; allowed: at least 1"),
        ((), {"draws": "best"}, "unknown draws 'best'; known: iid"),
        ((), {"bias": 1.5}, "bias is 1.5; allowed: 0 to 1"),
        ((), {"vocabularies": (1,)}, r"vocabularies is \(1,\); allowed: one size or more, each at least 2"),
        ((), {"dtype": "float16"}, "dtype is 'float16'; allowed: float32 or float64"),
        ((P, None), {}, "draft_probs is NoneType; allowed: a tensor or an array"),
        ((P, Q[:2]), {}, "draft_probs sum to 0.6.*; allowed: 1 within"),
        ((P.half(), Q.half()), {}, "target_probs is torch.float16; allowed: float32, float64"),
        (
            (P[None], Q[None]),
            {},
            r"target_probs \(1, 3\) and draft_probs \(1, 3\) with siblings=0; allowed: ",
        ),
    ],
)
def test_bad_input_is_refused(given, options, message):
    with pytest.raises(InvalidInput, match=message):
        assert_exact_sampler(Kernel(), *given, **options)


@pytest.mark.parametrize(
    ("returned", "options", "error", "message"),
    [
        (0.5, {}, InvalidInput, "tokens are 0.5; allowed: whole numbers"),
        ([], {}, AssertionError, "emitted nothing; a verifier emits at least one token"),
        ([-1, -1], {}, AssertionError, "emitted nothing"),
        ([0, -1, 1], {}, AssertionError, "negative numbers may only stand behind the last token"),
        ([0] * 5, {}, AssertionError, r"emitted \[0, 0, 0, 0, 0\]; at most 4 tokens are possible"),
        ([99], {}, AssertionError, "emitted token 99 of 6 tokens"),
        ([0], {"batch": 8}, InvalidInput, "a call with 8 rows returned 1; allowed: the tokens of every row"),
    ],
)
def test_what_is_no_answer_is_refused(returned, options, error, message):
    with pytest.raises(error, match=message):
        assert_exact_sampler(lambda *_: returned, **(QUICK | options))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_kernel_on_a_device():
    def on_device(p, q, drafted, generator):
        assert p.is_cuda and q.is_cuda and drafted.is_cuda and generator.device.type == "cuda"
        host = torch.Generator().manual_seed(
            int(torch.randint(1 << 60, (), generator=generator, device="cuda"))
        )
        return Batched()(p.cpu(), q.cpu(), drafted.cpu(), host).cuda()

    assert_exact_sampler(on_device, device="cuda", batch=64, **QUICK)
