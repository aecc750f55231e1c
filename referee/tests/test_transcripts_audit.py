"""The audit of transcripts sees no bias in an exact engine, and finds and names planted biases."""

from dataclasses import replace

import pytest
import torch

from referee.audit import Finding, audit_arms, measure, report_lines
from referee.audit import audit_transcripts as audit
from referee.audit.alternatives import DRAFT_SET, TAIL_SET
from referee.audit.bets import Excess
from referee.audit.comparisons import (
    FALSE_ALARM_RATE,
    Comparison,
    JudgedComparison,
    judge_comparison,
)
from referee.audit.report import _decided_apart
from referee.conditions import Condition
from referee.tests.toy_engine import (
    PROMPT,
    VOCABULARY,
    draft,
    drawing,
    plain,
    quantised,
    target,
    toward_draft,
    write,
)
from resispec.errors import InvalidInput, NoVerdict

GREEDY = drawing(temperature=1e-4)


def findings(report):
    return [str(judgement.finding) for judgement in report.judgements]


def reasons(report):
    return [reason for judgement in report.judgements for reason in judgement.reasons]


def decided_by(report):
    """The statistics that made the first comparison biased."""
    assert report.finding is Finding.BIASED
    return {reason.split()[0] for reason in report.judgements[0].reasons}


def test_no_bias_is_seen_in_an_exact_engine_and_the_report_has_every_number():
    rows = write()
    report = audit(rows, target(), draft())
    [judgement] = report.judgements
    assert report.finding is Finding.NO_BIAS_SEEN, judgement.reasons
    tokens = sum(len(row.output_token_ids) for row in rows)
    assert judgement.comparison.tokens == tokens > 2000 and judgement.more_tokens == 3 * tokens
    names = {"surprisal", "rank", "eos", "seen", "overdraft", "log(q/p)", "serial", "places", "pit"}
    assert names <= set(judgement.comparison.groups["all"])
    num_statistics = sum(map(len, judgement.comparison.groups.values()))
    assert report.limit * num_statistics <= FALSE_ALARM_RATE
    assert all(0.01 < size < 0.1 for size in judgement.smallest_bias.values())
    assert not any("own check" in note for note in report.notes)  # nobody is accused


def loaded(rows, load):
    return [replace(row, concurrency=load) for row in rows]


def test_what_is_wrong_under_load_alone_is_found_against_the_target_and_the_other_load():
    alone, control = loaded(write(), 1), write(seed=2)
    report = audit(alone + loaded(write(drawing(top_k=10), seed=1), 16), target(), control=control)
    found = {one.comparison.what: str(one.finding) for one in report.judgements}
    assert found == {
        "transcripts, 1 at a time against the control": "no bias seen",
        "transcripts, 16 at a time against the control": "biased",
        "transcripts, 16 at a time against 1 at a time": "biased",
        "transcripts, 1 at a time against the target": "no bias seen",
        "transcripts, 16 at a time against the target": "biased",
        "control against the target": "no bias seen",
    }
    assert report.finding is Finding.BIASED
    assert (
        "what the engine emits depends on its load, the requests that it has at a time"
        in report.summary
    )
    # the same seeds, as the same command gives
    right = audit(alone + loaded(write(), 16), target())
    assert right.finding is Finding.NO_BIAS_SEEN and len(right.judgements) == 3
    assert not any("rise and fall together" in note for note in right.notes)


def test_a_control_with_the_same_loads_is_compared_load_by_load_and_settings_are_the_same():
    """An engine that is wrong under load, speculating or not, is not accused of its speculation."""
    arms = [
        loaded(write(seed=n), 1) + loaded(write(drawing(top_k=10), seed=n + 1), 16) for n in (0, 2)
    ]
    report = audit_arms(*(measure(rows, target()) for rows in arms))
    assert findings(report)[:3] == ["no bias seen", "no bias seen", "biased"]
    parts = [loaded(write(seed=n), load) for n, load in ((2, 1), (3, 16))]
    control = [replace(row, seed=place) for part in parts for place, row in enumerate(part)]
    # the control has the same seeds under both loads, so both at once decide nothing
    for load in (16, 4):
        assert (
            audit(loaded(write(), load), target(), control=control).finding is Finding.NO_BIAS_SEEN
        )
    with pytest.raises(
        InvalidInput, match="in every arm, have the settings T=1 and T=0.7; allowed"
    ):
        audit(
            loaded(write(), 1) + loaded(write(drawing(temperature=0.7), temperature=0.7), 16),
            target(),
        )


