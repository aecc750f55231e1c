"""Terms and statistics of transcripts, against numbers worked by hand and against scipy."""

import math
from dataclasses import replace

import pytest
import torch
from scipy import stats
from toy_engine import EOS, VOCABULARY, draft, own, target, write

from resispec.audit.transcripts.arms import measure
from resispec.audit.transcripts.chances import two_sided, z_of
from resispec.audit.transcripts.statistics import (
    PLACES,
    against_control,
    against_reference,
    omnibus,
    rate_difference,
    sharing,
)
from resispec.audit.transcripts.terms import EDGES, Reading, join, lookups, terms_of, with_serial
from resispec.models.scoring import Stretch, rescore
from resispec.transcripts import Transcript

SUMS = ("surprisal", "rank", "eos", "seen", "lookup", "overdraft", "log(q/p)")


def one_token(probs, token, prompt=(1, 2), **settings):
    """The terms of one emitted token with this law."""
    one = Transcript(prompt, (token,), **settings)
    ids = [torch.tensor(part) for part in one.written]
    stretch = Stretch(0, *ids, 0, torch.tensor(probs).log()[None].float())
    reading = Reading(one, (EOS,), lookups(*one.written))
    return terms_of(stretch, None, reading, torch.Generator().manual_seed(0))


def test_the_terms_of_a_token_by_hand():
    found = one_token([0.1, 0.5, 0.25, 0.15], 2)
    terms = dict(zip(found.names, found.sums[0], strict=True))
    surprisal = -torch.tensor([0.1, 0.5, 0.25, 0.15], dtype=torch.float64).log()
    law = stats.rv_discrete(values=(surprisal.numpy(), [0.1, 0.5, 0.25, 0.15]))
    deviation, variance, third = terms["surprisal"].tolist()
    assert deviation == pytest.approx(math.log(4) - law.mean(), abs=1e-6)
    assert variance == pytest.approx(law.var(), abs=1e-6)
    assert third == pytest.approx(law.moment(3) - 3 * law.mean() * law.var() - law.mean() ** 3, abs=1e-5)
    assert terms["rank"].tolist()[0] == pytest.approx(0.6 + 0.125 - 0.5)
    assert terms["eos"].tolist() == pytest.approx([-0.1, 0.09, 0.09 * 0.8])
    assert terms["seen"].tolist() == pytest.approx([1 - 0.75, 0.75 * 0.25, 0.75 * 0.25 * -0.5])
    assert found.bucket.tolist() == [1] and found.chances[0, :4].tolist() == pytest.approx(
        [0.5, 0.25, 0.15, 0.1]
    )
    assert 0.5 <= float(found.pits[0, 0]) < 0.75 and 0.6 <= float(found.pits[0, 1]) < 0.85
    assert float(found.spread) == pytest.approx(
        0.5 * (abs(surprisal - law.mean()) @ torch.tensor([0.1, 0.5, 0.25, 0.15], dtype=torch.float64))
    )


def test_a_token_beyond_the_support_counts_nowhere():
    found = one_token([0.4, 0.3, 0.2, 0.1], 3, top_k=2)
    assert not found.is_inside and found.sums[0, :, 0].tolist() == [0.0] * 5
    assert one_token([0.4, 0.3, 0.2, 0.1], 1, top_k=2).is_inside
    # The law is that of the kept tokens.
    assert one_token([0.4, 0.3, 0.2, 0.1], 1, top_k=2).chances[0, :2].tolist() == pytest.approx(
        [4 / 7, 3 / 7]
    )


@pytest.mark.parametrize(
    ("settings", "token", "is_possible"),
    [
        ({"top_k": 2}, 2, True),  # 0.24 is nearly 0.26: with logits a little off it is among the best two
        ({"top_k": 2}, 3, False),
        ({"top_p": 0.89}, 3, True),  # 0.9 comes before it, and 0.875 with logits that are off
        ({"top_p": 0.85}, 3, False),
        ({"min_p": 0.62}, 2, True),  # 0.24 is 0.6 of 0.4
        ({"min_p": 0.9}, 2, False),
        ({"top_k": 2, "temperature": 0.1}, 2, True),  # what is nearly equal does not depend on the settings
        ({}, 3, True),
    ],
)
def test_what_rounding_can_let_in(settings, token, is_possible):
    found = one_token([0.4, 0.26, 0.24, 0.1], token, **settings)
    assert bool(found.is_possible) is is_possible and bool(found.is_inside) is not bool(settings)


