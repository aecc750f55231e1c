"""Speed: every prompt is decoded by many configurations in turn, so that noise falls on all of them alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch

from experiments.costs.configuration import ONE_TOKEN, Configuration
from experiments.search.chosen import Chosen
from experiments.tasks.base import Row, Workload, check_counts, identity
from resispec.decode import Decoder
from resispec.engines import Settings
from resispec.models.generate import TransformersEngine
from resispec.timing import now
from resispec.trees import complete

REFERENCE = {
    f"d5b3 {verifier}": Configuration("iid", verifier, complete(5, 3))
    for verifier in ("standard", "traversal_optimal", "level_optimal")
}
ENGINES = {"generate": "plain", "assisted": "assisted"}
"""Names of transformers' entries -> modes of its engine."""


@dataclass(frozen=True)
class RaceRow(Row):
    """One prompt, decoded by all entries; every list has one value an entry, and its order is the cell's.

    entry: its name: "one_token", "fastest", "d5b3 VERIFIER", "KIND SIZE" for the fastest of a kind and size,
    "generate" and "assisted" for transformers. draws, verifier, num_nodes, num_levels: what decodes; "" and 0
    for transformers. whole_s: seconds of the whole call, the prompt's forwards included. num_returned: tokens
    that came back. decode_s, num_emitted, num_steps: after the prompt's forwards, and with the tokens of the
    last step that were not asked for; 0 for transformers.
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
class Outcome:
    """What one entry did with a prompt, see `RaceRow`."""

    num_returned: int
    decode_s: float = 0.0
    num_emitted: int = 0
    num_steps: int = 0


@dataclass(frozen=True)
class Race:
    """Decodes every prompt with all entries, in an order that is drawn anew for each.

    chosen: what `tree=fastest` found. num_drafted: of transformers' assisted generation, a step.
    """

    row: ClassVar[type[RaceRow]] = RaceRow
    chosen: Chosen
    num_drafted: int

    def __post_init__(self) -> None:
        check_counts(num_drafted=self.num_drafted)

    @cached_property
    def entries(self) -> dict[str, Configuration | None]:
        """By name; None for transformers."""
        found: dict[str, Configuration | None] = {"one_token": ONE_TOKEN, "fastest": self.chosen.fastest}
        found |= REFERENCE
        for kind, own in self.chosen.best.items():
            found |= {f"{kind} {one.topology.num_nodes}": one for one in own}
        return found | dict.fromkeys(ENGINES)

    @cached_property
    def _decoders(self) -> dict[str, Decoder]:
        """Kept from prompt to prompt, since they keep what they prepared."""
        return {name: one.decoder for name, one in self.entries.items() if one is not None}

    def __call__(self, workload: Workload, index: int) -> RaceRow:
        """See `Task`; the cell's decoder plays no part."""
        calls = {name: self._call(name, workload, index) for name in self.entries}
        names, order = list(calls), torch.Generator().manual_seed(workload.seed + index)
        device, seconds, found = workload.pair.target.device, dict[str, float](), dict[str, Outcome]()
        for place in torch.randperm(len(names), generator=order).tolist():
            started = now(device)
            found[names[place]] = calls[names[place]]()
            seconds[names[place]] = now(device) - started
        outcomes = [found[name] for name in names]
        return RaceRow(
            **identity(workload, index),
            **self._described(),
            whole_s=[seconds[name] for name in names],
            num_returned=[one.num_returned for one in outcomes],
            decode_s=[one.decode_s for one in outcomes],
            num_emitted=[one.num_emitted for one in outcomes],
            num_steps=[one.num_steps for one in outcomes],
        )

    def _described(self) -> dict[str, Any]:
        ours = list(self.entries.values())
        return {
            "entry": list(self.entries),
            "draws": [one.draws if one else "" for one in ours],
            "verifier": [one.verifier if one else "" for one in ours],
            "num_nodes": [one.topology.num_nodes if one else 0 for one in ours],
            "num_levels": [one.topology.num_levels if one else 0 for one in ours],
        }

    def _call(self, name: str, workload: Workload, index: int) -> Callable[[], Outcome]:
        """What decodes a prompt as an entry; made before its clock starts."""
        prompt, sampling = workload.prompts[index][1], workload.sampling
        if name in ENGINES:
            limit = sampling.num_returned(len(prompt))
            settings = Settings(temperature=sampling.temperature, max_new_tokens=limit)
            engine = TransformersEngine(workload.pair, ENGINES[name], self.num_drafted)
            if sampling.ignore_eos:
                engine.target.generation_config.eos_token_id = None
            return lambda: Outcome(len(engine.answer(prompt, settings, workload.seed + index).tokens))
        decoder, generator = self._decoders[name], workload.generator(index)

        def decode() -> Outcome:
            found = decoder.generate(workload.pair, prompt, sampling, generator)
            counts = found.num_emitted
            return Outcome(len(found.tokens), found.decode_s, sum(counts), len(counts))

        return decode

    def progress(self, rows: Sequence[RaceRow]) -> dict[str, str]:
        """Tokens a second of the fastest configuration, over those of one token at a time."""
        names = rows[0].entry
        rates = []
        for name in ("fastest", "one_token"):
            place = names.index(name)
            rates.append(
                sum(row.num_returned[place] for row in rows) / sum(row.whole_s[place] for row in rows)
            )
        return {"speedup": f"{rates[0] / rates[1]:.2f}"}