def test_a_cut_tail_is_found_and_named_and_so_is_what_may_have_cut_it(monkeypatch):
    monkeypatch.setattr(target(), "defaults", {"top_k": 10})
    rows = [replace(row, extra={"took_s": 1, "model": "m"}) for row in write(drawing(top_k=10))]
    report = audit(rows, target())
    assert {"surprisal", "places", "pit"} <= decided_by(report)
    text = "\n".join(report.notes)
    assert "no token came from beyond place 6-10 by probability" in text
    assert "generation_config.json says top_k=10" in text
    assert report.summary[-1] == "keys of the rows that were not read: took_s"
    assert "the audit's own check, of 10" in text and "with a total variation above 0.0" in text


def test_tokens_that_the_settings_rule_out_are_biases_on_sight():
    report = audit(write(drawing(top_k=12), top_k=8), target())
    lines = [reason for reason in reasons(report) if "rules out" in reason]
    assert (
        report.finding is Finding.BIASED
        and len(lines) == 5
        and lines[0].startswith("rows.jsonl, line ")
    )
    assert "which T=1, top_k=8 rules out; allowed:" in lines[0]


def test_one_seed_for_all_rows_is_no_bias_and_is_said(monkeypatch):
    """Eighty rows by the same numbers are forty draws at most."""
    rand = torch.rand
    with monkeypatch.context() as patch:
        patch.setattr(torch, "rand", lambda *shape, **options: rand(1, 1, **options).expand(shape))
        rows = write()
    report = audit(rows, target())
    assert report.finding is Finding.UNDECIDED and report.judgements[0].comparison.effective <= 41
    [note] = [note for note in report.notes if "rise and fall together" in note]
    assert "each row alone may be right" in note and "a seed of its own" in note
    rows = [replace(row, seed=7) for row in write()]  # the tokens do not show it
    assert audit(rows, target()).finding is Finding.UNDECIDED


def test_samples_of_one_request_share_its_seed_and_not_their_draws():
    samples = [
        replace(row, seed=place, sample=number)
        for number in range(4)
        for place, row in enumerate(write(seed=number, rows=20))
    ]
    assert audit(samples, target()).finding is Finding.NO_BIAS_SEEN
    # defect: numbers over all prompts made one seed for all of them many
    counted = [replace(row, seed=7, sample=number) for number, row in enumerate(samples)]
    assert audit(counted, target()).finding is Finding.UNDECIDED


def test_settings_that_repeat_each_others_seeds_count_in_full_each_by_itself():
    """Defect: two files written with the default seeds counted as one draw a position."""
    halves = [
        write(drawing(temperature=at), seed=place, temperature=at)
        for place, at in enumerate((0.8, 1.0))
    ]
    rows = [replace(row, seed=number) for half in halves for number, row in enumerate(half)]
    report = audit(rows, target())
    assert report.finding is Finding.NO_BIAS_SEEN
    assert any("name the seeds of other rows" in note for note in report.notes)
    assert report.judgements[0].comparison.effective > 1000


def test_the_certificate_of_several_arms_is_of_the_one_that_allows_the_most():
    """Defect: it was of the one with the largest lower bound, be it .00002 of a tail."""
    arms = {load: write(seed=load, rows=50) for load in (1, 8)}
    rows = [replace(row, concurrency=load) for load, part in arms.items() for row in part]
    report = audit(rows, target(), draft())
    assert report.finding is Finding.NO_BIAS_SEEN
    first, second = (one for one in report.judgements if one.comparison.excess)
    alone = audit(arms[8], target(), draft()).judgements[0].comparison.excess
    # bounds of two arms hold together, so each is wider
    assert second.comparison.excess[DRAFT_SET].high > alone[DRAFT_SET].high

    def bounded(judgement, low, high):
        excess = {DRAFT_SET: Excess(-high, high), TAIL_SET: Excess(low, 1.0)}
        return replace(judgement, comparison=replace(judgement.comparison, excess=excess))

    judgements = bounded(first, 0.00002, 0.01), bounded(second, -0.1, 0.06)
    headline = replace(report, judgements=judgements).headline
    assert "a total variation of at most 0.06," in headline


