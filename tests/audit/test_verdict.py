"""z-scores of decoding, verdicts and checked rules, each against numbers worked by hand."""

import math
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from scipy.stats import norm

from resispec.audit.chi_square import chi_squared
from resispec.audit.estimate import Tuples, estimate
from resispec.audit.row_checks import CheckedRule
from resispec.audit.verdict import (
    AGAIN,
    CERTAIN_P,
    LEAST_P,
    SUSPICIOUS,
    SUSPICIOUS_P,
    Evidence,
    Finding,
    Walked,
    deviation,
    holm,
    judge,
    remeasured,
    worst_statistic,
    z_score,
)
from resispec.audit.z_score import (
    overdraft_terms,
    rank_terms,
    surprisal_terms,
)
from resispec.core import Draws
from resispec.errors import InvalidInput
from resispec.verifiers import Law, get_rule
from tests.accounts import law, rng

pytestmark = pytest.mark.numerics

# z-scores


def test_terms_by_hand():
    p, q = law(0.5, 0.25, 0.25, 0).expand(3, -1), law(0.25, 0.75, 0, 0).expand(3, -1)
    deviation, variance = surprisal_terms(p, torch.tensor([0, 1, 3]))
    assert (deviation / math.log(2)).tolist() == pytest.approx([1 - 1.5, 2 - 1.5, math.inf])
    assert (variance / math.log(2) ** 2).tolist() == pytest.approx([0.25] * 3)
    deviation, variance = overdraft_terms(p, q, torch.tensor([0, 1, 2]))
    assert deviation.tolist() == [-0.25, 0.75, -0.25] and variance.tolist() == [0.1875] * 3
    deviation, variance = rank_terms(p, torch.tensor([0, 1, 2]))
    assert deviation.tolist() == [-0.25, 0.125, 0.375]
    assert variance.tolist() == pytest.approx(
        [0.5 * 0.25**2 + 0.25 * 0.125**2 + 0.25 * 0.375**2] * 3
    )


def test_a_z_score_and_its_p_value():
    score = z_score(-6.0, 4.0, 10)
    assert score.z == -3 and score.n == 10 and score.p_value == pytest.approx(2 * norm.sf(3))
    assert [z_score(total, 0.0, 5).z for total in (0.0, 1.0, -1.0)] == [0, math.inf, -math.inf]
    assert z_score(math.inf, 1.0, 5).p_value == 0
    with pytest.raises(FloatingPointError):
        z_score(math.nan, 1.0, 5)


# Verdicts


def score(z, n, variance):
    return z_score(z * math.sqrt(variance) if variance else z, variance, n)


CLEAN = Evidence(
    1e-16,
    {"V = 9": deviation(0.001, 0.0025)},
    {"0": {"verdicts": chi_squared(9.0, 8, 1500)}},
    {"": {"surprisal": score(0.5, 5000, 9000.0)}, "c4": {"overdraft": score(-1.0, 4000, 800.0)}},
    {"V = 9": deviation(-0.1, 0.008)},
    {"enumerated": 6, "decoded": 9},
    Walked(8, ("T = 1", "T = 0.6"), 0.03, 0.05),
)


def altered(**changes):
    return replace(CLEAN, **changes)


def variation(value, error):
    return altered(total_variations={"x": deviation(value, error)})


FAR, NEAR = chi_squared(40.0, 4, 1500), chi_squared(9.0, 4, 1500)


def counts(**statistics):
    return altered(simulations={"x": statistics})


def decoded(*numbers):
    return altered(z_scores={"": {"surprisal": score(*numbers)}})


