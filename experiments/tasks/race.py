"""Speed: every prompt is decoded by many configurations in turn,
so that noise falls on all of them alike.
"""

from collections.abc import Callable, Sequence
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
    """One prompt, decoded by all entries; every list has one value an entry,
    in the same order in all rows.

    entry: "one_token", "fastest", "d5b3 VERIFIER", "KIND SIZE" for the fastest of a kind and size,
    "generate" and, if the pair has a draft model, "assisted" for transformers. For the entries of
    transformers only whole_s and num_returned are measured, and the other fields are "" or 0.
    whole_s: seconds of the call, the prompt's forwards included. decode_s, num_emitted, num_steps:
    without these forwards, but with the tokens of the last step that are past the limit.
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
class Race(Task):
    """Task that decodes every prompt with all entries,
    in an order that is drawn anew for each prompt.

    chosen: the result of `tree=fastest`. num_drafted: tokens that assisted generation drafts for a
    step.
    """

    row: ClassVar[type[RaceRow]] = RaceRow
    chosen: Chosen
    num_drafted: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.chosen, Chosen):
            raise InvalidInput("task=race goes with tree=fastest, which says what is timed")

    @cached_property
    def entries(self) -> dict[str, Configuration]:
        """All entries but those of transformers, by name."""
        entries = {"one_token": ONE_TOKEN, "fastest": self.chosen.fastest} | REFERENCE
        for kind, group in self.chosen.best.items():
            entries |= {f"{kind} {entry.topology.num_nodes}": entry for entry in group}
        return entries

    @cached_property
    def _decoders(self) -> list[Decoder]:
        """Decoders of the entries, kept from prompt to prompt,
        since they keep what they prepared.
        """
        return [entry.decoder for entry in self.entries.values()]

    def __call__(self, workload: Workload, index: int) -> RaceRow:
        """See `Task`; the cell's decoder is not used."""
        engines = dict(ENGINES)
        if isinstance(workload.pair.draft, EagleModel):
            del engines["assisted"]
        calls = [self._ours(decoder, workload, index) for decoder in self._decoders]
        calls += [self._theirs(mode, workload, index) for mode in engines.values()]
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

    def _ours(
        self, decoder: Decoder, workload: Workload, index: int
    ) -> Callable[[], dict[str, Any]]:
        """A function that decodes a prompt and gives fields of `RaceRow`;
        made before its clock starts.
        """
        prompt, generator = workload.prompts[index][1], workload.generator(index)

        def decode() -> dict[str, Any]:
            generation = decoder.generate(workload.pair, prompt, workload.sampling, generator)
            counts = {
                "num_emitted": sum(generation.num_emitted),
                "num_steps": len(generation.num_emitted),
            }
            return {
                "num_returned": len(generation.tokens),
                "decode_s": generation.decode_s,
            } | counts

        return decode

    def _theirs(self, mode: str, workload: Workload, index: int) -> Callable[[], dict[str, Any]]:
        """The function for an engine of transformers, see `_ours`."""
        prompt, sampling, seed = (
            workload.prompts[index][1],
            workload.sampling,
            workload.seed + index,
        )
        limit = sampling.num_returned(len(prompt))
        settings = Sampling(max_new_tokens=limit, **sampling.warp.by_name())
        engine = TransformersEngine(workload.pair, mode, self.num_drafted)
        if sampling.ignore_eos:
            engine.target.generation_config.eos_token_id = None
        no_steps = {"decode_s": 0.0, "num_emitted": 0, "num_steps": 0}
        return lambda: (
            {"num_returned": len(engine.answer(prompt, settings, seed).tokens)} | no_steps
        )

    def progress(self, rows: Sequence[RaceRow]) -> dict[str, str]:
        """Tokens a second of the fastest configuration, over those of one token at a time."""
        places = [rows[0].entry.index(name) for name in ("fastest", "one_token")]
        tokens, seconds = (
            [sum(getattr(row, name)[place] for row in rows) for place in places]
            for name in ("num_returned", "whole_s")
        )
        return {"speedup": f"{tokens[0] / seconds[0] / (tokens[1] / seconds[1]):.2f}"}
