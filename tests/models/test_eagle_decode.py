"""EAGLE in the one loop: what it is told, what it remembers, and which readings are exact."""

import json

import pytest
import torch
from scipy.stats import chisquare
from toys import ToyTokenizer, save_tiny_pair, sequence_law, table_pair, tiny_eagle, tiny_llama

from experiments.worker import encode
from resispec.core import Draws
from resispec.decode import Decoder, Sampling
from resispec.drafters import DraftModel, DynamicTree, Eagle, NoDraft, Reading
from resispec.errors import InvalidInput
from resispec.models import EagleModel, EagleSession, Pair, load_pair
from resispec.trees import chain, complete, from_child_counts, root_only
from resispec.verifiers import get_verifier

UNEVEN = from_child_counts([[3], [1, 0, 2], [1]])
DRAFTERS = {
    "chain": Eagle(chain(3)),
    "fixed": Eagle(UNEVEN),
    "fixed softmax": Eagle(UNEVEN, Reading.SOFTMAX),
    "sampled": Eagle(UNEVEN, Reading.SAMPLED),
    "dynamic": Eagle(DynamicTree(12, 2, 3)),
    "dynamic softmax": Eagle(DynamicTree(12, 2, 3), Reading.SOFTMAX),
    "root": Eagle(root_only()),
}


def llama_pair():
    return Pair(tiny_llama(), EagleModel(tiny_eagle()), ToyTokenizer())


def repeating_eagle(vocab):
    """A drafter that predicts the feature it was given."""
    module = tiny_eagle(vocab)
    with torch.no_grad():
        module.fc.weight.copy_(torch.cat((torch.zeros(32, 32), torch.eye(32)), 1))
        for silenced in (
            module.fc.bias,
            module.layers[0].self_attn.o_proj.weight,
            module.layers[0].mlp.down_proj.weight,
        ):
            silenced.zero_()
    return module


def bigram_pair(vocab=4, seed=5):
    """A target whose features are its logits, and a drafter on those: every law is known."""
    target = table_pair(vocab=vocab, seed=seed).target
    return Pair(target, EagleModel(tiny_eagle(vocab, hidden=vocab, seed=seed)), ToyTokenizer())


def generate(pair, drafter, sampling, seed=0, verifier="standard", prompt=(1, 2, 3), **options):
    generator = torch.Generator().manual_seed(seed)
    return Decoder(drafter, get_verifier(verifier)).generate(
        pair, list(prompt), sampling, generator, **options
    )


def first_step(pair, drafter, verifier="standard", prompt=(0, 1), seed=0):
    steps = []
    generate(pair, drafter, Sampling(1.0, 1, 64), seed, verifier, prompt, on_step=steps.append)
    return steps[0]


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("prompt", [(5,), (5, 6), (5, 6, 7, 8)])
def test_a_vanishing_temperature_is_greedy(name, prompt):
    """Whatever is drafted; a prompt of one token has no feature to draft from at first."""
    target = tiny_llama(vocab=10)
    expected = generate(
        Pair(target, None, ToyTokenizer()), NoDraft(), Sampling(1e-5, 24, 128), prompt=prompt
    ).tokens
    # an untrained target ends by repeating itself, and so does one of the drafters
    assert len(set(expected[-9:])) == 1
    for module in (tiny_eagle(vocab=10), repeating_eagle(vocab=10)):
        pair = Pair(target, EagleModel(module), ToyTokenizer())
        found = generate(pair, DRAFTERS[name], Sampling(1e-5, 24, 128), prompt=prompt)
        assert found.tokens == expected
    assert found.num_emitted[0] == 1 or len(prompt) > 1
    assert found.num_emitted[-1] == DRAFTERS[name].topology.num_levels or (
        name.startswith("dynamic") and found.num_emitted[-1] > 1
    )


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("most", [1, 7, 128])
def test_exactly_max_new_tokens_are_returned(name, most):
    steps = []
    result = generate(llama_pair(), DRAFTERS[name], Sampling(1.0, most, 200), on_step=steps.append)
    assert len(result.tokens) == most and result.stop_reason == "max_new_tokens"
    largest = DRAFTERS[name].topology
    assert all(step.draft.tree.topology.num_nodes <= largest.num_nodes for step in steps)
    assert (
        max(result.num_emitted)
        <= max(step.draft.tree.topology.num_levels for step in steps)
        <= largest.num_levels
    )


@pytest.mark.parametrize("name", DRAFTERS)
def test_the_same_seed_gives_the_same_tokens(name):
    first, again, other = (
        generate(llama_pair(), DRAFTERS[name], Sampling(1.0, 30, 128), seed).tokens for seed in (3, 3, 4)
    )
    assert first == again != other


