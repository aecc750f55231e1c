"""Vocabularies of a pair: rows that only pad, and tokenizers that must agree on every id.

Models round the rows of their embeddings up to different numbers: Qwen2.5 7B has 152,064, 0.5B has 151,936,
and their tokenizer knows 151,665. The law of a target is what it is, whole. That of a draft may be any law
over the target's ids: it is 0 where the draft has no row, and cut and renormalised where it has more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from resispec.errors import InvalidInput

MOST_PADDING = 1024
"""Rows that only pad, at most: numbers of rows are rounded up to multiples of 64 to 512."""


def sharing(target: Any, draft: Any, names: Sequence[str], tokenizers: Sequence[Any] = ()) -> Any:
    """The draft, a `TransformersModel`, as one over the target's ids.

    names: of both models, for a message. tokenizers: of transformers, both models' own; where they are not
    known it is taken on trust that ids mean the same, and only the numbers of rows are compared.
    Raises InvalidInput when the tokenizers differ, or the numbers of rows by more than padding.
    """
    sizes = target.vocab_size, draft.vocab_size
    if tokenizers:
        check_tokenizers(names, tokenizers, min(sizes))
    elif abs(sizes[0] - sizes[1]) > MOST_PADDING:
        raise InvalidInput(
            f"{names[0]} has {sizes[0]} tokens and {names[1]} {sizes[1]}; allowed: models that share a "
            f"tokenizer, whose numbers of tokens differ by padding alone, up to {MOST_PADDING}"
        )
    return draft.in_vocabulary(sizes[0])


def check_tokenizers(names: Sequence[str], tokenizers: Sequence[Any], size: int) -> None:
    """Raise InvalidInput, with the first id that differs, unless all agree on every id below `size`.

    names: of the models, for the message. tokenizers: of transformers.
    """
    vocabularies = [{index: token for token, index in one.get_vocab().items()} for one in tokenizers]
    for name, other in zip(names[1:], vocabularies[1:], strict=True):
        for index in range(size):
            pair = [vocabulary.get(index) for vocabulary in (vocabularies[0], other)]
            if pair[0] != pair[1]:
                first, second = ("absent" if token is None else repr(token) for token in pair)
                raise InvalidInput(
                    f"{names[0]} and {name} have different tokenizers: token {index} is {first} in the one "
                    f"and {second} in the other; allowed: models that share one"
                )
