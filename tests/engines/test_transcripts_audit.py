"""The audit of transcripts: exact engines are consistent, and planted biases are found by what should."""

import math
from dataclasses import replace

import pytest
import torch
from toy_engine import EOS, VOCABULARY, draft, hot, own, plain, quantised, target, write

from resispec.audit.transcripts import (
    Finding,
    Transcript,
    audit_arms,
    measure,
    report_json,
    report_lines,
)
from resispec.audit.transcripts import audit_transcripts as audit
from resispec.audit.transcripts.chances import z_of
from resispec.audit.transcripts.judging import FALSE_ALARM_RATE
from resispec.errors import InvalidInput


def cut(count):
    """Keeps the most probable tokens alone."""

    def law(logits, _):
        return torch.where(logits >= logits.topk(count).values[:, -1:], logits, -torch.inf).softmax(-1)

    return law


def toward_draft(variation):
    """p + l (q - p), l such that it lies this total variation from p."""

    def law(logits, ids):
        p, q = logits.softmax(-1), draft().module(input_ids=ids).logits[:, -1].double().softmax(-1)
        share = variation / (p - q).clamp_min(0).sum(-1, keepdim=True)
        return p + share.clamp_max(1) * (q - p)

    return law


def repeats_less(logits, ids):
    """A presence penalty of 0.5, over the prompt as well."""
    return (logits - 0.5 * torch.zeros_like(logits).scatter(1, ids, 1.0)).softmax(-1)


def one_seed(shape, generator):
    """The same random number for all rows."""
    return torch.rand(1, 1, generator=generator, dtype=torch.float64).expand(shape)


class Twice:
    """Every random number is used at two steps in a row."""

    def __init__(self):
        self.last = None

    def __call__(self, shape, generator):
        found = own(shape, generator) if self.last is None else self.last
        self.last = found if self.last is None else None
        return found


def reasons(report):
    return [reason for one in report.judgements for reason in one.reasons]


def decided_by(report):
    """The statistics that made the first comparison biased."""
    assert report.finding is Finding.BIASED
    return {reason.split()[0] for reason in report.judgements[0].reasons}


# Exact engines