@pytest.mark.parametrize("tree", [UNEVEN, DynamicTree(12, 2, 3)])
def test_the_cache_holds_true_features_shifted_by_one_token(tree, monkeypatch):
    """Row t pairs the target's feature of position t with the token of position t + 1.

    What was speculated leaves no row.
    """
    pair, known, extend = llama_pair(), [], EagleSession.extend

    def observed(session, tokens, features):
        known.extend(zip(tokens.tolist(), features, strict=True))
        return extend(session, tokens, features)

    monkeypatch.setattr(EagleSession, "extend", observed)
    prompt = [1, 2, 3, 4, 5]
    result = generate(pair, Eagle(tree), Sampling(1.0, 40, 128), prompt=prompt)
    assert max(result.num_emitted) > 1
    sequence = [*prompt, *result.tokens]
    with torch.inference_mode():
        true = pair.target.module.base_model(input_ids=torch.tensor([sequence])).last_hidden_state[0]
    assert len(known) > 30
    assert [token for token, _ in known] == sequence[1 : len(known) + 1]
    found = torch.stack([feature for _, feature in known])
    assert torch.allclose(found, true[: len(known)], atol=1e-3)


def test_the_recorded_laws_are_the_drafters_on_the_path():
    """q at every node with children: an uncached forward of the path, through the target's head."""
    pair, prompt, temperature = llama_pair(), [1, 2, 3, 4], 0.7
    for name in ("fixed softmax", "sampled", "dynamic", "dynamic softmax"):
        steps = []
        generate(pair, DRAFTERS[name], Sampling(temperature, 1, 64), prompt=prompt, on_step=steps.append)
        tree = steps[0].draft.tree
        assert tree.draws is (Draws.POINT_MASS if name == "dynamic" else Draws.WITHOUT_REPLACEMENT)
        with torch.inference_mode():
            features = pair.target.module.base_model(input_ids=torch.tensor([prompt])).last_hidden_state[
                0, :-1
            ]
            for node, children in enumerate(tree.topology.children):
                path, rows, tokens = tree.topology.ancestors[node].nonzero()[1:, 0], features, [*prompt[1:]]
                for place in [*path.tolist(), None]:
                    positions = torch.arange(len(tokens))[None]
                    predicted = pair.draft.module(torch.tensor([tokens]), rows[None], positions)[0, -1:]
                    rows, tokens = (
                        torch.cat((rows, predicted)),
                        [*tokens, None if place is None else int(tree.tokens[place])],
                    )
                law = torch.softmax(pair.target.head(predicted)[0] / temperature, -1)
                if children:
                    assert torch.allclose(steps[0].draft.probs[node], law, atol=1e-4)


def whole(probs):
    """Laws in float64, without the rounding of float32 in their sums."""
    return probs.double() / probs.double().sum(-1, keepdim=True)