@pytest.mark.parametrize(
    ("evidence", "words"),
    [
        (altered(enumerated_error=0.2), "enumerated total variation 0.2"),
        (variation(0.1, 0.1 / 4.1), "total variation, x: z = 4.1"),
        (counts(tokens=FAR, turns=NEAR), "simulated tokens, x: z = 5.1"),
        (
            counts(turns=chi_squared(4e3, 4, 9), tokens=chi_squared(5e3, 4, 9)),
            "simulated tokens, x: .*",
        ),
        (
            altered(z_scores={"chain": {"rank": score(-6.0, 9, 900.0)}}),
            "rank of decoding, chain: z = -6.0",
        ),
        (variation(0.1, math.nan), "total variation, x: z = nan"),
    ],
)
def test_the_worst_statistic_is_named(evidence, words):
    assert re.fullmatch(words, worst_statistic(evidence))


@pytest.mark.parametrize(
    ("evidence", "finding", "reason"),
    [
        (
            CLEAN,
            Finding.NO_BIAS_SEEN,
            r"^exact where enumerated \(error 1.0e-16\); no deviation in 5 statistics \(5000 audi"
            r".*levels 1 to 6, .*levels 1 to 9; .*above 0.01 at one node .* 8 siblings\), 0.03 "
            r".* at T = 1, or 0.05 .* at T = 0.6, .*below level 6",
        ),
        # computed in float32
        (altered(enumerated_error=9e-6), Finding.NO_BIAS_SEEN, "no deviation"),
        (altered(enumerated_error=2e-5), Finding.BIASED, "enumerated total variation 2e-05"),
        (altered(enumerated_error=math.nan), Finding.BIASED, "enumerated"),
        (altered(enumerated_error=None), Finding.UNDECIDED, "no evidence: enumerated error"),
        (
            variation(0.1, 0.1 / 4.1),
            Finding.BIASED,
            r"total variation \(x\) 0.1, 4.1 standard errors",
        ),
        (variation(0.1, math.nan), Finding.BIASED, "total variation"),
        (altered(total_variations={}), Finding.UNDECIDED, "no evidence: total variations"),
        (
            counts(tokens=FAR),
            Finding.BIASED,
            r"simulation \(tokens, x\): .* 1500 .* probability 4e-08; .*5e-06",
        ),
        (counts(tokens=chi_squared(math.inf, 1, 9)), Finding.BIASED, "probability 0"),
        (counts(verdicts=FAR, tokens=NEAR), Finding.INCONSISTENT, "the tokens may be right"),
        (
            replace(counts(verdicts=FAR), enumerated_error=0.2),
            Finding.INCONSISTENT,
            "total variation 0.2",
        ),
        (counts(verdicts=FAR, turns=FAR), Finding.BIASED, r"simulation \(turns, x\)"),
        (altered(simulations={}), Finding.UNDECIDED, "no evidence: simulations"),
        (
            altered(excesses={"x": deviation(0.02, 0.004)}),
            Finding.BIASED,
            "acceptance above its ceiling",
        ),
        (decoded(-4.1, 900, 500.0), Finding.BIASED, "surprisal z = -4.1 over 900 tokens"),
        (decoded(0.1, 999, 500.0), Finding.UNDECIDED, "999 audited tokens; at least 1000"),
        (decoded(9.0, 5000, 1.0), Finding.UNDECIDED, "variance 1"),
        (decoded(math.inf, 10, 0.0), Finding.BIASED, "z = inf"),
        (altered(z_scores={}), Finding.UNDECIDED, "no evidence: z scores"),
        (Evidence(), Finding.UNDECIDED, "no evidence"),
    ],
)
def test_verdicts(evidence, finding, reason):
    judgement = judge(evidence)
    assert judgement.finding is finding
    assert any(re.search(reason, line) for line in judgement.reasons)


