"""Optimal transport over levels: exact for every tree, with more tokens than from the leaves up."""

import pytest
import torch

from resispec.audit.ceiling import ceiling
from resispec.audit.enumerate import chain_law, tree_law
from resispec.core import Draws, Tree
from resispec.trees import Topology, chain, complete, from_widths
from resispec.verifiers import LevelOptimal, draw_outcome, get_verifier, read_verdict
from resispec.verifiers import level_optimal as module
from tests.accounts import accepted_tokens, rng

pytestmark = pytest.mark.numerics

UNEVEN = Topology((-1, 0, 0, 0, 1, 1, 2, 4))


def rows(vocab, seed, sharpness=0.5):
    """Two bigram models (V, V), float64."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        laws = torch.distributions.Dirichlet(torch.full((vocab,), sharpness, dtype=torch.float64))
        return laws.sample((vocab,)), laws.sample((vocab,))


def test_it_is_exact_wherever_weights_are_cut_off_and_tokens_have_no_mass(monkeypatch):
    """In the target, in the draft, and in both."""
    target, draft = rows(4, 0)
    target[:, 1] = draft[:, 2] = target[:, 3] = draft[:, 3] = 0
    target, draft = (law / law.sum(-1, keepdim=True) for law in (target, draft))
    for least in (module.LEAST_WEIGHT, 0.3):
        monkeypatch.setattr(module, "LEAST_WEIGHT", least)
        law = tree_law(LevelOptimal(), from_widths((2, 2)), target, draft, Draws.IID)
        assert float((law - chain_law(target, 3)).abs().max()) < 1e-12


def test_drafts_of_next_to_no_mass_leave_a_law():
    """Drafts of mass 1e-322 were refused, nothing was kept for that, and walks stopped nowhere."""
    q = torch.tensor([1, 1e-322, 1e-322], dtype=torch.float64)
    for p in (q, q.flip(0), torch.tensor([1.0, 0, 0], dtype=torch.float64)):
        for topology in (complete(2, 2), complete(3, 2), chain(3)):
            tree = Tree(topology, torch.ones(topology.num_nodes, dtype=torch.int64), Draws.IID)
            laws = (law.expand(topology.num_nodes, 3) for law in (p, q))
            outcomes = LevelOptimal().outcomes(tree, *laws)
            assert (
                abs(outcomes.stop.sum() - 1) < 1e-9
                and (outcomes.final.sum(-1) - 1).abs().max() < 1e-9
            )


@pytest.mark.parametrize("siblings", [2, 3])
def test_at_one_node_it_attains_the_ceiling(siblings):
    """But for what bins and classes give away, which shrinks."""
    for seed in range(3):
        target, draft = rows(3, seed)
        most = float(ceiling(target[0], draft[0], siblings, Draws.IID))
        losses = [
            most
            - accepted_tokens(
                LevelOptimal(bins, classes), from_widths((siblings,)), (target, draft)
            )
            for bins, classes in ((256, 32), (4096, 512))
        ]
        assert -1e-12 < losses[1] < 2e-3 and losses[1] <= losses[0] < 0.02


def test_it_emits_more_than_from_the_leaves_up():
    topology, gains = from_widths((2, 2)), []
    for seed in range(4):
        target, draft = rows(2, seed, 1.0)
        draft = (draft + target) / 2
        found = [
            accepted_tokens(verifier, topology, (target, draft))
            for verifier in (LevelOptimal(256, 128), get_verifier("traversal_optimal"))
        ]
        gains.append(found[0] - found[1])
    assert min(gains) > -1e-12 and max(gains) > 0.01


@pytest.mark.parametrize("least", [module.LEAST_WEIGHT, 0.2])
@pytest.mark.parametrize("topology", [from_widths((3, 3, 3)), UNEVEN])
def test_a_walk_follows_the_law_of_the_whole_tree(topology, least, monkeypatch):
    """With the same uniform numbers `verify`, which leaves out nodes, draws as from `outcomes`."""
    monkeypatch.setattr(module, "LEAST_WEIGHT", least)
    verifier, stopped = LevelOptimal(), set()
    for seed in range(12):
        target, draft = rows(6, seed)
        tokens = torch.randint(6, (topology.num_nodes,), generator=rng(seed))
        given = Tree(topology, tokens, Draws.IID), target[tokens], draft[tokens]
        for draw in range(4):
            numbers = draw_outcome(verifier, *given, rng(draw)).tolist()
            wanted = read_verdict(numbers, topology, target.dtype)
            assert verifier.verify(*given, rng(draw)) == wanted
            stopped.add(wanted.path[-1:])
    assert len(stopped) >= min(topology.num_nodes, 6) - 1


def test_a_walk_looks_at_nodes_that_compete_only():
    """The second child of the root has no weight, whatever its laws are."""
    target, draft = rows(4, 0, 1.0)
    target[0] = torch.tensor([0, 0.5, 0, 0.5])
    given = Tree(complete(3, 2), torch.tensor([0, 1, 2, 3, 3, 0, 1]), Draws.IID)
    laws = target[given.tokens], draft[given.tokens]
    wanted = LevelOptimal().verify(given, *laws, rng(0))
    laws[0][2] = laws[1][2] = torch.nan
    assert LevelOptimal().verify(given, *laws, rng(0)) == wanted
    assert LevelOptimal().outcomes(given, *laws).stop.isfinite().all()
    laws[1][1] = torch.nan
    with pytest.raises(FloatingPointError, match="chances to stop in a verified tree sum to nan"):
        LevelOptimal().verify(given, *laws, rng(0))
