"""The loop as a whole: its output law, its limits, its bookkeeping."""

from dataclasses import replace

import pytest
import torch
from scipy.stats import chisquare

from resispec.core import Draft, Draws, Tree
from resispec.decode import Decoder, Sampling
from resispec.drafters import DraftModel, NoDraft
from resispec.errors import InvalidInput
from resispec.models import Pair
from resispec.trees import chain, complete, root_only
from resispec.verifiers import Standard, get_verifier
from tests.toys import UNEVEN, TableModel, generate, sequence_law, table_pair, tiny_llama

pytestmark = pytest.mark.numerics

DRAFTERS = {
    "autoregressive": NoDraft(),
    "root": DraftModel(root_only()),
    "chain": DraftModel(chain(3)),
    "d3b2": DraftModel(complete(3, 2)),
    "uneven": DraftModel(UNEVEN),
    "without replacement": DraftModel(complete(3, 2), Draws.WITHOUT_REPLACEMENT),
    "recycled": DraftModel(complete(3, 2), sharpness=1.5, recycled=0.8),
}


@pytest.mark.parametrize("name", ["autoregressive", "uneven", "without replacement", "recycled"])
def test_the_output_law_is_the_targets(name):
    """Chi-square of 3-token outputs against the chain rule; a fresh seed fails with rate 1e-4."""
    pair, runs = table_pair(vocab=3, seed=1), 400
    law = sequence_law(pair.target, 0, 3, temperature=0.8)
    counts = dict.fromkeys(law, 0)
    for seed in range(runs):
        counts[generate(pair, DRAFTERS[name], Sampling(0.8, 3, 64), seed).tokens] += 1
    assert chisquare(list(counts.values()), [runs * mass for mass in law.values()]).pvalue > 1e-4


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_draft_equal_to_the_target_is_accepted_whole(name):
    model, drafter = tiny_llama(), DRAFTERS[name]
    pair = Pair(model, model, table_pair().tokenizer)
    # Every accepted path ends at a leaf.
    lengths = {2, 3, 4} if name == "uneven" else {drafter.topology.num_levels}
    for verifier in ("standard", "resispec"):
        result = generate(
            pair, drafter, Sampling(1.0, 30, 128), verifier=verifier, prompt=(1, 2, 3)
        )
        assert set(result.num_emitted) <= lengths and len(result.tokens) == 30


@pytest.mark.parametrize(
    ("name", "verifier", "temperature"),
    [
        *((name, "standard", 0) for name in DRAFTERS),
        *((name, "resispec", 1e-5) for name in ("uneven", "without replacement")),
    ],
)
def test_a_vanishing_temperature_is_greedy(name, verifier, temperature):
    target, prompt = tiny_llama(), [5, 6, 7, 8]
    pair = Pair(target, tiny_llama(seed=1, layers=1), table_pair().tokenizer)
    result = generate(
        pair, DRAFTERS[name], Sampling(temperature, 20, 128), verifier=verifier, prompt=prompt
    )
    greedy = target.module.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False)
    assert list(result.tokens) == greedy[0, 4:].tolist()


def test_max_length_bounds_prompt_and_output():
    result = generate(
        table_pair(vocab=5), DRAFTERS["d3b2"], Sampling(1.0, 100, 20), prompt=[0] * 12
    )
    assert len(result.tokens) == 8 and result.stop_reason == "max_length"


def test_decoding_stops_at_the_end_of_sequence():
    pair = table_pair(vocab=4, eos=2)
    for seed in range(20):
        result = generate(pair, DRAFTERS["d3b2"], Sampling(1.0, 200, 400), seed)
        assert result.stop_reason == "eos" and result.tokens.index(2) == len(result.tokens) - 1
        assert sum(result.num_emitted) >= len(result.tokens)
    endless = generate(pair, DRAFTERS["d3b2"], Sampling(1.0, 50, 400, ignore_eos=True))
    assert len(endless.tokens) == 50 and 2 in endless.tokens


def test_the_draft_forwards_every_token_once_and_leaves_never():
    pair = table_pair(vocab=6, gap=0.3)
    assert isinstance(pair.draft, TableModel)
    steps = []
    topology = complete(4, 2)
    result = generate(
        pair,
        DraftModel(topology),
        Sampling(1.0, 40, 128),
        prompt=[1, 2, 3, 4],
        on_step=steps.append,
    )
    prefill, *forwards = pair.draft.forwarded
    assert prefill == [1, 2, 3]
    per_step = [forwards[start : start + 3] for start in range(0, len(forwards), 3)]
    assert len(per_step) == len(steps) == len(result.num_emitted)
    pending = [4]
    for step, (committed, *levels) in zip(steps, per_step, strict=True):
        # only what the cache does not hold: an accepted leaf, and the root
        assert committed == pending
        assert [len(level) for level in levels] == [2, 4]  # the level of 8 leaves is not forwarded
        path = step.verdict.path
        leaf = [step.verdict.tokens[-2]] if path and path[-1] in topology.levels[-1] else []
        pending = [*leaf, step.verdict.tokens[-1]]
    assert any(len(committed) == 2 for committed, *_ in per_step)


