"""Terms of every emitted token: its deviations from the law that it was drawn from.

Each statistic sums f_t(x_t) - E f_t over the emitted tokens x_t; the mean E is that of the target's
law p_t, and f_t is known before x_t is drawn. So its mean is 0 whatever was emitted before. A rule
that ends a row by the tokens so far, such as an end of sequence, a limit or a stop string, biases
nothing as long as every emitted token is in the row. The choices of f; docs/transcripts.md says
which faults each of them shows:

- surprisal: -log p_t(x)
- rank: the mass of tokens with smaller ids, see `resispec.audit.z_score`
- eos: is x an end-of-sequence token?
- seen: is x in the context already?
- lookup: is x the token that followed when the context's last two tokens last stood together?
- overdraft: does the draft rate x higher than the target?
- log(q/p): the logarithm of the draft's probability over the target's, cut to [-4, 4]
- serial: the product of the places of a token and the token before it, each in its law
- repeats: the same product for tokens further apart, by place and by id, and of a token with all of
  those before it together, see REPEATS
- first tokens: the first token of every answer alone, see FIRST_TOKENS. Engines draw it after the
  prefill, in another way than the rest, and among all tokens it does not show

At temperature 0 the question is another one, whether a token is the most probable one: see
`GreedyGaps`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Self

import torch
from torch import Generator, Tensor

from referee.audit.alternatives import bet_terms
from referee.rescoring import Stretch, emitted_counts, penalised
from referee.transcripts import Transcript
from resispec.audit.z_score import rank_terms
from resispec.sampling import warped

EDGES = (1, 2, 3, 5, 10, 20, 50, 100, 300)
"""The last place of each bucket but the last, which is open.

Place 1 is the most probable token's.
"""
LARGEST_RATIO = 4.0
FAR = 8
"""The largest distance in tokens of a random number and its repetition."""
ORDERS = ("place", "id")
"""The orders of the law's tokens by which `pits` are measured."""
_PAIRS = tuple((order, lag) for order in ORDERS for lag in range(1, FAR + 1))
REPEATS = (
    *(f"repeat {lag} later, by {order}" for order, lag in _PAIRS if (order, lag) != ("place", 1)),
    *(f"repeat 1 to {FAR} later, by {order}" for order in ORDERS),
)
"""Names of statistics of repeated random numbers beside `serial`, the next token's by place."""
FIRST_TOKENS = tuple(f"first {name}" for name in ("surprisal", "log(q/p)", "place"))
"""Names of the statistics of first tokens; that of q needs a draft."""
NEAR_TIE = 0.25
"""Logits this close count as equal: bfloat16 rounds those from 16 to 32 to multiples of 0.125."""
COLDEST = NEAR_TIE / 745
"""Temperatures up to this one are judged like 0.

There float64 gives mass 0 to all tokens but ties, and which tie has the mass depends on rounding.
"""


@dataclass(frozen=True)
class EmittedTokens:
    """Measurements of N emitted tokens, on the CPU, in the order of rows and positions.

    row, position: (N,) int64, a token's row and its place in the output, from 0. Tensors in the
    fields of subclasses have N rows, too.
    """

    row: Tensor
    position: Tensor

    def where(self, chosen: Tensor) -> Self:
        """The chosen tokens. chosen: (N,) bool, or indices (M,) int64."""
        return replace(self, **{name: column[chosen] for name, column in self._columns().items()})

    def of_rows(self, rows: Sequence[int]) -> Self:
        """The tokens of the given rows, which are numbered anew from 0 in the given order."""
        places = [(self.row == row).nonzero()[:, 0] for row in rows]
        counts = torch.tensor([*map(len, places)])
        return replace(
            self.where(torch.cat(places)), row=torch.arange(len(rows)).repeat_interleave(counts)
        )

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """The tokens of all parts, at least one, sorted by row and position."""
        columns = {
            name: torch.cat([getattr(part, name) for part in parts]) for name in parts[0]._columns()
        }
        joined = replace(parts[0], **columns)
        return joined.where(
            (joined.row * (int(joined.position.max()) + 1) + joined.position).argsort()
        )

    def _columns(self) -> dict[str, Tensor]:
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}


