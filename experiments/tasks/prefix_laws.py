"""Prefixes after which tasks measure laws: the first tokens of a prompt,
or parts of the target's own text.

A prefix is the text that a model has read; tasks measure the law of the token that follows.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor

from experiments.tasks.base import Row, Task, Workload, identity
from resispec.decode import Decoder
from resispec.drafters import NoDraft
from resispec.models import Model, features_of
from resispec.sampling import Warp
from resispec.trees import complete
from resispec.verifiers import Draws, get_verifier
from resispec.verifiers.rehearsal import rehearse


@dataclass(frozen=True)
class PrefixRow(Row):
    """One prompt of a task that measures laws; no entry comes from drawing whether a token is
    accepted.

    num_prefixes: number of measured prefixes. Entries are one value for each prefix, or sums over
    prefixes.
    """

    num_prefixes: int


@dataclass(frozen=True)
class SiblingTask(Task):
    """Base of tasks that sample tuples of `num_siblings` i.i.d. siblings
    after prefixes of a prompt.

    num_prefixes: prefixes of each prompt. num_tuples: sampled tuples of siblings for each prefix.
    """

    row: ClassVar[type[PrefixRow]]
    num_prefixes: int
    num_siblings: int
    num_tuples: int

    def check(self, decoder: Decoder) -> None:
        """See `Task`; of the decoder only the verifier is used."""
        rehearse(decoder.verifier, Draws.IID, complete(2, self.num_siblings))

    @torch.inference_mode()
    def __call__(self, workload: Workload, index: int) -> PrefixRow:
        """See `Task`."""
        lengths = prefix_lengths(len(workload.prompts[index][1]), self.num_prefixes)
        return self.row_of(workload, index, lengths)

    def row_of(
        self, workload: Workload, index: int, lengths: list[int], **fields: Any
    ) -> PrefixRow:
        """The row of prefixes of a prompt that have these lengths.

        fields: those that have other values than `measure` and `identity` give them.
        """
        counts = {"num_prefixes": len(lengths), "num_tuples": self.num_tuples}
        measured = self.measure(workload, index, lengths)
        return self.row(**identity(workload, index) | counts | measured | fields)

    def measure(self, workload: Workload, index: int, lengths: list[int]) -> dict[str, Any]:
        """The other fields of the row, from the laws after prefixes of a prompt
        that have these lengths.
        """
        raise NotImplementedError


def prefix_lengths(num_tokens: int, count: int) -> list[int]:
    """`count` prefix lengths in even steps up to the whole prompt;
    fewer for a prompt of fewer tokens.
    """
    return sorted({max(1, round(num_tokens * step / count)) for step in range(1, count + 1)})


def prefix_laws(workload: Workload, index: int, lengths: list[int]) -> tuple[Tensor, Tensor]:
    """The target's and the draft's laws (C, V) after C prefixes.

    Raises InvalidInput without a draft.
    """
    tokens, ends = workload.prompts[index][1], [length - 1 for length in lengths]

    def laws(model: Model, warp: Warp) -> Tensor:
        return warp.law(model.head(features_of(model, tokens, min(lengths))[ends]))

    warp = workload.sampling.warp
    return laws(workload.pair.target, warp), laws(workload.pair.draft_model(), warp.for_draft)


def written(workload: Workload, index: int, generator: Generator) -> list[int]:
    """The target's own continuation of a prompt, within the cell's limits of sampling;
    at least one token.
    """
    writer, prompt = Decoder(NoDraft(), get_verifier("standard")), workload.prompts[index][1]
    return list(writer.generate(workload.pair, prompt, workload.sampling, generator).tokens)


def written_prefixes(
    workload: Workload, index: int, generator: Generator, count: int
) -> list[list[int]]:
    """A prompt followed by `count` beginnings of the target's text after it,
    in even steps, or by fewer.
    """
    prompt, tokens = workload.prompts[index][1], written(workload, index, generator)
    lengths = sorted({len(tokens) * step // count for step in range(count)})
    return [[*prompt, *tokens[:length]] for length in lengths]
