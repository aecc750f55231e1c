"""EAGLE-1 and EAGLE-3 in the one loop: drafters' inputs and memory, which readings are exact."""

import pytest
import torch

from resispec.core import Draws
from resispec.decode import Sampling
from resispec.drafters import DraftModel, DynamicTree, Eagle, NoDraft, Reading
from resispec.drafters.recycled import RecycledLaws
from resispec.errors import InvalidInput
from resispec.generation import Speculator
from resispec.models import EagleModel, Pair, TransformersModel, Warp, features_of
from resispec.trees import chain, complete
from resispec.verifiers import get_verifier
from tests.models.toy_eagle import DRAFTERS, DYNAMIC, bigram_pair
from tests.toys import (
    UNEVEN,
    ToyTokenizer,
    eagle3_pair,
    eagle_pair,
    generate,
    tiny_eagle,
    tiny_llama,
)

pytestmark = pytest.mark.numerics

FEW = (0, 1, 3, 4, 6, 8, 9)


PAIRS = {"eagle": eagle_pair, "eagle3": eagle3_pair}


def first_step(pair, drafter, verifier, prompt=(0, 1)):
    steps = []
    generate(
        pair, drafter, Sampling(1.0, 1, 64), verifier=verifier, prompt=prompt, on_step=steps.append
    )
    return steps[0]


@pytest.mark.parametrize(
    ("prompt", "name"),
    [
        *(((5, 6, 7, 8), name) for name in DRAFTERS),
        *(((5,), name) for name in ("fixed", "recycled", "dynamic")),
    ],
)
def test_a_vanishing_temperature_is_greedy(prompt, name):
    """Whatever is drafted; a prompt of one token has no feature to draft from at first."""
    for pair in (eagle_pair(vocab=10), eagle3_pair(FEW, vocab=10)):
        plain = Pair(TransformersModel(pair.target.module), None, ToyTokenizer())
        expected, found = (
            generate(*drafting, Sampling(1e-5, 24, 128), prompt=prompt)
            for drafting in ((plain, NoDraft()), (pair, DRAFTERS[name]))
        )
        assert found.tokens == expected.tokens and (found.num_emitted[0] == 1 or len(prompt) > 1)


@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("name", ["fixed softmax", "sampled", "iid", "dynamic"])
def test_the_recorded_laws_are_the_drafters_on_the_path(kind, name):
    """q at every node with children: an uncached forward of the path, through its head."""
    pair, prompt, temperature, steps = PAIRS[kind](), [1, 2, 3, 4], 0.7, []
    generate(
        pair, DRAFTERS[name], Sampling(temperature, 1, 64), prompt=prompt, on_step=steps.append
    )
    drafted, module = steps[0].draft, pair.draft.module
    tree = drafted.tree
    told = {"dynamic": Draws.POINT_MASS, "iid": Draws.IID}
    assert tree.draws is told.get(name, Draws.WITHOUT_REPLACEMENT)
    with torch.inference_mode():
        true = features_of(pair.target, prompt)[:-1]
        true = true if kind == "eagle" else module.fc(true[:, 32:])
        for node, children in enumerate(tree.topology.children):
            if not children:
                continue
            rows, tokens = true, prompt[1:]
            for token in [*tree.tokens[tree.topology.ancestors[node]].tolist()[1:], None]:
                positions = torch.arange(len(tokens))[None]
                predicted = module(torch.tensor([tokens]), rows[None], positions)[0, -1:]
                rows, tokens = torch.cat((rows, predicted)), [*tokens, token]
            law = Warp(temperature=temperature).law(pair.eagle_head()(predicted))[0]
            assert torch.allclose(drafted.probs[node], law, atol=1e-4)
    if kind == "eagle3":
        assert module.t2d[tree.tokens[1:]].all() and drafted.probs[0][~module.t2d].sum() == 0


@pytest.mark.parametrize(
    ("draws", "recycled", "name"),
    [("point_mass", 0, "fixed"), ("without_replacement", 0, "sampled"), ("iid", 0.5, "recycled")],
)
def test_a_pair_s_own_draft_may_be_an_eagle_drafter(draws, recycled, name):
    pair, own = eagle_pair(), DraftModel(UNEVEN, draws, recycled=recycled)
    first, second = (
        generate(pair, drafter, Sampling(1.0, 24, 64), prompt=(1, 2))
        for drafter in (own, DRAFTERS[name])
    )
    assert (first.tokens, first.num_emitted) == (second.tokens, second.num_emitted)


