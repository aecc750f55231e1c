"""Prefixes after which laws are measured: first tokens of a prompt, or parts of the target's text.

A prefix is the text that a model has read; tasks measure the law of the token that follows.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor

from experiments.tasks.base import Row, Task, Workload, identity
from experiments.tasks.sampled_trees import plain_drafter
from resispec.decode import Decoder
from resispec.drafters import NoDraft
from resispec.models import Model, features_of
from resispec.sampling import Warp
from resispec.trees import complete
from resispec.verifiers import Draws, get_verifier
from resispec.verifiers.rehearsal import rehearse


@dataclass(frozen=True)
class PrefixRow(Row):
    """One prompt of a task that measures laws; no entry comes from drawing an acceptance.

    num_prefixes: number of measured prefixes. Entries are one value for each prefix, or sums over
    prefixes.
    """

    num_prefixes: int


@dataclass(frozen=True)
class Prefixes:
    """Beginnings of a text.

    tokens: the text. lengths: the number of tokens of each beginning, ascending. first: the place
    of the first token that the target wrote, 0 if there is none.
    """

    tokens: list[int]
    lengths: list[int]
    first: int = 0

    def texts(self) -> list[list[int]]:
        """Every beginning."""
        return [self.tokens[:length] for length in self.lengths]


@dataclass(frozen=True)
class PrefixTask(Task):
    """Base of tasks that measure laws after beginnings of a prompt.

    num_prefixes: those of each prompt. in_answer: whether they are the prompt with beginnings of
    what the target writes after it, as they should be where prompts are questions, of which it
    never says how they go on.
    """

    row: ClassVar[type[PrefixRow]]
    num_prefixes: int
    in_answer: bool = field(default=False, kw_only=True)

    def prefixes(self, workload: Workload, index: int, generator: Generator) -> Prefixes:
        """The prefixes of a prompt, in even steps; fewer if there are fewer tokens.

        The last one is the whole prompt, but within an answer no whole answer.
        """
        prompt, count = workload.prompts[index][1], self.num_prefixes
        if not self.in_answer:
            ends = {max(1, round(len(prompt) * step / count)) for step in range(1, count + 1)}
            return Prefixes(prompt, sorted(ends))
        answer, first = written(workload, index, generator), len(prompt)
        ends = {first + len(answer) * step // (count + 1) for step in range(1, count + 1)}
        return Prefixes([*prompt, *answer], sorted(ends), first)


@dataclass(frozen=True)
class SiblingTask(PrefixTask):
    """Base of tasks that sample tuples of `num_siblings` i.i.d. siblings after prefixes.

    num_tuples: sampled tuples of siblings for each prefix.
    """

    num_siblings: int
    num_tuples: int

    def check(self, decoder: Decoder) -> None:
        """See `Task`; of the decoder only the verifier is used, so the drafter must draw alike."""
        plain_drafter(decoder, "laws after prefixes are measured")
        rehearse(decoder.verifier, Draws.IID, complete(2, self.num_siblings))

    @torch.inference_mode()
    def __call__(self, workload: Workload, index: int) -> PrefixRow:
        """See `Task`."""
        generator = workload.generator(index)
        prefixes = self.prefixes(workload, index, generator)
        counts = {"num_prefixes": len(prefixes.lengths), "num_tuples": self.num_tuples}
        measured = self.measure(workload, prefixes, generator)
        return self.row(**identity(workload, index), **counts, **measured)

    def measure(
        self, workload: Workload, prefixes: Prefixes, generator: Generator
    ) -> dict[str, Any]:
        """The other fields of the row, from the laws after prefixes."""
        raise NotImplementedError


def prefix_laws(workload: Workload, prefixes: Prefixes) -> tuple[Tensor, Tensor]:
    """The target's and the draft's laws (C, V) after C prefixes.

    Raises InvalidInput without a draft.
    """
    ends = [length - 1 for length in prefixes.lengths]

    def laws(model: Model, warp: Warp) -> Tensor:
        features = features_of(model, prefixes.tokens, prefixes.lengths[0])
        return warp.law(model.head(features[ends]))

    warp = workload.sampling.warp
    return laws(workload.pair.target, warp), laws(workload.pair.draft_model(), warp.for_draft)


def written(workload: Workload, index: int, generator: Generator) -> list[int]:
    """The target's own continuation of a prompt within the sampling limits; at least one token."""
    writer, prompt = Decoder(NoDraft(), get_verifier("standard")), workload.prompts[index][1]
    return list(writer.generate(workload.pair, prompt, workload.sampling, generator).tokens)


def written_prefixes(
    workload: Workload, index: int, generator: Generator, count: int
) -> list[list[int]]:
    """A prompt followed by up to `count` beginnings of the target's text, in even steps."""
    prompt, tokens = workload.prompts[index][1], written(workload, index, generator)
    lengths = sorted({len(tokens) * step // count for step in range(count)})
    return [[*prompt, *tokens[:length]] for length in lengths]
