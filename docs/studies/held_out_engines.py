"""Engines of the study held_out.py: faulty ones, and exact ones that look odd.

Each is a subclass of right code with the least change that makes the fault. They were written by
someone who had not read the code of the gallery (`referee/gallery/`), only its page.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Generator, Tensor

from referee.engines import Answer, Engine
from referee.engines.decoder import DecoderEngine
from resispec.core import Draft, DrawsKind, Tree, Verdict
from resispec.decode import Decoder
from resispec.distributions import draw_one, normalise
from resispec.drafters import DraftModel
from resispec.draws import Iid
from resispec.models import Pair
from resispec.sampling import Sampling, Warp
from resispec.trees import Topology, chain, complete
from resispec.verifiers import Block, SiblingRule, Standard, Verifier
from resispec.verifiers.base import Law

DRAFTED = 4
CHAIN = chain(DRAFTED)
TREE = complete(3, 3)
COLD = {"temperature": 0.7}


class WrittenOut:
    """Plain speculative sampling along a chain, each step of it a method. It is exact."""

    num_untested = 0

    def verify(
        self, tree: Tree, target_probs: Tensor, draft_probs: Tensor, generator: Generator
    ) -> Verdict:
        """See `Verifier.verify`."""
        target_probs = self.target(tree, target_probs)
        tokens: list[int] = tree.tokens.tolist()
        last = len(tokens) - 1 - self.num_untested
        node = 0
        while node < last and not self.stops(draft_probs[node]):
            chance = self.chance(node, target_probs, draft_probs, tokens[node + 1])
            if self.coin(node, generator) >= chance:
                law = self.rest(node, target_probs, draft_probs)
                break
            node += 1
        else:
            law = self.bonus(node, target_probs, draft_probs)
        path = range(1, node + 1)
        return Verdict(
            tuple(path), (*(tokens[place] for place in path), self.draw(law, node, generator))
        )

    def target(self, tree: Tree, target_probs: Tensor) -> Tensor:
        """The target's laws (N, V) that count."""
        return target_probs

    def stops(self, draft_law: Tensor) -> bool:
        """Whether a draft's law (V,) ends the test before its token is looked at."""
        return False

    def coin(self, node: int, generator: Generator) -> float:
        """A uniform number for the test of a node's child."""
        return float(torch.rand(1, generator=generator, dtype=torch.float64))

    def chance(self, node: int, target_probs: Tensor, draft_probs: Tensor, token: int) -> float:
        """The chance that a node's child is accepted; above 1 it is."""
        return float(target_probs[node, token] / draft_probs[node, token])

    def rest(self, node: int, target_probs: Tensor, draft_probs: Tensor) -> Tensor:
        """The law (V,) of the token after a refusal."""
        excess = (target_probs[node] - draft_probs[node]).clamp_min(0)
        return normalise(excess, target_probs[node])

    def bonus(self, node: int, target_probs: Tensor, draft_probs: Tensor) -> Tensor:
        """The law (V,) of the token after all tests."""
        return target_probs[node]

    def draw(self, law: Tensor, node: int, generator: Generator) -> int:
        """The final token, which follows a node."""
        return draw_one(law, generator)


# Faulty tests, residuals and bonus tokens.


class RatioOfLargest(WrittenOut):
    """Divides by the draft's largest probability in place of the token's own."""

    def chance(self, node: int, target_probs: Tensor, draft_probs: Tensor, token: int) -> float:
        """See `WrittenOut.chance`."""
        return float(target_probs[node, token] / draft_probs[node].max())


class RestFallsThrough(WrittenOut):
    """The residual is not renormalised: what is missing to 1 is drawn from the target's law."""

    def rest(self, node: int, target_probs: Tensor, draft_probs: Tensor) -> Tensor:
        """See `WrittenOut.rest`."""
        excess = (target_probs[node] - draft_probs[node]).clamp_min(0)
        return excess + (1 - excess.sum()) * target_probs[node]


class RestOfNextRow(WrittenOut):
    """The residual is that of the target's row after the refused token."""

    def rest(self, node: int, target_probs: Tensor, draft_probs: Tensor) -> Tensor:
        """See `WrittenOut.rest`."""
        excess = (target_probs[node + 1] - draft_probs[node]).clamp_min(0)
        return normalise(excess, target_probs[node])


