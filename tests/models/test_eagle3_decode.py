"""EAGLE-3 in the one loop: which readings are exact, and what its own vocabulary does."""

import itertools

import pytest
import torch
from scipy.stats import chisquare
from test_eagle_decode import DRAFTERS, UNEVEN, deviation, first_step, generate
from toys import ToyTokenizer, eagle3_pair

from resispec.audit.ceiling import ceiling
from resispec.decode import Sampling
from resispec.distributions import probabilities
from resispec.drafters import DynamicTree, Eagle, NoDraft, Reading
from resispec.draws import Draws
from resispec.errors import InvalidInput
from resispec.models import EagleSession, Pair, features_of
from resispec.trees import chain, complete

FEW = (0, 1, 3, 4, 6, 8, 9)


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("prompt", [(5,), (5, 6, 7, 8)])
def test_a_vanishing_temperature_is_greedy(name, prompt):
    pair, sampling = eagle3_pair(FEW, vocab=10), Sampling(1e-5, 24, 128)
    plain = Pair(pair.target.tapping(()), None, ToyTokenizer())
    expected = generate(plain, NoDraft(), sampling, prompt=prompt).tokens
    assert generate(pair, DRAFTERS[name], sampling, prompt=prompt).tokens == expected


@pytest.mark.parametrize("tree", [UNEVEN, DynamicTree(12, 2, 3)])
def test_drafted_tokens_and_laws_are_in_its_vocabulary_and_follow_an_uncached_forward(tree):
    pair, prompt, steps, temperature = eagle3_pair(), [1, 2, 3, 4], [], 0.7
    generate(pair, Eagle(tree), Sampling(temperature, 1, 64), prompt=prompt, on_step=steps.append)
    drafted, module = steps[0].draft, pair.draft.module
    allowed = module.t2d
    assert allowed[drafted.tree.tokens[1:]].all() and not allowed.all()
    with torch.inference_mode():
        true = module.fc(features_of(pair.target, prompt)[:-1, 32:])
        for node, children in enumerate(drafted.tree.topology.children):
            if not children:
                continue
            path = drafted.tree.topology.ancestors[node].nonzero()[1:, 0]
            rows, tokens = true, prompt[1:]
            for token in [*drafted.tree.tokens[path].tolist(), None]:
                positions = torch.arange(len(tokens))[None]
                predicted = module(torch.tensor([tokens]), rows[None], positions)[0, -1:]
                rows, tokens = torch.cat((rows, predicted)), [*tokens, token]
            law = probabilities(pair.draft.head(predicted)[0], temperature)
            assert torch.allclose(drafted.probs[node], law, atol=1e-4)
            assert drafted.probs[node][~allowed].sum() == 0


def test_the_cache_holds_the_targets_true_states(monkeypatch):
    pair, known, extend = eagle3_pair(), [], EagleSession.extend

    def observed(session, tokens, features):
        known.extend(zip(tokens.tolist(), features, strict=True))
        return extend(session, tokens, features)

    monkeypatch.setattr(EagleSession, "extend", observed)
    prompt = [1, 2, 3, 4, 5]
    sampled = Eagle(UNEVEN, Reading.SAMPLED)
    sequence = [*prompt, *generate(pair, sampled, Sampling(1.0, 40, 128), prompt=prompt).tokens]
    assert len(known) > 30 and [token for token, _ in known] == sequence[1 : len(known) + 1]
    found = torch.stack([feature for _, feature in known])
    assert torch.allclose(found, features_of(pair.target, sequence)[: len(known)], atol=1e-3)


@pytest.mark.parametrize("tree", [UNEVEN, chain(3), complete(3, 3), DynamicTree(12, 2, 3)])
def test_point_masses_are_exact_and_the_papers_reading_is_not(tree):
    pair = eagle3_pair(tuple(range(0, 8, 2)), vocab=8)
    step = first_step(pair, Eagle(tree), prompt=(1, 2, 3))
    assert deviation(step, "standard") < 1e-12
    step = first_step(pair, Eagle(tree, Reading.SOFTMAX), prompt=(1, 2, 3))
    assert deviation(step, "standard") > 0.01 or tree == chain(3)


def p_value(drafter, verifier="standard", runs=300, temperature=2.0):
    """Chi-square of 2-token outputs against the target's chain rule; the map leaves out one token of four."""
    pair, prompt = eagle3_pair((0, 1, 3), vocab=4, seed=3), (0, 1)
    pairs = list(itertools.product(range(4), repeat=2))
    laws = [
        probabilities(pair.target.head(features_of(pair.target, [*prompt, first])), temperature)
        for first in range(4)
    ]
    law = {(first, second): float(laws[0][1, first] * laws[first][2, second]) for first, second in pairs}
    counts = dict.fromkeys(law, 0)
    for seed in range(runs):
        counts[generate(pair, drafter, Sampling(temperature, 2, 64), seed, verifier, prompt).tokens] += 1
    assert min(law.values()) > 1e-3
    expected = torch.tensor(list(law.values()), dtype=torch.float64)
    return chisquare(list(counts.values()), (runs * expected / expected.sum()).tolist()).pvalue


WIDE = complete(3, 2)


@pytest.mark.parametrize("drafter", [Eagle(WIDE, Reading.SAMPLED), Eagle(DynamicTree(6, 1, 2)), Eagle(WIDE)])
def test_the_output_law_is_the_targets(drafter):
    """Seeded, false-alarm rate 1e-4 for a fresh seed."""
    assert p_value(drafter) > 1e-4


@pytest.mark.parametrize(
    ("drafter", "verifier"),
    [(Eagle(WIDE, Reading.SOFTMAX), "standard"), (Eagle(WIDE, Reading.SAMPLED), "resispec")],
)
def test_the_same_test_finds_the_bias(drafter, verifier):
    assert p_value(drafter, verifier) < 1e-6


def test_the_map_bounds_what_any_exact_rule_accepts():
    """The ceiling is at most the target's mass in the vocabulary, of which it lacks some."""
    steps = []
    generate(
        eagle3_pair(),
        Eagle(WIDE, Reading.SAMPLED),
        Sampling(1.0, 40, 128),
        on_step=steps.append,
        prompt=(1, 2),
    )
    for step in steps:
        p, q = step.target_probs[0], step.draft.probs[0]
        covered = float(p[q > 0].double().sum())
        assert float(ceiling(p, q, 2, Draws.WITHOUT_REPLACEMENT)) <= covered + 1e-6 < 1


def test_more_candidates_than_its_vocabulary_are_refused():
    pair = eagle3_pair(FEW, vocab=10)
    for tree in (complete(2, 8), DynamicTree(20, 1, 8)):
        with pytest.raises(InvalidInput, match="8 candidates of one parent; the vocabulary has 7 tokens"):
            generate(pair, Eagle(tree), Sampling(1.0, 4, 64))
