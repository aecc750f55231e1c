"""Temperatures near 0: most masses are 0 in float64, and rounding decides between ties."""

from dataclasses import replace

import pytest

from referee.audit import Finding, audit_transcripts, measure
from referee.audit.terms import COLDEST, NEAR_TIE
from referee.tests.toy_engine import drawing, quantised, target, write


def strays(temperature, share):
    """A law that gives this share to tokens far below the best."""
    own = drawing(temperature=temperature)

    def law(logits, ids):
        far = (logits < logits.amax(-1, keepdim=True) - 1).double()
        return (1 - share) * own(logits, ids) + share * far / far.sum(-1, keepdim=True)

    return law


def cold(temperature, share=0.0, **declared):
    return write(strays(temperature, share), temperature=temperature, **declared)


@pytest.mark.parametrize("temperature", [1e-6, 1e-3])
def test_tokens_without_mass_are_biases_on_sight(temperature):
    """With one seed for all rows, as for requests that draw nothing, and with a control."""
    exact, wrong = (cold(temperature, share, seed=42) for share in (0, 0.1))
    assert audit_transcripts(exact, target()).finding is Finding.NO_BIAS_SEEN
    report = audit_transcripts(wrong, target())
    assert report.finding is Finding.BIASED
    assert report.judgements[0].comparison.impossible
    own = [replace(row, seed=None) for row in cold(temperature, 0.03)]
    control = [replace(row, engine="plain") for row in cold(temperature)]
    assert audit_transcripts(own, target(), control=control).finding is Finding.BIASED


def test_the_coldest_temperatures_are_judged_like_0():
    """An engine of other rounding takes other ties, whatever their masses are."""
    engine = quantised(2000)
    for temperature in (1e-6, 1e-4, COLDEST):
        rows = write(drawing(temperature=temperature), engine=engine, temperature=temperature)
        report = audit_transcripts(rows, target())
        [judgement] = report.judgements
        assert report.finding is Finding.NO_BIAS_SEEN, judgement.reasons
        details = judgement.comparison.details
        assert details["near_ties"] > 0 and details["not_greedy"] == 0
        assert f"or up to {COLDEST:.2g}, where rounding decides" in report.summary[-1]
    arm = measure(cold(1.1 * COLDEST), target())
    assert arm.gaps is None and NEAR_TIE / arm.transcripts[0].temperature < 745
