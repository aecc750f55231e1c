"""A decoder of this library as an engine: any drafter, verifier and pair, in this process."""

from collections.abc import Sequence
from importlib.metadata import version

import torch

from referee.engines.base import Answer, Engine, acceptance
from resispec.decode import Decoder
from resispec.models import Pair
from resispec.sampling import FILTER_ORDERS, PENALTIES, Sampling


class DecoderEngine(Engine):
    """`Decoder.generate` on a pair, one prompt at a time.

    name: the engine's name in transcripts. Answers say under `spec_decode` how many drafted tokens
    the steps accepted.
    """

    apart = dict.fromkeys(PENALTIES, "a penalty would differ from node to node of a tree")
    orders = tuple(FILTER_ORDERS)

    def __init__(self, name: str, pair: Pair, decoder: Decoder) -> None:
        self.name, self.version = name, version("resispec")
        self._pair, self._decoder = pair, decoder

    def answer(self, prompt: Sequence[int], settings: Sampling, seed: int) -> Answer:
        """See `Engine.answer`.

        Raises InvalidInput if prompt, tokens and tree exceed a model's context.
        """
        generator = torch.Generator(self._pair.target.device).manual_seed(seed)
        generation = self._decoder.generate(self._pair, list(prompt), settings, generator)
        topology = self._decoder.drafter.topology
        # Each step emits one token more than it accepts.
        histogram = [
            generation.num_emitted.count(number + 1) for number in range(topology.num_levels)
        ]
        reason = "stop" if generation.stop_reason == "eos" else "length"
        record = acceptance("resispec", histogram, generation.num_drafted)
        return Answer(generation.tokens, reason, seed, record)
