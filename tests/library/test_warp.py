"""Warped laws: as transformers makes them, of target and draft alike, and decoded exactly."""

from __future__ import annotations

import pytest
import torch
from toys import table_pair, tiny_llama
from transformers import GenerationConfig, LogitsProcessorList
from transformers.generation import logits_process as processors

from resispec.audit.chi_square import chi_square
from resispec.decode import Decoder, Sampling
from resispec.distributions import probabilities
from resispec.drafters import DraftModel
from resispec.draws import Draws
from resispec.errors import InvalidInput
from resispec.models import Pair, Warp
from resispec.transformers import read_warp
from resispec.trees import chain, complete
from resispec.verifiers import get_verifier

WARPS = {
    "top_k 2": {"top_k": 2},
    "top_p": {"temperature": 0.8, "top_p": 0.7},
    "top_p of nothing": {"top_p": 1e-9},  # the likeliest token stays
    "min_p": {"min_p": 0.3},
    "all": {"temperature": 1.3, "top_k": 4, "top_p": 0.9, "min_p": 0.1},
}
# Three siblings are more than top_k 2 leaves tokens to draw.
METHODS = {
    "independent": (complete(3, 3), Draws.IID, "traversal_optimal"),
    "independent, standard": (complete(3, 3), Draws.IID, "standard"),
    "without replacement": (complete(3, 3), Draws.WITHOUT_REPLACEMENT, "traversal"),
    "without replacement, standard": (complete(3, 3), Draws.WITHOUT_REPLACEMENT, "standard"),
    "chosen": (complete(3, 3), Draws.POINT_MASS, "traversal"),
    "chain": (chain(2), Draws.IID, "block"),
}


@pytest.mark.parametrize("settings", WARPS.values(), ids=WARPS)
def test_laws_are_those_of_transformers(settings):
    logits = 3 * torch.randn(9, 50, generator=torch.Generator().manual_seed(0))
    module = tiny_llama(vocab=50).module
    config = GenerationConfig(do_sample=True, **{"top_k": 0, **settings})
    made = module._get_logits_processor(config, 0, None, None, LogitsProcessorList())
    expected = made(None, logits).softmax(-1)
    found = Warp(**settings).law(logits)
    assert torch.equal(found, expected) and bool((found == 0).any())
    assert read_warp(made, do_sample=True) == Warp(**settings)


def test_a_temperature_alone_is_the_softmax_to_the_last_bit_and_greedy_takes_the_first_of_equals():
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        logits = torch.randn(4, 99, generator=torch.Generator().manual_seed(1)).to(dtype)
        for temperature in (1.0, 0.6):
            assert torch.equal(Warp(temperature=temperature).law(logits), probabilities(logits, temperature))
    law = Warp(temperature=0).law(torch.tensor([[1.0, 3.0, 3.0], [0.0, torch.nan, 9.0]]))
    assert law[0].tolist() == [0, 1, 0] and bool(law[1].isnan().all())


def p_value(pair: Pair, method: str, settings: dict[str, float], count: int = 600) -> float:
    """Chi-square of every token, after the one before it, against the target's warped law there."""
    sampling = Sampling(max_new_tokens=count, max_length=4000, **{"temperature": 1.0, **settings})
    generator = torch.Generator().manual_seed(7)
    topology, draws, verifier = METHODS[method]
    decoder = Decoder(DraftModel(topology, draws), get_verifier(verifier))
    tokens = torch.tensor([1, *decoder.generate(pair, [0, 1], sampling, generator).tokens])
    rows, size = Warp(**settings).law(pair.target.logits), pair.target.vocab_size
    laws = torch.zeros(count, size, size, dtype=torch.float64)
    laws[torch.arange(count), tokens[:-1]] = rows[tokens[:-1]]
    return chi_square(laws.flatten(1), tokens[:-1] * size + tokens[1:]).p_value


@pytest.mark.parametrize(
    ("method", "name"),
    [*((method, "top_k 2") for method in METHODS), *(("independent", name) for name in ("top_p", "all"))],
)
def test_decoding_has_the_warped_law(method, name):
    """Seeded; a fresh seed fails with rate 1e-4."""
    assert p_value(table_pair(vocab=5, seed=3, gap=2.0), method, WARPS[name]) > 1e-4


@pytest.mark.parametrize(
    ("made", "named"),
    [
        ([processors.RepetitionPenaltyLogitsProcessor(1.2)], "RepetitionPenaltyLogitsProcessor"),
        ([processors.TypicalLogitsWarper(0.9)], "TypicalLogitsWarper"),
        ([processors.TopPLogitsWarper(0.9, min_tokens_to_keep=2)], "TopPLogitsWarper"),
        ([processors.TopPLogitsWarper(0.9), processors.TemperatureLogitsWarper(0.7)], "TemperatureLogits"),
        ([processors.TopKLogitsWarper(9), processors.TopKLogitsWarper(3)], "TopKLogitsWarper"),
    ],
)
def test_a_processor_that_a_tree_cannot_have_is_refused_by_name(made, named):
    with pytest.raises(InvalidInput, match=f"logits processor {named}.* cannot be applied to a tree"):
        read_warp(made, do_sample=True)


def test_a_processor_that_changes_no_law_is_none():
    made = [processors.TopKLogitsWarper(5), processors.LogitNormalization()]
    assert read_warp(made, do_sample=True) == Warp(top_k=5)
    assert read_warp(made, do_sample=False) == Warp(temperature=0.0)