def test_the_certificate_without_a_draft_is_of_the_worst_arm_too():
    """Defect: it was that of the first arm."""
    rows = loaded(write(rows=200), 1) + loaded(write(seed=1, rows=20), 16)
    report = audit(rows, target())
    excesses = [one.comparison.excess for one in report.judgements if one.comparison.excess]
    first, second = (excess[TAIL_SET].high for excess in excesses)
    assert second > first and f" to {second:.4f}" in report.headline


def test_a_certificate_does_not_bound_an_arm_that_has_no_bounds():
    """Defect: of an arm whose rows shared a seed nothing was said."""
    rows = loaded(write(), 1) + loaded(write(seed=1, rows=20), 16)
    named = [replace(row, seed=7 if row.concurrency == 16 else None) for row in rows]
    for those, is_bounded in ((rows, True), (named, False)):
        headline = audit(those, target(), draft()).headline
        assert ("at most" in headline) is is_bounded
        assert ("numbers in transcripts, 16 at a time against" in headline) is not is_bounded


def test_few_tokens_and_missing_ends_of_sequence_decide_nothing():
    report = audit(write(rows=20), target())
    assert report.finding is Finding.UNDECIDED
    assert "tokens that count; at least 1000 are needed" in reasons(report)[0]
    whole = Comparison("whole", 1000, 9, 1000 - 1e-12, {"all": {}})  # a sum may lose its last digit
    assert judge_comparison(whole, 1e-5, 2e3).finding is Finding.NO_BIAS_SEEN
    report = audit(write(keep_eos=False), target())
    assert report.finding is Finding.UNDECIDED
    assert (
        "limit and have no end-of-sequence token (the first: rows.jsonl, line 1)"
        in reasons(report)[0]
    )
    endless = [
        replace(row, finish_reason=None, extra={"max_new_tokens": -1})  # no limit, and not 0
        for row in write(keep_eos=False)
    ]
    assert audit(endless, target()).finding is Finding.UNDECIDED
    some = write()
    ended = [place for place, row in enumerate(some) if row.finish_reason == "stop"][:3]
    for place in ended:
        ids = some[place].output_token_ids
        some[place] = replace(some[place], output_token_ids=ids[:-1] or (1,))
    report = audit(some, target())  # too few to decide anything, and no less missing
    assert any("3 rows did not end by a limit and have no" in note for note in report.notes)


def test_settings_are_judged_together_and_each_on_its_own():
    """A temperature that is ignored: too hot in half of the rows, too cold in the others."""
    report = audit([*write(temperature=0.8), *write(seed=1, temperature=1.3)], target())
    groups = report.judgements[0].comparison.groups
    assert list(groups) == ["all", "T=0.8", "T=1.3"] and report.finding is Finding.BIASED
    assert groups["T=0.8"]["surprisal"].z > 4 and groups["T=1.3"]["surprisal"].z < -4


def test_temperature_0_asks_for_greedy_equality():
    greedy = write(GREEDY, temperature=0)
    report = audit([*write(), *greedy], target())
    assert findings(report) == ["no bias seen"] * 2
    judgement = report.judgements[1]
    details, tokens = judgement.comparison.details, judgement.comparison.tokens
    assert details["not_greedy"] == 0 and details["best"] > 1000 and judgement.more_tokens == tokens
    smallest = judgement.smallest_bias["tokens that are not greedy"]
    assert smallest == pytest.approx(2.3026 / tokens, rel=1e-4)
    assert (
        "greedy equality" in "\n".join(report_lines(report)) and "no samples" in report.summary[1]
    )

    tokens = list(greedy[7].output_token_ids)
    tokens[11] = (tokens[11] + 1) % VOCABULARY
    greedy[7] = replace(greedy[7], output_token_ids=tuple(tokens[:12]))
    report = audit(greedy, target())
    assert report.finding is Finding.BIASED and len(reasons(report)) == 1
    line = f"rows.jsonl, line 8: output token 12 is {tokens[11]}, whose logit is"
    assert reasons(report)[0].startswith(line)
    wrong = audit([*write(), *write(temperature=0)], target())
    assert findings(wrong) == ["no bias seen", "biased"] and wrong.finding is Finding.BIASED
    assert "and 75 more rows that diverge" in reasons(wrong)[-1]


