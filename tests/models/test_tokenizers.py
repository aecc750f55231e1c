"""Tokenizers and vocabularies: sentencepiece's ids, cut texts, pairs of unlike numbers of rows."""

import json
import random
import re
import warnings

import pytest
import sentencepiece
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

import resispec
from resispec.data import Prompt
from resispec.errors import InvalidInput
from resispec.models import TransformersModel, TransformersTokenizer, Warp, features_of, load_pair
from resispec.models.checkpoint import read_tokenizer
from resispec.models.loading import MOST_PADDING, as_pair
from tests.models.toy_architectures import LLAMA, build
from tests.toys import save_tiny_pair, tiny_llama

pytestmark = pytest.mark.numerics

WORDS = [
    "speculative",
    "decoding",
    "drafts",
    "a",
    "tree",
    "of",
    "tokens",
    "12",
    "or",
    "121",
    "at",
    "once\n",
]
CLASS = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": False}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A sentencepiece model of pairs, as Llama's: byte fallback, digits apart, a space in front."""
    folder = tmp_path_factory.mktemp("sentencepiece")
    generator = random.Random(0)
    text = [" ".join(generator.choices(WORDS, k=12)).replace("\n", "") for _ in range(200)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text), model_prefix=str(folder / "tokenizer"), vocab_size=340,
        model_type="bpe", byte_fallback=True, normalization_rule_name="identity", split_digits=True,
        add_dummy_prefix=True, remove_extra_whitespaces=False, allow_whitespace_only_pieces=True,
        unk_id=0, bos_id=1, eos_id=2, pad_id=-1, num_threads=1, minloglevel=2,
    )  # fmt: skip
    return folder / "tokenizer.model"


def checkpoint(folder, model, tokenizer_config):
    (folder / "tokenizer.model").write_bytes(model.read_bytes())
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    if tokenizer_config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    return str(folder)


def texts():
    """Texts of words, their parts, characters of no piece, and ties; none begins with a space."""
    generator = random.Random(1)
    for _ in range(300):
        parts = generator.choices(
            [*WORDS, "to", "ken", "  ", "aaaa", "\t", "\n", "caf\u00e9", "\u6f22"], k=9
        )
        yield generator.choice(("", " ")).join(parts).lstrip(" ") or "a"


def test_every_text_has_the_ids_of_sentencepiece(tmp_path, model):
    found = read_tokenizer(checkpoint(tmp_path, model, CLASS))
    own = sentencepiece.SentencePieceProcessor(model_file=str(model))
    for text in texts():
        assert found.encode(text) == [1, *own.encode(text)], text
        assert found.decode(own.encode(text)) == text


def test_a_conversion_that_gives_other_ids_is_refused(tmp_path, model):
    """Transformers converts it wrongly up to 5.23, and rightly in 5.24."""
    own = sentencepiece.SentencePieceProcessor(model_file=str(model))
    try:
        found = read_tokenizer(checkpoint(tmp_path, model, None))
    except InvalidInput as error:
        assert re.search("^.* where sentencepiece has .*; give it a tokenizer.json.*$", str(error))
    else:
        assert all(
            found.encode(text, add_special_tokens=False) == own.encode(text) for text in texts()
        )


def test_a_text_is_split_as_tokenizer_json_says(tmp_path):
    """SmolLM2's file makes digits single tokens; the class that it is named for does not."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = {token: index for index, token in enumerate([*letters, "12"])}
    inner = Tokenizer(models.BPE(ids, [("1", "2")]))
    inner.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    ])  # fmt: skip
    inner.enable_padding(length=8)  # of batches, and no part of a text
    PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="!").save_pretrained(tmp_path)
    described = tmp_path / "tokenizer_config.json"
    content = json.loads(described.read_text()) | {"tokenizer_class": "GPT2Tokenizer"}
    described.write_text(json.dumps(content))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    found = read_tokenizer(str(tmp_path))
    assert found.encode("a12") == [ids["a"], ids["1"], ids["2"]]
    assert found.eos_token == "!"


def test_a_pattern_that_mistral_has_mended_is_said(tmp_path):
    """Transformers says it in a log, which a command here does not show."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    many = [f"<{number}>" for number in range(100_000)]  # fewer are no tokenizer of this kind
    inner = Tokenizer(models.BPE({token: index for index, token in enumerate(letters + many)}, []))
    for pattern, is_said in ((r"\p{N}{1,3}", True), (r"\p{N}", False)):
        inner.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ])  # fmt: skip
        PreTrainedTokenizerFast(tokenizer_object=inner).save_pretrained(tmp_path)
        config = {"model_type": "mistral", "transformers_version": "4.50.0"}
        (tmp_path / "config.json").write_text(json.dumps(config))
        with warnings.catch_warnings(record=True) as caught:
            read_tokenizer(str(tmp_path))
        said = ["fix_mistral_regex=True" in str(one.message) for one in caught]
        assert any(said) == is_said


