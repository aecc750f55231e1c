"""What holds for every registered verifier, whatever it does with a tree."""

import pytest
import torch
from accounts import law, rng
from toys import table_pair

from resispec.core import Draws, Tree
from resispec.decode import Decoder, Sampling
from resispec.drafters import NoDraft
from resispec.trees import root_only
from resispec.verifiers import available, get_verifier


@pytest.mark.parametrize("draws", list(Draws))
@pytest.mark.parametrize("columns", [0, 4])
@pytest.mark.parametrize("name", available())
def test_a_root_alone_emits_one_token_of_the_target(name, columns, draws):
    """A drafter that proposes nothing has no law, not even one with as many columns as there are tokens."""
    verifier, generator = get_verifier(name), rng(0)
    target = law(0.1, 0.2, 0.0, 0.7).float()
    tree, draft = Tree(root_only(), torch.tensor([3]), draws), torch.full((1, columns), 0.25)
    outcomes = verifier.outcomes(tree, target[None], draft)
    assert outcomes.stop.tolist() == [1.0] and torch.allclose(outcomes.final, target[None])
    assert outcomes.stop.dtype == outcomes.final.dtype == torch.float32
    verdicts = [verifier.verify(tree, target[None], draft, generator) for _ in range(400)]
    assert all(verdict.path == () and verdict.num_emitted == 1 for verdict in verdicts)
    found = torch.bincount(torch.tensor([verdict.tokens[0] for verdict in verdicts]), minlength=4) / 400
    assert found[2] == 0 and (found - target).abs().max() < 0.1


@pytest.mark.parametrize("name", available())
def test_decoding_without_a_draft_takes_any_verifier(name):
    decoder = Decoder(NoDraft(), get_verifier(name))
    result = decoder.generate(table_pair(), [0], Sampling(1.0, 6, 64), rng(0))
    assert len(result.tokens) == 6 and result.num_emitted == (1,) * 6
