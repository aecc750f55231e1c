"""Terms and statistics of transcripts, against numbers worked by hand and against scipy."""

import math
from dataclasses import replace

import pytest
import torch
from scipy import stats

from referee.audit import measure
from referee.audit.statistics import (
    against_control,
    against_reference,
    rate_difference,
    two_sided,
    z_of,
)
from referee.audit.terms import (
    FAR,
    FIRST_TOKENS,
    REPEATS,
    TokenTerms,
    lookups,
    terms_of,
    with_rows,
)
from referee.rescoring import Stretch, rescore
from referee.tests.toy_engine import EOS, PROMPT, VOCABULARY, draft, target, write
from referee.transcripts import Transcript
from resispec.errors import NoVerdict

LAW = [0.1, 0.5, 0.25, 0.15]
SUMS = ("surprisal", "rank", "eos", "seen", "lookup", "overdraft", "log(q/p)")
LATER = (*REPEATS, *FIRST_TOKENS)
"""Names of the terms that need a token's place in its row, `serial` beside them."""


def one_token(probs, token, prompt=(1, 2), **settings):
    """The terms of one emitted token with this law."""
    row = Transcript(prompt, (token,), **settings)
    stretch = Stretch(
        0, *map(torch.tensor, row.written), 0, torch.tensor(probs).log()[None].float()
    )
    return terms_of(stretch, None, row, (EOS,), lookups(row), torch.Generator().manual_seed(0))


def test_the_terms_of_a_token_by_hand():
    """Their further moments follow from these deviations, see the test below."""
    found = one_token(LAW, 2)
    deviations = dict(zip(found.names, found.sums[0, :, 0].tolist(), strict=True))
    law = torch.tensor(LAW, dtype=torch.float64)
    surprisal, mean = -law.log(), float(-law @ law.log())
    expected = {
        "surprisal": math.log(4) - mean,
        "rank": 0.6 + 0.125 - 0.5,
        "eos": -0.1,
        "seen": 1 - 0.75,
    }
    assert deviations == pytest.approx(expected | {"lookup": 0}, abs=1e-6)
    assert found.bucket.tolist() == [1]
    assert 0.5 <= float(found.pits[0, 0]) < 0.75 and 0.6 <= float(found.pits[0, 1]) < 0.85
    assert float(found.spread) == pytest.approx(float((surprisal - mean).abs() @ law) / 2)


def test_a_model_may_rule_tokens_out():
    """The rows of a vocabulary that only pad it may have logits of -inf."""
    assert bool(one_token([0.1, 0.5, 0.4, 0.0], 2).sums.isfinite().all())


def test_nan_is_no_statistic():
    """It would be farther out than anything that is allowed."""
    terms = with_rows(TokenTerms.join([one_token([math.nan] * 4, 2)]))
    with pytest.raises(NoVerdict, match="^a statistic is NaN; allowed: numbers, so"):
        against_reference(terms, is_shared=True).statistics()


def test_an_event_too_rare_for_any_number_is_not_judged():
    """The cube of its standard error is 0."""
    rare = with_rows(
        TokenTerms.join([one_token([0.985, 0.005, 0.005, 0.005], 0, temperature=0.01)])
    )
    assert "surprisal" not in against_reference(rare, is_shared=False).statistics()


def test_tokens_beyond_the_support_count_nowhere_and_rounding_may_let_them_in():
    for settings, token, is_possible in (
        # 0.24 is nearly 0.26: with logits a little off it is among the best two
        ({"top_k": 2}, 2, True),
        ({"top_k": 2}, 3, False),
        ({"top_p": 0.89}, 3, True),  # 0.9 comes before it, and 0.875 with logits that are off
        ({"top_p": 0.85}, 3, False),
        ({"min_p": 0.62}, 2, True),  # 0.24 is 0.6 of 0.4
        ({"min_p": 0.9}, 2, False),
        ({"top_k": 2, "temperature": 0.1}, 2, True),  # near ties do not depend on the settings
        ({"temperature": 5e-4}, 1, True),  # 0.4 / 0.26 to the power of 2,000 is beyond float64
        ({"temperature": 5e-4}, 3, False),
        ({}, 3, True),
    ):
        found = one_token([0.4, 0.26, 0.24, 0.1], token, **settings)
        assert bool(found.is_possible) is is_possible and bool(found.is_inside) is not bool(
            settings
        )
        assert not settings or found.sums[0, :, 0].tolist() == [0.0] * 5
    kept = one_token([0.4, 0.26, 0.24, 0.1], 1, top_k=2)  # the law is that of the kept tokens
    assert kept.is_inside and kept.chances[0, :2].tolist() == pytest.approx([40 / 66, 26 / 66])


