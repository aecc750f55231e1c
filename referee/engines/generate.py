"""The `generate` of transformers as an engine: plain, with a draft model, or by prompt lookup."""

from collections.abc import Sequence
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import GenerationConfig

from referee.engines.base import Answer, Engine, require_fit, require_mode
from resispec.models.causal import left_padded
from resispec.models.checkpoint import quiet
from resispec.models.linear import quicken_again
from resispec.models.pair import Pair
from resispec.sampling import Sampling


class TransformersEngine(Engine):
    """`generate` of a pair's target in this process; without drafts it takes batches of prompts.

    mode, num_drafted: see MODES. `generate` takes the settings that a call leaves open from the
    model's `generation_config`. While it runs, that is `special`, with special tokens alone, so no
    top_k of a model folder applies in silence.
    """

    apart = dict.fromkeys(("presence_penalty", "frequency_penalty"), "`generate` has none")
    orders = ("transformers",)

    def __init__(self, pair: Pair, mode: str = "plain", num_drafted: int = 5) -> None:
        require_mode(mode)
        target: Any = pair.target
        quicken_again(target.module)  # weights may have been merged since it was loaded
        self.target, self.version = target.module, transformers.__version__
        self.name, self.takes_batches = f"transformers, {mode}", mode == "plain"
        self._vocab_size, self._context = target.vocab_size, target.context
        self._mode: dict[str, Any] = {}
        if mode == "prompt_lookup":
            self._mode = {"prompt_lookup_num_tokens": num_drafted}
        elif mode == "assisted":
            draft: Any = pair.draft_model()
            draft.module.generation_config.update(
                num_assistant_tokens=num_drafted,
                num_assistant_tokens_schedule="constant",
                assistant_confidence_threshold=0.0,  # by default it stops where the draft is unsure
            )
            self._mode = {"assistant_model": draft.module}
            self._context = min(target.context, draft.context)
        config = self.target.generation_config
        self.special = GenerationConfig(
            bos_token_id=config.bos_token_id,
            eos_token_id=sorted(pair.end_token_ids) or None,
            pad_token_id=0 if config.pad_token_id is None else config.pad_token_id,
        )

    def answers(
        self, prompts: Sequence[Sequence[int]], settings: Sampling, seeds: Sequence[int]
    ) -> list[Answer]:
        """See `Engine.answers`; several prompts are one batch, drawn from the first one's seed.

        For one thread at a time, since the whole process has one seed.
        """
        require_fit(prompts, settings, self._vocab_size, self._context)
        special = self.special
        ids, mask = (
            part.to(self.target.device) for part in left_padded(prompts, special.pad_token_id)
        )
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
        usual = self.target.generation_config
        self.target.generation_config = special
        try:
            with torch.random.fork_rng([ids.device] if ids.is_cuda else []), quiet():
                torch.manual_seed(seeds[0])
                rows = self.generate(ids, **options, **self._mode)[:, ids.shape[1] :].tolist()
        finally:
            self.target.generation_config = usual
        ends = special.eos_token_id or ()
        seed = seeds[0] if len(prompts) == 1 else None
        answers = []
        for tokens in rows:  # in a batch, the tokens after the first end of sequence are padding
            end = next((place for place, token in enumerate(tokens, 1) if token in ends), None)
            answers.append(Answer(tuple(tokens[:end]), "stop" if end else "length", seed))
        return answers

    def generate(self, ids: Tensor, **options: Any) -> Tensor:
        """Token ids (B, L) with new ones after them, (B, L + new).

        options: of transformers' `generate`.
        """
        return self.target.generate(ids, **options)
