"""The text of all embedded models: a tokenizer, and each data set's training tokens and prompts."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

from recipes.embedded.corpus import Document, Split, build_corpus, read_sources, stable_rank
from recipes.embedded.recipe import TextRecipe
from resispec.embedded import NAMES
from resispec.errors import InvalidInput
from resispec.progress import progress_bar

EOS = "<|endoftext|>"
EOS_ID = 0
_TOKENIZER, STREAMS = "tokenizer.json", "streams.safetensors"


def make_text(recipe: TextRecipe, folder: Path) -> dict[str, Any]:
    """Write the tokenizer, the streams and three prompt files; return facts for the manifest."""
    with progress_bar(total=3, unit="stage", desc="embedded text: reading") as bar:
        corpus = build_corpus(read_sources(), recipe.max_chars, recipe.max_files)
        bar.set_description("embedded text: tokenizer", refresh=False)
        bar.update()
        tokenizer = train_tokenizer(corpus, recipe.vocab_size)
        tokenizer.save(str(folder / _TOKENIZER))
        bar.set_description("embedded text: tokens", refresh=False)
        bar.update()
        streams = {}
        for name, split in corpus.items():
            prompts = choose_prompts(name, split.held_out, tokenizer, recipe)
            lines = [json.dumps(asdict(prompt), ensure_ascii=False) + "\n" for prompt in prompts]
            (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
            # All documents one after another, each followed by the end token.
            encodings = tokenizer.encode_batch([document.text for document in split.training])
            tokens = [token for encoding in encodings for token in (*encoding.ids, EOS_ID)]
            streams[name] = torch.tensor(tokens or [EOS_ID], dtype=torch.int32)
        save_file(streams, folder / STREAMS)
        bar.update()
    return {"tokens": {name: len(stream) for name, stream in streams.items()}}


def read_text(folder: Path) -> tuple[Tokenizer, list[Tensor]]:
    """The tokenizer, and each data set's training tokens (tokens,) int64, that `make_text` wrote.

    The streams are in the order of `NAMES`.
    """
    streams = load_file(folder / STREAMS)
    return Tokenizer.from_file(str(folder / _TOKENIZER)), [streams[name].long() for name in NAMES]


def train_tokenizer(corpus: dict[str, Split], vocab_size: int) -> Tokenizer:
    """A byte-level BPE tokenizer of the training texts; any text encodes and decodes to itself."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = (document.text for name in NAMES for document in corpus[name].training)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def choose_prompts(
    name: str, documents: list[Document], tokenizer: Tokenizer, recipe: TextRecipe
) -> list[Document]:
    """Held-out documents long enough for prompts, no two beginning alike, in a fixed mixed order.

    Raises InvalidInput when the installation's text gives fewer than `min_prompts`.
    """
    prompts: dict[tuple[int, ...], Document] = {}  # by the first tokens
    for document in sorted(documents, key=lambda document: stable_rank(document.id)):
        tokens = tokenizer.encode(document.text).ids
        if len(tokens) >= recipe.min_prompt_tokens:
            prompts.setdefault(tuple(tokens[:64]), document)
    if len(prompts) < recipe.min_prompts:
        raise InvalidInput(
            f"{name}: this installation's text gives {len(prompts)} prompts; {recipe.min_prompts} "
            "are needed"
        )
    return list(prompts.values())[: recipe.num_prompts]
