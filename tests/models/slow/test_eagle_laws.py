"""Outputs of EAGLE against the target's chain rule, by many short runs; a fresh seed fails at rate 1e-4."""

import itertools

import pytest
import torch
from scipy.stats import chisquare
from test_eagle_decode import DRAFTERS, bigram_pair, generate
from toys import eagle3_pair

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
}
# Of EAGLE-3 the map leaves out one token of four.
KINDS = {
    "eagle": (bigram_pair, DRAFTERS, 0.8),
    "eagle3": (lambda: eagle3_pair((0, 1, 3), vocab=4, seed=3), EAGLE3, 2.0),
}


def p_value(kind, name, verifier, runs=400):
    """Chi-square of outputs of two tokens."""
    make_pair, drafters, temperature = KINDS[kind]
    pair, prompt = make_pair(), (0, 1)
    laws = [
        probabilities(pair.target.head(features_of(pair.target, [*prompt, first])), temperature).double()
        for first in range(4)
    ]
    pairs = list(itertools.product(range(4), repeat=2))
    law = torch.stack([laws[0][1, first] * laws[first][2, second] for first, second in pairs])
    assert law.min() > 1e-4
    counts = dict.fromkeys(pairs, 0)
    for seed in range(runs):
        sampling = Sampling(temperature, 2, 64)
        counts[generate(pair, drafters[name], sampling, seed, verifier, prompt).tokens] += 1
    return chisquare(list(counts.values()), (runs * law / law.sum()).tolist()).pvalue


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["sampled", "dynamic", "fixed"])
def test_the_output_law_is_the_targets(kind, name):
    assert p_value(kind, name, "standard") > 1e-4


@pytest.mark.parametrize(
    ("kind", "name", "verifier"), [("eagle", "fixed softmax", "standard"), ("eagle3", "sampled", "resispec")]
)
def test_the_same_test_finds_the_bias(kind, name, verifier):
    assert p_value(kind, name, verifier) < 1e-6