def deviation(step, verifier):
    """How far the law that a deterministic tree's verification emits is from the target's, at worst.

    Stopping at node n with token v outside its children is emitting path(n) v: exact iff that has the chain
    rule's probability.
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


@pytest.mark.parametrize(
    "tree", [UNEVEN, chain(3), complete(3, 3), DynamicTree(12, 2, 3), DynamicTree(60, 5, 8)]
)
@pytest.mark.parametrize("verifier", ["standard", "resispec"])
def test_point_masses_are_exact_and_resispec_then_is_the_standard_rule(tree, verifier):
    pair = Pair(tiny_llama(seed=2), EagleModel(tiny_eagle(seed=3)), ToyTokenizer())
    step = first_step(pair, Eagle(tree), verifier, (1, 2, 3))
    assert deviation(step, verifier) < 1e-12
    laws = [
        get_verifier(name).outcomes(step.draft.tree, whole(step.target_probs), step.draft.probs.double())
        for name in ("standard", "resispec")
    ]
    assert torch.allclose(laws[0].stop, laws[1].stop, atol=1e-12)
    reached = laws[0].stop > 0
    assert torch.allclose(laws[0].final[reached], laws[1].final[reached], atol=1e-9)


@pytest.mark.parametrize("tree", [UNEVEN, DynamicTree(12, 2, 3)])
@pytest.mark.parametrize("verifier", ["standard", "resispec"])
def test_the_papers_reading_is_not_exact_with_any_rule(tree, verifier):
    pair = bigram_pair(vocab=8)
    assert deviation(first_step(pair, Eagle(tree, Reading.SOFTMAX), verifier), verifier) > 0.01
    assert deviation(first_step(pair, Eagle(tree, Reading.POINT_MASS), verifier), verifier) < 1e-12


def p_value(drafter, verifier="standard", runs=400, temperature=0.8):
    """Chi-square of 2-token outputs against the chain rule."""
    pair = bigram_pair()
    law = sequence_law(pair.target, 1, 2, temperature)
    counts = dict.fromkeys(law, 0)
    for seed in range(runs):
        counts[generate(pair, drafter, Sampling(temperature, 2, 64), seed, verifier, (0, 1)).tokens] += 1
    return chisquare(list(counts.values()), [runs * mass for mass in law.values()]).pvalue


@pytest.mark.parametrize("name", ["sampled", "dynamic", "fixed"])
def test_the_output_law_is_the_targets(name):
    """Seeded, false-alarm rate 1e-4 for a fresh seed."""
    assert p_value(DRAFTERS[name]) > 1e-4


@pytest.mark.parametrize(
    ("name", "verifier"),
    [("fixed softmax", "standard"), ("dynamic softmax", "standard"), ("sampled", "resispec")],
)
def test_the_same_test_finds_the_bias(name, verifier):
    assert p_value(DRAFTERS[name], verifier) < 1e-6


def test_the_wrong_kind_of_pair_is_refused_in_one_line():
    eagle, plain = llama_pair(), Pair(tiny_llama(), tiny_llama(seed=1), ToyTokenizer())

    def attempt(pair, drafter, max_new_tokens=4, max_length=64):
        return lambda: generate(pair, drafter, Sampling(1.0, max_new_tokens, max_length))

    cases = [
        (attempt(plain, Eagle(chain(2))), "this pair has an independent draft model"),
        (attempt(eagle, DraftModel(chain(2))), "choose decoder=eagle"),
        (lambda: eagle.draft_model(), "this pair's draft is an EAGLE drafter"),
        (attempt(eagle, Eagle(complete(2, 70))), "70 candidates of one parent; .* has 64 tokens"),
        (attempt(eagle, Eagle(DynamicTree(99, 2, 65))), "65 candidates of one parent"),
        (attempt(eagle, Eagle(DynamicTree(60, 5, 10)), 4, 9), "tree of 7 levels cannot fit max_length 9"),
        (
            attempt(eagle, Eagle(DynamicTree(60, 5, 10)), 4, 6),
            "no prompt fits a tree of 7 levels in max_length 6",
        ),
        (attempt(eagle, Eagle(chain(2)), 4, 300), "exceeds the models' context of 256"),
        (lambda: Eagle("chain"), "EAGLE drafts a topology or a dynamic tree; found 'chain'"),
    ]
    for refused, message in cases:
        with pytest.raises(InvalidInput, match=message) as caught:
            refused()
        assert "\n" not in str(caught.value)


def test_a_template_wraps_the_cut_document_and_begins_once(tmp_path):
    save_tiny_pair(tmp_path)
    tokenizer = load_pair(str(tmp_path / "target"), None).tokenizer
    inner = tokenizer.inner
    from tokenizers.processors import TemplateProcessing

    inner.backend_tokenizer.post_processor = TemplateProcessing(
        single="<eos> $A", special_tokens=[("<eos>", 0)]
    )
    text = "abc def gh " * 20
    plain = encode(tokenizer, text, 12, None)
    assert len(plain) == 12 and plain.count(0) == 1
    wrapped = encode(tokenizer, text, 12, "gh {text} cde")
    assert wrapped[0] == 0 and wrapped.count(0) == 1  # one beginning of a sequence
    body = tokenizer.beginning(text, 12)
    assert (
        text.startswith(body)
        and inner.encode(body, add_special_tokens=False) == inner.encode(text, add_special_tokens=False)[:12]
    )
    assert inner.decode(wrapped, skip_special_tokens=True) == f"gh {body} cde"
    assert encode(tokenizer, "abc", 12, "gh {text} cde")[1:] == inner.encode(
        "gh abc cde", add_special_tokens=False
    )


def test_a_character_that_the_cut_splits_is_left_out():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from resispec.models import TransformersTokenizer

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    inner.pre_tokenizer, inner.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    tokenizer = TransformersTokenizer(PreTrainedTokenizerFast(tokenizer_object=inner))
    assert [tokenizer.beginning("aé{b}", count) for count in range(1, 7)] == [
        "a",
        "a",
        "aé",
        "aé{",
        "aé{b",
        "aé{b}",
    ]


def test_the_chat_template_is_llama_2s():
    from experiments.plan import cells_of

    [chat] = cells_of(["pair=llama2_7b_chat__eagle"])
    template = chat.config["prompt_template"]
    assert template.startswith(
        "[INST] <<SYS>>\nYou are a helpful, respectful and honest assistant. Always answer as helpfully as"
    )
    assert (
        template.endswith("please don't share false information.\n<</SYS>>\n\n{text} [/INST] ")
        and "<s>" not in template
    )
    assert cells_of(["pair=embedded_eagle"])[0].config["prompt_template"] is None
    with pytest.raises(
        InvalidInput, match=r"prompt_template needs \{text\} where the document stands; found 'gh'"
    ):
        cells_of(["pair=embedded_eagle", "prompt_template=gh"])
    other = cells_of(["pair=llama2_7b_chat__eagle", "prompt_template='[INST] {text} [/INST]'"])[0]
    assert other.cell_id != chat.cell_id and other.config["prompt_template"] == "[INST] {text} [/INST]"
    assert json.dumps(chat.config["pair"]).count("prompt_template") == 0


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("verifier", ["standard", "resispec"])
def test_eagle_on_cuda(name, verifier):
    from resispec.models import TransformersModel

    pair = Pair(
        TransformersModel(tiny_llama().module.cuda()), EagleModel(tiny_eagle().cuda()), ToyTokenizer()
    )
    decoder = Decoder(DRAFTERS[name], get_verifier(verifier))
    for temperature in (1.0, 1e-5):
        first, again = (
            decoder.generate(
                pair, [1, 2, 3], Sampling(temperature, 20, 128), torch.Generator("cuda").manual_seed(1)
            )
            for _ in range(2)
        )
        assert first.tokens == again.tokens and len(first.tokens) == 20