@pytest.mark.parametrize(("settings", "law"), [({}, plain), ({"temperature": 0}, GREEDY)])
def test_rescoring_that_is_wrong_itself_accuses_nobody(monkeypatch, settings, law):
    """Many tokens at once have other logits than one after the other, as with a broken kernel."""
    rows, forward = write(law, **settings), target().module.forward

    def wrong_at_once(**options):
        output = forward(**options)
        if options["input_ids"].shape[1] > 2 * PROMPT:
            output.logits.copy_(1.5 * output.logits.roll(1, -1))
        return output

    monkeypatch.setattr(target().module, "forward", wrong_at_once)
    words = "own check, of .* itself, in float32, finds them biased: .* or device"
    with pytest.raises(NoVerdict, match=words):
        audit(rows, target(), draft())


def test_what_rows_say_of_their_own_tokens_does_not_count_for_the_target_s():
    """Log-probabilities, and rows at temperature 0, of which few have a text of their own."""
    wrong = write(drawing(temperature=0.6))
    wrong[:1] = write(GREEDY, rows=1, temperature=0)
    rows = [
        replace(row, logprobs=(-1.0,) * len(row.output_token_ids), top_logprobs=None)
        for row in wrong
    ]
    report = audit(rows, target())
    assert report.finding is Finding.BIASED
    own = [note for note in report.notes if "the audit's own check" in note]
    assert len(own) == 2 and "all of them are greedy, but they are too few" in own[1]


def test_with_a_control_another_precision_cancels_and_is_said():
    engine = quantised(3)
    control = write(seed=1, engine=engine)
    report = audit(write(engine=engine), target(), draft(), control)
    assert findings(report) == ["no bias seen", "biased", "biased"]
    assert report.finding is Finding.NO_BIAS_SEEN
    assert (
        report.summary[0]
        == "no difference between the engine with and without speculation was found"
    )
    assert report.summary[1].startswith(
        "without speculation, too, the engine differs from the reference"
    )
    assert not any("in one arm alone" in note for note in report.notes)


def test_a_control_that_deviates_alone_accuses_no_speculation():
    """Defect: exact rows beside a control of other settings were called biased."""
    wrong = write(drawing(top_k=10), seed=1)
    report = audit(write(), target(), control=wrong)
    assert findings(report) == ["biased", "no bias seen", "biased"]
    assert report.finding is Finding.UNDECIDED and report.cause == ""
    first, second = report.summary
    assert first.startswith("the control deviates from the target and the transcripts were not")
    assert second.startswith("likely cause of the control's deviation: a filter that the rows do")
    text = "\n".join(report_lines(report))
    assert "verdict: undecided\n  certificate" in text and "speculation differs" not in text
    swapped = audit(wrong, target(), control=write())
    assert swapped.finding is Finding.BIASED and swapped.cause.startswith("a filter that")


def test_a_control_excuses_only_its_own_kind_of_rows_and_its_own_load():
    """Defect: greedy rows of a coarse control, or another load's, acquitted sampled rows."""
    greedy = write(GREEDY, engine=quantised(3), temperature=0)
    rows, control = write(toward_draft(0.0375)), write(seed=1)
    report = audit([*rows, *greedy], target(), draft(), control=[*control, *greedy])
    assert findings(report) == ["no bias seen"] * 2 + ["biased"] * 2 + ["no bias seen", "biased"]
    assert report.finding is Finding.UNDECIDED
    assert "can still be chance" in report.summary[0]
    beside = loaded(write(drawing(top_k=10), seed=2), 1) + loaded(control, 16)
    report = audit(loaded(rows, 16), target(), draft(), control=beside)
    assert report.finding is Finding.UNDECIDED and "can still be chance" in report.summary[0]