def test_draws_that_an_eagle_drafter_lacks_are_refused():
    pair = eagle_pair()
    for drafter, found in (
        (DraftModel(chain(2), "greedy"), r"draws greedy \(Greedy\) of sharpness 1.0"),
        (DraftModel(chain(2), sharpness=2.0), r"draws iid \(Iid\) of sharpness 2.0"),
    ):
        with pytest.raises(
            InvalidInput, match=f"an EAGLE drafter has no {found}; allowed: point_mass, with"
        ):
            generate(pair, drafter, Sampling(1.0, 4, 16))
    with pytest.raises(InvalidInput, match="an EAGLE drafter has no draws greedy"):
        Speculator(pair.target, pair.draft, "chain_2", draws="greedy")


@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("prompt", [[4], [1, 2, 3, 4]])
def test_recycled_laws_are_mixed_into_the_drafters(kind, prompt):
    """At every root, whose own law a drafter without them has after the same tokens."""
    pair, warp, drafter = PAIRS[kind](), Warp(temperature=0.7), DRAFTERS["recycled"]
    known, tokens = RecycledLaws(0.5, pair.target, warp, UNEVEN), list(prompt)
    known.begin(prompt, features_of(pair.target, prompt[:-1]) if prompt[1:] else None)

    def check(step):
        tree, before = step.draft.tree, torch.tensor(tokens[-2:-1])
        if len(tree.tokens) > 1:
            own = Eagle(UNEVEN, Reading.IID).session(pair, warp, len(tokens))
            own.prefill(tokens, features_of(pair.target, tokens[:-1]))
            law = own.draft(tokens[-1], torch.Generator()).probs[:1]
            assert torch.allclose(
                step.draft.probs[:1], known.mixed(before, tree.tokens[:1], law), atol=1e-5
            )
            known.learn_tree(before, tree.tokens, step.target_probs)
        tokens.extend(step.verdict.tokens)

    generate(pair, drafter, Sampling(0.7, 30, 64), prompt=prompt, on_step=check)
    assert len(tokens) >= len(prompt) + 30


def whole(probs):
    """Laws in float64, without the rounding of float32 in their sums."""
    return probs.double() / probs.double().sum(-1, keepdim=True)


def deviation(step, verifier):
    """The largest deviation from the target of the law that verifying a deterministic tree emits.

    Stopping at node n with token v outside its children is emitting path(n) v: exact iff that has
    the chain rule's probability.
    """
    tree, target = step.draft.tree, whole(step.target_probs)
    outcomes = get_verifier(verifier).outcomes(tree, target, step.draft.probs.double())
    worst = 0.0
    reach = torch.ones(tree.topology.num_nodes, dtype=torch.float64)
    for node, children in enumerate(tree.topology.children):
        if node:
            parent = tree.topology.parents[node]
            reach[node] = reach[parent] * target[parent, tree.tokens[node]]
        undrafted = torch.ones(target.shape[1], dtype=torch.bool)
        undrafted[tree.tokens[list(children)]] = False
        found = outcomes.stop[node] * outcomes.final[node]
        worst = max(worst, float((found - reach[node] * target[node])[undrafted].abs().max()))
    return worst


@pytest.mark.parametrize("tree", [UNEVEN, chain(3), DYNAMIC, DynamicTree(40, 4, 4)])
@pytest.mark.parametrize("verifier", ["standard", "resispec"])
def test_point_masses_are_exact(tree, verifier):
    eagle = Pair(tiny_llama(seed=2), EagleModel(tiny_eagle(seed=3)), ToyTokenizer())
    for pair in (eagle, eagle3_pair(tuple(range(0, 8, 2)), vocab=8)):
        assert deviation(first_step(pair, Eagle(tree), verifier, (1, 2, 3)), verifier) < 1e-12


@pytest.mark.parametrize("tree", [UNEVEN, DYNAMIC])
@pytest.mark.parametrize("verifier", ["standard", "resispec", "naive"])
def test_the_papers_reading_is_exact_with_no_rule_that_uses_q(tree, verifier):
    for pair in (bigram_pair(vocab=8), eagle3_pair(tuple(range(0, 8, 2)), vocab=8)):
        error = deviation(first_step(pair, Eagle(tree, Reading.SOFTMAX), verifier), verifier)
        assert error < 1e-12 if verifier == "naive" else error > 0.01


@pytest.mark.parametrize(
    ("make_pair", "tree", "message"),
    [
        (eagle_pair, complete(2, 70), "70 candidates of one parent; .* has 64 tokens"),
        (
            eagle3_pair,
            DynamicTree(60, 1, 23),
            "23 candidates of one parent; the vocabulary has 22 tokens",
        ),
    ],
)
def test_trees_that_the_drafter_cannot_fill_are_refused_in_one_line(make_pair, tree, message):
    with pytest.raises(InvalidInput, match=f"^.*{message}.*$"):
        generate(make_pair(), Eagle(tree), Sampling(1.0, 4, 16), prompt=(1, 2, 3))
