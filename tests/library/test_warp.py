"""Warped laws: as transformers makes them, of target and draft alike, and decoded exactly."""

from collections import Counter
from itertools import combinations, product

import pytest
import torch
from transformers import GenerationConfig, LogitsProcessorList
from transformers.generation import logits_process as processors

from resispec.audit.chi_square import chi_square
from resispec.decode import Decoder, Sampling
from resispec.drafters import DraftModel
from resispec.draws import Draws
from resispec.errors import InvalidInput
from resispec.models import Warp
from resispec.sampling import FILTER_ORDERS, engine_of, filter_order_of
from resispec.transformers import read_warp
from resispec.trees import chain, complete
from resispec.verifiers import get_verifier
from tests.toys import table_pair, tiny_llama

pytestmark = pytest.mark.numerics

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


BY_HAND = {
    # p = (.4, .3, .2, .1), at T = 1/2 as (16, 9, 4, 1) / 30. The mass before a token decides about
    # it.
    # 0 .53 .83
    ("temperature and top_p", "transformers"): ({"temperature": 0.5, "top_p": 0.75}, (16, 9)),
    # 0 .4 .7 .9
    ("temperature and top_p", "llama.cpp"): ({"temperature": 0.5, "top_p": 0.75}, (16, 9, 4)),
    # The ratios to the largest are 1 .75 .5 .25, and at T = 1/2 their squares.
    ("temperature and min_p", "transformers"): ({"temperature": 0.5, "min_p": 0.4}, (16, 9)),
    ("temperature and min_p", "llama.cpp"): ({"temperature": 0.5, "min_p": 0.4}, (16, 9, 4)),
    # Without the last token the masses are those of (4, 3, 2) / 9.
    ("top_p and min_p", "transformers"): ({"top_p": 0.72, "min_p": 0.3}, (4, 3, 2)),  # 0 .4 .7
    ("top_p and min_p", "vllm"): ({"top_p": 0.72, "min_p": 0.3}, (4, 3)),  # 0 .44 .78
    ("top_p and min_p", "openvino"): ({"top_p": 0.72, "min_p": 0.3}, (4, 3, 2)),
    # The first two alone have the masses (4, 3) / 7.
    ("top_k and top_p", "transformers"): ({"top_k": 2, "top_p": 0.5}, (4,)),  # 0 .57
    ("top_k and top_p", "vllm"): ({"top_k": 2, "top_p": 0.5}, (4,)),
    ("top_k and top_p", "sglang"): ({"top_k": 2, "top_p": 0.5}, (4, 3)),  # 0 .4
}


@pytest.mark.parametrize(
    ("case", "expected"), BY_HAND.items(), ids=lambda case: "-".join(map(str, case[:2]))
)
def test_laws_of_every_order_by_hand(case, expected):
    settings, kept = expected
    logits = torch.tensor([[0.2, 0.4, 0.1, 0.3]]).log()  # the tokens 1 3 0 2 by their masses
    law = torch.zeros(1, 4)
    law[0, torch.tensor([1, 3, 0, 2][: len(kept)])] = torch.tensor(kept) / sum(kept)
    torch.testing.assert_close(Warp(**settings, filter_order=case[1]).law(logits), law)


def test_two_orders_are_the_same_where_no_law_differs():
    """For all settings that are on or off, against laws of many random logits."""
    logits = 2 * torch.randn(200, 12, generator=torch.Generator().manual_seed(5))
    values = {"temperature": 0.6, "top_k": 5, "top_p": 0.7, "min_p": 0.15}
    every = [dict(part) for size in range(5) for part in combinations(values.items(), size)]
    pairs = Counter()
    for settings, first, other in product(every, FILTER_ORDERS, FILTER_ORDERS):
        warps = [Warp(**settings, filter_order=order) for order in (first, other)]
        laws = [warp.law(logits) for warp in warps]
        is_same = warps[0].is_as_in(other)
        assert is_same == torch.allclose(*laws, atol=1e-6), (settings, first, other)
        pairs[is_same] += 1
    assert min(pairs.values()) > 50
    assert Warp(temperature=0, top_p=0.5, filter_order="sglang").is_as_in("llama.cpp")