def test_the_cause_of_a_difference_is_told_where_both_sides_deviate():
    """A deviation that both have cancels there."""
    rows = write(drawing(top_k=10, temperature=2.5))
    control = write(drawing(top_k=10), seed=1)
    report = audit(rows, target(), control=control)
    difference, transcripts, _ = report.judgements
    assert findings(report) == ["biased"] * 3
    assert report.cause == difference.cause != transcripts.cause


def test_rows_of_another_model_than_the_target_are_told_where_they_deviate(monkeypatch):
    monkeypatch.setattr(target(), "name", "meta-llama/Llama-3.1-8B")
    right, wrong = (measure(write(law), target()) for law in (plain, drawing(top_k=10)))

    def told(arm, model):
        rows = [replace(row, extra={"model": model}) for row in arm.transcripts]
        notes = audit_arms(replace(arm, transcripts=rows)).notes
        return [note for note in notes if "name the model" in note]

    assert told(wrong, "Llama-3.1-8B-Instruct") == [
        "transcripts: rows name the model Llama-3.1-8B-Instruct and the target is "
        "meta-llama/Llama-3.1-8B; if these are not two names of one model, a difference is theirs"
    ]
    assert not told(right, "Llama-3.1-8B-Instruct")
    for name in ("llama-3.1-8b", "/models/Llama-3.1-8B/", "models--meta-llama--Llama-3.1-8B/a1b2"):
        assert not told(wrong, name)
    monkeypatch.setattr(target(), "name", "")  # as of a pair
    assert not told(wrong, "Llama-3.1-8B-Instruct")


def test_arms_of_other_lengths_are_compared_where_both_have_tokens():
    """A penalty that no row declares has more to act on in longer answers."""

    def shy(logits, ids):
        seen = torch.zeros_like(logits).scatter(1, ids, 1.0)
        return (logits - 2.0 * seen).softmax(-1)

    fact = "rows are cut to 8 tokens, the least limit of those of their prompt"
    short, long = write(shy, rows=200, new=8), write(shy, seed=1, rows=200, new=60)
    report = audit(short, target(), control=long)
    assert findings(report) == ["no bias seen", "biased", "biased"], reasons(report)
    first, _, control = (one.comparison for one in report.judgements)
    assert first.facts == (fact,) and control.tokens > 2000 and not control.facts
    report = audit(short, target(), control=write(shy, seed=1, rows=200, new=8))
    assert report.judgements[0].comparison.facts == ()
    mixed = [*short[1:], write(shy, rows=200, new=60)[0]]  # defect: one long row hid the limit
    compared = audit(mixed, target(), control=long).judgements[0].comparison
    assert compared.tokens < 200 * 8 + 60 and "cut to 8 tokens" in compared.facts[0]
    limit = {"finish_reason": None, "extra": {"max_new_tokens": 8}}
    told = [replace(row, **limit) for row in write(rows=30, new=7)]
    [difference, *_] = audit(told, target(), control=write(seed=1, rows=30, new=8)).judgements
    assert difference.comparison.facts == ()  # they may have had as many
    greedy, other = (write(GREEDY, rows=30, new=new, temperature=0) for new in (5, 9))
    [difference, *_] = audit(greedy, target(), control=other).judgements
    assert difference.comparison.facts == (
        fact.replace("8", "5"),
        "30 of 30 rows have the control's tokens",
    )


def test_a_limit_that_was_not_reached_counts_up_to_where_the_engine_stopped():
    """Defect: an engine with a shorter context was accused of ends that come too early."""
    asked = {"extra": {"max_new_tokens": 20}}
    short, long = (
        [replace(row, **asked) for row in write(seed=seed, rows=30, new=new)]
        for seed, new in ((0, 8), (1, 20))
    )
    [difference, *_] = audit(short, target(), control=long).judgements
    [fact, *_] = difference.comparison.facts
    assert fact == "rows are cut to 8 tokens, the least limit of those of their prompt"


