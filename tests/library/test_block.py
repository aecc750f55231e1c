"""Block Verification on chains: exact, equal to verification from the leaves up, drawn as its law says."""

import pytest
import torch
from scipy.stats import chisquare
from toys import ToyTokenizer, tiny_eagle, tiny_llama

from resispec.audit.battery import KINDS, pair_of_laws
from resispec.audit.enumerate import chain_law, tree_law
from resispec.core import Draws, Tree
from resispec.decode import Decoder, Sampling
from resispec.distributions import probabilities
from resispec.drafters import Eagle
from resispec.errors import InvalidInput
from resispec.models import EagleModel, Pair
from resispec.trees import chain, complete, parallel_chains, root_only
from resispec.verifiers import get_verifier


def case(num_drafted, vocab, draws, kind="random", seed=0):
    """A drafted chain with laws of its own at every node."""
    generator = torch.Generator().manual_seed(seed)
    topology = chain(num_drafted) if num_drafted else root_only()
    rows = [pair_of_laws(kind, vocab, generator) for _ in range(topology.num_nodes)]
    target, draft = (torch.stack(laws) for laws in zip(*rows, strict=True))
    tokens = torch.zeros(topology.num_nodes, dtype=torch.int64)
    tokens[1:] = draws.draw(draft[:-1], 1, generator)[:, 0]
    return Tree(topology, tokens, draws), target, draft


@pytest.mark.parametrize("draws", list(Draws))
@pytest.mark.parametrize("kind", KINDS)
def test_exact_by_enumeration(kind, draws):
    generator = torch.Generator().manual_seed(1)
    for vocab, num_drafted in ((2, 1), (2, 4), (3, 3), (4, 2)):
        rows = [pair_of_laws(kind, vocab, generator) for _ in range(vocab)]
        target, draft = (torch.stack(laws) for laws in zip(*rows, strict=True))
        law = tree_law(get_verifier("block"), chain(num_drafted), target, draft, draws)
        assert (law - chain_law(target, num_drafted + 1)).abs().max() < 1e-12


@pytest.mark.parametrize("draws", list(Draws))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_drafted", [0, 1, 2, 5])
def test_equals_traversal_with_standard_weights(num_drafted, kind, draws):
    for seed in range(10):
        given = case(num_drafted, 5, draws, kind, seed)
        found, wanted = (get_verifier(name).outcomes(*given) for name in ("block", "traversal"))
        assert torch.allclose(found.stop, wanted.stop, rtol=0, atol=1e-12)
        joint, other = (outcomes.stop[:, None] * outcomes.final for outcomes in (found, wanted))
        assert torch.allclose(joint, other, rtol=0, atol=1e-12)
        assert found.final.sum(-1).sub(1).abs().max() < 1e-12


@pytest.mark.parametrize("num_drafted", [0, 1, 4])
def test_verify_draws_from_outcomes(num_drafted):
    """Chi-square over (last node, final token), seeded; with a fresh seed it would fail at a rate of 1e-4."""
    tree, target, draft = case(num_drafted, 3, Draws.IID, seed=2)
    verifier, generator = get_verifier("block"), torch.Generator().manual_seed(0)
    outcomes = verifier.outcomes(tree, target, draft)
    joint = outcomes.stop[:, None] * outcomes.final
    assert joint.sum().item() == pytest.approx(1, abs=1e-12)
    counts = torch.zeros_like(joint)
    for _ in range(3000):
        verdict = verifier.verify(tree, target, draft, generator)
        assert verdict.path == tuple(range(1, verdict.num_accepted + 1))
        assert tree.tokens[list(verdict.path)].tolist() == list(verdict.tokens[:-1])
        counts[verdict.num_accepted, verdict.tokens[-1]] += 1
    possible = joint > 1e-12
    assert counts[~possible].sum() == 0
    expected = 3000 * joint[possible] / joint[possible].sum()
    assert (expected > 1).all() and chisquare(counts[possible], expected).pvalue > 1e-4


