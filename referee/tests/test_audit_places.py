"""Faults that show at some tokens of an answer alone, or in its random numbers.

They are first tokens of another law, repeated numbers, coarse numbers, and drafts that are not
told; exact engines show none.
"""

import math
from functools import cache

import pytest
import torch

from referee.audit import Finding, alternatives, audit_arms, bets, measure
from referee.audit.comparisons import CAUSES
from referee.audit.statistics import FEWEST_ROWS, statistics_of
from referee.audit.terms import FAR, FIRST_TOKENS, REPEATS
from referee.tests.test_bets import EOS, LIMIT, laws, tokens_of
from referee.tests.test_transcripts_statistics import first_greedy
from referee.tests.toy_engine import PROMPT, draft, plain, quantised, target, write
from resispec.distributions import invert
from resispec.draws import Draws
from resispec.verifiers import get_rule

ROWS, NEW = 80, 40


def drawing_with(numbers):
    """The law of an engine that draws with these uniform numbers (rows, tokens), by id."""

    def law(logits, ids):
        tokens = invert(logits.softmax(-1), numbers[:, ids.shape[1] - PROMPT, None])
        return torch.nn.functional.one_hot(tokens[:, 0], logits.shape[1]).double()

    return law


def uniform(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(ROWS, NEW, generator=generator, dtype=torch.float64)


def repeating(numbers, lag):
    """Numbers of which every second one is that of `lag` tokens before."""
    numbers = numbers.clone()
    for place in range(lag, NEW, 2):
        numbers[:, place] = numbers[:, place - lag]
    return numbers


def judged(law, control=None, **given):
    arms = [measure(write(law, rows=ROWS, new=NEW, **given), target(), draft())]
    if control is not None:
        arms.append(measure(write(rows=ROWS, new=NEW, **control), target(), draft()))
    return audit_arms(*arms)


def outliers(report):
    """The statistics that are too far out in the first comparison."""
    groups = report.judgements[0].comparison.groups["all"]
    return {name for name, one in groups.items() if one.p_value < report.limit}


def test_first_tokens_of_another_law_are_found_and_named():
    report = judged(first_greedy)
    assert report.finding is Finding.BIASED and "first tokens" in outliers(report)
    assert not {"surprisal", "rank", "seen", "log(q/p)", "pit"} & outliers(report)
    assert report.cause == CAUSES["first tokens"] and "first tokens of answers" in report.headline
    beside = judged(first_greedy, control={"seed": 1})
    assert beside.finding is Finding.BIASED and "first tokens" in outliers(beside)


def test_random_numbers_that_are_used_again_a_few_tokens_later_are_found():
    assert judged(drawing_with(uniform())).finding is Finding.NO_BIAS_SEEN
    for lag in (1, FAR):
        report = judged(drawing_with(repeating(uniform(), lag)))
        assert report.finding is Finding.BIASED and "repeats" in outliers(report)
        assert report.cause == CAUSES["repeats"]


@pytest.mark.parametrize("by", ["by id", "by place"])
def test_coarse_random_numbers_are_found_and_named(by):
    p, q = laws(12, 2_000, seed=6)
    order = p.argsort(-1, descending=True) if by == "by place" else None
    sums = (p if order is None else p.gather(-1, order)).cumsum(-1)
    grid = torch.arange(256, dtype=torch.float64).expand(len(p), -1) / 256
    places = torch.searchsorted(sums, grid * sums[:, -1:], right=True)
    tokens = places if order is None else order.gather(-1, places)
    emitted = torch.zeros_like(p).scatter_add_(-1, tokens, torch.full_like(grid, 1 / 256))
    emitted = 0.8 * p + 0.2 * emitted
    wealth = bets.wealth_of(*tokens_of(emitted, p, q, 3_000)[:2])
    assert wealth.took(LIMIT) is not None and wealth.winner == f"numbers of 8 bits, {by}"
    assert "coarse random numbers" in alternatives.ALTERNATIVES[wealth.winner].cause


def after_a_chain(p, q, drawn, coarse=None):
    """The law of a token that was drafted from `drawn` and tested by q, from the rule itself.

    coarse: a function of the residual's law to that which is drawn from.
    """
    emitted = []
    siblings = torch.arange(p.shape[-1])[:, None]
    for target_law, told, law in zip(p, q, drawn, strict=True):
        wide = (one.expand(len(siblings), -1) for one in (target_law, told))
        found = get_rule("standard").law(*wide, siblings, Draws.IID)
        accepted = (law / law.sum()) * found.select[:, 0]
        rest = found.residual[found.select[:, 0].argmin()]
        emitted.append(accepted + (1 - accepted.sum()) * (coarse(rest) if coarse else rest))
    return torch.stack(emitted)


def on_grid(law):
    """The law of draws by multiples of 1 / 256."""
    places = torch.searchsorted(
        law.cumsum(-1), torch.arange(256).double() / 256 * law.sum(), right=True
    )
    return torch.bincount(places, minlength=len(law)).double() / 256


@pytest.mark.parametrize(
    ("name", "drawn", "coarse"),
    [
        ("drafts of top-k 50", lambda q: q * (q >= q.topk(50).values[:, -1:]), None),
        ("drafts of temperature x 0.7", lambda q: q ** (1 / 0.7), None),
        ("numbers of 8 bits, after a refusal", lambda q: q, on_grid),
    ],
)
def test_the_ratio_of_a_fault_of_drafts_is_that_of_the_rule_with_this_fault(name, drawn, coarse):
    """By enumeration; and the bet on it wins where an engine does it."""
    p, q = laws(4, 1_000, seed=7)
    emitted = after_a_chain(p, q, drawn(q), coarse)
    tokens = torch.arange(p.shape[-1]).expand_as(p)
    ratios, _ = alternatives.bet_terms(p, tokens, q, EOS)
    torch.testing.assert_close(ratios[name] * p, emitted, atol=1e-9, rtol=1e-9)
    wealth = bets.wealth_of(*tokens_of(emitted, p, q, 4_000)[:2])
    assert wealth.took(LIMIT) is not None and wealth.winner == name


def test_equal_masses_share_a_coarse_number():
    """Else their order, which is not known, would make a bet that is worth more than 1."""
    p = torch.tensor([[0.25, 0.125, 0.125, 0.125, 0.125, 0.25]], dtype=torch.float64)
    ratios, _ = alternatives.bet_terms(p, torch.arange(6)[None], None, ())
    for name in (f"numbers of {bits} bits, by {by}" for bits in (8, 11) for by in ("id", "place")):
        assert ratios[name].tolist() == [[1.0] * 6]
    p = torch.full((1, 1000), 1e-3, dtype=torch.float64)  # a quarter of them is on the grid
    ratios, _ = alternatives.bet_terms(p, torch.arange(1000)[None], None, ())
    assert float(ratios["numbers of 8 bits, by place"].sum()) == pytest.approx(1000)
    assert int((ratios["numbers of 8 bits, by id"] > 0).sum()) == 256


@cache
def exact_arms(count=150):
    """Arms of FEWEST_ROWS short rows each of an exact engine."""
    rows = write(rows=FEWEST_ROWS * count, new=12)
    arm = measure(rows, target(), draft())
    places = range(0, len(rows) - FEWEST_ROWS, FEWEST_ROWS)
    return [arm.of_rows(range(place, place + FEWEST_ROWS)) for place in places]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["first tokens", "repeats"])