@pytest.mark.parametrize(("load", "is_greedy"), [(1, True), (16, False)])
def test_a_control_excuses_only_rows_of_its_own_kind_and_arm(load, is_greedy):
    """Defect: a control that is biased at temperature 0, or under another load, excused others."""
    biased, unseen = Finding.BIASED, Finding.NO_BIAS_SEEN

    def cases(*findings):
        return [
            (condition, None, JudgedComparison(finding, (), comparison, {}, None, ""))
            for condition, greedy, finding in findings
            for comparison in [Comparison("", 2000, 30, 2000.0, {}, is_greedy=greedy)]
        ]

    one, other = Condition(concurrency=1), Condition(concurrency=load)
    first, second = (one, False), (other, is_greedy)
    judged = {
        "transcripts": cases((*first, biased), (*second, unseen)),
        "difference": cases((*first, unseen), (*second, unseen)),
        "control": cases((*first, unseen), (*second, biased)),
    }
    conditions = list(dict.fromkeys((one, other)))
    finding, [sentence, _] = _decided_apart(conditions, conditions, judged)
    assert finding is Finding.UNDECIDED and "can still be chance" in sentence


def test_settings_of_arms_are_compared_as_often():
    """Defect: a coarse engine's drift at each temperature was taken for that of speculation."""
    coarse = quantised(3)

    def arm(seed, hot, cold):
        rows = [
            write(drawing(temperature=t), one, rows=n, new=20, engine=coarse, temperature=t)
            for one, t, n in ((seed, 1.0, hot), (seed + 1, 0.3, cold))
        ]
        return [row for part in rows for row in part]

    report = audit(arm(0, 150, 30), target(), control=arm(2, 30, 150))
    difference = report.judgements[0].comparison
    assert report.judgements[0].finding is not Finding.BIASED, reasons(report)
    assert difference.tokens <= 60 * 20
    assert difference.facts[0].startswith("240 rows were left out, so that both arms have as many")
    equal = audit(arm(0, 40, 20), target(), control=arm(2, 80, 40))
    assert equal.judgements[0].comparison.facts == ()


def test_rows_that_were_given_up_are_compared_with_no_control():
    rows = write(rows=30)
    late = [replace(row, finish_reason="abort") for row in rows if row.finish_reason == "stop"]
    with pytest.raises(InvalidInput, match=rf"is 'abort', as of {len(late)} rows of the transcr"):
        audit([*late, *rows], target(), control=write(seed=1, rows=30))


def test_rows_that_were_given_up_are_compared_with_no_other_load():
    """Defect: time-outs of 80 of 150 rows at load 16 made an exact engine depend on its load."""
    late = [
        replace(row.cut(4), finish_reason="abort") if place < 80 else row
        for place, row in enumerate(write(seed=1, rows=150))
    ]
    with pytest.raises(InvalidInput, match="as of 80 rows of the transcripts, 16 at a time: they"):
        audit(loaded(write(rows=150), 1) + loaded(late, 16), target())
    assert audit(loaded(late, 16), target()).finding is Finding.NO_BIAS_SEEN


def test_rows_of_other_weights_or_precisions_are_no_control_and_a_target_of_others_is_told():
    """Defect: a model that was trained on between two files was called biased."""
    rows, others = write(rows=30), write(seed=1, rows=30)

    def about(rows, **extra):
        return [replace(row, extra=extra) for row in rows]

    first, second = ({"weights": name, "dtype": "float32"} for name in "ab")
    with pytest.raises(InvalidInput, match="weights is 'b' in the control and 'a' in the transc"):
        audit(about(rows, **first), target(), control=about(others, **second))
    with pytest.raises(InvalidInput, match="dtype is 'bfloat16' in the control"):
        rounded = about(others, weights="a", dtype="bfloat16")
        audit(about(rows, **first), target(), control=rounded)
    with pytest.raises(InvalidInput, match="rows name 2 values of weights"):
        audit([*about(rows[1:], **first), *about(rows[:1], **second)], target())
    audit([*about(rows[1:], weights=1), *about(rows[:1], weights=0)], target())  # of a loss
    for weights, count in ((target().weights, 0), ("a", 1)):
        notes = audit(about(rows, weights=weights, dtype="float32"), target()).notes
        assert sum("30 rows were written with other weights" in note for note in notes) == count


