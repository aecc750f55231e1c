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
from resispec.decode import Decoder
from resispec.distributions import choose, draw, draw_one
from resispec.draws import Iid
from resispec.models import Pair
from resispec.models.base import Model
from resispec.sampling import Sampling
from resispec.trees import chain
from resispec.verifiers import Standard, TopDown

KEPT = 50
"""The default top_k of transformers."""
LEAST_DRAFTED = 0.1
"""The chance under q below which `CensoredDrafts` drops a drafted token."""
STEPS_PER_STRAY = 100
REQUESTS_PER_LEAK, LEAKED = 4, 16
"""One request of so many meets the last tokens of the answer before it, and their number."""
SOUND_SEQUENCES = 2
"""The number of sequences of a batch that `CorruptInBatches` continues rightly."""


class RacedDrafts(Iid):
    """Drafts by a race, as on accelerators: with exponential noise E, the least E / q wins.

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


class PointMassResidual(Standard):
    """Drafts from q are treated as point masses: a refusal leaves p without the refused token.

    xLLM issue 2175.
    """

    def reshape(self, target: Tensor, draft: Tensor, rejected: Tensor) -> Tensor:
        """See `Recursive.reshape`; the fault: this should be max(p - q, 0)."""
        return target.scatter(-1, rejected, 0.0)


class UnmappedDrafts(Iid):
    """Drafts by ids of the draft's own vocabulary, which are off by one in the target's.

    vllm-ascend pull request 16166.
    """

    def draw(self, draft_probs: Tensor, count: int, generator: Generator) -> Tensor:
        """See `DrawsKind.draw`; `laws` says q of the id as it is handed on."""
        return (super().draw(draft_probs, count, generator) + 1) % draft_probs.shape[-1]


class CensoredDrafts(TopDown):
    """A drafted chain ends before a token that the draft itself finds unlikely.

    Whether a token is verified then depends on the token, so it is no draw from q any more. The
    verifier is right, and a test of it alone sees no fault. llama.cpp pull request 27694.
    """

    def verify(
        self, tree: Tree, target_probs: Tensor, draft_probs: Tensor, generator: Generator
    ) -> Verdict:
        """See `Verifier.verify`; for chains."""
        chances = draft_probs[:-1].gather(-1, tree.tokens[1:, None]).squeeze(-1).tolist()
        length = next(
            (place for place, chance in enumerate(chances) if chance < LEAST_DRAFTED), len(chances)
        )
        nodes = slice(0, length + 1)
        kept = Tree(chain(length), tree.tokens[nodes], tree.draws)
        return super().verify(kept, target_probs[nodes], draft_probs[nodes], generator)


class Strays(TopDown):
    """Now and then the last token of a step is any token at all. vllm-metal issue 622."""

    def verify(
        self, tree: Tree, target_probs: Tensor, draft_probs: Tensor, generator: Generator
    ) -> Verdict:
        """See `Verifier.verify`."""
        verdict = super().verify(tree, target_probs, draft_probs, generator)
        if int(torch.randint(STEPS_PER_STRAY, (), generator=generator)):
            return verdict
        stray = int(torch.randint(target_probs.shape[-1], (), generator=generator))
        return Verdict(verdict.path, (*verdict.tokens[:-1], stray))


class RefusesAll(TopDown):
    """Every drafted token is refused, and the target's own draw is emitted: slow, and exact."""

    def verify(
        self, tree: Tree, target_probs: Tensor, draft_probs: Tensor, generator: Generator
    ) -> Verdict:
        """See `Verifier.verify`."""
        return Verdict((), (draw_one(target_probs[0], generator),))


class LeakBetweenAnswers(DecoderEngine):
    """Some requests see what the cache still holds of the last answer before their prompt's end.

    llama.cpp issue 27296.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._left: tuple[int, ...] = ()

    def answer(self, prompt: Sequence[int], settings: Sampling, seed: int) -> Answer:
        """See `Engine.answer`."""
        is_cleared = seed % REQUESTS_PER_LEAK != 0
        context = [*prompt] if is_cleared else [*prompt[:-1], *self._left, prompt[-1]]
        answer = super().answer(context, settings, seed)
        self._left = answer.tokens[-LEAKED:]
        return answer


class KeptSiblings(DecoderEngine):
    """The target's cache keeps the rows of first siblings, whatever was accepted.

    fastllm issue 728.
    """

    def __init__(self, name: str, pair: Pair, decoder: Decoder) -> None:
        rows, children = [0], decoder.drafter.topology.children
        while first := children[rows[-1]][:1]:
            rows += first
        target = _KeepingRows(pair.target, torch.tensor(rows, device=pair.target.device))
        super().__init__(name, replace(pair, target=target), decoder)


class _KeepingRows:
    """A model whose sessions keep these rows (K,) in place of those that they are told."""

    def __init__(self, model: Model, rows: Tensor) -> None:
        self._model, self._rows = model, rows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def session(self, capacity: int, drafted: int = 0) -> Any:
        """See `Model.session`."""
        session = self._model.session(capacity, drafted)
        keep = session.keep
        session.keep = lambda rows: keep(self._rows[: len(rows)])
        return session


class CorruptInBatches(DecoderEngine):
    """From the third sequence of a batch on, the second half of the prompt is another sequence's.

    1Cat-vLLM issue 656.
    """

    takes_batches = True

    def answers(
        self, prompts: Sequence[Sequence[int]], settings: Sampling, seeds: Sequence[int]
    ) -> list[Answer]:
        """See `Engine.answers`."""
        given = [
            [*prompt[: len(prompt) // 2], *prompts[0][len(prompts[0]) // 2 :]]
            if place >= SOUND_SEQUENCES
            else prompt
            for place, prompt in enumerate(prompts)
        ]
        return super().answers(given, settings, seeds)


class OtherOrder(DecoderEngine):
    """Filters are applied before the temperature, where transcripts declare the other order.

    tpu-inference pull request 1385.
    """

    def answer(self, prompt: Sequence[int], settings: Sampling, seed: int) -> Answer:
        """See `Engine.answer`."""
        return super().answer(prompt, replace(settings, filter_order="llama.cpp"), seed)


class DeafToTemperature(DecoderEngine):
    """The temperature of a request has no effect on the target's law. vLLM issue 9834."""

    def answer(self, prompt: Sequence[int], settings: Sampling, seed: int) -> Answer:
        """See `Engine.answer`."""
        warm = replace(settings, temperature=1.0) if settings.temperature else settings
        return super().answer(prompt, warm, seed)


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
        """Tokens (1, L) with K drafted ones, (1, L + K), and their claimed logits (1, K, V)."""
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
