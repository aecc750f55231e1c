"""Laws that an engine may have in place of the target's, each the likely cause of a bias.

`bets` bets on them. All are laws r of the next token that are known before it is drawn: their
masses sum to at most 1. For a chain of drafts, the law of a token that may have been drafted is

    r(x) = d(x) min(1, p(x) / q(x)) + (1 - sum d min(1, p / q)) f(x)

with the law d that drafts are really drawn from, the q that the test divides by, and the law f of
the token after a refusal. If d is q and f is (p - q)+ over its sum, r is p.

**Coarse random numbers.** Whoever draws by inverting cumulative sums with multiples of 1 / n gives
a token the mass c / n, where c counts the multiples between the token's two sums. So most tokens
below 1 / n are never drawn, and some come far too often, others in every context: statistics of
places or ids see nothing of it. The order of the sums matters: by id, or by probability where the
engine sorts for a filter. Equal tokens share their masses here, since their order is not known.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

CALIBRATOR = 0.1
"""The k of the tail's bet."""
TAIL = 1e-3
"""The most mass of the tail whose excess is bounded."""
DRAFT_SET, TAIL_SET = "tokens that the draft overrates", f"tokens of the tail (mass {TAIL:g})"
LIKELIEST_SET = "the draft's likeliest token"
LARGEST_MASS = {DRAFT_SET: 1.0, LIKELIEST_SET: 1.0, TAIL_SET: TAIL}
"""The sets whose excess is bounded, and the most mass that each has."""
GRIDS = {8: 2**8, 11: 2**11}
"""The values of a uniform number, by its bits: torch.rand has 8 in bfloat16, 11 in float16."""


@dataclass(frozen=True)
class Alternative:
    """A law r that an engine may have in place of the target's p, and its likely cause.

    stakes: the values of b, each a bet of its own. weight: its share of the mean of all bets, for
    all its stakes together, before all weights are divided by their sum.
    """

    cause: str
    stakes: tuple[float, ...]
    weight: float = 1.0


_STRAYS = (
    "tokens from nowhere, as from a division by zero, a corrupt cache or another sequence's logits"
)
_CUT = "a filter that the rows do not say (top_k, top_p, min_p)"
_COLD = "a temperature lower than the rows say, or greedy tokens among them"
_HOT = "a temperature higher than the rows say"
_LIKELIER = (
    "drafts that are likelier than the q that they are tested with says: a filter or temperature "
    "of the draft that q lacks, siblings that are sorted or chosen after the draw, or a test that "
    "shares their random numbers"
)
_COARSE = "coarse random numbers, such as uniform ones in bfloat16 or float16"
NO_END = "no end of sequence"
ALTERNATIVES: Mapping[str, Alternative] = {
    "toward the draft": Alternative(
        "drafted tokens are kept too often: the acceptance test, the residual, or a q that the "
        "drafts were not drawn from",
        (0.025, 0.06, 0.25),
        16.0,
    ),
    "away from the draft": Alternative(
        "drafted tokens are kept too rarely: noise of the draft used again for the residual, or a "
        "q that the drafts were not drawn from",
        (0.05, 0.2, 0.8),
    ),
    "stray tokens": Alternative(_STRAYS, (0.001, 0.005), 4.0),
    "the tail": Alternative(_STRAYS, (0.0015, 0.01)),
    "top-p 0.95": Alternative(_CUT, (0.3, 0.95)),
    "top-p 0.99": Alternative(_CUT, (0.3, 0.95)),
    "top-k 10": Alternative(_CUT, (0.3, 0.95)),
    "top-k 50": Alternative(_CUT, (0.3, 0.95)),
    "temperature x 0.5": Alternative(_COLD, (0.1, 0.5)),
    "temperature x 0.9": Alternative(_COLD, (0.3, 0.9)),
    "temperature x 1.1": Alternative(_HOT, (0.3, 0.9)),
    "temperature x 1.5": Alternative(_HOT, (0.1, 0.5)),
    NO_END: Alternative(
        "sequences go on where they should end, or the end is not in the transcripts", (0.3, 0.95)
    ),
    "drafts of top-p 0.9": Alternative(_LIKELIER, (0.1, 0.9), 0.5),
    "drafts of top-k 50": Alternative(_LIKELIER, (0.1, 0.9), 0.5),
    "drafts of temperature x 0.7": Alternative(_LIKELIER, (0.1, 0.5), 0.5),
} | {
    f"numbers of {bits} bits, {place}": Alternative(_COARSE, stakes, 0.2)
    for bits in GRIDS
    for place, stakes in (
        ("by id", (0.02, 0.2)),
        ("by place", (0.02, 0.2)),
        ("after a refusal", (0.1, 0.7)),
    )
}
"""The alternatives by name. toward the draft: its law q. away from it: p (1 + E f - f) with the
score f = q / (p + q) in [0, 1]. stray tokens: the uniform law over the vocabulary. the tail: the
calibrator of `bets`. top-p, top-k: p without its tail. temperature x T: p^(1 / T), divided by its
sum. no end of sequence: p without these tokens. drafts: what comes of drafts from such a q in place
of q itself. numbers: coarse ones, see above, for draws from p, or for those after a refusal.
"""


