"""Exact speculative sampling inside the `generate` of transformers.

model.generate(**inputs, do_sample=True, custom_generate=resispec.transformers.speculative(draft))
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from resispec.generation import Listener, Speculator
from resispec.models.custom_generate import SpeculatedOutput, check_request, streamer_of_caller
from resispec.models.in_memory import global_generator
from resispec.models.warpers import read_warp
from resispec.trees import Topology

__all__ = ["Speculative", "SpeculatedOutput", "speculative"]


def speculative(
    draft: Any, tree: str | Path | Topology = "best_64", verifier: Any = None, draws: str | None = None
) -> Speculative:
    """What `generate` takes as `custom_generate`, for one prompt a call; keep it for further calls.

    draft, tree, verifier, draws: see `resispec.generation.Speculator`. Of the generation configuration
    do_sample, temperature, top_k, top_p and min_p decide the law, as transformers resolves them (top_k is 50
    where nothing says otherwise); lengths, ends of sequence, stop strings, max_time, stopping criteria and
    streamers work as they always do, and randomness comes from torch's global generator. With
    return_dict_in_generate the result is a `SpeculatedOutput`.
    Raises InvalidInput, when it is called, for whatever else would change the tokens, by its name.
    """
    return Speculative(draft, tree, verifier, draws)


class Speculative:
    """See `speculative`; it keeps caches of the model that it was last called with."""

    def __init__(self, draft: Any, tree: str | Path | Topology, verifier: Any, draws: str | None) -> None:
        self._draft, self._method = draft, (tree, verifier, draws)
        self._known: tuple[Any, Speculator] | None = None

    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **model_kwargs: Any,
    ) -> Tensor | SpeculatedOutput:
        """Continue input_ids (1, L) int64: (1, L + new), or a `SpeculatedOutput` if that is configured.

        Called by `generate`. Raises InvalidInput for what cannot be done.
        """
        check_request(model, input_ids, generation_config, model_kwargs)
        warp = read_warp(logits_processor, generation_config.do_sample)
        if self._known is None or self._known[0] is not model:
            self._known = model, Speculator(model, self._draft, *self._method)
        speculator, streamer = self._known[1], streamer_of_caller()
        prompt, most = input_ids[0].tolist(), generation_config.max_length - input_ids.shape[1]
        listener = Listener(most, _Criteria(stopping_criteria, input_ids, most), _putting(streamer))
        generator = global_generator(speculator.pair.target.device)
        found = speculator.write(prompt, warp, most, generator, listener)
        if streamer is not None:
            streamer.end()
        sequences: Any = torch.cat((input_ids, input_ids.new_tensor([found.tokens])), 1)
        if not generation_config.return_dict_in_generate:
            return sequences
        return SpeculatedOutput(sequences=sequences, num_emitted=found.num_emitted)


class _Criteria:
    """Whether a token is the last one, by transformers' stopping criteria, asked after every token.

    input_ids: (1, L) int64. most: tokens after them, at most.
    """

    def __init__(self, criteria: Any, input_ids: Tensor, most: int) -> None:
        self._criteria, self._length = criteria, input_ids.shape[1]
        self._ids = torch.cat((input_ids, input_ids.new_zeros(1, most)), 1)

    def __call__(self, token: int) -> bool:
        self._ids[0, self._length] = token
        self._length += 1
        return bool(self._criteria(self._ids[:, : self._length], None).all())


def _putting(streamer: Any) -> Any:
    """How a streamer gets the tokens of a step."""
    return None if streamer is None else lambda tokens: streamer.put(torch.tensor(tokens))
