"""The `generate` of transformers as an engine: plain, assisted by a draft model, or by prompt lookup."""

from collections.abc import Sequence
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import GenerationConfig

from referee.engines.base import Answer, Engine, require_fit, require_mode
from resispec.models.causal import left_padded
from resispec.models.checkpoint import quiet
from resispec.models.pair import Pair
from resispec.sampling import Sampling


class TransformersEngine(Engine):
    """`generate` of a pair's target in this process; without drafts it takes batches of prompts.

    mode, num_drafted: see MODES. `generate` takes the settings that a call leaves open from the model's
    `generation_config`. So the target's is replaced by one with special tokens alone, and no top_k of a model
    folder applies in silence.
    """

    apart = dict.fromkeys(("presence_penalty", "frequency_penalty"), "`generate` has none")
    orders = ("transformers",)

    def __init__(self, pair: Pair, mode: str = "plain", num_drafted: int = 5) -> None:
        require_mode(mode)
        target: Any = pair.target
        self.target, self.version = target.module, transformers.__version__
        self.name, self.takes_batches = f"transformers, {mode}", mode == "plain"
        self._vocab_size, self._context = target.vocab_size, target.context
        self._mode: dict[str, Any] = {}
        if mode == "prompt_lookup":
            self._mode = {"prompt_lookup_num_tokens": num_drafted}
        elif mode == "assisted":
            draft: Any = pair.draft_model()
            draft.module.generation_config.update(
                num_assistant_tokens=num_drafted, num_assistant_tokens_schedule="constant"
            )
            self._mode = {"assistant_model": draft.module}
            self._context = min(target.context, draft.context)
        config = self.target.generation_config
        self.target.generation_config = GenerationConfig(
            bos_token_id=config.bos_token_id,
            eos_token_id=sorted(pair.end_token_ids) or None,
            pad_token_id=0 if config.pad_token_id is None else config.pad_token_id,
        )

    def answer(self, prompt: Sequence[int], settings: Sampling, seed: int) -> Answer:
        """See `Engine.answer`; for one thread at a time, since the whole process has one seed."""
        [tokens] = self._continued([prompt], settings, seed)
        return self._answer(tokens, seed)

    def answers(
        self, prompts: Sequence[Sequence[int]], settings: Sampling, seeds: Sequence[int]
    ) -> list[Answer]:
        """See `Engine.answers`; several prompts are one batch, which draws from the first one's seed."""
        if len(prompts) == 1:
            return super().answers(prompts, settings, seeds)
        return [self._answer(tokens, None) for tokens in self._continued(prompts, settings, seeds[0])]

    def _answer(self, tokens: Sequence[int], seed: int | None) -> Answer:
        """An answer up to its first end of sequence; in a batch, the tokens after that are padding."""
        ends = self.target.generation_config.eos_token_id or ()
        end = next((place for place, token in enumerate(tokens, 1) if token in ends), None)
        return Answer(tuple(tokens[:end]), "stop" if end else "length", seed)

    def _continued(self, prompts: Sequence[Sequence[int]], settings: Sampling, seed: int) -> list[list[int]]:
        """New tokens of every prompt; shorter prompts are padded on the left."""
        require_fit(prompts, settings, self._vocab_size, self._context)
        batch = left_padded(prompts, self.target.generation_config.pad_token_id)
        ids, mask = (part.to(self.target.device) for part in batch)
        options: dict[str, Any] = {
            "attention_mask": mask,
            "max_new_tokens": settings.max_new_tokens,
            "repetition_penalty": settings.repetition_penalty,
            "do_sample": settings.temperature > 0,
        }
        if options["do_sample"]:  # greedy decoding has no warpers
            options |= {name: getattr(settings, name) for name in ("temperature", "top_k", "top_p")}
            options["min_p"] = settings.min_p or None
        # Fork the global generator; silence the warnings that `generate` triggers itself.
        with torch.random.fork_rng([ids.device] if ids.is_cuda else []), quiet():
            torch.manual_seed(seed)
            return self.generate(ids, **options, **self._mode)[:, ids.shape[1] :].tolist()

    def generate(self, ids: Tensor, **options: Any) -> Tensor:
        """Token ids (B, L) with new ones after them, (B, L + new). options: of transformers' `generate`."""
        return self.target.generate(ids, **options)
