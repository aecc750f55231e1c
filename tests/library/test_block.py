"""Block Verification on chains: exact, equal to verification from the leaves up, for chains alone."""

import pytest
import torch
from accounts import drafted, rng
from toys import ToyTokenizer, tiny_eagle, tiny_llama

from resispec.audit.battery import KINDS, pair_of_laws
from resispec.audit.enumerate import chain_law, tree_law
from resispec.core import Draws, Tree
from resispec.decode import Decoder, Sampling
from resispec.drafters import Eagle
from resispec.errors import InvalidInput
from resispec.models import EagleModel, Pair
from resispec.trees import chain, complete, parallel_chains, root_only
from resispec.verifiers import get_verifier


@pytest.mark.parametrize("draws", list(Draws))
def test_exact_by_enumeration_and_equal_to_traversal(draws):
    generator = rng(1)
    for kind in KINDS:
        for vocab, num_drafted in ((2, 3), (3, 2)):
            rows = [pair_of_laws(kind, vocab, generator) for _ in range(vocab)]
            target, draft = (torch.stack(laws) for laws in zip(*rows, strict=True))
            law = tree_law(get_verifier("block"), chain(num_drafted), target, draft, draws)
            assert (law - chain_law(target, num_drafted + 1)).abs().max() < 1e-12
        for num_drafted in (1, 5):
            given = drafted(chain(num_drafted), 5, draws, seed=num_drafted, kind=kind)
            outcomes, wanted = (get_verifier(name).outcomes(*given) for name in ("block", "traversal"))
            assert torch.allclose(outcomes.stop, wanted.stop, rtol=0, atol=1e-12)
            joint, other = (one.stop[:, None] * one.final for one in (outcomes, wanted))
            assert torch.allclose(joint, other, rtol=0, atol=1e-12)
            assert outcomes.final.sum(-1).sub(1).abs().max() < 1e-12


def test_a_residual_that_rounding_removed_is_no_failure():
    """p is below q only at the drafted token (exaggerated): the step ends with a draw from the target."""
    target, draft = torch.tensor([[0.25, 0.25, 0.25]] * 2), torch.tensor([[0.5, 0.25, 0.25]] * 2)
    tree, generator = Tree(chain(1), torch.tensor([0, 0]), Draws.IID), rng(0)
    outcomes = get_verifier("block").outcomes(tree, target, draft)
    assert outcomes.stop.tolist() == [0.5, 0.5] and torch.allclose(outcomes.final, torch.tensor(1 / 3))
    verdicts = [get_verifier("block").verify(tree, target, draft, generator) for _ in range(40)]
    assert {verdict.num_accepted for verdict in verdicts} == {0, 1}
    assert {verdict.tokens[-1] for verdict in verdicts} == {0, 1, 2}


def test_a_drafter_may_begin_with_a_root_alone():
    """EAGLE has no feature to draft from after a prompt of one token."""
    pair = Pair(tiny_llama(), EagleModel(tiny_eagle()), ToyTokenizer())
    decoder, trees = Decoder(Eagle(chain(3)), get_verifier("block")), []
    decoder.generate(
        pair, [1], Sampling(1.0, 8, 64), rng(0),
        on_step=lambda step: trees.append(step.draft.tree.topology),
    )  # fmt: skip
    assert trees[0] == root_only() and set(trees[1:]) == {chain(3)}


@pytest.mark.parametrize("topology", [complete(3, 2), parallel_chains(2, 2)])
def test_other_topologies_are_refused(topology):
    given = drafted(topology, 2)
    block = get_verifier("block")
    for use in (block.outcomes, lambda *given: block.verify(*given, None)):
        with pytest.raises(InvalidInput, match="a node of 2 children; allowed: chains"):
            use(*given)