class BonusOfDraft(WrittenOut):
    """The token after the last test is drawn from the draft's law."""

    num_untested = 1  # the draft's law after the last drafted token is never computed

    def bonus(self, node: int, target_probs: Tensor, draft_probs: Tensor) -> Tensor:
        """See `WrittenOut.bonus`."""
        return draft_probs[node]


@dataclass
class FirstKept(WrittenOut):
    """In one step of `every` the first drafted token is kept without a test."""

    every: int

    def coin(self, node: int, generator: Generator) -> float:
        """See `WrittenOut.coin`."""
        coin = super().coin(node, generator)
        return -1.0 if node == 0 and super().coin(node, generator) < 1 / self.every else coin


class LastStepsLaws(WrittenOut):
    """Test and residual take the draft's laws of the step before."""

    def __init__(self) -> None:
        self.before: Tensor | None = None

    def verify(
        self, tree: Tree, target_probs: Tensor, draft_probs: Tensor, generator: Generator
    ) -> Verdict:
        """See `Verifier.verify`."""
        stale = draft_probs if self.before is None else self.before
        self.before = draft_probs.clone()
        return super().verify(tree, target_probs, stale, generator)


class OneCoin(WrittenOut):
    """All tests of a step compare with the same uniform number."""

    shared = 0.0

    def coin(self, node: int, generator: Generator) -> float:
        """See `WrittenOut.coin`."""
        if node == 0:
            self.shared = super().coin(node, generator)
        return self.shared


class LikelyKept(WrittenOut):
    """A drafted token that the target gives at least a fifth is kept without a test."""

    def chance(self, node: int, target_probs: Tensor, draft_probs: Tensor, token: int) -> float:
        """See `WrittenOut.chance`."""
        if target_probs[node, token] >= 0.2:
            return 1.0
        return super().chance(node, target_probs, draft_probs, token)


# Faulty laws of the target and faulty draws of the final token.


class EightBits(WrittenOut):
    """The final token is drawn with uniform numbers of 8 bits, as bfloat16 has them."""

    def draw(self, law: Tensor, node: int, generator: Generator) -> int:
        """See `WrittenOut.draw`."""
        coarse = int(256 * torch.rand(1, generator=generator, dtype=torch.float64)) / 256
        sums = law.cumsum(-1, dtype=torch.float64)
        return int(torch.searchsorted(sums, coarse * sums[-1:], right=True))


@dataclass
class OffByOne(WrittenOut):
    """In one step of `every` the final token is the next id of the vocabulary."""

    every: int

    def draw(self, law: Tensor, node: int, generator: Generator) -> int:
        """See `WrittenOut.draw`."""
        token = super().draw(law, node, generator)
        is_off = self.coin(node, generator) < 1 / self.every
        return (token + is_off) % len(law)


class NeverTwice(WrittenOut):
    """A token never follows itself."""

    def target(self, tree: Tree, target_probs: Tensor) -> Tensor:
        """See `WrittenOut.target`."""
        return without_mass(target_probs, tree.tokens[:, None])


class Candidates(WrittenOut):
    """The sampler looks at the 256 likeliest tokens alone."""

    def target(self, tree: Tree, target_probs: Tensor) -> Tensor:
        """See `WrittenOut.target`."""
        least = target_probs.topk(256, -1).values[:, -1:]
        return normalise(target_probs * (target_probs >= least), target_probs)


@dataclass
class NoEnd(WrittenOut):
    """Ends of sequence are never drawn."""

    ends: Sequence[int]

    def target(self, tree: Tree, target_probs: Tensor) -> Tensor:
        """See `WrittenOut.target`."""
        ends = torch.tensor([*self.ends]).expand(len(target_probs), -1)
        return without_mass(target_probs, ends)


def without_mass(probs: Tensor, tokens: Tensor) -> Tensor:
    """Laws (N, V) without some tokens (N, K), renormalised."""
    return normalise(probs.scatter(-1, tokens, 0.0), probs)


# Faulty trees.