@dataclass(frozen=True)
class TokenTerms(EmittedTokens):
    """Terms of N sampled tokens.

    sums: (N, S, 3) float64, for each of `names` the deviation f(x) - E f, the variance and the
    third central moment of f. bucket: (N,) int64, the bucket of the token's place; chances: (N, K)
    float64, those of the buckets. pits: (N, 2) float64, uniform in [0, 1) and independent if the
    laws are right: the mass of the tokens before x by place, and by id, plus a random share of x's
    own mass. spread: (N,) float64, half the mean absolute deviation of the surprisal. loss: (N,)
    float64, the token's surprisal by the raw logits. mass: (N,) float64, the token's own by its
    law. is_possible: (N,) bool, whether it would have any if all logits not below its own were
    NEAR_TIE lower. ratios: (N, A) float64, for each of `alternatives` the ratio that a bet takes.
    excesses: (N, E) float64, for each of `sets` the terms of its mean excess. Both are those of
    `referee.audit.alternatives.bet_terms`.
    """

    names: tuple[str, ...]
    sums: Tensor
    bucket: Tensor
    chances: Tensor
    pits: Tensor
    spread: Tensor
    loss: Tensor
    mass: Tensor
    is_possible: Tensor
    alternatives: tuple[str, ...]
    ratios: Tensor
    sets: tuple[str, ...]
    excesses: Tensor

    @property
    def every(self) -> Tensor:
        """(N, S + K, 3): the terms of `names`, then of the events that x is from each bucket."""
        outcomes = torch.nn.functional.one_hot(self.bucket, self.chances.shape[1]).double()
        events = _indicator(outcomes, self.chances)
        events[..., 0].masked_fill_(~self.is_inside[:, None], 0.0)
        return torch.cat((self.sums, events), 1)

    @property
    def is_inside(self) -> Tensor:
        """(N,) bool: whether a token is in its law's support; if not, its deviations are 0."""
        return self.mass > 0

    @property
    def is_edge(self) -> Tensor:
        """(N,) bool: whether a token is outside of its law's support, but may be by rounding."""
        return self.is_possible & ~self.is_inside

    @property
    def surprisal_variance(self) -> Tensor:
        """The variance of each token's surprisal, (N,) float64."""
        return self.sums[:, self.names.index("surprisal"), 1]


@dataclass(frozen=True)
class GreedyGaps(EmittedTokens):
    """Distances of N greedy tokens' logits from the best logit.

    best: (N,) int64, the most probable token. gap: (N,) float32, the best logit less the token's,
    after the penalties.
    """

    best: Tensor
    gap: Tensor

    @property
    def is_greedy(self) -> Tensor:
        """(N,) bool: whether a token is the best one, or as good.

        Two computations of the same logits differ by rounding, which decides between nearly equal
        logits. Each token is judged after the tokens really emitted before it, so one divergence
        causes no other.
        """
        return self.gap <= NEAR_TIE


def as_judged(row: Transcript) -> Transcript:
    """The row, with temperature 0 in place of one up to COLDEST."""
    return replace(row, temperature=0) if row.temperature <= COLDEST else row


def gaps_of(stretch: Stretch, transcript: Transcript) -> GreedyGaps:
    """The gaps of a stretch's tokens."""
    scores = penalised(stretch, transcript)
    best = scores.max(-1)
    gap = best.values - _at(scores, stretch.tokens)
    return GreedyGaps(*stretch.where, best.indices.cpu(), gap.cpu())


