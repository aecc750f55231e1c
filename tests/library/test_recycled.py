"""Laws of the target that are recycled: what is learned, and what is drawn from."""

import pytest
import torch

from resispec.decode import Decoder, Sampling
from resispec.drafters import DraftModel
from resispec.drafters.recycled import NUM_PLACES, RecycledLaws
from resispec.errors import InvalidInput
from resispec.models import Warp
from resispec.trees import complete, root_only
from resispec.verifiers import get_verifier
from tests.accounts import random_law, rng
from tests.toys import table_pair

pytestmark = pytest.mark.numerics

VOCAB = 5
ONE, TWO, THREE, DRAFTED = (random_law(VOCAB, rng(seed)).float() for seed in range(4))


def recycled(vocab):
    return RecycledLaws(0.5, table_pair(vocab=vocab).target, Warp(), root_only())


def tokens(*numbers):
    return torch.tensor(numbers)


def test_the_last_token_s_mean_is_mixed_in_first_then_that_of_the_last_two():
    laws = recycled(VOCAB)
    laws.learn(tokens(3, 4, 3), tokens(1, 1, 1), torch.stack((ONE, TWO, ONE)))
    laws.learn(tokens(3, 0), tokens(1, 2), torch.stack((THREE, TWO)))
    of_one, of_both = (2 * ONE + TWO + THREE) / 4, (2 * ONE + THREE) / 3
    expected = torch.stack(
        (
            DRAFTED / 4 + of_one / 4 + of_both / 2,
            DRAFTED / 2 + of_one / 2,
            DRAFTED / 2 + TWO / 2,
            DRAFTED,
        )
    )
    mixed = laws.mixed(tokens(3, 2, 1, 1), tokens(1, 1, 2, 3), DRAFTED.expand(4, VOCAB))
    assert torch.allclose(mixed, expected)
    laws.begin([], None)
    assert torch.equal(laws.mixed(tokens(3), tokens(1), DRAFTED[None]), DRAFTED[None])


def test_a_new_law_takes_the_place_of_an_old_one_and_none_is_taken_for_another():
    size = 2 * NUM_PLACES
    laws = recycled(size)
    first, second = torch.eye(size)[:2]
    drafted = torch.full((1, size), 1 / size)
    here, there = tokens(7), tokens(7 + NUM_PLACES)
    laws.learn(tokens(0), here, first[None])
    assert torch.equal(laws.mixed(tokens(1), there, drafted), drafted)
    laws.learn(tokens(0), there, second[None])
    assert torch.equal(laws.mixed(tokens(1), here, drafted), drafted)
    assert torch.allclose(laws.mixed(tokens(1), there, drafted)[0], drafted[0] / 2 + second / 2)
    # Both at once: the larger one stays, with its own law alone.
    laws.learn(tokens(0, 0), torch.cat((there, here)), torch.stack((second, first)))
    mixed = laws.mixed(tokens(1, 1), torch.cat((here, there)), drafted.expand(2, size))
    assert torch.equal(mixed[:1], drafted) and torch.allclose(mixed[1], drafted[0] / 2 + second / 2)


def test_a_law_that_is_none_is_forgotten_with_its_sequence():
    laws = recycled(VOCAB)
    laws.learn(tokens(3), tokens(1), torch.full((1, VOCAB), torch.nan))
    laws.begin([], None)
    assert torch.equal(laws.mixed(tokens(3), tokens(1), DRAFTED[None]), DRAFTED[None])
    laws.learn(tokens(3), tokens(1), ONE[None])
    assert torch.allclose(
        laws.mixed(tokens(2), tokens(1), DRAFTED[None]), (DRAFTED + ONE)[None] / 2
    )


def test_of_a_long_prompt_the_last_laws_are_recycled(monkeypatch):
    """Of the root only where its token was read before."""
    monkeypatch.setattr("resispec.drafters.recycled.MOST_READ", 3)
    pair, steps = table_pair(vocab=VOCAB, gap=3.0), []
    own, true = (model.logits[2].softmax(-1) for model in (pair.draft, pair.target))
    for prompt, known in (([3, 0, 1, 2], False), ([2, 0, 1, 2], True), ([2, 3, 0, 1, 2], False)):
        Decoder(DraftModel(complete(2, 2), recycled=0.5), get_verifier("standard")).generate(
            pair, prompt, Sampling(1.0, 1, 64), rng(0), on_step=steps.append
        )
        wanted = (own + true) / 2 if known else own
        assert torch.allclose(steps[-1].draft.probs[0].double(), wanted.double(), atol=1e-6)


def test_siblings_are_drawn_from_the_mixture_with_all_laws_before_the_step():
    """A target that looks at one token only: every law that is known of it is true."""
    pair, prompt = table_pair(vocab=VOCAB, gap=3.0), [0, 1, 2]
    drafter = DraftModel(complete(3, 2), sharpness=2.0, recycled=0.5)
    ahead = [prompt[-2]]
    known, known_pairs = {0, 1}, {(-1, 0), (0, 1)}
    true, own = (
        (logits / 0.7).softmax(-1) for logits in (pair.target.logits, 2 * pair.draft.logits)
    )

    def check(step):
        tree = step.draft.tree.tokens.tolist()
        before = [ahead[-1], *(tree[parent] for parent in drafter.topology.parents[1:])]
        for node in range(3):  # those with children
            law = own[tree[node]]
            law = (law + true[tree[node]]) / 2 if tree[node] in known else law
            law = (law + true[tree[node]]) / 2 if (before[node], tree[node]) in known_pairs else law
            assert torch.allclose(step.draft.probs[node].double(), law.double(), atol=1e-6)
        known.update(tree)
        known_pairs.update(zip(before, tree, strict=True))
        ahead.append([tree[0], *step.verdict.tokens][-2])

    Decoder(drafter, get_verifier("standard")).generate(
        pair, prompt, Sampling(0.7, 30, 64), rng(0), on_step=check
    )
    assert len(ahead) > 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recycled": 1.0}, "recycled is 1.0; allowed: from 0, which is off, to below 1"),
        ({"recycled": -0.1}, "recycled is -0.1"),
        ({"sharpness": 0}, "sharpness is 0; allowed: above 0"),
        ({"sharpness": float("nan")}, "sharpness is nan"),
    ],
)
def test_numbers_out_of_range_are_refused(options, message):
    with pytest.raises(InvalidInput, match=message):
        DraftModel(complete(3, 2), **options)
