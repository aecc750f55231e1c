"""Reading a tokenizer alone, where no model is to be loaded with it."""

from __future__ import annotations

from transformers import AutoTokenizer

from resispec.models.causal import TransformersTokenizer
from resispec.models.checkpoint import _check_tokenizer, _located, _named, _quiet


def load_tokenizer(name: str, revision: str | None = None) -> TransformersTokenizer:
    """The tokenizer of a model folder or a hub name. Raises InvalidInput for what is wrong with it."""
    source, options = _located(name, revision)
    with _quiet(), _named(f"tokenizer of model {name}"):
        _check_tokenizer(source, options)
        return TransformersTokenizer(AutoTokenizer.from_pretrained(source, **options))
