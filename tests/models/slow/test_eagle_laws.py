"""Outputs of sampled EAGLE drafts against the chain rule, in 400 runs; fresh seeds fail at 1e-4.

Point masses are enumerated in test_eagle_decode.py.
"""

import itertools

import pytest
import torch
from scipy.stats import chisquare

from resispec.decode import Sampling
from resispec.drafters import Eagle, Reading
from resispec.models import Warp, features_of
from resispec.trees import complete
from tests.models.toy_eagle import DRAFTERS, bigram_pair
from tests.toys import eagle3_pair, generate


def few_tokens():
    """A pair whose drafter's map leaves out one token of four."""
    return eagle3_pair((0, 1, 3), vocab=4, seed=3)


WIDE = complete(3, 2)
CASES = {
    "eagle": (bigram_pair, DRAFTERS["sampled"], "standard", 0.8),
    "eagle3": (few_tokens, Eagle(WIDE, Reading.SAMPLED), "standard", 2.0),
    "eagle3, recycled": (few_tokens, Eagle(WIDE, Reading.IID, 0.5), "level_optimal", 2.0),
}


@pytest.mark.parametrize("name", CASES)
def test_the_output_law_is_the_targets(name):
    """Chi-square of outputs of two tokens."""
    make_pair, drafter, verifier, temperature = CASES[name]
    pair, prompt, pairs = make_pair(), (0, 1), list(itertools.product(range(4), repeat=2))
    laws = [
        Warp(temperature=temperature).law(
            pair.target.head(features_of(pair.target, [*prompt, first]))
        )
        for first in range(4)
    ]
    law = torch.stack(
        [laws[0][1, first] * laws[first][2, second] for first, second in pairs]
    ).double()
    assert law.min() > 1e-4
    counts = dict.fromkeys(pairs, 0)
    for seed in range(400):
        counts[
            generate(pair, drafter, Sampling(temperature, 2, 64), seed, verifier, prompt).tokens
        ] += 1
    assert chisquare(list(counts.values()), (400 * law / law.sum()).tolist()).pvalue > 1e-4