def test_what_the_context_suggests():
    assert lookups((1, 2, 3, 1, 2), (3, 1, 9, 1)).tolist() == [3, 1, 2, -1]
    assert lookups((5,), (5, 5, 5, 5)).tolist() == [-1, -1, 5, 5]


def test_a_bias_adds_to_its_own_terms():
    """Over every token of a law, weighted with it, each deviation has mean 0 and the stated moments."""
    rows = write(rows=2, new=3)
    [[stretch, drafted], *_] = rescore([target(), draft()], [one.written for one in rows])
    law = stretch.logits[-1].double().softmax(-1)
    fixed = [getattr(stretch, name) for name in ("row", "prompt")]
    before = stretch.outputs[: stretch.first + len(stretch.logits) - 1]
    every = []
    for token in range(VOCABULARY):
        outputs = torch.cat((before, torch.tensor([token])))
        ends = [Stretch(*fixed, outputs, len(before), one.logits[-1:]) for one in (stretch, drafted)]
        reading = Reading(rows[stretch.row], (EOS,), torch.tensor([5] * len(outputs)))
        every.append(terms_of(*ends, reading, torch.Generator()))
    assert every[0].names == SUMS
    values = torch.cat([one.sums for one in every])
    for power in (1, 2, 3):
        moment = (law[:, None] * values[:, :, 0] ** power).sum(0)
        expected = torch.zeros(len(SUMS), dtype=torch.float64) if power == 1 else values[0, :, power - 1]
        keep = [index for index, name in enumerate(SUMS) if (name, power) != ("rank", 3)]  # stated as 0
        torch.testing.assert_close(moment[keep], expected[keep], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(
        torch.stack([law[[one.bucket.item() == k for one in every]].sum() for k in range(len(PLACES))]),
        every[0].chances[0],
    )


def test_chances_of_rare_events_are_right_far_out():
    """A Poisson count of 12: twice the chance of at least or at most what was seen, within a factor of 2."""
    skewness = 1 / math.sqrt(12)
    for count in (30, 33, 2, 1, 0):
        exact = 2 * (stats.poisson.sf(count - 1, 12) if count > 12 else stats.poisson.cdf(count, 12))
        found = two_sided((count - 12) / math.sqrt(12), skewness)
        assert exact / 2.1 < found < exact * 2.1
    assert (
        two_sided(3.0, 0.0)
        == pytest.approx(2 * stats.norm.sf(3))
        == pytest.approx(two_sided(3.0, 2e-3), rel=0.02)
    )
    assert two_sided(-4.0, 0.5) == two_sided(4.0, -0.5) < two_sided(4.0, 0.5)
    assert z_of(2 * stats.norm.sf(3.3)) == pytest.approx(3.3)


@pytest.mark.parametrize(("count", "other"), [(9, 1), (1, 9), (0, 0), (5, 5), (90, 20)])
def test_the_difference_of_two_rates(count, other):
    """Each event in a prompt of its own: the binomial chance, or that of the variance between the prompts."""
    events, control = torch.arange(1000) < count, torch.arange(2000) < other
    found = rate_difference(events, control, torch.arange(3000))
    share, total = 1 / 3, count + other
    tails = stats.binom.sf(count - 1, total, share), stats.binom.cdf(count, total, share)
    z = (count / 1000 - other / 2000) / math.sqrt(max(1, count) / 1000**2 + other / 2000**2)
    assert found.p_value == pytest.approx(max(min(1, 2 * min(tails)), 2 * stats.norm.sf(abs(z))), rel=0.3)
    assert (found.z > 0) == (tails[0] < tails[1]) and found.n == 3000


def test_events_that_come_together_are_one():
    """Thirty of one prompt: one answer that went astray, where thirty of thirty prompts are a bias."""
    events, control = torch.arange(3000) < 30, torch.zeros(3000, dtype=torch.bool)
    together = torch.arange(60).repeat_interleave(50).repeat(2)
    apart = torch.arange(60).repeat(100)
    assert rate_difference(events, control, together).p_value > 0.1
    assert rate_difference(events, control, apart).p_value < 1e-5


def shared(shape, generator):
    return torch.rand(1, 1, generator=generator, dtype=torch.float64).expand(shape)


def test_an_exact_engine_gives_chances_that_are_uniform_over_12_seeds():
    """Of all chances a tenth are below 0.1, within 4 standard errors, and so for their smaller half."""
    found, differences, last = [], [], None
    for seed in range(12):
        terms = measure(write(seed=seed, rows=40), target(), draft()).terms
        found.append(against_reference(terms, is_shared=False).statistics() | omnibus(terms))
        if last is not None:
            rows = torch.cat((terms.row, last.row))
            differences.append(against_control(terms, last, rows, is_shared=False).statistics())
        last = terms
    assert {"surprisal", "rank", "eos", "seen", "overdraft", "log(q/p)", "serial", "places", "pit"} <= set(
        found[0]
    )
    for statistics, names in (
        (found, set(found[0]) - {"places"}),
        (differences, {"surprisal", "rank", "eos"}),
    ):
        chances = torch.tensor([one[name].p_value for one in statistics for name in names if name in one])
        assert len(chances) > 30 and chances.min() > 1e-4
        for level in (0.1, 0.5):
            error = 4 * math.sqrt(level * (1 - level) / len(chances)) + 0.02
            assert abs(float((chances < level).double().mean()) - level) < error


def test_rows_that_share_their_numbers_are_found_and_others_are_not():
    for seed in range(2):
        assert sharing(measure(write(seed=seed, rows=30, uniforms=shared), target()).terms).z > 50
        assert abs(sharing(measure(write(seed=seed, rows=30, uniforms=own), target()).terms).z) < 4


def test_the_variance_of_shared_draws_is_that_of_as_many_as_there_are_positions():
    """Copies of one row say no more than the row."""
    [one] = write(rows=1)
    alone, copies = (measure([one] * count, target()).terms for count in (1, 7))
    single, many = against_reference(alone, is_shared=False), against_reference(copies, is_shared=True)
    for name, found in single.statistics().items():
        if name not in ("places", "serial"):  # the latter has random shares of its own in every copy
            assert many.statistics()[name].z == pytest.approx(found.z)
            assert many.variance_of(name) == pytest.approx(single.variance_of(name))
    assert against_reference(copies, is_shared=False).variance_of("surprisal") == pytest.approx(
        single.variance_of("surprisal") / 7
    )


def test_a_difference_uses_the_variance_between_prompts_where_it_is_larger():
    """Arms whose deviation differs from prompt to prompt, as that of another model does."""
    terms = measure(write(rows=60), target()).terms
    drift = torch.randn(60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    moved = terms.sums.clone()
    moved[:, 0, 0] += 3 * drift[terms.row]
    other = measure(write(rows=60, seed=1), target()).terms
    rows = torch.cat((terms.row, other.row))
    plain = against_control(terms, other, rows, is_shared=False)
    drifting = against_control(replace(terms, sums=moved), other, rows, is_shared=False)
    assert plain.variance_of("surprisal") < 2 * float(plain.variance[0])
    assert drifting.variance_of("surprisal") > 5 * float(drifting.variance[0])
    assert abs(drifting.statistics()["surprisal"].z) < 4
    # What drifts in both arms alike cancels, but for rows of unequal lengths.
    beside = other.sums.clone()
    beside[:, 0, 0] += 3 * drift[other.row]
    both = against_control(replace(terms, sums=moved), replace(other, sums=beside), rows, is_shared=False)
    assert both.variance_of("surprisal") < 0.7 * drifting.variance_of("surprisal")


def test_terms_are_joined_in_order_and_follow_each_other():
    terms = measure(write(rows=3, new=8), target()).terms
    assert torch.equal(terms.row.sort().values, terms.row) and terms.names[-1] == "serial"
    shuffled = terms.where(torch.randperm(len(terms.row), generator=torch.Generator().manual_seed(1)))
    again = with_serial(join([replace(shuffled, names=terms.names[:-1], sums=shuffled.sums[:, :-1])]))
    assert torch.equal(again.sums, terms.sums) and torch.equal(again.position, terms.position)
    centred = terms.pits[:, 0] - 0.5
    follows = terms.position > 0
    expected = 12 * centred[1:] * centred[:-1]
    assert torch.allclose(terms.sums[1:, -1, 0][follows[1:]], expected[follows[1:]])
    assert terms.sums[~follows][:, -1].abs().max() == 0 and len(EDGES) + 1 == len(PLACES)