@pytest.mark.parametrize("seed", range(3, 6))
@pytest.mark.parametrize("scale", [0.0, 1.0, 8.0])
def test_float32_at_a_large_vocabulary(scale, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = -scale * torch.arange(1, 32_001).log() + 0.5 * torch.randn(6, 32_000, generator=generator)
    target = probabilities(logits, 1.0)
    noisy = probabilities(logits + torch.randn(logits.shape, generator=generator), 1.0)
    for draft in (noisy, target):
        tokens = torch.cat(
            (torch.zeros(1, dtype=torch.int64), Draws.IID.draw(draft[:-1], 1, generator)[:, 0])
        )
        tree = Tree(chain(5), tokens, Draws.IID)
        outcomes = get_verifier("block").outcomes(tree, target, draft)
        assert outcomes.stop.dtype == outcomes.final.dtype == torch.float32
        assert (
            outcomes.stop.sum().item() == pytest.approx(1, abs=1e-6)
            and outcomes.final.sum(-1).sub(1).abs().max() < 1e-5
        )
        exact = get_verifier("block").outcomes(tree, target.double(), draft.double())
        assert (outcomes.stop - exact.stop).abs().max() < 1e-4
        for _ in range(10):
            get_verifier("block").verify(tree, target, draft, generator)
    assert outcomes.stop.tolist() == [0, 0, 0, 0, 0, 1]  # p = q


def test_a_residual_that_rounding_removed_is_no_failure():
    """p is below q only at the drafted token (exaggerated): the step ends with a draw from the target."""
    target, draft = torch.tensor([[0.25, 0.25, 0.25]] * 2), torch.tensor([[0.5, 0.25, 0.25]] * 2)
    tree, generator = Tree(chain(1), torch.tensor([0, 0]), Draws.IID), torch.Generator().manual_seed(0)
    outcomes = get_verifier("block").outcomes(tree, target, draft)
    assert outcomes.stop.tolist() == [0.5, 0.5] and torch.allclose(outcomes.final, torch.tensor(1 / 3))
    verdicts = [get_verifier("block").verify(tree, target, draft, generator) for _ in range(40)]
    assert {verdict.num_accepted for verdict in verdicts} == {0, 1} and {
        verdict.tokens[-1] for verdict in verdicts
    } == {0, 1, 2}


def test_a_drafter_may_begin_with_a_root_alone():
    """EAGLE has no feature to draft from after a prompt of one token."""
    pair = Pair(tiny_llama(), EagleModel(tiny_eagle()), ToyTokenizer())
    decoder, trees = Decoder(Eagle(chain(3)), get_verifier("block")), []
    decoder.generate(
        pair, [1], Sampling(1.0, 8, 64), torch.Generator().manual_seed(0),
        on_step=lambda step: trees.append(step.draft.tree.topology),
    )  # fmt: skip
    assert trees[0] == root_only() and set(trees[1:]) == {chain(3)}


@pytest.mark.parametrize("topology", [complete(3, 2), parallel_chains(2, 2)])
def test_other_topologies_are_refused(topology):
    tree = Tree(topology, torch.zeros(topology.num_nodes, dtype=torch.int64), Draws.IID)
    probs = torch.full((topology.num_nodes, 2), 0.5)
    for use in (
        lambda: get_verifier("block").verify(tree, probs, probs, None),
        lambda: get_verifier("block").outcomes(tree, probs, probs),
    ):
        with pytest.raises(InvalidInput, match="a node of 2 children; allowed: chains"):
            use()


@pytest.mark.parametrize("node", [0, 1])
def test_nan_raises(node):
    for seed in range(10):
        tree, target, draft = case(2, 3, Draws.IID, seed=seed)
        target[node] = float("nan")
        with pytest.raises(FloatingPointError):
            get_verifier("block").verify(tree, target, draft, torch.Generator().manual_seed(seed))