def test_chances_are_right_in_many_short_exact_audits(name):
    chances = []
    for arm in exact_arms():
        statistic = statistics_of(arm.terms, is_shared=False).get(name)
        chances += [] if statistic is None else [statistic.p_value]
    assert len(chances) > 120
    for level in (0.2, 0.05, 0.01):
        share = sum(chance <= level for chance in chances) / len(chances)
        assert share <= level + 3 * math.sqrt(level * (1 - level) / len(chances))
    assert sum(chance <= 0.2 for chance in chances) > 0.03 * len(chances)  # a test that can fail


def test_too_few_first_tokens_are_not_judged():
    names = {
        rows: set(measure(write(rows=rows, new=30), target()).statistics())
        for rows in (FEWEST_ROWS - 1, FEWEST_ROWS)
    }
    assert "first tokens" not in names[FEWEST_ROWS - 1]
    assert {"first tokens", "repeats"} <= names[FEWEST_ROWS]
    assert not names[FEWEST_ROWS].intersection((*FIRST_TOKENS, *REPEATS))  # families stand for them


def test_other_weights_in_both_arms_are_no_fault_of_first_tokens_or_numbers():
    engine = quantised(3)
    report = judged(plain, control={"engine": engine}, engine=engine, seed=10)
    assert not {"first tokens", "repeats"} & outliers(report)