def terms_of(
    stretch: Stretch,
    draft: Stretch | None,
    transcript: Transcript,
    eos_token_ids: Sequence[int],
    lookup: Tensor,
    generator: Generator,
) -> TokenTerms:
    """The terms of a stretch's tokens, without those of `with_rows`.

    draft: the same tokens with the draft's logits, or None. transcript: gives the settings.
    eos_token_ids: the target's. lookup: (T,) int64, see `lookups`. generator: on the CPU, for the
    random shares.
    """
    scores, tokens = penalised(stretch, transcript), stretch.tokens
    probs = _law(scores, transcript)
    mass = _at(probs, tokens)
    is_inside = mass > 0
    surprisal = -torch.where(probs > 0, probs, 1.0).log()
    columns = {
        "surprisal": _function(surprisal, probs, tokens),
        "rank": torch.stack((*rank_terms(probs, tokens), torch.zeros_like(probs[:, 0])), -1),
    }
    if eos_token_ids:
        eos = torch.tensor(eos_token_ids, device=tokens.device)
        columns["eos"] = _indicator(torch.isin(tokens, eos).double(), probs[:, eos].sum(-1))
    seen = emitted_counts(stretch, probs.shape[-1]) > 0
    seen[:, stretch.prompt] = True
    columns["seen"] = _event(seen, probs, tokens)
    suggestions = lookup.to(tokens.device)[stretch.first : stretch.first + len(tokens)]
    chance = _at(probs, suggestions.clamp_min(0)) * (suggestions >= 0)
    columns["lookup"] = _indicator((suggestions == tokens).double(), chance)
    law = None
    if draft is not None:
        law = _law(penalised(draft, transcript), transcript)
        law = torch.nn.functional.pad(law, (0, probs.shape[-1] - law.shape[-1]))
        columns["overdraft"] = _event(law > probs, probs, tokens)
        ratio = (law.clamp_min(1e-300).log() + surprisal).clamp(-LARGEST_RATIO, LARGEST_RATIO)
        columns["log(q/p)"] = _function(ratio, probs, tokens)
    sums = torch.stack([*columns.values()], 1)
    sums[..., 0].masked_fill_(~is_inside[:, None], 0.0)
    entropy = (probs * surprisal).sum(-1, keepdim=True)
    spread = (probs * (surprisal - entropy).abs()).sum(-1) / 2
    is_possible = is_inside.clone()
    is_possible[~is_inside] = _is_nearly_inside(scores[~is_inside], tokens[~is_inside], transcript)
    logits = stretch.logits.double()
    loss = logits.logsumexp(-1) - _at(logits, tokens)
    values = (sums, *_places(probs, tokens, generator), spread, loss, mass, is_possible)
    named = bet_terms(probs, tokens[:, None], law, eos_token_ids)
    bets = (((*part,), torch.cat([*part.values()], -1).cpu()) for part in named)
    return TokenTerms(
        *stretch.where, (*columns,), *(value.cpu() for value in values), *chain(*bets)
    )


def with_rows(terms: TokenTerms) -> TokenTerms:
    """The terms with those that need a token's place in its row: `serial`, REPEATS, FIRST_TOKENS.

    terms: of all tokens of their rows, in order.
    """
    columns = {}
    for order, pits in zip(ORDERS, terms.pits.T, strict=True):
        centred = pits - 0.5
        before = {
            lag: centred.roll(lag).where(terms.position >= lag, 0.0) for lag in range(1, FAR + 1)
        }
        for lag, values in before.items():
            name = "serial" if (order, lag) == ("place", 1) else f"repeat {lag} later, by {order}"
            columns[name] = _product(values, centred)
        columns[f"repeat 1 to {FAR} later, by {order}"] = _product(sum(before.values()), centred)
    by_name = dict(zip(terms.names, terms.sums.unbind(1), strict=True))
    by_name["place"] = _product(torch.full_like(centred, 12**-0.5), terms.pits[:, 0] - 0.5)
    is_first = (terms.position == 0)[:, None]
    columns |= {
        f"first {name}": part * is_first
        for name, part in by_name.items()
        if f"first {name}" in FIRST_TOKENS
    }
    sums = torch.stack([*columns.values()], 1)
    sums[..., 0].masked_fill_(~terms.is_inside[:, None], 0.0)
    return replace(terms, names=(*terms.names, *columns), sums=torch.cat((terms.sums, sums), 1))