def test_a_processor_gives_its_tokenizer():
    class Processor:
        """As of a model of texts and images."""

        tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE({"a": 0}, [])))

    model = bigram(SIZE, 1)
    pair = as_pair(model, model, Processor())
    assert pair.tokenizer.encode("aa") == [0, 0]


def test_a_template_wraps_the_cut_document_and_begins_once(tmp_path):
    save_tiny_pair(tmp_path)
    tokenizer = load_pair(str(tmp_path / "target"), None).tokenizer
    tokenizer.inner.backend_tokenizer.post_processor = TemplateProcessing(
        single="<eos> $A", special_tokens=[("<eos>", 0)]
    )
    document = Prompt("p", "abc def gh " * 20)
    [begin, *tokens] = tokenizer.encode_prompt(document, 12, None)
    assert begin == 0 and len(tokens) == 11
    body = tokenizer.decode([*tokens, tokenizer.encode(document.text)[12]])
    [begin, *tokens] = tokenizer.encode_prompt(document, 12, "gh {text} cde")
    assert begin == 0 and tokenizer.decode(tokens) == f"gh {body} cde"


def test_a_text_that_begins_with_bos_gets_no_second_one():
    """As a chat template writes it, or a prompt_template of the harness."""
    ids = {"<s>": 0, "</s>": 1, **{chr(number): number - 95 for number in range(97, 123)}}
    inner = Tokenizer(models.BPE(ids, []))
    template = "{{ bos_token }}{% for turn in messages %}{{ turn.content }}{% endfor %}"
    described = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": template}
    inner.add_special_tokens(["<s>", "</s>"])
    inner.post_processor = TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    whole = PreTrainedTokenizerFast(tokenizer_object=inner, **described)
    tokenizer = TransformersTokenizer(whole)
    chat = whole.apply_chat_template([{"role": "user", "content": "ab"}], tokenize=False)
    assert chat == "<s>ab" and whole.encode(chat) == [0, 0, 2, 3, 1]
    assert tokenizer.encode(chat) == tokenizer.encode("ab") == [0, 2, 3, 1]
    assert tokenizer.encode_chat("ab") == [0, 2, 3]
    assert tokenizer.encode("<s><s>ab") == [0, 0, 2, 3, 1]
    assert tokenizer.encode_prompt(Prompt("p", "abcd"), 2, "<s>x{text}") == [0, 25, 2, 3, 1]


def test_a_character_that_the_cut_splits_is_left_out():
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    tokenizer = TransformersTokenizer(PreTrainedTokenizerFast(tokenizer_object=inner))
    expected = ["a", "a", "aé", "aé{", "aé{b", "aé{b}"]
    assert [tokenizer.beginning("aé{b}", count) for count in range(1, 7)] == expected


# Target and draft of different numbers of rows


SIZE = 5


def bigram(rows, seed):
    """A Llama whose attention adds nothing, so that the next token's law is a row of a table."""
    module = build(
        "Llama", LLAMA | {"vocab_size": rows, "pad_token_id": None, "num_hidden_layers": 2}, seed
    ).double()
    with torch.no_grad():
        for layer in module.model.layers:
            layer.self_attn.o_proj.weight.zero_()
    return TransformersModel(module)


def table(model):
    """The next token's law after every token of the pair, (SIZE, SIZE), at a mixing temperature."""
    features = torch.cat([features_of(model, [token]) for token in range(SIZE)])
    return Warp(temperature=40.0).law(model.head(features))