def test_the_target_forwards_one_tree_a_step_after_the_prompt():
    pair = table_pair(vocab=6)
    assert isinstance(pair.target, TableModel)
    result = generate(pair, DraftModel(UNEVEN), Sampling(1.0, 30, 128), prompt=[1, 2, 3])
    assert [len(tokens) for tokens in pair.target.forwarded] == [2] + [UNEVEN.num_nodes] * len(
        result.num_emitted
    )


@pytest.mark.parametrize(
    ("sampling", "num_tokens", "message"),
    [
        ((-1.0, 8, 64), 1, "temperature is -1.0; allowed: 0, which is greedy, or from 1e-6"),
        ((float("nan"), 8, 64), 1, "temperature"),
        (("warm", 8, 64), 1, "temperature is 'warm'; allowed: 0"),
        ((True, 8, 64), 1, "temperature is True; allowed: 0"),
        ((1.0, 2.5, 64), 1, "sampling: max_new_tokens is 2.5; allowed: whole numbers from 1"),
        ((1.0, 8, -1), 1, "sampling: max_length is -1; allowed: whole numbers from 1"),
        ((1.0, 8, 64, "false"), 1, "sampling: ignore_eos is .false.; allowed: True and False"),
        ((1.0, 8, 64), 0, "at least one token"),
        ((1.0, 8, 3), 4, "a tree of 3 levels cannot fit max_length 3; allowed: max_length from 7"),
        (
            (1.0, 8, 5000),
            1,
            "exceeds the models' context of 4096 positions; allowed: max_length up to 4095",
        ),
    ],
)
def test_what_cannot_be_decoded_is_refused_in_one_line(sampling, num_tokens, message):
    with pytest.raises(InvalidInput, match=message) as caught:
        generate(table_pair(), DRAFTERS["d3b2"], Sampling(*sampling), prompt=[0] * num_tokens)
    assert "\n" not in str(caught.value)


def test_more_distinct_siblings_than_tokens_are_refused_in_one_line():
    for draws in (Draws.WITHOUT_REPLACEMENT, Draws.POINT_MASS):
        with pytest.raises(
            InvalidInput, match="4 distinct siblings of one parent; the vocabulary has 3 tok"
        ):
            generate(table_pair(), DraftModel(complete(2, 4), draws), Sampling(1.0, 8, 64))


def test_what_is_said_to_fit_does():
    pair, decoder = table_pair(), Decoder(DRAFTERS["d3b2"], get_verifier("standard"))
    for most, prompt in ((7, 4), (4, 1), (6, 3)):
        decoder.check(pair, prompt, Sampling(1.0, 8, most))
        with pytest.raises(
            InvalidInput,
            match=f"3 levels cannot fit max_length {most}; allowed: prompts of at most {prompt}",
        ):
            decoder.check(pair, prompt + 1, Sampling(1.0, 8, most))
    short = Pair(TableModel(pair.target.logits, context=5), None, pair.tokenizer)
    with pytest.raises(
        InvalidInput, match="exceeds the models' context of 5 pos.*; allowed: a tree of fewer"
    ):
        Decoder(DraftModel(chain(8)), get_verifier("standard")).check(
            short, 1, Sampling(1.0, 8, 64)
        )
    with pytest.raises(InvalidInput, match="the pair has none"):
        generate(Pair(pair.target, None, pair.tokenizer), DRAFTERS["chain"], Sampling(1.0, 8, 64))


def test_the_cache_length_is_checked_before_the_first_token():
    """6 prompt tokens, 8 new ones, a tree of 7 nodes: the last root is token 13, 12 are cached."""
    decoder = Decoder(DRAFTERS["without replacement"], get_verifier("standard"), cache_length=18)
    pair, generator = table_pair(), torch.Generator().manual_seed(0)
    for sampling in (Sampling(1.0, 80, 14), Sampling(1.0, 8, 64)):
        with pytest.raises(
            InvalidInput, match="take 19 cached positions; cache_length allows 18"
        ) as caught:
            decoder.generate(pair, [0] * 6, sampling, generator)
        assert "\n" not in str(caught.value) and not pair.target.forwarded
    roomy = Decoder(decoder.drafter, decoder.verifier, cache_length=19)
    assert len(roomy.generate(pair, [0] * 6, Sampling(1.0, 8, 64), generator).tokens) == 8


