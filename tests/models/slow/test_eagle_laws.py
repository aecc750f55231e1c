"""Outputs of EAGLE against the target's chain rule, by many short runs; a fresh seed fails at rate 1e-4."""

import itertools

import pytest
import torch
from scipy.stats import chisquare
from test_eagle_decode import DRAFTERS, bigram_pair, generate
from toys import eagle3_pair, sequence_law

from resispec.decode import Sampling
from resispec.distributions import probabilities
from resispec.drafters import DynamicTree, Eagle, Reading
from resispec.models import features_of
from resispec.trees import complete

WIDE = complete(3, 2)
EAGLE3 = {
    "sampled": Eagle(WIDE, Reading.SAMPLED),
    "dynamic": Eagle(DynamicTree(6, 1, 2)),
    "fixed": Eagle(WIDE),
    "fixed softmax": Eagle(WIDE, Reading.SOFTMAX),
}


def first_p_value(name, verifier, runs=400, temperature=0.8):
    """Chi-square of EAGLE-1's outputs of two tokens."""
    pair = bigram_pair()
    law = sequence_law(pair.target, 1, 2, temperature)
    return p_value(pair, DRAFTERS[name], verifier, law, runs, temperature)


def third_p_value(name, verifier, runs=300, temperature=2.0):
    """The same of EAGLE-3, whose map leaves out one token of four."""
    pair, prompt = eagle3_pair((0, 1, 3), vocab=4, seed=3), (0, 1)
    laws = [
        probabilities(pair.target.head(features_of(pair.target, [*prompt, first])), temperature).double()
        for first in range(4)
    ]
    law = {
        (first, second): float(laws[0][1, first] * laws[first][2, second])
        for first, second in itertools.product(range(4), repeat=2)
    }
    assert min(law.values()) > 1e-3
    return p_value(pair, EAGLE3[name], verifier, law, runs, temperature)


def p_value(pair, drafter, verifier, law, runs, temperature):
    counts = dict.fromkeys(law, 0)
    for seed in range(runs):
        counts[generate(pair, drafter, Sampling(temperature, 2, 64), seed, verifier, (0, 1)).tokens] += 1
    expected = torch.tensor(list(law.values()), dtype=torch.float64)
    return chisquare(list(counts.values()), (runs * expected / expected.sum()).tolist()).pvalue


@pytest.mark.parametrize("found", [first_p_value, third_p_value])
@pytest.mark.parametrize("name", ["sampled", "dynamic", "fixed"])
def test_the_output_law_is_the_targets(found, name):
    assert found(name, "standard") > 1e-4


@pytest.mark.parametrize(
    ("found", "name", "verifier"),
    [
        (first_p_value, "fixed softmax", "standard"),
        (first_p_value, "dynamic softmax", "standard"),
        (first_p_value, "sampled", "resispec"),
        (third_p_value, "fixed softmax", "standard"),
        (third_p_value, "sampled", "resispec"),
    ],
)
def test_the_same_test_finds_the_bias(found, name, verifier):
    assert found(name, verifier) < 1e-6
