"""`resispec.generate`: the harness's loop, with what a program has at hand."""

import warnings

import numpy as np
import pytest
import torch

import resispec
from resispec.audit.battery import shown_bias
from resispec.cuda_graphs import upload
from resispec.decode import Decoder, Sampling
from resispec.drafters import DraftModel
from resispec.draws import Draws
from resispec.errors import InvalidInput
from resispec.models.checkpoint import read_checkpoint
from resispec.models.loading import as_pair
from resispec.trees import chain, complete, grow_map, root_only
from resispec.trees.named import find
from resispec.verifiers import Law, get_verifier
from tests.toys import ToyTokenizer, eagle3_pair, save_tiny_pair, table_pair, tiny_llama

pytestmark = pytest.mark.numerics

PAIR = table_pair(vocab=8, seed=1, eos=7)


def generate(prompt, **options):
    return resispec.generate(
        PAIR.target, PAIR.draft, prompt, **{"tree": "d3b2", "seed": 3, **options}
    )


def test_it_is_the_loop_of_the_harness():
    """The same tokens and steps as `Decoder` gives with this seed, and the same again."""
    whole = Decoder(DraftModel(complete(3, 2)), get_verifier("traversal_optimal"))
    sampling = Sampling(0.7, 30, 200, ignore_eos=True, top_p=0.9)
    expected = whole.generate(PAIR, [1, 2], sampling, torch.Generator().manual_seed(3))
    for _ in range(2):
        found = generate([1, 2], temperature=0.7, top_p=0.9, max_new_tokens=30, eos_token_ids=())
        assert (found.tokens, found.num_emitted) == (expected.tokens, expected.num_emitted)
    assert found.stop_reason == "max_new_tokens" and found.text is None
    assert found.accepted_length == sum(found.num_emitted) / len(found.num_emitted)


def test_without_a_seed_torchs_global_generator_governs():
    torch.manual_seed(5)
    first, second = (generate([1], seed=None, max_new_tokens=20).tokens for _ in range(2))
    torch.manual_seed(5)
    assert generate([1], seed=None, max_new_tokens=20).tokens == first != second


def test_without_a_seed_the_drafter_does_not_draw_the_global_generators_numbers():
    """Defect: a verifier that draws from that generator got the random numbers of the siblings."""
    torch.manual_seed(5)
    expected = torch.rand(3, dtype=torch.float64)
    seen = []

    class Global:
        def verify(self, tree, target_probs, draft_probs, generator):
            seen.append(torch.rand(3, dtype=torch.float64, generator=generator))
            return get_verifier("standard").verify(tree, target_probs, draft_probs, generator)

    torch.manual_seed(5)
    generate([1], seed=None, max_new_tokens=1, tree="root", verifier=Global())
    assert not torch.equal(seen[0], expected)


def test_every_step_is_heard_and_nothing_after_the_end():
    heard: list[tuple[int, ...]] = []
    found = generate("12", tokenizer=ToyTokenizer(7), max_new_tokens=200, on_step=heard.append)
    assert sum(heard, ()) == found.tokens and len(heard) == len(found.num_emitted)
    assert found.stop_reason == "eos" and found.tokens.index(7) == len(found.tokens) - 1
    for ends in (torch.tensor([7]), {7}):
        assert generate([1, 2], max_new_tokens=200, eos_token_ids=ends).tokens == found.tokens
    assert found.text == "".join(map(str, found.tokens))


def test_an_eagle3_drafter_reads_the_features_of_a_module_as_of_a_model():
    pair = eagle3_pair()
    first, second = (
        resispec.generate(target, pair.draft, [1, 2, 3], "d3b2", seed=1, max_new_tokens=20)
        for target in (pair.target, pair.target.module)
    )
    assert (first.tokens, first.num_emitted) == (second.tokens, second.num_emitted)


