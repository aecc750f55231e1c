"""Verifiers of the field: what is known of each beyond that it is exact, see test_exact.py."""

import pytest
import torch

from resispec.audit.enumerate import chain_law, drafted_tuples, tree_law
from resispec.core import Draws, Tree
from resispec.decode import Decoder, Sampling
from resispec.drafters import DraftModel
from resispec.draws import Hub
from resispec.errors import InvalidInput, NotDefined
from resispec.trees import complete, from_child_counts, parallel_chains
from resispec.verifiers import Greedy, SpecHub, TopDown, as_verifier, get_rule, get_verifier
from resispec.verifiers.rehearsal import rehearse
from tests.accounts import accepted_tokens, drafted, law, random_law, rng
from tests.toys import table_pair

pytestmark = pytest.mark.numerics


def one_node(verifier, p, q, draws, count):
    """Accepted tokens at one node of `count` siblings, and the emitted law."""
    rows = [torch.stack(len(p) * [law]) for law in (p, q)]
    return accepted_tokens(as_verifier(verifier), complete(2, count), rows, draws)


def test_gbv_breaks_ties_of_p_over_q_as_its_law_says():
    """Tokens 0 and 1 have the same ratio; its authors' code emits (.44, .36, .20)."""
    p, q = law(0.4, 0.4, 0.2), law(0.2, 0.2, 0.6)
    assert one_node(get_verifier("gbv"), p, q, Draws.IID, 2) == pytest.approx(0.84, abs=1e-12)
    assert float(Draws.IID.ceiling(p, q, 2)) == pytest.approx(0.84, abs=1e-12)
    # Where ratios differ it can be below the ceiling: 17/18 of 1.
    assert one_node(
        get_verifier("gbv"), law(1 / 2, 1 / 3, 1 / 6), law(1 / 3, 1 / 3, 1 / 3), Draws.IID, 2
    ) == pytest.approx(17 / 18, abs=1e-12)


@pytest.mark.parametrize("name", ["gbv", "khisti"])
def test_what_reads_numbers_is_not_captured(name, monkeypatch):
    """Its `outcomes` would be captured from the second step on, with the numbers of the first."""
    monkeypatch.setattr("resispec.step.reading_is_free", lambda _: False)
    monkeypatch.setattr(
        "resispec.step.draw_outcome", lambda *_: pytest.fail("its law was taken as one program")
    )
    decoder = Decoder(DraftModel(parallel_chains(2, 2)), get_verifier(name))
    assert len(decoder.generate(table_pair(), [0], Sampling(1.0, 12, 64), rng(0)).tokens) == 12


def test_gbv_takes_paths_only():
    for topology in (complete(3, 2), from_child_counts([[2], [1, 0]])):
        with pytest.raises(InvalidInput, match="allowed: paths of one length"):
            get_verifier("gbv").outcomes(*drafted(topology, 4))


def test_khisti_s_whole_program_is_the_optimum_of_two_drafts_and_a_truncated_one_is_below():
    """The optimum of arXiv 2502.18779; 17/18 is what two tokens in the program give by hand."""
    for seed in range(5):
        p, q = random_law(6, rng(seed), 1), random_law(6, rng(seed + 7))
        whole = acceptance(get_rule("khisti", size=6), p, q)
        assert whole == pytest.approx(float(Draws.IID.ceiling(p, q, 2)), abs=1e-9)
    p, q = law(1 / 2, 1 / 3, 1 / 6), law(1 / 3, 1 / 3, 1 / 3)
    found = [acceptance(get_rule("khisti", size=size), p, q) for size in (1, 2, 3)]
    assert found == pytest.approx([17 / 18, 17 / 18, 1], abs=1e-9)


def test_khisti_blames_a_law_that_is_none():
    tree, target, draft = drafted(complete(2, 2), 4)
    for laws in ((target * torch.nan, draft), (target, draft * torch.nan)):
        with pytest.raises(FloatingPointError, match="khisti: a law is nan"):
            get_verifier("khisti").verify(tree, *laws, rng(0))


def acceptance(rule, p, q):
    """The chance that the chosen one of two siblings passes its test."""
    tokens, weights = drafted_tuples(q, 2, Draws.IID)
    laws = rule.law(p.expand(len(tokens), -1), q.expand(len(tokens), -1), tokens, Draws.IID)
    return float(weights @ laws.select.sum(-1))


def test_spec_hub_accepts_what_greedy_draws_of_two_do():
    for seed in range(5):
        p, q = random_law(5, rng(seed), 1), random_law(5, rng(seed + 7))
        hub, greedy = one_node(SpecHub(), p, q, Hub(), 2), one_node(Greedy(), p, q, Draws.GREEDY, 2)
        assert hub == pytest.approx(greedy, abs=1e-12)


def test_spec_hub_is_exact_on_trees():
    for seed in range(5):
        target, draft = (
            torch.stack([random_law(3, rng(seed + add + row)) for row in range(3)])
            for add in (0, 50)
        )
        for topology in (complete(3, 2), from_child_counts([[2], [1, 0]])):
            found = tree_law(TopDown(SpecHub()), topology, target, draft, Hub())
            assert (found - chain_law(target, 3)).abs().max() < 1e-12


def test_hub_pairs_hold_the_likeliest_token_and_have_the_law_that_is_told():
    q = law(0.5, 0.3, 0.2)
    pairs = Hub().draw(q.expand(20_000, 3), 2, rng(0))
    assert bool((pairs == 0).any(-1).all()) and bool((pairs[:, 0] != pairs[:, 1]).all())
    for pair in ((0, 1), (0, 2), (1, 0), (2, 0)):
        share = (pairs == torch.tensor(pair)).all(-1).double().mean()
        chance = float(Hub().weights(q, torch.tensor(pair)))
        assert float(share) == pytest.approx(chance, abs=0.02)
    with pytest.raises(NotDefined, match="hub draws: 3 siblings; allowed: at most 2"):
        rehearse(as_verifier(SpecHub()), Hub(), complete(3, 3))
    with pytest.raises(InvalidInput, match="hub draws: 3 siblings; allowed: at most 2"):
        DraftModel(complete(3, 3), Hub())


def test_univer_s_weights_are_those_of_its_formulas():
    """A node of mass w below the root, a certain sibling d and a drawn one u."""
    topology = from_child_counts([[1], [2]])
    target, draft = (
        torch.stack([random_law(4, rng(seed + row)) for row in range(4)]) for seed in (0, 9)
    )
    root, below = (int(draft[node].argmax()) for node in (0, 1))
    drawn = (below + 1) % 4
    first = (root + 2) % 4  # of one sibling, which is drawn
    tree = Tree(topology, torch.tensor([0, first, below, drawn]), Draws.GREEDY)
    w = min(1.0, float(target[0, first] / draft[0, first]))
    s = draft[1].clone()
    s[below] = 0
    s /= s.sum()
    kept = (w * target[1] - s).clamp_min(0)
    z = 1 - w + float(kept.sum())
    f_u = min(1.0, float(w * target[1, drawn] / s[drawn]))
    f_d = w * float(target[1, below]) * (1 - f_u) / z
    rejected = (1 - f_u) * (1 - w) / z
    stop = get_verifier("univer").outcomes(tree, target, draft).stop
    expected = [rejected, 1 - f_u - f_d - rejected, f_d, f_u]
    assert stop.tolist() == pytest.approx(expected, abs=1e-12)
