"""Checkpoints whose tokenizer is a tokenizer.model alone, as Vicuna's: the ids are sentencepiece's own."""

import json
import random

import pytest
import sentencepiece

from resispec.errors import InvalidInput
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
