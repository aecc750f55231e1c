"""An engine with a fault that shipped: it drafts the likeliest token and says that it drew it from the draft.

transformers 5.23.0 has it in one place: `SinglePositionMultiTokenCandidateGenerator.get_candidates`
(generation/candidate_generator.py, lines 1344 to 1355), the drafter of Gemma 4's assistants, takes the argmax
and returns the raw logits of the draft, which `_speculative_sampling` (generation/utils.py, line 4430) then
reads as the law q that the candidates were drawn from. The acceptance min(1, p/q) and the residual (p - q)+
are right only for candidates drawn from q. Here a draft model of any make does the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from resispec.models import Pair
from resispec.models.generate import TransformersEngine


class ArgmaxDrafts:
    """What transformers calls a candidate generator: the draft's likeliest tokens, with its logits as q.

    draft: a causal language model of transformers. max_length: of the whole sequence.
    """

    requires_model_outputs = False

    def __init__(self, draft: Any, num_drafted: int, max_length: int) -> None:
        self._draft, self._num_drafted, self._max_length = draft, num_drafted, max_length

    @torch.inference_mode()
    def get_candidates(self, input_ids: Tensor) -> tuple[Tensor, Tensor | None]:
        """(1, L) -> (1, L + K), K drafted tokens behind it, and the logits said to be theirs (1, K, V)."""
        count = min(self._num_drafted, self._max_length - input_ids.shape[1] - 1)
        said = []
        for _ in range(count):
            logits = self._draft(input_ids, use_cache=False).logits[:, -1:].float()
            input_ids = torch.cat((input_ids, logits.argmax(-1)), 1)  # the fault: nothing was drawn
            said.append(logits)
        return input_ids, torch.cat(said, 1) if said else None

    def update_candidate_strategy(self, *_: Any) -> None:
        """Nothing is learned from what was accepted."""


class ArgmaxEngine(TransformersEngine):
    """Assisted generation whose drafts are `ArgmaxDrafts`."""

    def __init__(self, pair: Pair, num_drafted: int = 5) -> None:
        super().__init__(pair, "assisted", num_drafted)
        self.name = "transformers, argmax drafts"
        self._num_drafted = num_drafted

    def generate(self, ids: Tensor, **options: Any) -> Tensor:
        """As of transformers, but for the drafts."""
        drafts = ArgmaxDrafts(
            options["assistant_model"], self._num_drafted, ids.shape[1] + options["max_new_tokens"]
        )
        self.target._get_candidate_generator = lambda **_: drafts
        try:
            return super().generate(ids, **options)
        finally:
            del self.target._get_candidate_generator  # the method of the class is found again
