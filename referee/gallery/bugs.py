"""Faults that shipped in engines, each rebuilt in a few lines on this library's own parts.

Everything around a fault is exact, so that one thing is wrong at a time. docs/gallery.md tells the
stories.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor

from referee.engines import Answer
from referee.engines.decoder import DecoderEngine
from referee.engines.generate import TransformersEngine
from resispec.core import Tree, Verdict
from resispec.distributions import choose, draw, draw_one
from resispec.draws import Iid
from resispec.models import Pair
from resispec.sampling import Sampling
from resispec.verifiers import Standard, TopDown

KEPT = 50
"""The default top_k of transformers."""


class RacedDrafts(Iid):
    """Drafts by a race, as on accelerators: with exponential noise E,
    the token of the least E / q wins.

    noise: (1, V) for each token that was drafted since the list was last taken.
    """

    def __init__(self) -> None:
        self.noise: list[Tensor] = []

    def draw(self, draft_probs: Tensor, count: int, generator: Generator) -> Tensor:
        """See `DrawsKind.draw`; exact, for one sibling."""
        self.noise.append(torch.empty_like(draft_probs).exponential_(generator=generator))
        return (self.noise[-1] / draft_probs).argmin(-1, keepdim=True)


@dataclass(frozen=True)
class SharedNoise:
    """The standard rule on a chain, whose residual is drawn with the noise that chose the draft.

    vLLM pull requests 47386 and 54282.
    """

    drafts: RacedDrafts

    def verify(
        self, tree: Tree, target_probs: Tensor, draft_probs: Tensor, generator: Generator
    ) -> Verdict:
        """See `Verifier.verify`."""
        noise, self.drafts.noise = self.drafts.noise, []
        drafted = tree.tokens[1:].tolist()
        for node in range(len(drafted)):
            siblings = tree.tokens[node + 1 : node + 2]
            law = Standard().law(target_probs[node], draft_probs[node], siblings, tree.draws)
            if choose(law.select, generator) == 1:  # it is rejected
                # the fault: this takes new noise
                again = int((noise[node][0] / law.residual).argmin())
                return Verdict(tuple(range(1, node + 1)), (*drafted[:node], again))
        bonus = draw_one(target_probs[-1], generator)
        return Verdict(tuple(range(1, len(drafted) + 1)), (*drafted, bonus))


class CutDrafts(Iid):
    """Drafts one of the likeliest tokens, and says that it was drawn from the whole of q.

    transformers issue 47932.
    """

    def draw(self, draft_probs: Tensor, count: int, generator: Generator) -> Tensor:
        """See `DrawsKind.draw`; `laws` still says q."""
        kept = draft_probs.topk(min(KEPT, draft_probs.shape[-1]))
        return kept.indices.gather(-1, draw(kept.values, count, generator))


class RoundedDrafts(Iid):
    """Drafts from q in bfloat16, and says that it was drawn from q. DeepSpec issue 31."""

    def draw(self, draft_probs: Tensor, count: int, generator: Generator) -> Tensor:
        """See `DrawsKind.draw`; `laws` still says q."""
        return super().draw(draft_probs.bfloat16().to(draft_probs.dtype), count, generator)


class WrongRows(TopDown):
    """Every node below the root is judged by the target's row of its first sibling.

    TensorRT-LLM pull request 15098.
    """

    def verify(
        self, tree: Tree, target_probs: Tensor, draft_probs: Tensor, generator: Generator
    ) -> Verdict:
        """See `Verifier.verify`."""
        shape = tree.topology
        rows = [0, *(shape.children[parent][0] for parent in shape.parents[1:])]
        return super().verify(tree, target_probs[rows], draft_probs, generator)


class GreedyVerification(TopDown):
    """Only the target's likeliest token counts, at any temperature. SGLang pull request 39253."""

    def verify(
        self, tree: Tree, target_probs: Tensor, draft_probs: Tensor, generator: Generator
    ) -> Verdict:
        """See `Verifier.verify`."""
        likeliest = target_probs.argmax(-1, keepdim=True)
        greedy = torch.zeros_like(target_probs).scatter(-1, likeliest, 1.0)
        return super().verify(tree, greedy, draft_probs, generator)


class DeafToSeeds(DecoderEngine):
    """The seed of a request has no effect. vLLM issue 13196."""

    def answer(self, prompt: Sequence[int], settings: Sampling, seed: int) -> Answer:
        """See `Engine.answer`."""
        return replace(super().answer(prompt, settings, 0), seed=seed)


class HiddenTopK(TransformersEngine):
    """An engine with a default top_k that no request names and no transcript tells."""

    def generate(self, ids: Tensor, **options: Any) -> Tensor:
        """See `TransformersEngine.generate`; with its own default."""
        return super().generate(ids, **options | {"top_k": KEPT})


class ArgmaxDrafts:
    """A candidate generator of transformers: the draft's likeliest tokens, with its logits as q.

    transformers 5.23.0 has the fault in one place: `SinglePositionMultiTokenCandidateGenerator`'s
    `get_candidates` (generation/candidate_generator.py, lines 1344 to 1355), the drafter of Gemma
    4's assistants, takes the argmax and returns the draft's raw logits, which
    `_speculative_sampling` (generation/utils.py, line 4430) then reads as the law q that the
    candidates were drawn from. The acceptance min(1, p/q) and the residual (p - q)+ are right only
    for candidates drawn from q.
    draft: a causal language model of transformers. max_length: the most tokens of the whole
    sequence.
    """

    requires_model_outputs = False

    def __init__(self, draft: Any, max_length: int) -> None:
        self._draft, self._max_length = draft, max_length
        self._num_drafted = draft.generation_config.num_assistant_tokens

    @torch.inference_mode()
    def get_candidates(self, input_ids: Tensor) -> tuple[Tensor, Tensor | None]:
        """The tokens (1, L) and K drafted ones, (1, L + K),
        and the logits claimed for these (1, K, V).
        """
        count = min(self._num_drafted, self._max_length - input_ids.shape[1] - 1)
        all_logits = []
        for _ in range(count):
            logits = self._draft(input_ids, use_cache=False).logits[:, -1:].float()
            input_ids = torch.cat((input_ids, logits.argmax(-1)), 1)  # the fault: nothing was drawn
            all_logits.append(logits)
        return input_ids, torch.cat(all_logits, 1) if all_logits else None

    def update_candidate_strategy(self, *_: Any) -> None:
        """Learn nothing from the accepted tokens."""


class ArgmaxEngine(TransformersEngine):
    """Assisted generation whose drafts are `ArgmaxDrafts`."""

    def __init__(self, pair: Pair) -> None:
        super().__init__(pair, "assisted")
        self.name = "transformers, argmax drafts"

    def generate(self, ids: Tensor, **options: Any) -> Tensor:
        """See `TransformersEngine.generate`; with other drafts."""
        drafts = ArgmaxDrafts(options["assistant_model"], ids.shape[1] + options["max_new_tokens"])
        self.target._get_candidate_generator = lambda **_: drafts
        try:
            return super().generate(ids, **options)
        finally:
            del self.target._get_candidate_generator  # the method of the class is found again