@pytest.mark.parametrize(
    ("law", "settings"),
    [
        (plain, {}),
        (hot(0.7), {"temperature": 0.7}),
        (cut(9), {"top_k": 9}),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_an_exact_engine_is_consistent(law, settings, seed):
    report = audit(write(law, seed, **settings), target(), draft())
    [judgement] = report.judgements
    assert report.finding is Finding.CONSISTENT, judgement.reasons
    assert judgement.comparison.tokens > 2000 and judgement.more_tokens == 3 * judgement.comparison.tokens
    assert {"surprisal", "rank", "eos", "seen", "overdraft", "log(q/p)", "serial", "places", "pit"} <= set(
        judgement.comparison.groups["all"]
    )
    assert report.limit * judgement.comparison.num_statistics <= FALSE_ALARM_RATE
    assert all(0.01 < size < 0.1 for size in judgement.smallest_bias.values())


def test_the_smallest_bias_is_the_one_that_is_found_nine_times_in_ten():
    """A shift to the draft of this size moves `overdraft` by the limit and 1.28 standard errors."""
    [judgement] = audit(write(), target(), draft()).judgements
    smallest = judgement.smallest_bias["a shift to the draft"]
    found = []
    for seed in range(8):
        report = audit(write(toward_draft(smallest), seed, rows=80), target(), draft())
        found.append(report.judgements[0].comparison.groups["all"]["overdraft"].z)
    mean = sum(found) / len(found)
    assert abs(mean - (z_of(report.limit) + 1.2816)) < 4 / math.sqrt(len(found))
    assert judgement.smallest_bias["another temperature"] < smallest


def test_few_tokens_decide_nothing():
    report = audit(write(rows=20), target())
    assert report.finding is Finding.UNDECIDED
    assert "tokens that count; at least 1000 are needed" in reasons(report)[0]


def test_a_row_may_stop_by_whatever_it_has_emitted():
    """A stop string: here, two tokens above 40 in a row."""
    stopped = []
    for row in write(rows=150):
        tokens = row.output_token_ids
        end = next((at for at in range(1, len(tokens)) if min(tokens[at - 1 : at + 1]) > 40), len(tokens))
        stopped.append(replace(row, output_token_ids=tokens[: end + 1], finish_reason="stop"))
    assert audit(stopped, target()).finding is Finding.CONSISTENT


# Planted biases


@pytest.mark.parametrize(
    ("law", "statistics"),
    [
        (hot(1.2), {"surprisal", "pit"}),
        (hot(0.8), {"surprisal", "pit"}),
        (hot(0.01), {"surprisal", "places"}),
        (toward_draft(0.1), {"overdraft", "log(q/p)"}),
        (repeats_less, {"seen"}),
    ],
)
def test_a_biased_engine_is_found(law, statistics):
    assert statistics <= decided_by(audit(write(law), target(), draft()))


def test_a_cut_tail_is_found_and_named():
    report = audit(write(cut(10)), target())
    assert {"surprisal", "places", "pit"} <= decided_by(report)
    [note] = [note for note in report.notes if "beyond" in note]
    assert "no token came from beyond place 6-10 by probability" in note and "top_k" in note


def test_a_weaker_declaration_than_what_was_done_is_found():
    """Eight tokens are declared, twelve were kept: emitted tokens that the settings rule out are shown."""
    report = audit(write(cut(12), top_k=8), target())
    assert report.finding is Finding.BIASED
    found = [reason for reason in reasons(report) if "rules out" in reason]
    assert len(found) == 5 and "which T=1, top_k=8 rules out; allowed:" in found[0]
    assert found[0].startswith("rows.jsonl, line ")
    assert audit(write(cut(8), top_k=8), target()).finding is Finding.CONSISTENT


def test_random_numbers_that_are_used_twice_are_found():
    assert "seen" in decided_by(audit(write(uniforms=Twice()), target()))


@pytest.mark.parametrize("seed", range(6))
def test_one_seed_for_all_rows_is_no_bias_and_is_said(seed):
    """Eighty rows by the same numbers are forty draws at most."""
    report = audit(write(seed=seed, uniforms=one_seed), target())
    [judgement] = report.judgements
    assert report.finding is Finding.UNDECIDED and judgement.comparison.effective <= 41
    [note] = [note for note in report.notes if "share their random numbers" in note]
    assert "no bias" in note and "a seed of its own" in note


def test_seeds_that_repeat_count_as_shared_numbers_even_if_the_tokens_do_not_show_it():
    assert audit(write(seed=3, **{}), target()).finding is Finding.CONSISTENT
    rows = [replace(row, seed=7) for row in write(seed=3)]
    assert audit(rows, target()).finding is Finding.UNDECIDED
    assert audit([replace(row, seed=number) for number, row in enumerate(rows)], target()).finding is (
        Finding.CONSISTENT
    )


@pytest.mark.parametrize("reason", ["stop", None])
def test_missing_ends_of_sequence_are_the_transcripts_fault(reason):
    rows = write(keep_eos=False)
    rows = [row if row.finish_reason == "length" else replace(row, finish_reason=reason) for row in rows]
    report = audit(rows, target())
    assert report.finding is Finding.UNDECIDED
    assert "none of them has an end-of-sequence token (the first: rows.jsonl, line 1)" in reasons(report)[0]


def test_an_engine_that_never_ends_is_biased():
    def endless(logits, _):
        return logits.index_fill(1, torch.tensor([EOS]), -torch.inf).softmax(-1)

    report = audit(write(endless), target())
    assert decided_by(report) == {"eos"} and any("no row ends with" in note for note in report.notes)


# Settings


def test_settings_are_judged_together_and_each_on_its_own():
    """A temperature that is ignored: too hot in half of the rows, too cold in the others."""
    ignored = [*write(temperature=0.8), *write(seed=1, temperature=1.3)]
    report = audit(ignored, target())
    groups = report.judgements[0].comparison.groups
    assert list(groups) == ["all", "T=0.8", "T=1.3"] and report.finding is Finding.BIASED
    assert groups["T=0.8"]["surprisal"].z > 4 and groups["T=1.3"]["surprisal"].z < -4
    right = audit([*write(hot(0.8), temperature=0.8), *write(hot(1.3), seed=1, temperature=1.3)], target())
    assert right.finding is Finding.CONSISTENT


def test_generation_config_and_misspelt_keys_are_pointed_at(monkeypatch):
    monkeypatch.setattr(target(), "defaults", {"top_k": 10})
    report = audit([replace(row, extra={"topk": 10, "took_s": 1}) for row in write(cut(10))], target())
    assert any("generation_config.json says top_k=10" in note for note in report.notes)
    assert any("'topk' is not read; did you mean top_k?" in note for note in report.notes)
    assert not any("took_s" in note for note in report.notes)


# Temperature 0


def test_temperature_0_asks_for_greedy_equality():
    report = audit(write(hot(1e-4), temperature=0), target())
    assert report.finding is Finding.CONSISTENT
    details = report.judgements[0].comparison.details
    assert details["not_greedy"] == 0 and details["best"] > 1000
    tokens = report.judgements[0].comparison.tokens
    smallest = report.judgements[0].smallest_bias["tokens that are not greedy"]
    assert smallest == pytest.approx(2.3026 / tokens, rel=1e-4)
    assert report.judgements[0].more_tokens == tokens
    assert "greedy equality" in "\n".join(report_lines(report)) and "no samples" in report.summary[1]


def test_a_token_that_is_not_greedy_is_shown_with_its_place():
    rows = write(hot(1e-4), temperature=0, rows=60)
    tokens = list(rows[7].output_token_ids)
    tokens[11] = (tokens[11] + 1) % VOCABULARY
    rows[7] = replace(rows[7], output_token_ids=tuple(tokens[:12]))
    report = audit(rows, target())
    assert report.finding is Finding.BIASED and len(reasons(report)) == 1
    assert reasons(report)[0].startswith(
        f"rows.jsonl, line 8: output token 12 is {tokens[11]}, whose logit is"
    )
    [first] = report.judgements[0].comparison.details["first_divergences"]
    assert first["position"] == 12 and first["best"] == write(hot(1e-4), rows=60)[7].output_token_ids[11]


def test_sampled_and_greedy_rows_in_one_file_are_judged_apart():
    report = audit([*write(), *write(hot(1e-4), temperature=0)], target())
    assert [one.finding for one in report.judgements] == [Finding.CONSISTENT] * 2
    wrong = audit([*write(), *write(temperature=0)], target())
    assert [one.finding for one in wrong.judgements] == [Finding.CONSISTENT, Finding.BIASED]
    assert wrong.finding is Finding.BIASED and "and 75 more rows that diverge" in reasons(wrong)[-1]


# The control arm


def found(transcripts, control):
    report = audit(transcripts, target(), draft(), control)
    return report, [one.finding.value for one in report.judgements]


def test_an_exact_engine_with_its_control_is_consistent():
    report, findings = found(write(), write(seed=1))
    assert findings == ["consistent"] * 3
    assert report.summary == (
        "no difference between the engine with and without speculation was found",
        "without speculation the engine is consistent with the reference model",
    )
    assert not any("in one arm alone" in note for note in report.notes)


def test_another_precision_cancels_and_is_said():
    engine = quantised(3)
    report, findings = found(write(engine=engine), write(seed=1, engine=engine))
    assert report.finding is Finding.CONSISTENT and findings == ["consistent", "biased", "biased"]
    assert report.summary[1].startswith("without speculation, too, the engine differs from the reference")


def test_biased_speculation_shows_beside_another_precision():
    engine = quantised(3)
    report, findings = found(write(toward_draft(0.1), engine=engine), write(seed=1, engine=engine))
    assert report.finding is Finding.BIASED and findings == ["biased"] * 3
    assert report.summary[0] == "speculation differs from the engine without it"
    assert "log(q/p)" in {reason.split()[0] for reason in report.judgements[0].reasons}


def test_the_control_must_have_the_same_settings_and_enough_prompts():
    with pytest.raises(InvalidInput, match="have the settings T=1 and T=0.7; allowed: the same"):
        audit(write(rows=3), target(), control=write(rows=3, temperature=0.7))
    with pytest.raises(InvalidInput, match="there are no transcripts; at least one row"):
        audit(write(rows=3), target(), control=[])
    report, _ = found(write()[:10] * 5, write(seed=1)[:10] * 5)
    assert "the arms have 10 prompts; at least 20 are needed" in report.judgements[0].reasons[0]
    assert report.finding is Finding.UNDECIDED


def test_a_bias_that_only_one_arm_shows_is_no_difference_yet():
    """Speculation that deviates by hardly more than is allowed, when the difference varies twice as much."""
    smallest = 0.95 * audit(write(), target(), draft()).judgements[0].smallest_bias["a shift to the draft"]
    report, findings = found(write(toward_draft(smallest)), write(seed=2))
    assert findings == ["consistent", "biased", "consistent"]
    assert report.finding is Finding.UNDECIDED and "can still be chance" in report.summary[0]


def test_greedy_arms_are_compared_by_how_often_they_diverge():
    greedy = write(hot(1e-4), temperature=0)
    loose = write(hot(0.3), temperature=0)
    report, findings = found(loose, greedy)
    assert findings == ["biased", "biased", "consistent"]
    assert report.judgements[0].reasons[0].startswith("not greedy z = ")
    assert report.judgements[0].comparison.facts[0].endswith(" of 80 rows have the control's tokens")
    assert found(loose, write(hot(0.3), seed=1, temperature=0))[1][0] == "consistent"


# Parts of an arm


def test_an_arm_of_some_rows_is_that_of_rescoring_them_alone():
    rows, chosen = [*write(rows=30), *write(hot(1e-4), rows=10, temperature=0)], [31, 4, 17, 2]
    part, alone = (
        measure(rows, target(), draft()).of_rows(chosen),
        measure([rows[i] for i in chosen], target(), draft()),
    )
    assert part.transcripts == alone.transcripts and torch.equal(part.gaps.row, alone.gaps.row)
    assert torch.equal(part.terms.row, alone.terms.row) and torch.equal(part.terms.bucket, alone.terms.bucket)
    for name in ("surprisal", "rank", "overdraft"):
        assert part.statistics()[name].z == pytest.approx(alone.statistics()[name].z, abs=1e-4)
    assert measure(rows, target()).of_rows([32]).terms is None


def test_statistics_of_the_first_tokens():
    arm = measure(write(hot(0.8)), target())
    assert arm.num_tokens == sum(len(row.output_token_ids) for row in arm.transcripts)
    assert (
        arm.statistics(arm.num_tokens)
        == arm.statistics()
        == audit_arms(arm).judgements[0].comparison.groups["all"]
    )
    first = arm.statistics(500)["surprisal"]
    assert first.n <= 500 and abs(first.z) < abs(arm.statistics()["surprisal"].z)


# Reports


def test_a_report_is_plain_json_with_every_number():
    import json

    report = audit(write(), target(), draft(), write(seed=1))
    content = json.loads(json.dumps(report_json(report), allow_nan=False))
    assert content["finding"] == "consistent" and content["false_alarm_rate"] == FALSE_ALARM_RATE
    first = content["judgements"][1]["comparison"]
    assert first["tokens"] == sum(len(row.output_token_ids) for row in write())
    assert (
        math.isfinite(first["groups"]["all"]["surprisal"]["z"]) and first["details"]["places"][0]["observed"]
    )
    assert content["judgements"][1]["more_tokens"] == 3 * first["tokens"]


def test_rows_that_the_model_cannot_have_written_are_refused_with_their_place():
    rows = [*write(rows=2), Transcript((1,), (64,), place="rows.jsonl, line 3")]
    with pytest.raises(
        InvalidInput, match="^rows.jsonl, line 3: output_token_ids holds 64; allowed: ids below 64"
    ):
        audit(rows, target())