def test_suggestions_of_the_context():
    assert lookups(Transcript((1, 2, 3, 1, 2), (3, 1, 9, 1))).tolist() == [3, 1, 2, -1]
    assert lookups(Transcript((5,), (5, 5, 5, 5))).tolist() == [-1, -1, 5, 5]


def test_deviations_have_mean_0_and_the_stated_moments():
    """Over every token of a law, weighted with it."""
    rows = write(rows=2, new=3)
    [[stretch, drafted], *_] = rescore([target(), draft()], rows)
    law = stretch.logits[-1].double().softmax(-1)
    before = stretch.outputs[: stretch.first + len(stretch.logits) - 1]
    every = []
    for token in range(VOCABULARY):
        outputs = torch.cat((before, torch.tensor([token])))
        ends = [
            Stretch(stretch.row, stretch.prompt, outputs, len(before), one.logits[-1:])
            for one in (stretch, drafted)
        ]
        lookup = torch.tensor([5] * len(outputs))
        every.append(terms_of(*ends, rows[stretch.row], (EOS,), lookup, torch.Generator()))
    assert every[0].names == SUMS
    values = torch.cat([one.sums for one in every])
    for power in (1, 2, 3):
        moment = (law[:, None] * values[:, :, 0] ** power).sum(0)
        expected = (
            torch.zeros(len(SUMS), dtype=torch.float64) if power == 1 else values[0, :, power - 1]
        )
        # stated as 0
        keep = [index for index, name in enumerate(SUMS) if (name, power) != ("rank", 3)]
        torch.testing.assert_close(moment[keep], expected[keep], atol=1e-6, rtol=1e-5)
    mass = [law[[one.bucket.item() == bucket for one in every]].sum() for bucket in range(10)]
    torch.testing.assert_close(torch.stack(mass), every[0].chances[0])


def test_chances_of_rare_events_are_right_far_out():
    """A Poisson count of 12: twice the chance of at least or at most that, within a factor of 2."""
    for count in (30, 33, 2, 1, 0):
        exact = 2 * (
            stats.poisson.sf(count - 1, 12) if count > 12 else stats.poisson.cdf(count, 12)
        )
        found = two_sided((count - 12) / math.sqrt(12), 1 / math.sqrt(12))
        assert exact / 2.1 < found < exact * 2.1
    assert two_sided(3.0, 0.0) == pytest.approx(2 * stats.norm.sf(3))
    assert two_sided(3.0, 2e-3) == pytest.approx(2 * stats.norm.sf(3), rel=0.02)
    assert two_sided(-4.0, 0.5) == two_sided(4.0, -0.5) < two_sided(4.0, 0.5)
    assert z_of(2 * stats.norm.sf(3.3)) == pytest.approx(3.3) and z_of(0.0) == 1e6


def test_the_difference_of_two_rates():
    """Events in prompts of their own: the binomial chance, or that of variance between prompts."""
    for count, other, p_value in ((9, 1, 0.0052), (1, 9, 0.208), (0, 0, 1.0)):
        found = rate_difference(
            torch.arange(1000) < count, torch.arange(2000) < other, torch.arange(3000)
        )
        assert found.p_value == pytest.approx(p_value, rel=0.3)
        assert (found.z > 0) == (count > other) and found.n == 3000
    # Thirty of one prompt are one answer that went astray, where thirty of thirty prompts are a
    # bias.
    events, control = torch.arange(3000) < 30, torch.zeros(3000, dtype=torch.bool)
    together = torch.arange(60).repeat_interleave(50).repeat(2)
    assert rate_difference(events, control, together).p_value > 0.1
    assert rate_difference(events, control, torch.arange(60).repeat(100)).p_value < 1e-5


def first_greedy(logits, ids):
    """The law of an engine whose first token alone is always the likeliest."""
    law = logits.softmax(-1)
    return (law == law.amax(-1, keepdim=True)).double() if ids.shape[1] == PROMPT else law


