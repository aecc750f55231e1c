"""Where the tasks that measure laws look: after prefixes of a prompt, or in text that the target wrote after it."""

from __future__ import annotations

from typing import Any

from torch import Generator

from experiments.tasks import Context
from resispec.decode import Decoder
from resispec.drafters import NoDraft
from resispec.verifiers import get_verifier


def prefix_lengths(num_tokens: int, count: int) -> list[int]:
    """`count` prefix lengths in even steps up to the whole prompt; fewer for a prompt of fewer tokens."""
    return sorted({max(1, round(num_tokens * step / count)) for step in range(1, count + 1)})


def written(context: Context, index: int, generator: Generator) -> list[int]:
    """The target's own continuation of a prompt, within the cell's limits of sampling; at least one token."""
    writer = Decoder(NoDraft(), get_verifier("standard"))
    return list(writer.generate(context.pair, context.prompts[index][1], context.sampling, generator).tokens)


def written_contexts(context: Context, index: int, generator: Generator, count: int) -> list[list[int]]:
    """A prompt, and the prompt with more and more of what the target writes, in even steps: contexts as decoding meets them.

    `count` of them, fewer after a short continuation.
    """
    prompt, tokens = context.prompts[index][1], written(context, index, generator)
    return [
        [*prompt, *tokens[:length]]
        for length in sorted({len(tokens) * step // count for step in range(count)})
    ]


def identity(context: Context, index: int, num_contexts: int) -> dict[str, Any]:
    """The fields of `LawRow`."""
    prompt_id, tokens = context.prompts[index]
    return {
        "prompt_index": index,
        "prompt_id": prompt_id,
        "seed": context.seed + index,
        "num_prompt_tokens": len(tokens),
        "num_contexts": num_contexts,
    }
