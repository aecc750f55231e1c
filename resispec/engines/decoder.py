"""A decoder of this library as an engine: any drafter with any verifier, on any pair, in this process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version

import torch

from resispec.decode import Decoder, Step
from resispec.engines.acceptance import acceptance_record
from resispec.engines.base import NEUTRAL, Answer, Settings, require_off
from resispec.models import Pair, Warp

_ABSENT = {
    name: "a penalty would differ from node to node of a tree"
    for name in NEUTRAL.law()
    if name.endswith("penalty")
}


class DecoderEngine:
    """`Decoder.generate` on a pair, one prompt at a time.

    name: for people. Its answers say under `spec_decode` how many drafted tokens the steps accepted.
    """

    def __init__(self, name: str, pair: Pair, decoder: Decoder) -> None:
        self.name, self.version = name, version("resispec")
        self._pair, self._decoder = pair, decoder

    def check(self, settings: Settings) -> None:
        """Raise InvalidInput for penalties."""
        require_off(self.name, settings, _ABSENT)

    def answer(self, prompt: Sequence[int], settings: Settings, seed: int) -> Answer:
        """See `Engine.answer`. Raises InvalidInput when prompt, tokens and tree exceed a model's context."""
        sampling = self._decoder.sampling(len(prompt), settings.max_new_tokens, Warp.of(settings))
        accepted: Counter[int] = Counter()

        def count(step: Step) -> None:
            accepted[step.verdict.num_accepted] += 1

        generator = torch.Generator(self._pair.target.device).manual_seed(seed)
        found = self._decoder.generate(self._pair, list(prompt), sampling, generator, on_step=count)
        topology = self._decoder.drafter.topology
        histogram = [accepted[number] for number in range(topology.num_levels)]
        drafted = (topology.num_nodes - 1) * len(found.num_emitted)
        record = acceptance_record("resispec", histogram, drafted)
        return Answer(
            found.tokens, "stop" if found.stop_reason == "eos" else "length", seed, {"spec_decode": record}
        )
