"""Speed: many configurations decode every prompt in turn, so that noise falls on all alike."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch

from experiments.configurations import ONE_TOKEN, Chosen, Configuration
from experiments.tasks.base import Row, Task, Workload, identity
from referee.engines.generate import TransformersEngine
from resispec.decode import Decoder
from resispec.errors import InvalidInput
from resispec.models import EagleModel
from resispec.sampling import Sampling
from resispec.timing import now
from resispec.trees import complete

REFERENCE = {
    f"d5b3 {verifier}": Configuration("iid", verifier, complete(5, 3))
    for verifier in ("standard", "traversal_optimal", "level_optimal")
}
ENGINES = {"generate": "plain", "assisted": "assisted"}
"""Entries of transformers -> modes of its engine; "assisted" needs a draft model."""


@dataclass(frozen=True)
class RaceRow(Row):
    """One prompt, decoded by all entries; lists have one value an entry, in one order in all rows.

    entry: "one_token", "fastest", "d5b3 VERIFIER", "KIND SIZE" for the best of a kind and size,
    "generate" and, if the pair has a draft model, "assisted" for transformers; in a search the
    place. For the entries of transformers only whole_s and num_returned are measured, and the other
    fields are "" or 0. whole_s: seconds of the call, the prompt's forwards included. decode_s,
    num_emitted, num_steps: without these forwards, but with the tokens of the last step that are
    past the limit.
    """

    entry: list[str]
    draws: list[str]
    verifier: list[str]
    num_nodes: list[int]
    num_levels: list[int]
    whole_s: list[float]
    num_returned: list[int]
    decode_s: list[float]
    num_emitted: list[int]
    num_steps: list[int]


@dataclass(frozen=True)
class TurnsTask(Task):
    """Base of tasks that decode every prompt with all entries, in an order drawn anew for it."""

    row: ClassVar[type[RaceRow]] = RaceRow

    @property
    def entries(self) -> dict[str, Configuration]:
        """All entries but those of transformers, by name."""
        raise NotImplementedError

    def engines(self, workload: Workload) -> dict[str, TransformersEngine]:  # noqa: ARG002
        """The entries of transformers, by name."""
        return {}

    @cached_property
    def _decoders(self) -> list[Decoder]:
        """Decoders of the entries, kept for all prompts, since they keep what they prepared."""
        return [entry.decoder for entry in self.entries.values()]

    def __call__(self, workload: Workload, index: int) -> RaceRow:
        """See `Task`; the cell's decoder is not used."""
        engines = self.engines(workload)
        calls = [_ours(decoder, workload, index) for decoder in self._decoders]
        calls += [_theirs(engine, workload, index) for engine in engines.values()]
        order = torch.Generator().manual_seed(workload.seed + index)
        device, outcomes = workload.pair.target.device, [dict[str, float]()] * len(calls)
        for place in torch.randperm(len(calls), generator=order).tolist():
            started = now(device)
            outcome = calls[place]()
            outcomes[place] = {"whole_s": now(device) - started} | outcome
        ours, num_theirs = self.entries.values(), len(engines)
        return RaceRow(
            **identity(workload, index),
            entry=[*self.entries, *engines],
            draws=[entry.draws for entry in ours] + [""] * num_theirs,
            verifier=[entry.verifier for entry in ours] + [""] * num_theirs,
            num_nodes=[entry.topology.num_nodes for entry in ours] + [0] * num_theirs,
            num_levels=[entry.topology.num_levels for entry in ours] + [0] * num_theirs,
            **{name: [outcome[name] for outcome in outcomes] for name in outcomes[0]},
        )


@dataclass(frozen=True)
class Race(TurnsTask):
    """Task that decodes every prompt with the best of every kind and size, and with others.

    chosen: the result of `tree=fastest`. num_drafted: tokens that assisted generation drafts for a
    step.
    """

    chosen: Chosen
    num_drafted: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.chosen, Chosen):
            raise InvalidInput("task=race goes with tree=fastest, which says what is timed")

    @cached_property
    def entries(self) -> dict[str, Configuration]:
        """See `TurnsTask`."""
        entries = {"one_token": ONE_TOKEN, "fastest": self.chosen.fastest} | REFERENCE
        for kind, group in self.chosen.best.items():
            entries |= {f"{kind} {entry.topology.num_nodes}": entry for entry in group}
        return entries

    def engines(self, workload: Workload) -> dict[str, TransformersEngine]:
        """See `TurnsTask`; an EAGLE drafter assists no engine."""
        is_eagle = isinstance(workload.pair.draft, EagleModel)
        return {
            name: TransformersEngine(workload.pair, mode, self.num_drafted)
            for name, mode in ENGINES.items()
            if not (is_eagle and name == "assisted")
        }

    def progress(self, rows: Sequence[RaceRow]) -> dict[str, str]:
        """Tokens a second of the fastest configuration, over those of one token at a time."""
        places = [rows[0].entry.index(name) for name in ("fastest", "one_token")]
        tokens, seconds = (
            [sum(getattr(row, name)[place] for row in rows) for place in places]
            for name in ("num_returned", "whole_s")
        )
        return {"speedup": f"{tokens[0] / seconds[0] / (tokens[1] / seconds[1]):.2f}"}


@dataclass(frozen=True)
class Heat(TurnsTask):
    """Task that decodes every prompt with the configurations of a search, given as `facts`.

    Entries are named by their places.
    """

    configurations: Sequence[Mapping[str, Any]]

    @cached_property
    def entries(self) -> dict[str, Configuration]:
        """See `TurnsTask`."""
        return {
            str(place): Configuration.of(facts) for place, facts in enumerate(self.configurations)
        }

    def progress(self, rows: Sequence[RaceRow]) -> dict[str, str]:
        """The most tokens a second of any configuration."""
        return {"tokens_per_s": f"{max(tokens_per_s(rows)):.0f}"}


def tokens_per_s(rows: Sequence[RaceRow]) -> list[float]:
    """Emitted tokens over decoding seconds of every entry, summed over prompts."""
    emitted = [sum(counts) for counts in zip(*(row.num_emitted for row in rows), strict=True)]
    seconds = [sum(times) for times in zip(*(row.decode_s for row in rows), strict=True)]
    return [count / time for count, time in zip(emitted, seconds, strict=True)]


def _ours(decoder: Decoder, workload: Workload, index: int) -> Callable[[], dict[str, Any]]:
    """A function that decodes a prompt to fields of `RaceRow`; made before its clock starts."""
    prompt, generator = workload.prompts[index][1], workload.generator(index)

    def decode() -> dict[str, Any]:
        generation = decoder.generate(workload.pair, prompt, workload.sampling, generator)
        return {
            "num_returned": len(generation.tokens),
            "decode_s": generation.decode_s,
            "num_emitted": sum(generation.num_emitted),
            "num_steps": len(generation.num_emitted),
        }

    return decode


def _theirs(
    engine: TransformersEngine, workload: Workload, index: int
) -> Callable[[], dict[str, Any]]:
    """The function for an engine of transformers, see `_ours`."""
    prompt, sampling, seed = workload.prompts[index][1], workload.sampling, workload.seed + index
    limit = sampling.num_returned(len(prompt))
    settings = Sampling(max_new_tokens=limit, **sampling.warp.by_name())
    if sampling.ignore_eos:
        engine.special.eos_token_id = None
    no_steps = {"decode_s": 0.0, "num_emitted": 0, "num_steps": 0}
    return lambda: {"num_returned": len(engine.answer(prompt, settings, seed).tokens)} | no_steps