def bet_terms(
    probs: Tensor, tokens: Tensor, draft_probs: Tensor | None, eos_token_ids: Sequence[int]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The ratios r(x) / p(x) of every alternative, and the terms f of every set: (K, M) each.

    By name; without q, two alternatives and two sets are left out, without an end of sequence
    another alternative. probs, draft_probs: (K, V) float64, the laws p and q. tokens: (K, M) int64,
    M tokens x for each law.
    """
    own, rising = probs.gather(-1, tokens), probs.sort(-1).values
    sums = rising.cumsum(-1)
    ratios, sets = {}, {TAIL_SET: probs < tail_edge(rising, sums, TAIL)}
    if draft_probs is not None:
        likeliest = torch.zeros_like(sets[TAIL_SET])
        likeliest.scatter_(-1, draft_probs.argmax(-1, keepdim=True), value=True)
        sets = {DRAFT_SET: draft_probs > probs, LIKELIEST_SET: likeliest} | sets
        ratios["toward the draft"] = draft_probs.gather(-1, tokens) / own
        score = draft_probs / (probs + draft_probs).clamp_min(1e-300)
        mean = (probs * score).sum(-1, keepdim=True)
        ratios["away from the draft"] = 1 + mean - score.gather(-1, tokens)
    ratios["stray tokens"] = 1 / (probs.shape[-1] * own)
    last = torch.searchsorted(rising, own, right=True) - 1
    tail_mass = sums.gather(-1, last).clamp(1e-300, 1.0)
    ratios["the tail"] = CALIBRATOR * tail_mass ** (CALIBRATOR - 1)
    for name, least in (
        ("top-p 0.95", tail_edge(rising, sums, 0.05)),
        ("top-p 0.99", tail_edge(rising, sums, 0.01)),
        ("top-k 10", rising[:, -min(10, rising.shape[-1]), None]),
        ("top-k 50", rising[:, -min(50, rising.shape[-1]), None]),
    ):
        ratios[name] = (own >= least) / (probs * (probs >= least)).sum(-1, keepdim=True)
    logs = probs.log()
    for factor in (0.5, 0.9, 1.1, 1.5):
        total = (logs / factor).exp().sum(-1, keepdim=True)
        ratios[f"temperature x {factor}"] = own ** (1 / factor - 1) / total
    for bits, size in GRIDS.items():
        ratios[f"numbers of {bits} bits, by id"] = _on_grid(probs, tokens, size) / own
        share = _on_sorted_grid(sums, rising, own, size)
        ratios[f"numbers of {bits} bits, by place"] = share / own
    if draft_probs is not None:
        ratios |= _drafting(probs, tokens, own, draft_probs)
    if eos_token_ids:
        eos = torch.tensor(eos_token_ids, device=tokens.device)
        ratios[NO_END] = ~torch.isin(tokens, eos) / (
            1 - probs[:, eos].sum(-1, keepdim=True)
        ).clamp_min(1e-300)
    return (
        {name: torch.where(own > 0, ratio, 1.0) for name, ratio in ratios.items()},
        {
            name: members.gather(-1, tokens).double() - (probs * members).sum(-1, keepdim=True)
            for name, members in sets.items()
        },
    )


def tail_edge(rising: Tensor, sums: Tensor, mass: float) -> Tensor:
    """The mass (K, 1) below which tokens have at most `mass` together.

    rising: laws (K, V), sorted. sums: their cumulative sums.
    """
    first = (sums <= mass).sum(-1, keepdim=True).clamp_max(rising.shape[-1] - 1)
    return rising.gather(-1, first)


def _drafting(probs: Tensor, tokens: Tensor, own: Tensor, draft_probs: Tensor) -> dict[str, Tensor]:
    """The ratios of the alternatives that are about drafts, by name, see the module."""
    kept = (probs / draft_probs.clamp_min(1e-300)).clamp_max(1.0)
    rest = (probs - draft_probs).clamp_min(0)
    refused = rest.sum(-1, keepdim=True)
    after = rest.gather(-1, tokens) / refused.clamp_min(1e-300)
    rising = draft_probs.sort(-1).values
    nucleus = tail_edge(rising, rising.cumsum(-1), 0.1)
    fiftieth = rising[:, -min(50, rising.shape[-1]), None]
    ratios = {}
    for name, drawn in (
        ("drafts of top-p 0.9", draft_probs * (draft_probs >= nucleus)),
        ("drafts of top-k 50", draft_probs * (draft_probs >= fiftieth)),
        ("drafts of temperature x 0.7", draft_probs ** (1 / 0.7)),
    ):
        accepted = drawn * kept / drawn.sum(-1, keepdim=True)
        lost = 1 - accepted.sum(-1, keepdim=True)
        ratios[name] = (accepted.gather(-1, tokens) + lost * after) / own
    accepted = torch.minimum(probs, draft_probs).gather(-1, tokens)
    for bits, size in GRIDS.items():
        coarse = refused * _on_grid(rest, tokens, size)
        ratios[f"numbers of {bits} bits, after a refusal"] = (accepted + coarse) / own
    return ratios


def _on_grid(weights: Tensor, tokens: Tensor, size: int) -> Tensor:
    """The masses (K, M) that multiples of 1 / size give to tokens (K, M), with sums by id.

    weights: (K, V), of any sum; all masses are 0 if that is 0.
    """
    sums = weights.cumsum(-1)
    edges = sums / sums[:, -1:].clamp_min(1e-300)
    before = edges.gather(-1, (tokens - 1).clamp_min(0)) * (tokens > 0)
    return _multiples(before, edges.gather(-1, tokens), size) / size


def _on_sorted_grid(sums: Tensor, rising: Tensor, own: Tensor, size: int) -> Tensor:
    """The masses (K, M) that they give with sums from the most probable token on.

    rising, sums: laws (K, V), sorted, and their cumulative sums. own: the tokens' masses (K, M).
    """
    first = torch.searchsorted(rising, own)
    last = torch.searchsorted(rising, own, right=True) - 1
    edges = 1 - sums / sums[:, -1:]
    above = torch.where(first > 0, edges.gather(-1, (first - 1).clamp_min(0)), 1.0)
    count = _multiples(edges.gather(-1, last), above, size)
    return count / (last - first + 1) / size


def _multiples(low: Tensor, high: Tensor, size: int) -> Tensor:
    """The number of multiples of 1 / size in [low, high), from the rounded edges of a partition."""
    return ((size * high).ceil() - (size * low).ceil()).clamp_min(0)
