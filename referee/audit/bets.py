"""Bets on emitted tokens: evidence that may be looked at at any time, and confidence sequences.

**A bet.** Let p be the target's law of the next token x given all tokens before, and r another law
of it, chosen before x is drawn. The wealth W multiplies by 1 + b (r(x) / p(x) - 1), with a stake
0 <= b <= 1. Under p the mean of r(x) / p(x) is the mass of r where p > 0, at most 1. So W, which
begins at 1, is a non-negative martingale under p, or a supermartingale where r has mass that p has
not, and by Ville's inequality (1939) P(W ever reaches 1 / a) <= a: whatever the prompts, however
laws vary along the text, and by whatever rule one stops. A weighted mean of such W is one again
(Shafer et al. 2011; Ramdas et al. 2023, arXiv 2210.01948). It is the *e-value*. The value itself
is evidence at any stopping time; 1 / (the largest e-value so far) is a p-value at any time.

Tokens must count in an order that does not depend on those that are still to come. Rows of a file
that are sorted by their lengths do not: first come those without an end. `Arm.order` has one.

A factor may be replaced by a smaller one, which lowers the mean: factors are cut at
LARGEST_FACTOR, so that one token alone decides nothing. A token with p(x) = 0 happens with
probability 0 under p, so any factor will do. It is 1 here, since `Arm.ruled_out` judges these
tokens, on sight, and knows which of them lie at the edge of a filter.

**The alternatives** are those of `alternatives`. The tail mass t(x) = sum{p(y): p(y) <= p(x)} is a
p-value of the token: P(t <= a) <= a. So k t^(k - 1) with 0 < k < 1, which falls and has integral 1,
has a mean of at most 1 under p (the calibrator of Vovk and Wang 2021, arXiv 1912.06116), and stands
for r / p.

**Two arms.** Without a law that is known exactly, pairs of rows that continue the same prompt are
compared, one of either arm. Let A and B be the wealth of a bet over the rows alone, and
s(W) = W / (1 + W), between 0 and 1. If both arms have the same law, whatever it is, s(A) and s(B)
have the same mean given the prompt, so 1 + s(A) - s(B) >= 0 has mean 1, however the two rows depend
on each other. Its product over pairs is a martingale. So what both arms have in common, such as
another arithmetic or rounded weights, cancels.

**A confidence sequence.** Let S be a set of tokens that is chosen before x is drawn, p(S) <= M, and
f = 1[x in S] - p(S). Under the engine's own law P' the mean of f is m = P'(S) - p(S), at most the
total variation of P' from p. It may vary along the text. For a constant L with 1 + L f > 0 for all
f in [-M, 1],

    prod (1 + L f_t) / prod (1 + L m_t)

is a martingale under P', and by the inequality of the arithmetic and the geometric mean the lower
product is at most (1 + L m)^n with m = (m_1 + ... + m_n) / n. So prod (1 + L f_t) / (1 + L m)^n,
and its mean over several L, is below 1 / a at all n together with probability 1 - a. For L > 0 it
falls in m, which gives a lower bound of the mean excess m, and for L < 0 it rises and gives an
upper bound. (The hedged capital of Waudby-Smith and Ramdas 2024, arXiv 2010.09686, bets on f - m
for every m of a grid and takes m_t to be constant; the division replaces that assumption.)
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from referee.audit.alternatives import ALTERNATIVES
from referee.audit.statistics import by_label

LARGEST_FACTOR = 1e3
"""The most by which a token multiplies a bet's wealth."""
CONFIDENCE = 0.95
"""Probability that all confidence sequences of an arm hold at all numbers of tokens."""
NUM_RATES = 16
"""The number of values of L on either side of 0."""


def log_factors(names: Sequence[str], ratios: Tensor) -> tuple[list[str], Tensor, Tensor]:
    """The alternative of every bet, the log of its weight (B,), and that of its factors (N, B).

    ratios: (N, A) float64, a column for each of `names`, keys of ALTERNATIVES.
    """
    places, stakes, weights = [], [], []
    for place, name in enumerate(names):
        alternative = ALTERNATIVES[name]
        for stake in alternative.stakes:
            places.append(place)
            stakes.append(stake)
            weights.append(alternative.weight / len(alternative.stakes))
    log_weights = torch.tensor(weights, dtype=torch.float64).log()
    factors = torch.log1p(torch.tensor(stakes, dtype=torch.float64) * (ratios[:, places] - 1))
    return (
        [names[place] for place in places],
        log_weights - log_weights.logsumexp(0),
        factors.clamp_max(math.log(LARGEST_FACTOR)),
    )