def test_penalties_of_rows_that_name_no_engine_are_told():
    rows = write(rows=30, repetition_penalty=1.2)
    assert any("penalty was taken over prompt and output" in n for n in audit(rows, target()).notes)


def test_greedy_arms_are_compared_by_how_often_they_diverge():
    greedy, loose = write(GREEDY, temperature=0), write(drawing(temperature=0.3), temperature=0)
    assert findings(audit(greedy, target(), control=greedy)) == ["no bias seen"] * 3
    report = audit(loose, target(), control=greedy)
    assert findings(report) == ["biased", "biased", "no bias seen"]
    assert report.judgements[0].reasons[0].startswith("not greedy z = ")
    assert (
        report.judgements[0].comparison.facts[0].endswith(" of 80 rows have the control's tokens")
    )
    few = audit(loose, target(), control=loose[:1])
    assert few.finding is Finding.UNDECIDED
    assert reasons(few)[0] == "an arm has 1 prompts; at least 20 are needed to compare the two"


def test_rows_and_controls_that_can_show_nothing_are_refused():
    rows = write(rows=3)
    for control, words in (
        (rows, "3 of the 3 sampled rows of the control are the same rows as the transcripts"),
        (rows[:0:-1], "2 of the 2 sampled rows of the control are the same rows"),
        (write(rows=3, temperature=0.7), "have the settings T=1 and T=0.7; allowed: the same"),
        ([], "there are no transcripts; at least one row"),
    ):
        with pytest.raises(InvalidInput, match=words):
            audit(rows, target(), control=control)
    for key, values in (("model", "abc"), ("weight_versions", [["1", "1"], ["1", "2"], ["2"]])):
        several = [
            replace(row, extra={key: value}) for row, value in zip(rows, values, strict=True)
        ]
        with pytest.raises(InvalidInput, match=f"line .: rows name . values of {key}, as .* and"):
            audit(several, target())
    steps = [replace(row, extra={"step": number}) for number, row in enumerate(rows)]
    assert any("rows name 3 values of step" in note for note in audit(steps, target()).notes)
    few, others = (
        [row for seed in seeds for row in write(seed=seed, rows=10)]
        for seeds in (range(5), range(5, 10))
    )
    report = audit(few, target(), control=others)
    assert "an arm has 10 prompts; at least 20 are needed" in reasons(report)[0]
    assert report.finding is Finding.UNDECIDED


def test_an_arm_gives_the_statistics_of_its_first_tokens():
    rows = write(rows=30)
    arm = measure([*rows, *write(GREEDY, rows=10, temperature=0)], target(), draft())
    assert arm.num_tokens == sum(len(row.output_token_ids) for row in rows)
    of_audit = audit_arms(arm).judgements[0].comparison.groups["all"]
    assert repr(arm.statistics()) == repr(of_audit)  # as numbers that are NaN are not equal
    assert arm.statistics(300)["surprisal"].n <= 300


def test_arms_that_are_rescored_already_are_checked_like_files():
    """Defect: an arm was acquitted by itself as its control."""
    rows = write(drawing(temperature=1.5))
    arm = measure(rows, target())
    with pytest.raises(InvalidInput, match="rows of the control are the same rows"):
        audit_arms(arm, measure(rows, target()))
    named = [
        replace(row, extra={"model": name}) for row, name in zip(rows, "ab" * 500, strict=False)
    ]
    with pytest.raises(InvalidInput, match="rows name 2 values of model"):
        audit_arms(measure(named, target()))


def test_two_long_names_with_one_beginning_are_two_models():
    names = [f"/{'checkpoints' * 9}/{step}" for step in (100, 200)]
    rows = write(rows=40)
    named = [replace(row, extra={"model": names[place % 2]}) for place, row in enumerate(rows)]
    with pytest.raises(InvalidInput, match="rows name 2 values of model"):
        audit(named, target())