def test_what_is_required_can_be_less_and_the_false_alarm_rate_adds_up():
    only = Evidence(z_scores={"": {"surprisal": score(0.5, 5000, 9000.0)}})
    found = [judge(only).finding, judge(only, required=("z_scores",)).finding]
    assert found == [Finding.UNDECIDED, Finding.NO_BIAS_SEEN]
    # By hand: two deviations of one kind of node, one simulation, which is looked at twice when
    # measured again, two z-scores measured apart; two accidents must meet.
    two = SUSPICIOUS_P * (2 * 2 * norm.sf(4) + 2 * LEAST_P + 2 * 2 * norm.sf(4))
    assert CLEAN.false_alarm_rate == pytest.approx(10 * CERTAIN_P + two, rel=1e-3)
    together = Evidence(
        simulations={"wide": {name: chi_squared(9.0, 8, 15) for name in ("tokens", "turns")}}
    )
    assert together.false_alarm_rate == pytest.approx(
        4 * CERTAIN_P + 4 * SUSPICIOUS_P * 2 * LEAST_P
    )
    assert Evidence().false_alarm_rate == 0 and math.isnan(Evidence().smallest_seen)
    assert norm.sf(SUSPICIOUS) == pytest.approx(SUSPICIOUS_P, rel=0.01)


def test_holms_rule_stops_at_the_first_p_value_above_its_share():
    """Shares of .01 among five: .002, .0025, .0033, .005, .01."""
    p_values = [0.004, 1e-9, 0.0024, 0.9, 0.0049]
    assert holm(p_values, 0.01).tolist() == [False, True, True, False, False]
    assert holm(p_values[:3], 0.01).tolist() == [True, True, True]


def test_what_looks_suspicious_is_measured_again_and_only_that_counts():
    def measured(first):
        asked = []

        def measure(times):
            asked.append(times)
            return {"a": deviation(first if times == 1 else 0.5, 1.0), "b": deviation(-1.0, 1.0)}

        return remeasured(measure)["a"].value, asked

    assert measured(2.5) == (2.5, [1])
    assert measured(3.0) == (0.5, [1, AGAIN]) and measured(5.0) == (0.5, [1, AGAIN])
    assert measured(7.0) == (7.0, [1]) and measured(math.inf) == (math.inf, [1])


# Checked rules


def test_a_rule_in_float32_passes_the_checks_at_a_real_vocabulary():
    p, q = (torch.softmax(4 * torch.randn(32000, generator=rng(seed)), -1) for seed in (0, 1))
    estimate(CheckedRule(get_rule("standard"), "standard"), p, q, Tuples(3, Draws.IID, 8), rng(0))


def changed(change):
    """The standard rule with its law changed."""
    rule = SimpleNamespace(law=lambda p, *given: change(get_rule("standard").law(p, *given), p))
    p, q = law(0.5, 0.3, 0.2).expand(3, -1), law(0.2, 0.4, 0.4).expand(3, -1)
    return CheckedRule(rule, "mine").law(p, q, torch.tensor([[1], [2], [2]]), Draws.IID)


def put(tensor, row, value):
    return tensor.index_put(
        (torch.tensor(row), torch.tensor(0)), torch.tensor(value, dtype=tensor.dtype)
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda law, _: Law(put(law.select, 1, -0.1), law.residual),
            "row 1: entries of select hold -0.1 at",
        ),
        (
            lambda law, _: Law(law.select, put(law.residual, 2, math.nan)),
            "row 2: entries of residual hold",
        ),
        (
            lambda law, _: Law(law.select * 0 + 1.0002, law.residual),
            "row 0: entries of select sum to 1.0002",
        ),
        (
            lambda law, _: Law(law.select * 0, law.residual / 2),
            "row 0: entries of residual sum to 0.5",
        ),
        (
            lambda law, _: Law(law.select, law.residual[..., :2]),
            r"residual is \(3, 2\).*allowed: .*\(3, 3\)",
        ),
        (
            lambda law, p: (p.mul_(0.5), law)[1],
            "row 0: the rule changed its input target_probs in place",
        ),
    ],
)
def test_checked_rules_name_the_rule_the_row_and_the_quantity(change, message):
    with pytest.raises(InvalidInput, match=f"rule 'mine': {message}"):
        changed(change)