def test_numbers_of_numpy_are_numbers():
    assert Sampling(np.float64(0.7), np.int64(9)) == Sampling(0.7, 9)
    found = generate(
        list(np.array([1, 2])), min_p=np.float32(0.25), top_k=np.int64(5), seed=np.int64(2)
    )
    assert found.tokens == generate([1, 2], min_p=0.25, top_k=5, seed=2).tokens


def test_names_are_loaded_and_bring_their_tokenizer(tmp_path):
    save_tiny_pair(tmp_path)
    target, draft = str(tmp_path / "target"), tmp_path / "draft"
    found = resispec.generate(target, draft, "abc def", tree="chain_2", max_new_tokens=5)
    assert found.text and 1 <= len(found.tokens) <= 5
    mixed = resispec.Speculator(target, tiny_llama().module, "chain_2").pair
    assert mixed.target.vocab_size == mixed.draft.vocab_size == 64


def test_trees_have_names(tmp_path):
    assert find("d5b3", "iid") == complete(5, 3) and find("chain_4", "iid") == chain(4)
    assert find("root", "iid") == root_only() and find(chain(2), "iid") == chain(2)
    grow_map.save(complete(3, 3), tmp_path / "own.json")
    assert find(tmp_path / "own.json", "iid") == complete(3, 3)
    published = "results/published/embedded/growmap/embedded.{}.T1.0.best_{}.json"
    decoders = {"iid": "specinfer", "without_replacement": "sequoia", "point_mass": "sequoia"}
    for draws, decoder in decoders.items():
        assert find("best_64", draws) == grow_map.load(published.format(decoder, 64), 64)


