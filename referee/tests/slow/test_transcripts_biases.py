"""Audits of transcripts over laws and seeds: exact engines, biases by what finds them, power."""

import math

import pytest
import torch

from referee.audit import Finding, audit_arms, measure
from referee.audit import audit_transcripts as audit
from referee.audit.statistics import against_control, statistics_of, z_of
from referee.tests.toy_engine import EOS, draft, drawing, target, toward_draft, write


def repeats_less(logits, ids):
    """A presence penalty of 0.5, over the prompt as well."""
    return (logits - 0.5 * torch.zeros_like(logits).scatter(1, ids, 1.0)).softmax(-1)


def endless(logits, _):
    return logits.index_fill(1, torch.tensor([EOS]), -torch.inf).softmax(-1)


@pytest.mark.parametrize(
    ("options", "statistics"),
    [
        ({"law": drawing(temperature=0.01)}, {"surprisal", "places"}),
        ({"law": toward_draft(0.1)}, {"overdraft", "log(q/p)"}),
        ({"law": repeats_less}, {"seen"}),
        ({"law": endless}, {"eos"}),
    ],
)
def test_a_biased_engine_is_found_by(options, statistics):
    report = audit(write(**options), target(), draft())
    assert report.finding is Finding.BIASED
    assert statistics <= {reason.split()[0] for reason in report.judgements[0].reasons}


@pytest.fixture(scope="module")
def smallest_bias():
    """The biases that the audit of an exact engine would have shown."""
    [judgement] = audit(write(), target(), draft()).judgements
    return judgement.smallest_bias


def test_the_smallest_bias_is_the_one_that_is_found_nine_times_in_ten(smallest_bias):
    """A shift to the draft of this size moves `overdraft` by the limit and 1.28 standard errors."""
    smallest = smallest_bias["a shift to the draft"]
    scores = []
    for seed in range(8):
        report = audit_arms(measure(write(toward_draft(smallest), seed), target(), draft()))
        scores.append(report.judgements[0].comparison.groups["all"]["overdraft"].z)
    assert abs(sum(scores) / 8 - (z_of(report.limit) + 1.2816)) < 4 / math.sqrt(8)
    assert smallest_bias["another temperature"] < smallest


def test_an_exact_engine_gives_chances_that_are_uniform_over_12_seeds():
    """Of all chances a tenth are below 0.1, half below 0.5, within 4 standard errors and 0.02."""
    alone, differences, last = [], [], None
    for seed in range(12):
        terms = measure(write(seed=seed, rows=40), target(), draft()).terms
        alone.append(statistics_of(terms, is_shared=False))
        if last is not None:
            rows = torch.cat((terms.row, last.row))
            differences.append(against_control(terms, last, rows, is_shared=False).statistics())
        last = terms
    names = set(alone[0]) - {"places"}
    for every, judged in ((alone, names), (differences, {"surprisal", "rank", "eos"})):
        chances = [
            statistics[name].p_value
            for statistics in every
            for name in judged
            if name in statistics
        ]
        assert len(chances) > 30 and min(chances) > 1e-4
        for level in (0.1, 0.5):
            error = 4 * math.sqrt(level * (1 - level) / len(chances)) + 0.02
            assert abs(sum(chance < level for chance in chances) / len(chances) - level) < error


def test_a_shift_that_only_the_target_shows_and_not_the_difference_is_undecided(smallest_bias):
    """Speculation deviates by hardly more than is allowed; the difference varies twice as much."""
    shift = 0.65 * smallest_bias["a shift to the draft"]
    report = audit(write(toward_draft(shift)), target(), draft(), write(seed=2))
    assert [str(one.finding) for one in report.judgements] == [
        "no bias seen",
        "biased",
        "no bias seen",
    ]
    assert report.finding is Finding.UNDECIDED and "can still be chance" in report.summary[0]