@pytest.mark.parametrize("draws", list(Draws))
def test_a_law_that_is_not_a_number_raises(draws):
    for broken in ("target", "draft"):
        pair = table_pair(vocab=5)
        getattr(pair, broken).logits[:] = torch.nan
        with pytest.raises(FloatingPointError, match="nan"):
            generate(pair, DraftModel(complete(3, 2), draws), Sampling(1.0, 8, 64))


class Chain:
    """A drafter of a user's: two tokens drawn from one law, handed over as `told(law)`."""

    draws, topology = Draws.IID, chain(2)

    def __init__(self, told):
        self.told, self.steps = told, 0

    def session(self, pair, *_):
        self.law = torch.linspace(1, 3, pair.target.vocab_size).softmax(-1)
        return self

    def prefill(self, *_):
        self.steps = 0

    def draft(self, root, generator):
        self.steps += 1
        drawn = torch.multinomial(self.law, 2, replacement=True, generator=generator)
        tokens = torch.cat((torch.tensor([root]), drawn))
        return Draft(Tree(self.topology, tokens, self.draws), self.told(self).expand(3, -1).clone())

    def commit(self, *_):
        pass


@pytest.mark.parametrize(
    ("told", "message"),
    [
        (lambda it: it.law.log(), "hold -.* at entry 0; allowed: finite values, not negative"),
        (lambda it: it.law.log() + 9, "sum to .*; allowed: 1 within 0.01"),
        (lambda it: 100 * it.law, "sum to 100"),
        (lambda it: it.law[:1], r"are \(2, 1\) .*; allowed: a tensor \(2, 5\)"),
    ],
)
def test_a_drafter_whose_laws_are_none_is_refused(told, message):
    """Defect: an exact verifier gave the draft's text, with many tokens a step."""
    with pytest.raises(InvalidInput, match=f"the drafter's laws {message}"):
        generate(table_pair(vocab=5), Chain(told), Sampling(1.0, 8, 64))


def test_a_drafter_whose_tree_begins_elsewhere_is_refused():
    """Defect: the target then answered for another text, as exactly as for its own."""

    class Lost(Chain):
        def draft(self, root, generator):
            return super().draft(root if self.steps < 2 else 0, generator)

    with pytest.raises(InvalidInput, match="tree has token 0 at its root; allowed: [1-4], the"):
        generate(table_pair(vocab=5), Lost(lambda it: it.law), Sampling(0.0, 8, 64))


@pytest.mark.parametrize("told", [Draws.POINT_MASS, Draws.WITHOUT_REPLACEMENT])
def test_a_drafter_with_one_token_twice_below_a_node_is_refused(told):
    """Defect: two matches of a lookup can go on alike; a rule then counted the token twice."""

    class Twice(Chain):
        draws, topology = told, complete(2, 2)

        def draft(self, root, generator):
            tree = Tree(self.topology, torch.tensor([root, 3, 3]), self.draws)
            return replace(super().draft(root, generator), tree=tree)

    message = f"siblings below node 0 hold .3, 3.; allowed for {told} draws: different tokens"
    with pytest.raises(InvalidInput, match=message):
        generate(table_pair(vocab=5), Twice(lambda it: it.law), Sampling(1.0, 8, 64))


def test_laws_of_bfloat16_are_laws_and_audits_look_at_them_in_every_step():
    def late(drafter):
        return drafter.law * (1 + (drafter.steps > 2))

    given = table_pair(vocab=5), [0, 1], Sampling(1.0, 40, 64)
    for told in (lambda it: it.law.bfloat16().float(), late):
        decoder = Decoder(Chain(told), get_verifier("standard"))
        assert len(decoder.generate(*given, torch.Generator().manual_seed(0)).tokens) == 40
    with pytest.raises(InvalidInput, match="the drafter's laws sum to 2"):
        decoder.generate(*given, torch.Generator().manual_seed(0), is_checked=True)


def test_laws_that_lack_mass_reach_the_verifier_with_all_of_it():
    """Defect: what a bfloat16 softmax lacks was an outcome, and biased exact rules by as much."""
    seen = []

    class Watching(Standard):
        def law(self, target_probs, draft_probs, *rest):
            seen.append(draft_probs.sum(-1))
            return super().law(target_probs, draft_probs, *rest)

    decoder = Decoder(Chain(lambda it: 0.995 * it.law), Watching())
    decoder.generate(table_pair(vocab=5), [0, 1], Sampling(1.0, 8, 64), torch.Generator())
    assert seen and all((sums - 1).abs().max() < 1e-6 for sums in seen)