def test_an_order_is_named_by_an_engine():
    names = {"llama_cpp": "llama.cpp", "llama.cpp, plain": "llama.cpp", "vLLM 0.11": "vllm"}
    names |= {"OpenVINO GenAI, plain": "openvino", "transformers, assisted": "transformers"}
    names |= {"sglang": "sglang", "mine": "transformers", "TensorRT-LLM": "transformers"}
    names |= {"llama-server": "llama.cpp", "ik_llama.cpp": "llama.cpp", "1Cat-vLLM": "vllm"}
    names |= {"sgl-project/x": "sglang", "vllm, transformers backend": "vllm"}
    # defect: words of letters that others end with and begin with were taken for an engine
    names |= dict.fromkeys(("dev LLM server", "infer_v2_llm", "own llama"), "transformers")
    assert engine_of("ctransformers") is None and engine_of("vllm-openai") == "vllm"
    assert engine_of("xllamacpp") == "llama.cpp" and engine_of("NanoVLLM") == "vllm"
    assert {name: filter_order_of(name) for name in names} == names
    with pytest.raises(
        InvalidInput, match=r"filter_order is 'mine'; allowed: transformers, llama.cpp, vllm"
    ):
        Warp(filter_order="mine")


def test_a_temperature_alone_is_the_softmax_to_the_last_bit_and_greedy_takes_the_first_of_equals():
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        logits = torch.randn(4, 99, generator=torch.Generator().manual_seed(1)).to(dtype)
        for temperature in (1.0, 0.6):
            law = Warp(temperature=temperature).law(logits)
            precise = logits.to(torch.promote_types(dtype, torch.float32))
            assert (
                torch.equal(law, (precise / temperature).softmax(-1)) and law.dtype == precise.dtype
            )
    law = Warp(temperature=0).law(torch.tensor([[1.0, 3.0, 3.0], [0.0, torch.nan, 9.0]]))
    assert law[0].tolist() == [0, 1, 0] and bool(law[1].isnan().all())


ANOTHER_ORDER = {"temperature": 0.6, "top_p": 0.7, "filter_order": "llama.cpp"}


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        *((method, WARPS["top_k 2"]) for method in METHODS),
        *(("independent, standard", settings) for settings in (WARPS["all"], ANOTHER_ORDER)),
    ],
)
def test_decoding_has_the_warped_law(method, settings):
    """Chi-square of every token against the target's warped law after the one before it.

    Seeded; a fresh seed fails with rate 1e-4.
    """
    pair, count = table_pair(vocab=5, seed=3, gap=2.0), 600
    sampling = Sampling(max_new_tokens=count, max_length=4000, **{"temperature": 1.0, **settings})
    topology, draws, verifier = METHODS[method]
    decoder = Decoder(DraftModel(topology, draws), get_verifier(verifier))
    generator = torch.Generator().manual_seed(7)
    tokens = torch.tensor([1, *decoder.generate(pair, [0, 1], sampling, generator).tokens])
    rows, size = Warp(**settings).law(pair.target.logits), pair.target.vocab_size
    laws = torch.zeros(count, size, size, dtype=torch.float64)
    laws[torch.arange(count), tokens[:-1]] = rows[tokens[:-1]]
    assert chi_square(laws.flatten(1), tokens[:-1] * size + tokens[1:]).p_value > 1e-4


@pytest.mark.parametrize(
    ("made", "named"),
    [
        ([processors.TypicalLogitsWarper(0.9)], "TypicalLogitsWarper"),
        ([processors.TopPLogitsWarper(0.9, min_tokens_to_keep=2)], "TopPLogitsWarper"),
        (
            [processors.TopPLogitsWarper(0.9), processors.TemperatureLogitsWarper(0.7)],
            "TemperatureLogits",
        ),
        ([processors.TopKLogitsWarper(9), processors.TopKLogitsWarper(3)], "TopKLogitsWarper"),
    ],
)
def test_a_processor_that_a_tree_cannot_have_is_refused_by_name(made, named):
    with pytest.raises(
        InvalidInput, match=f"logits processor {named}.* cannot be applied to a tree"
    ):
        read_warp(made, do_sample=True)


def test_a_processor_that_changes_no_law_is_none():
    made = [processors.TopKLogitsWarper(5), processors.LogitNormalization()]
    assert read_warp(made, do_sample=True) == Warp(top_k=5)
    assert read_warp(made, do_sample=False) == Warp(temperature=0.0)
