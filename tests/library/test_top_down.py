"""A walk down a tree: its whole law against independent accounts of it."""

import itertools

import pytest
import torch
from accounts import BROKEN, Broken, rng
from scipy.stats import chisquare
from toys import table_pair

from resispec.core import Draws, Tree
from resispec.decode import Decoder, Sampling
from resispec.drafters import DraftModel
from resispec.errors import InvalidInput
from resispec.trees import chain, complete, from_child_counts, root_only
from resispec.verifiers import Law, Naive, Standard, TopDown, as_verifier, get_verifier

SHAPES = {
    "root": root_only(),
    "chain": chain(3),
    "d3b2": complete(3, 2),
    "uneven": from_child_counts([[3], [1, 0, 2]]),
}


def laws(rows, vocab, generator):
    weights = -torch.rand(rows, vocab, generator=generator, dtype=torch.float64).log()
    return weights / weights.sum(-1, keepdim=True)


def tree_case(topology, vocab=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(vocab, (topology.num_nodes,), generator=generator)
    return (
        Tree(topology, tokens, Draws.IID),
        laws(topology.num_nodes, vocab, generator),
        laws(topology.num_nodes, vocab, generator),
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["standard", "resispec"])
def test_verify_draws_from_outcomes(shape, name):
    """Chi-square over (last node, final token), seeded; with a fresh seed it would fail at a rate of 1e-4."""
    tree, target, draft = tree_case(SHAPES[shape])
    verifier, generator = get_verifier(name), torch.Generator().manual_seed(1)
    outcomes = verifier.outcomes(tree, target, draft)
    joint = outcomes.stop[:, None] * outcomes.final
    assert joint.sum().item() == pytest.approx(1) and (joint >= 0).all()
    counts = torch.zeros_like(joint)
    for _ in range(1500):
        verdict = verifier.verify(tree, target, draft, generator)
        last = verdict.path[-1] if verdict.path else 0
        counts[last, verdict.tokens[-1]] += 1
        assert [tree.topology.parents[node] for node in verdict.path] == [0, *verdict.path][:-1]
        assert tree.tokens[list(verdict.path)].tolist() == list(verdict.tokens[:-1])
        assert verdict.num_emitted == verdict.num_accepted + 1 <= tree.topology.num_levels
    expected = 1500 * joint / joint.sum()
    assert counts[joint == 0].sum() == 0
    large = expected > 5
    observed, wanted = (
        [*counts[large].tolist(), counts[~large].sum()],
        [*expected[large].tolist(), expected[~large].sum()],
    )
    keep = [index for index, value in enumerate(wanted) if value > 1e-9]
    assert len(keep) < 2 or chisquare([observed[i] for i in keep], [wanted[i] for i in keep]).pvalue > 1e-4


@pytest.mark.parametrize("shape", ["chain", "d3b2", "uneven"])
def test_standard_emits_the_targets_law_on_trees(shape):
    """Sum over every drafted tree: the first two tokens follow p(a) p(b | a) to 1e-12."""
    vocab, topology = 2, SHAPES[shape]
    generator = torch.Generator().manual_seed(7)
    # bigram: row of the token at the node
    target, draft = (laws(vocab, vocab, generator) for _ in range(2))
    emitted = torch.zeros(vocab, vocab, dtype=torch.float64)
    for drafted in itertools.product(range(vocab), repeat=topology.num_nodes - 1):
        tokens = torch.tensor([0, *drafted])
        weight = torch.stack(
            [draft[tokens[topology.parents[n]], tokens[n]] for n in range(1, topology.num_nodes)]
        ).prod()
        outcomes = get_verifier("standard").outcomes(
            Tree(topology, tokens, Draws.IID), target[tokens], draft[tokens]
        )
        for node in range(topology.num_nodes):
            path = [node]
            while path[0]:
                path.insert(0, topology.parents[path[0]])
            emits = tokens[path[1:]].tolist()
            for last in range(vocab):
                mass = weight * outcomes.stop[node] * outcomes.final[node, last]
                first, *rest = [*emits, last]
                # Where one token was emitted, the next one is drawn afresh from the target.
                emitted[first] += mass * (
                    target[first] if not rest else torch.eye(vocab, dtype=torch.float64)[rest[0]]
                )
    truth = target[0][:, None] * target
    assert (emitted - truth).abs().max() < 1e-12


def test_a_rule_that_never_selects_still_goes_on_at_the_drafted_child():
    """A residual draw that equals a drafted sibling is accepted: the naive rule (draw from p, then look)."""

    class DrawFromTarget:
        def law(self, target_probs, _draft_probs, siblings, _draws):
            return Law(torch.zeros(siblings.shape, dtype=target_probs.dtype), target_probs)

    tree = Tree(complete(2, 2), torch.tensor([0, 1, 1]), Draws.IID)
    target = torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    verdict = TopDown(DrawFromTarget()).verify(tree, target, target, torch.Generator())
    assert verdict.path == (1,) and verdict.tokens == (1, 0)
    outcomes = TopDown(DrawFromTarget()).outcomes(tree, target, target)
    assert outcomes.stop.tolist() == [0, 1, 0]


def test_nan_raises():
    tree, target, draft = tree_case(complete(2, 2))
    with pytest.raises(FloatingPointError):
        get_verifier("standard").verify(tree, target * float("nan"), draft, torch.Generator())


@pytest.mark.parametrize(("change", "error", "message"), BROKEN)
def test_what_is_no_law_raises_and_names_the_rule(change, error, message):
    """Before, a dropped residual entry or negative masses gave plausible tokens."""
    tree, target, draft = tree_case(complete(3, 2))
    verifier = TopDown(Broken(change))
    with pytest.raises(error, match=message) as caught:
        for seed in range(200):  # some faults lie in the residual, which is looked at where it is drawn from
            verifier.verify(tree, target, draft, rng(seed))
    assert "\n" not in str(caught.value)


def test_outcomes_refuse_wrong_shapes():
    tree, target, draft = tree_case(complete(3, 2))
    with pytest.raises(InvalidInput, match="^rule Broken: residual is "):
        TopDown(Broken(lambda select, residual: Law(select, residual[..., :-1]))).outcomes(
            tree, target, draft
        )


def test_a_target_that_is_no_law_is_not_blamed_on_the_rule():
    tree, target, draft = tree_case(root_only())
    with pytest.raises(FloatingPointError, match="^target, node 0: cannot draw from a law whose mass is nan"):
        TopDown(Standard()).verify(tree, target * float("nan"), draft, rng(0))


def test_rounding_is_no_fault():
    """float32 sums: a sum of chances a little above 1, and a residual a little off 1, are drawn from."""

    class Rounded:
        def law(self, target_probs, draft_probs, siblings, draws):
            law = Naive().law(target_probs, draft_probs, siblings, draws)
            return Law(law.select * (1 + 5e-5), law.residual * (1 - 5e-5))

    tree, target, draft = tree_case(complete(3, 2))
    for seed in range(50):
        TopDown(Rounded()).verify(tree, target.float(), draft.float(), rng(seed))
    with pytest.raises(FloatingPointError, match="rule Rounded, node"):
        for seed in range(50):
            TopDown(Rounded()).verify(tree, target, draft, rng(seed))


def test_a_rule_or_a_verifier_makes_a_decoder():
    rule, topology = Standard(), complete(3, 2)
    assert as_verifier(rule) == TopDown(rule) == as_verifier(TopDown(rule)) == get_verifier("standard")
    found = [
        Decoder(DraftModel(topology), given).generate(table_pair(), [0], Sampling(1.0, 20, 64), rng(0)).tokens
        for given in (rule, TopDown(rule))
    ]
    assert found[0] == found[1]
    with pytest.raises(InvalidInput, match="^object is no verifier: it has neither `law` .* nor `verify`"):
        Decoder(DraftModel(topology), object())
    with pytest.raises(
        InvalidInput, match="^TopDown takes a sibling rule, which has a `law`; found TopDown$"
    ):
        TopDown(TopDown(rule))