class Wealth:
    """Wealth of a mean of bets along the tokens.

    path: (N,) float64, the log of the e-value after each step. tokens: (N,) int64, the number of
    tokens up to each step. winner: the alternative that had most of the wealth when it was largest.
    """

    def __init__(
        self, names: Sequence[str], log_weights: Tensor, factors: Tensor, tokens: Tensor
    ) -> None:
        """The product of factors exp(`factors`), (N, B), of the bets of `log_factors`."""
        logs = factors.cumsum(0) + log_weights
        self.path, self.tokens = logs.logsumexp(-1), tokens
        best = logs[self.path.argmax()]
        shares = {name: best[[other == name for other in names]].logsumexp(0) for name in names}
        self.winner = max(shares, key=lambda name: float(shares[name]))

    @property
    def log_e_value(self) -> float:
        """The log of the e-value after all tokens."""
        return float(self.path[-1])

    @property
    def largest_log(self) -> float:
        """The log of the largest e-value so far."""
        return float(self.path.max())

    def took(self, e_value: float) -> int | None:
        """The number of tokens after which the e-value first was so large, None if it never was."""
        above = (self.path >= math.log(e_value)).nonzero()
        return int(self.tokens[above[0, 0]]) if len(above) else None

    def plain(self) -> dict[str, object]:
        """The e-value, the largest one so far (logarithms to base 10) and the winner."""
        return {
            "log10_e_value": self.log_e_value / math.log(10),
            "largest_log10": self.largest_log / math.log(10),
            "winner": self.winner,
        }


def in_figures(log_e_value: float) -> str:
    """An e-value of any size in three figures, or as a power of ten."""
    digits = log_e_value / math.log(10)
    return f"{10**digits:,.3g}" if abs(digits) < 5 else f"1e{digits:.0f}"


def wealth_of(names: Sequence[str], ratios: Tensor) -> Wealth:
    """The wealth along tokens in the order in which they count.

    ratios: see `log_factors`.
    """
    return Wealth(*log_factors(names, ratios), torch.arange(1, len(ratios) + 1))


def paired_wealth(names: Sequence[str], arms: Sequence[tuple[Tensor, Tensor]]) -> Wealth:
    """The wealth of bets on the difference of two arms, pair by pair.

    arms: for either arm the ratios (N, A) of its tokens, see `log_factors`, and the pair (N,) int64
    from 0 of each token; every pair has tokens of both arms.
    """
    shares = []
    for ratios, pair in arms:
        bets, log_weights, factors = log_factors(names, ratios)
        shares.append(by_label(factors, pair).sigmoid())  # W / (1 + W) of log W
    counts = by_label(torch.ones_like(arms[0][0][:, :1]), arms[0][1])[:, 0]
    factors = torch.log1p(shares[0] - shares[1])
    return Wealth(bets, log_weights, factors, counts.cumsum(0).long())


@dataclass(frozen=True)
class Excess:
    """A confidence sequence at one number of tokens: the mean of P'(S) - p(S) is in [low, high]."""

    low: float
    high: float


def excess_of(terms: Tensor, largest_mass: float, confidence: float) -> Excess:
    """The bounds of the mean excess after all terms (N,), which hold at all N together.

    terms: those of a set, see `alternatives.bet_terms`. largest_mass: a bound of p(S). confidence:
    the probability.
    """
    sides = []
    for rates in _rates(largest_mass):
        products, falls = torch.log1p(rates * terms[:, None]).sum(0), bool(rates[0] > 0)

        def surplus(mean: float, products: Tensor = products, rates: Tensor = rates) -> float:
            return float(_surplus(products, rates, len(terms), mean, confidence))

        sides.append(_crossing(surplus, falls, -largest_mass, 1.0))
    return Excess(*sides)


def is_excluded(terms: Tensor, means: Tensor, largest_mass: float, confidence: float) -> Tensor:
    """Whether the bounds after each of N terms exclude a mean, (N,) bool; see `excess_of`.

    means: (N,), one for each number of terms.
    """
    counts = torch.arange(1, len(terms) + 1)[:, None]
    surpluses = [
        _surplus(
            torch.log1p(rates * terms[:, None]).cumsum(0), rates, counts, means[:, None], confidence
        )
        for rates in _rates(largest_mass)
    ]
    return torch.stack(surpluses).amax(0) > 0


def _rates(largest_mass: float) -> tuple[Tensor, Tensor]:
    """The values of L, above and below 0, with 1 + L f > 0 for all f in [-largest_mass, 1]."""
    above = torch.logspace(-2, math.log10(0.9 / largest_mass), NUM_RATES, dtype=torch.float64)
    return above, -torch.logspace(-2, math.log10(0.9), NUM_RATES, dtype=torch.float64)


def _surplus(
    products: Tensor, rates: Tensor, counts: Tensor | int, means: Tensor | float, confidence: float
) -> Tensor:
    """The log of the mean over L of prod (1 + L f) / (1 + L m)^n, less that of its limit.

    Either side's limit has half of the error. products: (..., L), the logs of the products.
    """
    wealth = (products - counts * torch.log1p(rates * means)).logsumexp(-1) - math.log(NUM_RATES)
    return wealth - math.log(2 / (1 - confidence))


def _crossing(surplus: Callable[[float], float], falls: bool, low: float, high: float) -> float:
    """The place in [low, high] where a falling or rising function passes 0, or the nearer end."""
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if (surplus(middle) > 0) is falls else (low, middle)
    return (low + high) / 2
