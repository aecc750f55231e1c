"""Tokenizers: the ids of sentencepiece's models, texts cut to their first tokens, templates around them."""

import json
import random

import pytest
import sentencepiece
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from toys import save_tiny_pair
from transformers import PreTrainedTokenizerFast

from resispec.data import Prompt
from resispec.errors import InvalidInput
from resispec.models import TransformersTokenizer, load_pair
from resispec.models.checkpoint import read_tokenizer

WORDS = ["speculative", "decoding", "drafts", "a", "tree", "of", "tokens", "12", "or", "121", "at", "once\n"]
CLASS = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": False}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A sentencepiece model as Llama's: pairs with byte fallback, digits apart, a space before every text."""
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
    """Texts of words, parts of words, characters that no piece has, and ties; none begins with a space."""
    generator = random.Random(1)
    for _ in range(300):
        parts = generator.choices([*WORDS, "to", "ken", "  ", "aaaa", "\t", "\n", "caf\u00e9", "\u6f22"], k=9)
        yield generator.choice(("", " ")).join(parts).lstrip(" ") or "a"


def test_every_text_has_the_ids_of_sentencepiece(tmp_path, model):
    found = read_tokenizer(checkpoint(tmp_path, model, CLASS))
    own = sentencepiece.SentencePieceProcessor(model_file=str(model))
    for text in texts():
        assert found.encode(text) == [1, *own.encode(text)], text
        assert found.decode(own.encode(text)) == text


@pytest.mark.parametrize("tokenizer_config", [None, {"add_bos_token": True}])
def test_a_conversion_that_gives_other_ids_is_refused(tmp_path, model, tokenizer_config):
    with pytest.raises(InvalidInput, match="where sentencepiece has .*; give it a tokenizer.json") as caught:
        read_tokenizer(checkpoint(tmp_path, model, tokenizer_config))
    assert "\n" not in str(caught.value)


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


def test_a_character_that_the_cut_splits_is_left_out():
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    tokenizer = TransformersTokenizer(PreTrainedTokenizerFast(tokenizer_object=inner))
    expected = ["a", "a", "aé", "aé{", "aé{b", "aé{b}"]
    assert [tokenizer.beginning("aé{b}", count) for count in range(1, 7)] == expected