@dataclass(frozen=True)
class Unscaled(Standard):
    """Later siblings are tested against a residual that is not renormalised."""

    def law(
        self, target_probs: Tensor, draft_probs: Tensor, siblings: Tensor, draws: DrawsKind
    ) -> Law:
        """See `SiblingRule.law`."""
        rest, residual, select = torch.ones_like(target_probs[..., :1]), target_probs, []
        for token in siblings.split(1, -1):
            ratio = residual.gather(-1, token) / draft_probs.gather(-1, token)
            select.append(rest * ratio.clamp_max(1))
            rest = rest - select[-1]
            residual = (residual - draft_probs).clamp_min(0)
        return Law(torch.cat(select, -1), normalise(residual, target_probs))


class LikeliestFirst(Iid):
    """Independent siblings that are sorted by the draft's probabilities after they were drawn."""

    def draw(self, draft_probs: Tensor, count: int, generator: Generator) -> Tensor:
        """See `DrawsKind.draw`."""
        siblings = super().draw(draft_probs, count, generator)
        order = draft_probs.gather(-1, siblings).argsort(-1, descending=True)
        return siblings.gather(-1, order)


class ToldAsIndependent(Iid):
    """Distinct siblings that are verified as independent ones."""

    def draw(self, draft_probs: Tensor, count: int, generator: Generator) -> Tensor:
        """See `DrawsKind.draw`."""
        return torch.multinomial(draft_probs, count, generator=generator)


class NucleusUntold(Iid):
    """Siblings come from the draft's top-p of 0.9, and the whole law is told."""

    def draw(self, draft_probs: Tensor, count: int, generator: Generator) -> Tensor:
        """See `DrawsKind.draw`."""
        cut = Warp(top_p=0.9).law(draft_probs.log())
        return super().draw(cut, count, generator)


class ColderUntold(Iid):
    """Siblings are drawn at a temperature of 0.85, and the law at 1 is told."""

    def draw(self, draft_probs: Tensor, count: int, generator: Generator) -> Tensor:
        """See `DrawsKind.draw`."""
        return super().draw(draft_probs ** (1 / 0.85), count, generator)


# Faulty streams of random numbers, and odd drafts.


class Delegate:
    """All attributes of another object; a subclass changes some."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class SameNumbers(Delegate):
    """Drafting and verifying take the same uniform numbers."""

    def draft(self, root: int, generator: Generator) -> Draft:
        """See `DraftSession.draft`."""
        state = generator.get_state()
        draft: Draft = self.inner.draft(root, generator)
        generator.set_state(state)
        return draft


class EverySecondStepAgain(Delegate):
    """Every second step takes the uniform numbers of the step before."""

    state: Tensor | None = None

    def draft(self, root: int, generator: Generator) -> Draft:
        """See `DraftSession.draft`."""
        if self.state is None:
            self.state = generator.get_state()
        else:
            generator.set_state(self.state)
            self.state = None
        draft: Draft = self.inner.draft(root, generator)
        return draft


class ReadsBackwards(Delegate):
    """The draft has read the prompt backwards; the law that it draws from is told."""

    def prefill(self, prompt: list[int], features: Tensor | None) -> None:
        """See `DraftSession.prefill`."""
        self.inner.prefill([*prompt[-2::-1], prompt[-1]], None)


@dataclass(frozen=True)
class WrappedDraft(DraftModel):
    """A draft model whose sessions are wrapped."""

    wrapper: Callable[[Any], Any] = field(default=Delegate)

    def session(self, pair: Pair, warp: Warp, capacity: int) -> Any:
        """See `Drafter.session`."""
        return self.wrapper(super().session(pair, warp, capacity))


class FlatHead(Delegate):
    """A model without an opinion: all its logits are 0."""

    def head(self, features: Tensor) -> Tensor:
        """See `Model.head`."""
        return torch.zeros_like(self.inner.head(features))


class PositionsTwice(Delegate):
    """A model that counts the positions of drafted tokens double."""

    def session(self, capacity: int, drafted: int = 0) -> Any:
        """See `Model.session`."""
        return PositionsTwiceSession(self.inner.session(capacity, drafted))


class PositionsTwiceSession(Delegate):
    """Its session."""

    def forward(self, tokens: Tensor, depths: Tensor, visible: Tensor) -> Tensor:
        """See `Session.forward`."""
        features: Tensor = self.inner.forward(tokens, 2 * depths, visible)
        return features


# Faulty surroundings of a right decoder.


class TemperatureTwice(DecoderEngine):
    """The logits are divided by the temperature twice."""

    def answer(self, prompt: Sequence[int], settings: Sampling, seed: int) -> Answer:
        """See `Engine.answer`."""
        colder = replace(settings, temperature=settings.temperature**2)
        return super().answer(prompt, colder, seed)


class FirstMissed(DecoderEngine):
    """The prompt's first token is not read."""

    def answer(self, prompt: Sequence[int], settings: Sampling, seed: int) -> Answer:
        """See `Engine.answer`."""
        return super().answer(prompt[1:], settings, seed)


