"""`compiled=true`: forwards of a step by torch's compiler, with the laws that there were."""

import pytest
import torch

from resispec.decode import Decoder, Sampling
from resispec.drafters import DraftModel
from resispec.models import Pair
from resispec.models.causal import compiled_pair
from resispec.trees import complete
from resispec.verifiers import get_verifier
from tests.toys import ToyTokenizer, tiny_llama

PROMPT = [1, 2, 3, 4, 5]


def pair():
    return Pair(tiny_llama(layers=1), tiny_llama(layers=1, seed=1), ToyTokenizer())


def steps_of(pair):
    steps = []
    decoder = Decoder(DraftModel(complete(3, 2)), get_verifier("standard"))
    generator = torch.Generator().manual_seed(0)
    decoder.generate(pair, PROMPT, Sampling(1.0, 6, 32), generator, on_step=steps.append)
    return steps


def check_same(backend, monkeypatch):
    """Decoding with forwards of a step that this backend compiles takes the steps of plain ones."""
    whole = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda body, **options: whole(body, backend=backend, **options)
    )
    for plain, fast in zip(steps_of(pair()), steps_of(compiled_pair(pair())), strict=True):
        assert plain.verdict.tokens == fast.verdict.tokens
        assert torch.allclose(plain.target_probs, fast.target_probs, atol=1e-6)


def test_laws_stay_and_prompts_are_not_compiled(monkeypatch):
    counts = set()

    def counting(graph, inputs):
        counts.update(
            tensor.shape[1]
            for tensor in inputs
            if isinstance(tensor, torch.Tensor) and tensor.dtype == torch.int64 and tensor.ndim == 2
        )
        return graph

    check_same(counting, monkeypatch)
    assert 7 in counts and counts <= {1, 2, 7} and len(PROMPT) not in counts


@pytest.mark.filterwarnings("ignore")
def test_a_compiler_that_fails_leaves_forwards_as_they_are(monkeypatch):
    def broken(*_):
        raise RuntimeError("no space left")

    check_same(broken, monkeypatch)