def test_a_draft_law_is_one_over_the_target_s_tokens():
    fewer, more, whole = (table(bigram(rows, 1).in_vocabulary(SIZE)) for rows in (3, 8, SIZE))
    assert fewer.shape == more.shape == (SIZE, SIZE)
    assert (fewer[:, 3:] == 0).all() and (fewer[:, :3] > 0).all()
    # read as its last token
    assert torch.equal(fewer[3], fewer[2]) and torch.equal(fewer[4], fewer[2])
    own = bigram(8, 1)
    law = table(own)
    assert (law[:, SIZE:].sum(-1) > 0.01).all()
    assert torch.allclose(more, law[:, :SIZE] / law[:, :SIZE].sum(-1, keepdim=True))
    assert torch.equal(whole, table(bigram(SIZE, 1)))


def test_a_draft_of_some_tokens_has_its_own_law_among_them():
    whole, some = tiny_llama(), tiny_llama().drafting(torch.tensor([3, 17, 40]))
    features = features_of(whole, [1, 2, 3])
    law, own = (Warp(temperature=0.7).law(model.head(features)) for model in (some, whole))
    assert law.shape == own.shape and torch.equal(
        law[0].nonzero().flatten(), torch.tensor([3, 17, 40])
    )
    left = own[:, [3, 17, 40]]
    assert torch.allclose(law[:, [3, 17, 40]], left / left.sum(-1, keepdim=True))
    capped = TransformersModel(build("NanoChat", LLAMA | {"final_logit_softcapping": 15.0}))
    with pytest.raises(InvalidInput, match="only a head that is one linear layer"):
        capped.drafting(torch.tensor([1]))


@pytest.mark.parametrize(("target_rows", "draft_rows"), [(96, 70), (70, 96)])
def test_modules_padded_to_different_sizes_make_the_pair_that_names_make(
    tmp_path, target_rows, draft_rows
):
    save_tiny_pair(tmp_path)
    for role, rows in (("target", target_rows), ("draft", draft_rows)):
        # the tokenizer knows the first 64
        tiny_llama(rows, seed=3).module.save_pretrained(tmp_path / role)
    pair = load_pair(str(tmp_path / "target"), str(tmp_path / "draft"))
    target, draft = tiny_llama(target_rows, seed=3).module, tiny_llama(draft_rows, seed=3).module
    options = {"tree": "d3b2", "seed": 1, "max_new_tokens": 24, "eos_token_ids": ()}
    found = [
        resispec.generate(*models, [1, 2, 3], **options)
        for models in (
            (target, draft),
            (str(tmp_path / "target"), draft),
            (pair.target, pair.draft),
        )
    ]
    assert found[0].tokens == found[1].tokens == found[2].tokens and len(set(found[0].tokens)) > 6
    ids, most = torch.tensor([[1, 2, 3]]), {"max_new_tokens": 12, "do_sample": False}
    speculating = resispec.transformers.speculative(draft, "d3b2")
    plain, ours = (
        target.generate(ids, **most, **by) for by in ({}, {"custom_generate": speculating})
    )
    assert torch.equal(plain, ours)


def test_modules_whose_sizes_no_padding_explains_are_refused():
    models = tiny_llama(64).module, tiny_llama(64 + MOST_PADDING + 1).module
    with pytest.raises(
        InvalidInput, match="target has 64 tokens and draft 1089; allowed: models that share"
    ):
        resispec.generate(*models, [1, 2])


def test_tokenizers_that_differ_are_refused_with_the_first_id_that_differs(tmp_path):
    save_tiny_pair(tmp_path)
    file = tmp_path / "draft" / "tokenizer.json"
    content = json.loads(file.read_text())
    content["model"]["vocab"] |= {"c": 4, "d": 3}
    file.write_text(json.dumps(content))
    message = (
        "tokenizers: token 3 is 'c' in the one and 'd' in the other; allowed: models that share one"
    )
    with pytest.raises(
        InvalidInput, match=f"^target .*/target and draft .*/draft have different {message}"
    ):
        load_pair(str(tmp_path / "target"), str(tmp_path / "draft"))