class LastMissed(DecoderEngine):
    """The prompt's last token is not read."""

    def answer(self, prompt: Sequence[int], settings: Sampling, seed: int) -> Answer:
        """See `Engine.answer`."""
        return super().answer(prompt[:-1], settings, seed)


class ShortMemory(DecoderEngine):
    """After every 16 tokens the cache is begun again with the last 32."""

    def answer(self, prompt: Sequence[int], settings: Sampling, seed: int) -> Answer:
        """See `Engine.answer`."""
        tokens: tuple[int, ...] = ()
        while True:
            limit = min(16, settings.max_new_tokens - len(tokens))
            # another seed for every part
            part = super().answer(
                (*prompt, *tokens)[-32:],
                replace(settings, max_new_tokens=limit),
                seed + 100_000 * len(tokens),
            )
            tokens += part.tokens
            if part.finish_reason == "stop" or len(tokens) == settings.max_new_tokens:
                return Answer(tokens, part.finish_reason, seed)


class SeedOfBatch(DecoderEngine):
    """Four rows in a row have the same seed."""

    def answer(self, prompt: Sequence[int], settings: Sampling, seed: int) -> Answer:
        """See `Engine.answer`."""
        return replace(super().answer(prompt, settings, seed // 4), seed=seed)


class FasterOfTwo(DecoderEngine):
    """Of two answers the one that took fewer steps a token is given, as where replicas race."""

    def answer(self, prompt: Sequence[int], settings: Sampling, seed: int) -> Answer:
        """See `Engine.answer`."""
        answers = [super(FasterOfTwo, self).answer(prompt, settings, s) for s in (seed, ~seed)]

        def steps_a_token(answer: Answer) -> float:
            return float(answer.extra["spec_decode"]["num_spec_steps"] / len(answer.tokens))

        return replace(min(answers, key=steps_a_token), seed=seed)


class EndLeftOut(DecoderEngine):
    """The end of sequence is not among the ids."""

    def answer(self, prompt: Sequence[int], settings: Sampling, seed: int) -> Answer:
        """See `Engine.answer`."""
        answer = super().answer(prompt, settings, seed)
        has_end = answer.finish_reason == "stop" and len(answer.tokens) > 1
        return replace(answer, tokens=answer.tokens[:-1]) if has_end else answer


# Exact engines that look odd.


class SharedNoise(Iid):
    """Drafts are drawn by exponential noise, which the verifier uses for the target's draw, too."""

    def __init__(self) -> None:
        self.noise: list[Tensor] = []

    def draw(self, draft_probs: Tensor, count: int, generator: Generator) -> Tensor:
        """See `DrawsKind.draw`; a chain has one sibling."""
        uniform = torch.rand(draft_probs.shape, generator=generator, dtype=torch.float64)
        self.noise.append(-torch.log1p(-uniform[0]))
        return (self.noise[-1] / draft_probs).argmin(-1, keepdim=True)


@dataclass
class KeptIfEqual:
    """The target draws with the draft's noise, and a drafted token is kept if it is the same."""

    draws: SharedNoise

    def verify(
        self, tree: Tree, target_probs: Tensor, draft_probs: Tensor, generator: Generator
    ) -> Verdict:
        """See `Verifier.verify`."""
        noise, self.draws.noise = self.draws.noise, []
        tokens: list[int] = []
        for node, drafted in enumerate((*tree.tokens.tolist()[1:], None)):
            if drafted is None:
                tokens.append(draw_one(target_probs[node], generator))
            else:
                tokens.append(int((noise[node] / target_probs[node]).argmin()))
            if tokens[-1] != drafted:
                break
        return Verdict(tuple(range(1, len(tokens))), tuple(tokens))


@dataclass(frozen=True)
class FewerWhereSure(Standard):
    """Only the first sibling is looked at where the draft is sure, which its law alone decides."""

    def law(
        self, target_probs: Tensor, draft_probs: Tensor, siblings: Tensor, draws: DrawsKind
    ) -> Law:
        """See `SiblingRule.law`."""
        every = super().law(target_probs, draft_probs, siblings, draws)
        first = super().law(target_probs, draft_probs, siblings[..., :1], draws)
        is_sure = draft_probs.amax(-1, keepdim=True) > 0.4
        alone = torch.zeros_like(every.select)
        alone[..., :1] = first.select
        return Law(
            torch.where(is_sure, alone, every.select),
            torch.where(is_sure, first.residual, every.residual),
        )


@dataclass(frozen=True)
class LastFirst(Standard):
    """Independent siblings are tested in the reverse of the order in which they were drawn."""

    def law(
        self, target_probs: Tensor, draft_probs: Tensor, siblings: Tensor, draws: DrawsKind
    ) -> Law:
        """See `SiblingRule.law`."""
        law = super().law(target_probs, draft_probs, siblings.flip(-1), draws)
        return Law(law.select.flip(-1), law.residual)


class StopsWhereUnsure(WrittenOut):
    """A chain ends where the draft's law is flat, which is decided before its token is seen."""

    def stops(self, draft_law: Tensor) -> bool:
        """See `WrittenOut.stops`."""
        return float(draft_law.max()) < 0.2


class OwnStream(WrittenOut):
    """The coins come from another stream of random numbers than drafts and final tokens."""

    def __init__(self) -> None:
        self.stream = Generator().manual_seed(12345)

    def coin(self, node: int, generator: Generator) -> float:
        """See `WrittenOut.coin`."""
        return super().coin(node, self.stream)


# The list.


@dataclass(frozen=True)
class HeldOut:
    """An engine of the study.

    name: printed. what: the fault, or what looks odd. make: the engine of a name and a pair.
    times: how often every prompt is asked for, each time with another seed.
    """

    name: str
    is_exact: bool
    what: str
    make: Callable[[str, Pair], Engine]
    times: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)


def decoding(
    verifier: Verifier | SiblingRule | Any,
    topology: Topology = CHAIN,
    draws: DrawsKind | None = None,
    engine: type[DecoderEngine] = DecoderEngine,
    wrapper: Callable[[Any], Any] | None = None,
    sharpness: float = 1.0,
) -> Callable[[str, Pair], Engine]:
    """The maker of an engine around a draft model and a verifier."""
    kind = draws or Iid()
    drafter = (
        DraftModel(topology, kind, sharpness)
        if wrapper is None
        else WrappedDraft(topology, kind, sharpness, wrapper=wrapper)
    )
    return lambda name, pair: engine(name, pair, Decoder(drafter, verifier))


def endless(name: str, pair: Pair) -> Engine:
    """The engine that knows the pair's ends of sequence."""
    return decoding(NoEnd(sorted(pair.end_token_ids)))(name, pair)


def flat_draft(name: str, pair: Pair) -> Engine:
    """The engine whose draft is uniform noise."""
    return decoding(Standard())(name, replace(pair, draft=FlatHead(pair.draft)))


def wrong_positions(name: str, pair: Pair) -> Engine:
    """The engine whose target counts positions double."""
    return decoding(Standard())(name, replace(pair, target=PositionsTwice(pair.target)))


def kept_if_equal(name: str, pair: Pair) -> Engine:
    """The engine whose drafter and verifier share noise."""
    noise = SharedNoise()
    return decoding(KeptIfEqual(noise), draws=noise)(name, pair)


def faulty(
    name: str, what: str, make: Callable[[str, Pair], Engine], times: int = 1, **settings: Any
) -> HeldOut:
    """A faulty engine."""
    return HeldOut(name, False, what, make, times, settings)


def exact(name: str, what: str, make: Callable[[str, Pair], Engine], **settings: Any) -> HeldOut:
    """An exact engine."""
    return HeldOut(name, True, what, make, 1, settings)


RULE = Standard()
HELD_OUT = (
    faulty("wrong ratio", "p(x) over the largest q", decoding(RatioOfLargest())),
    faulty("residual falls through", "not renormalised, the rest is drawn from p",
           decoding(RestFallsThrough())),
    faulty("residual of the next row", "of the row after the refused token",
           decoding(RestOfNextRow())),
    faulty("bonus of the draft", "the token after the last test is drawn from q",
           decoding(BonusOfDraft(), chain(DRAFTED + 1))),
    faulty("first kept, 1 step in 10", "the first drafted token is not tested",
           decoding(FirstKept(10)), 4),
    faulty("first kept, 1 step in 50", "the same, rarer", decoding(FirstKept(50)), 4),
    faulty("stale q", "q of the step before", decoding(LastStepsLaws())),
    faulty("one coin a step", "all tests of a step share a uniform number", decoding(OneCoin())),
    faulty("likely tokens kept", "no test where p(x) is at least 0.2", decoding(LikelyKept())),
    faulty("uniform numbers of 8 bits", "for the final token of a step", decoding(EightBits())),
    faulty("off by one, 1 step in 150", "the final token is the next id",
           decoding(OffByOne(150)), 4),
    faulty("never twice", "a token cannot follow itself", decoding(NeverTwice()), 4),
    faulty("256 candidates", "the target's other tokens are cut off", decoding(Candidates())),
    faulty("no end", "ends of sequence are never drawn", endless, 4),
    faulty("temperature twice", "T = 0.7 is applied twice",
           decoding(RULE, engine=TemperatureTwice), **COLD),
    faulty("prompt without its first token", "it is not read",
           decoding(RULE, engine=FirstMissed)),
    faulty("prompt without its last token", "it is not read",
           decoding(RULE, engine=LastMissed)),
    faulty("short memory", "the cache begins again with the last 32 tokens",
           decoding(RULE, engine=ShortMemory)),
    faulty("seed of the batch", "four rows share a seed", decoding(RULE, engine=SeedOfBatch)),
    faulty("faster of two", "of two answers the one of fewer steps is given",
           decoding(RULE, engine=FasterOfTwo)),
    faulty("draft's numbers for the coins", "draft and test share uniform numbers",
           decoding(RULE, wrapper=SameNumbers)),
    faulty("last step's numbers", "every second step repeats uniform numbers",
           decoding(RULE, wrapper=EverySecondStepAgain)),
    faulty("siblings sorted", "by q, after they were drawn",
           decoding(RULE, TREE, LikeliestFirst())),
    faulty("distinct siblings", "told as independent ones",
           decoding(RULE, TREE, ToldAsIndependent())),
    faulty("draft's top-p not told", "top-p 0.9 for the drafts, the whole q for the test",
           decoding(RULE, draws=NucleusUntold())),
    faulty("draft's temperature not told", "drafts at 0.85, q told at 1",
           decoding(RULE, draws=ColderUntold())),
    faulty("positions twice", "of drafted tokens, in the target's cache", wrong_positions),
    faulty("residual not scaled", "later siblings are tested against less than a law",
           decoding(Unscaled(), TREE)),
    faulty("end left out", "the end of sequence is not among the ids",
           decoding(RULE, engine=EndLeftOut)),
    exact("written out", "plain speculative sampling", decoding(WrittenOut())),
    exact("kept if equal", "target and draft draw with the same noise", kept_if_equal),
    exact("fewer siblings where sure", "by the draft's law, before the draw",
          decoding(FewerWhereSure(), TREE)),
    exact("stops where unsure", "by the draft's law, before the draw",
          decoding(StopsWhereUnsure())),
    exact("sharper draft", "half the temperature, and its own q is told",
          decoding(RULE, sharpness=2.0)),
    exact("draft of noise", "the draft's law is uniform", flat_draft),
    exact("draft reads backwards", "the draft's prompt is reversed",
          decoding(RULE, wrapper=ReadsBackwards)),
    exact("last sibling first", "independent siblings, in reverse order",
          decoding(LastFirst(), TREE)),
    exact("coins of another stream", "seeded apart from the drafts",
          decoding(OwnStream())),
    exact("block", "whole prefixes are verified, at T = 0.7", decoding(Block()), **COLD),
)  # fmt: skip
"""All engines, the faulty ones first."""