def test_the_variance_of_shared_draws_is_that_of_as_many_as_there_are_positions():
    """Copies of one row say no more than the row."""
    [row] = write(rows=1)
    alone, copies = (measure([row] * count, target()) for count in (1, 7))
    single = against_reference(alone.terms, is_shared=False)
    many = against_reference(copies.terms, is_shared=True)
    for name, statistic in single.statistics().items():
        # the latter has random shares of its own in every copy
        if name not in ("places", "serial", "repeats"):
            assert many.statistics()[name].z == pytest.approx(statistic.z)
            assert many.variance_of(name) == pytest.approx(single.variance_of(name))
    assert copies.sharing.z > 10 and abs(measure(write(rows=30), target()).sharing.z) < 4
    assert not measure(write(first_greedy, rows=200), target()).is_shared
    apart = against_reference(copies.terms, is_shared=False)
    assert apart.variance_of("surprisal") == pytest.approx(single.variance_of("surprisal") / 7)


def test_a_difference_uses_the_variance_between_prompts_where_it_is_larger():
    """Arms whose deviation differs from prompt to prompt, as that of another model does."""
    drift = torch.randn(60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def drifting(terms):
        sums = terms.sums.clone()
        sums[:, 0, 0] += 3 * drift[terms.row]
        return replace(terms, sums=sums)

    terms, other = (measure(write(rows=60, seed=seed), target()).terms for seed in (0, 1))
    rows = torch.cat((terms.row, other.row))
    plain = against_control(terms, other, rows, is_shared=False)
    one = against_control(drifting(terms), other, rows, is_shared=False)
    assert plain.variance_of("surprisal") < 2 * float(plain.variance[0])
    assert one.variance_of("surprisal") > 5 * float(one.variance[0])
    assert abs(one.statistics()["surprisal"].z) < 4
    # A drift in both arms alike cancels, but for rows of unequal lengths.
    both = against_control(drifting(terms), drifting(other), rows, is_shared=False)
    assert both.variance_of("surprisal") < 0.7 * one.variance_of("surprisal")


def test_terms_are_joined_in_order_and_follow_each_other():
    terms = measure(write(rows=12, new=16), target(), draft()).terms
    assert torch.equal(terms.row.sort().values, terms.row)
    shuffled = terms.where(
        torch.randperm(len(terms.row), generator=torch.Generator().manual_seed(1))
    )
    num_plain = len(SUMS)
    shuffled = replace(shuffled, names=terms.names[:num_plain], sums=shuffled.sums[:, :num_plain])
    again = with_rows(TokenTerms.join([shuffled]))
    assert again.names == terms.names and set(terms.names) == {*SUMS, "serial", *LATER}
    assert torch.equal(again.sums, terms.sums) and torch.equal(again.position, terms.position)
    columns = dict(zip(terms.names, terms.sums.unbind(1), strict=True))
    for name, order, lag in (
        ("serial", 0, 1), ("repeat 3 later, by place", 0, 3), ("repeat 8 later, by id", 1, 8)
    ):  # fmt: skip
        centred, follows = terms.pits[:, order] - 0.5, terms.position >= lag
        expected = 12 * centred[lag:] * centred[:-lag]
        assert torch.allclose(columns[name][lag:, 0][follows[lag:]], expected[follows[lag:]])
        assert columns[name][~follows].abs().max() == 0 and bool(follows.any())
    every = sum(columns[f"repeat {lag} later, by id"][:, 0] for lag in range(1, FAR + 1))
    assert torch.allclose(columns[f"repeat 1 to {FAR} later, by id"][:, 0], every)


def test_terms_of_first_tokens_are_those_of_the_first_token_of_each_row():
    terms = measure(write(rows=12, new=16), target(), draft()).terms
    columns = dict(zip(terms.names, terms.sums.unbind(1), strict=True))
    is_first = terms.position == 0
    for name in ("surprisal", "log(q/p)"):
        assert torch.equal(columns[f"first {name}"][is_first], columns[name][is_first])
        assert columns[f"first {name}"][~is_first].abs().max() == 0
    place = columns["first place"][is_first]
    assert torch.allclose(place[:, 0], 12**0.5 * (terms.pits[is_first, 0] - 0.5))
    assert torch.allclose(place[:, 1], torch.ones(12, dtype=torch.float64))