def _product(known: Tensor, centred: Tensor) -> Tensor:
    """Deviation, variance and third central moment (K, 3) of 12 a b.

    a is known before the uniform number is drawn whose distance from 1/2 is b.
    """
    return torch.stack((12 * known * centred, 12 * known.square(), torch.zeros_like(known)), -1)


def lookups(transcript: Transcript) -> Tensor:
    """The token that last followed the two before each output token: (T,) int64, -1 if none."""
    prompt, outputs = transcript.written
    context = (*prompt, *outputs)
    suggestions, followers = [-1] * len(outputs), dict[tuple[int, ...], int]()
    for place in range(2, len(context)):
        pair = context[place - 2 : place]
        if place >= len(prompt):
            suggestions[place - len(prompt)] = followers.get(pair, -1)
        followers[pair] = context[place]
    return torch.tensor(suggestions)


def _at(values: Tensor, tokens: Tensor) -> Tensor:
    """Values (K, V) at tokens (K,)."""
    return values.gather(-1, tokens[:, None])[:, 0]


def _law(scores: Tensor, transcript: Transcript) -> Tensor:
    """The law (K, V) float64 of scores (K, V) under the settings, which are not greedy."""
    return warped(scores, transcript).double().softmax(-1)


def _is_nearly_inside(scores: Tensor, tokens: Tensor, transcript: Transcript) -> Tensor:
    """Whether tokens (K,) have mass if others' scores (K, V) not below theirs are NEAR_TIE less."""
    own_score = scores.gather(-1, tokens[:, None])
    lower = (scores - NEAR_TIE * (scores >= own_score)).scatter(-1, tokens[:, None], own_score)
    return _at(_law(lower, transcript), tokens) > 0


def _function(values: Tensor, probs: Tensor, tokens: Tensor) -> Tensor:
    """Deviation, variance, third central moment (K, 3) of a function (K, V) of the next token."""
    centred = values - (probs * values).sum(-1, keepdim=True)
    moments = ((probs * centred**power).sum(-1) for power in (2, 3))
    return torch.stack((_at(centred, tokens), *moments), -1)


def _event(holds: Tensor, probs: Tensor, tokens: Tensor) -> Tensor:
    """Deviation, variance, third central moment (K, 3) of events (K, V) bool of the next token."""
    return _indicator(_at(holds, tokens).double(), (probs * holds).sum(-1))


def _indicator(outcome: Tensor, chance: Tensor) -> Tensor:
    """Deviation, variance and third central moment (..., 3) of an event with this chance."""
    chance = chance.clamp(0, 1)
    variance = chance * (1 - chance)
    return torch.stack((outcome - chance, variance, variance * (1 - 2 * chance)), -1)


def _places(probs: Tensor, tokens: Tensor, generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """`bucket` (K,), `chances` (K, len(EDGES) + 1) and `pits` (K, 2) of `TokenTerms`.

    Equal masses go by id.
    """
    own_mass = probs.gather(-1, tokens[:, None])
    is_lower_id = torch.arange(probs.shape[-1], device=probs.device) < tokens[:, None]
    is_before = (probs > own_mass) | ((probs == own_mass) & is_lower_id)
    edges = torch.tensor(EDGES, device=probs.device)
    bucket = torch.bucketize(is_before.sum(-1) + 1, edges)
    top = probs.topk(min(EDGES[-1], probs.shape[-1])).values
    buckets = torch.bucketize(torch.arange(1, top.shape[-1] + 1, device=probs.device), edges)
    chances = probs.new_zeros(len(probs), len(EDGES) + 1).index_add_(1, buckets, top)
    chances[:, -1] += (1 - top.sum(-1)).clamp_min(0)
    # Rounding of the last bucket must not make a token of it impossible.
    chance = torch.maximum(chances.gather(-1, bucket[:, None]), own_mass)
    masses = torch.stack([(probs * mask).sum(-1) for mask in (is_before, is_lower_id)], -1)
    shares = torch.rand(len(probs), 2, generator=generator, dtype=torch.float64).to(probs.device)
    return bucket, chances.scatter(-1, bucket[:, None], chance), masses + shares * own_mass
