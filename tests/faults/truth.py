"""The true bias of a planted fault: the output's total variation to the target, on stated laws.

The laws: p is Zipf's (rank r has a mass proportional to 1 / r), with the tokens in a random order
after every token; q is p with normal noise on its logits, whose standard deviation the fault says.
With 6 tokens and 1.5, p and q after token 0 differ by a total variation of .38.
"""

from functools import lru_cache
from types import SimpleNamespace

import torch
from torch import Generator

from resispec.audit.enumerate import chain_law, emitted_law, total_variation, tree_law
from resispec.decode import Decoder, Sampling
from resispec.drafters import DraftModel
from resispec.models import Pair
from resispec.verifiers import SiblingRule
from resispec.verifiers.base import interface_of
from tests.toys import TableModel, ToyTokenizer

NUM_TOKENS = 4
"""The length of the continuations that faults of the loop are judged by."""
FIRST_SEED = 100
"""Of the laws after token 0; those after token t have the seed that is t larger."""


def truth(fault):
    """The total variation, by enumeration in float64; for faults of the loop see `simulated`.

    A rule is judged by the first token, a verifier by the first D tokens, on the fault's tree.
    """
    made = fault.make()
    if interface_of(made) is SiblingRule:
        p, q = laws(fault.vocab, 0, fault.noise)
        return total_variation(
            emitted_law(made, p, q, len(fault.topology.children[0]), fault.draws), p
        )
    verifier = SimpleNamespace(outcomes=getattr(made, "true_outcomes", made.outcomes))
    target, draft = bigrams(fault.vocab, fault.noise)
    law = tree_law(verifier, fault.topology, target, draft, fault.draws)
    return total_variation(law, chain_law(target, fault.topology.num_levels))


def simulated(fault, num_prompts):
    """The total variation of NUM_TOKENS decoded tokens after token 0, and its standard error.

    Prompt i is decoded with the seed i. One half of the prompts chooses the set of continuations
    that are too frequent, the other half measures it, so that the mean is 0 for an exact loop, else
    at most the truth.
    """
    target, draft = bigrams(fault.vocab, fault.noise)
    pair = Pair(TableModel(target.log()), TableModel(draft.log()), ToyTokenizer())
    places = fault.vocab ** torch.arange(NUM_TOKENS - 1, -1, -1)
    halves = torch.zeros(2, fault.vocab**NUM_TOKENS, dtype=torch.float64)
    for seed in range(num_prompts):
        decoder = Decoder(DraftModel(fault.topology, fault.draws), fault.make())
        sampling, generator = Sampling(1.0, NUM_TOKENS, 64), Generator().manual_seed(seed)
        tokens = decoder.generate(pair, [0], sampling, generator).tokens
        halves[seed % 2, int((torch.tensor(tokens) * places).sum())] += 2 / num_prompts
    excess = halves - chain_law(target, NUM_TOKENS).flatten()
    found = [float(excess[here][excess[1 - here] > 0].sum()) for here in (0, 1)]
    masses = [min(1.0, float(halves[here][excess[1 - here] > 0].sum())) for here in (0, 1)]
    # The two halves choose each other's sets, so their errors are averaged, as if they were
    # dependent.
    error = sum((mass * (1 - mass) / (num_prompts / 2)) ** 0.5 for mass in masses) / 2
    return sum(found) / 2, error


@lru_cache
def bigrams(vocab, noise=1.5):
    """The laws p and q after every token, both (V, V) float64."""
    target, draft = zip(*(laws(vocab, token, noise) for token in range(vocab)), strict=True)
    return torch.stack(target), torch.stack(draft)


def laws(vocab, token, noise=1.5):
    """The laws p and q after one token, both (V,) float64."""
    generator = Generator().manual_seed(FIRST_SEED + token)
    logits = -(1 + torch.randperm(vocab, generator=generator)).double().log()
    change = noise * torch.randn(vocab, generator=generator, dtype=torch.float64)
    return torch.softmax(logits, -1), torch.softmax(logits + change, -1)