class DraftsAlone:
    """Somebody's rule that emits the first sibling."""

    def law(self, target_probs, _, siblings, __):
        return Law(
            torch.eye(siblings.shape[-1], dtype=target_probs.dtype)[0].expand(siblings.shape),
            target_probs,
        )


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([[1], [2]], {}, "a batch of 2 prompts; allowed: one prompt at a time"),
        (["ab"], {}, "the prompt is a list of texts; allowed: one text, or a list of token ids"),
        ([1, 8], {}, "the prompt holds 8; allowed: token ids from 0 to 7"),
        (b"\1\2", {}, "the prompt is bytes; allowed: a list or a tensor of token ids"),
        (torch.tensor(3), {}, "the prompt is int; allowed"),
        ([1], {"eos_token_ids": ["a"]}, "eos_token_ids holds 'a'; allowed: token ids from 0 to 7"),
        ([1], {"eos_token_ids": "7"}, "eos_token_ids is str; allowed: a list or a tensor"),
        ([1], {"eos_token_ids": [7], "ignore_eos": True}, "eos_token_ids beside ignore_eos=True"),
        ({1, 2}, {}, "the prompt is set; allowed: text, or a list or a tensor"),
        ([1], {"verifier": DraftsAlone}, r"is the class DraftsAlone; allowed: .* DraftsAlone\(\)"),
        ([1], {"tokenizer": "gpt2"}, "tokenizer is str; allowed: a tokenizer of transformers, or"),
        ([1], {"seed": 2**64}, "seed is 18446744073709551616; allowed: whole numbers from"),
        ([1], {"seed": "a"}, "seed is 'a'; allowed"),
        ("12", {}, "the prompt is text; give its tokenizer"),
        (
            [1],
            {"temprature": 1},
            "unknown option 'temprature'; known: temperature, .*, tree, verifier, draw",
        ),
        ([1], {"top_p": 0}, "sampling: top_p is 0; allowed"),
        (
            [1],
            {"max_new_tokens": 0},
            "sampling: max_new_tokens is 0; allowed: whole numbers from 1",
        ),
        (
            [1],
            {"repetition_penalty": 1.2},
            "repetition_penalty is 1.2, which would be another law at every",
        ),
        (
            [1],
            {"tree": "best_65"},
            "unknown tree 'best_65'; allowed: root, d5b3, chain_4, best_16 or best",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(prompt, options, message):
    with pytest.raises(InvalidInput, match=message) as found:
        generate(prompt, **options)
    assert "\n" not in str(found.value)


def test_models_that_are_none_are_refused():
    for target, message in ((3, "target is int"), (torch.nn.Linear(2, 2), "target is Linear")):
        with pytest.raises(InvalidInput, match=message):
            resispec.generate(target, PAIR.draft, [1])
    with pytest.raises(InvalidInput, match="draft is NoneType; allowed"):
        resispec.generate(PAIR.target, None, [1])
    module = tiny_llama().module
    with pytest.raises(
        InvalidInput, match="target is LlamaModel; allowed: a causal language model"
    ):
        resispec.generate(module.model, module, [1])
    with pytest.raises(
        InvalidInput, match="in torch.float32 and draft in torch.float64; allowed: torch.flo"
    ):
        resispec.generate(module, tiny_llama(seed=1).module.double(), [1])


def test_a_speculator_names_the_options_of_its_call():
    with pytest.raises(InvalidInput, match="unknown option 'draws'; known: .*, allow_biased$"):
        resispec.Speculator(PAIR.target, PAIR.draft, "d2b2").generate([1], draws="iid")


def test_draws_follow_from_how_is_sampled():
    speculator = resispec.Speculator(PAIR.target, PAIR.draft, "d3b2")
    drawn = [speculator._decoders[is_greedy].drafter.draws for is_greedy in (False, True)]
    assert drawn == [Draws.IID, Draws.POINT_MASS]


def sampled_warnings(times=1, **options):
    """What Python shows of the warnings of calls."""
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        for _ in range(times):
            generate([1], max_new_tokens=2, tree="d2b2", **options)
    return [str(warning.message) for warning in shown]


def test_a_biased_verifier_warns_once_with_what_it_emits():
    [sentence] = sampled_warnings(3, verifier="resispec")
    assert sentence.startswith(
        "ResiSpec is biased with draws iid: where the target's law is (0.5, 0.3, 0.2)"
    )
    assert "(0.344, 0.406, 0.250), a total variation of 0.156" in sentence
    [sentence] = sampled_warnings(verifier=DraftsAlone())
    assert "DraftsAlone is biased" in sentence and "(0.200, 0.400, 0.400)" in sentence
    for unbiased in ({"allow_biased": True}, {"temperature": 0}, {"draws": "point_mass"}):
        assert not sampled_warnings(verifier="resispec", **unbiased)
    [sentence] = sampled_warnings(verifier=DraftsAlone(), temperature=0)
    assert "where the target's law is (1.0, 0.0, 0.0)" in sentence


def test_the_tokenizer_of_a_name_beside_a_module_is_the_given_one(tmp_path):
    """Defect: a draft that reads other words was taken, and hardly a token accepted."""
    save_tiny_pair(tmp_path)
    module, tokenizer = read_checkpoint(str(tmp_path / "target"), None, "float32", "cpu")
    pair = as_pair(module, str(tmp_path / "draft"), tokenizer)
    assert pair.tokenizer.inner is tokenizer
    words = tokenizer.get_vocab()
    tokenizer.get_vocab = lambda: words | {"a": words["b"], "b": words["a"]}
    with pytest.raises(InvalidInput, match="the given tokenizer and .*draft have different token"):
        as_pair(module, str(tmp_path / "draft"), tokenizer)
    with pytest.raises(InvalidInput, match="the given tokenizer and .*target have different toke"):
        as_pair(str(tmp_path / "target"), str(tmp_path / "draft"), tokenizer)


def test_a_program_s_default_device_changes_nothing():
    """As of `torch.set_default_device("cuda")`: what is made for the host stays there."""
    with torch.device("meta"):
        assert upload([1, 2], torch.device("cpu")).tolist() == [1, 2]
        assert shown_bias(get_verifier("resispec"), Draws("iid"))
