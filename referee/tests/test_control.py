"""Two arms without the target: a bias is found, and right engines are not accused.

What the test cannot rest on is refused.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from referee.audit.__main__ import main
from referee.control import judge_control, planting, report_lines
from referee.control.copies import copies
from referee.control.families import families_of
from referee.control.matching import match, within_limits
from referee.control.permutation import PermutationTest, shuffled
from referee.control.planting import planted, smallest_shares
from referee.tests.toy_engine import PROMPT, drawing, plain, toward_draft, write
from referee.transcripts import Transcript, line_of
from resispec.audit.verdict import Finding
from resispec.errors import InvalidInput
from resispec.files import read_sealed


@pytest.fixture(autouse=True)
def few_plantings(monkeypatch):
    """Planted faults take most of the time of a judgement; one test has all of them."""
    monkeypatch.setattr(planting, "SHARES", (0.5,))
    monkeypatch.setattr(planting, "REPEATS", 2)
    monkeypatch.setattr(planting, "SHUFFLES", 20)


def several(law, seed, copies=20, rows=10, new=12):
    """Several samples of each of a few prompts."""
    parts = [write(law, seed=1000 * seed + copy, rows=rows, new=new) for copy in range(copies)]
    return [row for part in parts for row in part]


@pytest.fixture(scope="module")
def control():
    return several(plain, seed=1)


def chains(generator, prompts=8, copies=2, length=10, vocabulary=6, hot=1.0):
    """Rows of a Markov chain of each prompt; the end of sequence is token 0."""
    rows = []
    for prompt in range(prompts):
        scores = np.random.default_rng(prompt).normal(0, 1.5, (vocabulary, vocabulary))
        scores[:, 0] -= 2.0
        laws = np.exp(scores / hot)
        laws /= laws.sum(1, keepdims=True)
        for _ in range(copies):
            tokens = [1 + prompt % (vocabulary - 1)]
            while len(tokens) <= length and tokens[-1] != 0:
                tokens.append(int(generator.choice(vocabulary, p=laws[tokens[-1]])))
            reason = "stop" if tokens[-1] == 0 else "length"
            rows.append(Transcript((prompt + 1, tokens[0]), tokens[1:], finish_reason=reason))
    return rows


def test_a_bias_is_found_without_the_target_and_right_engines_are_not_accused(control):
    fine = judge_control(several(plain, seed=2), control)
    assert fine.finding is Finding.NO_BIAS_SEEN and fine.verdict == "no difference seen"
    assert any("found nine times in ten by the share" in line for line in report_lines(fine))
    for law, cause in ((toward_draft(0.2), "often"), (drawing(temperature=0.7), "temperature")):
        report = judge_control(several(law, seed=3), control)
        [comparison] = report.comparisons
        assert report.finding is Finding.BIASED and comparison.p_value <= 1e-3
        assert cause in comparison.cause and comparison.smallest_shares == {}
        lines = [*report_lines(report)]
        assert lines[0] == "verdict: biased: the engine with speculation differs from its control"
        assert lines[1] == f"  likely cause: {comparison.cause}"
        assert "exact" not in " ".join(lines).lower()
    assert "exact" not in " ".join(report_lines(fine)).lower()


@pytest.mark.parametrize(("copies", "prompts"), [(1, 24), (3, 6)])
def test_chances_are_right_for_few_rows_too(copies, prompts):
    generator, chances = np.random.default_rng(copies), []
    for _ in range(150):
        arms = [chains(generator, prompts, copies) for _ in range(2)]
        rows = match(*within_limits(arms))
        test = PermutationTest(
            families_of(rows), rows.stratum, rows.is_speculative, generator, calibration=60
        )
        chances.append(test.p_value(99))
    # beyond these with probability 1e-3 at most if chances are uniform
    assert np.mean(np.array(chances) <= 0.05) <= 0.05 + 3.1 * np.sqrt(0.05 * 0.95 / 150)
    assert 0.5 - 0.13 < np.mean(np.array(chances) <= 0.5) < 0.5 + 0.13


def test_one_row_of_each_prompt_is_enough():
    generator = np.random.default_rng(0)
    arms = [chains(generator, prompts=150, copies=1, hot=hot) for hot in (1.0, 1.0, 0.5)]
    assert judge_control(arms[1], arms[0]).finding is Finding.NO_BIAS_SEEN
    report = judge_control(arms[2], arms[0])
    assert report.finding is Finding.BIASED and report.comparisons[0].prompts == 150
    assert "first tokens" not in report.comparisons[0].statistics  # a pair alone says nothing there


def test_arms_with_other_limits_are_cut_to_one():
    generator = np.random.default_rng(5)
    short, long = (chains(generator, 100, 2, length=length) for length in (8, 20))
    report = judge_control(short, long)
    assert report.finding is Finding.NO_BIAS_SEEN
    assert "rows are cut to 8 tokens, the least limit of those of their prompt" in report.notes
    assert report.comparisons[0].statistics["length"] < 3


def test_a_limit_that_one_arm_alone_says_is_not_taken_for_that_of_the_other():
    generator = np.random.default_rng(6)
    long, short = (chains(generator, 100, 2, length=length) for length in (20, 8))
    long = [replace(row, finish_reason=None, extra={"max_new_tokens": 20}) for row in long]
    short = [replace(row, finish_reason=None) for row in short]
    for arms in ((long, short), (short, long)):
        report = judge_control(*arms)
        assert report.finding is Finding.NO_BIAS_SEEN
        assert "rows are cut to 8 tokens, the least limit of those of their prompt" in report.notes


@pytest.mark.parametrize("copies", [1, 2])
def test_rows_that_a_smaller_context_ended_before_their_limit_cut_the_other_arm(copies):
    """Defect: 20 tokens, which both arms had asked for, counted as the limit of both."""
    generator = np.random.default_rng(8)
    short, long = (
        [replace(row, extra={"max_new_tokens": 20}) for row in chains(generator, 200, copies, n)]
        for n in (8, 20)
    )
    report = judge_control(short, long)
    assert report.finding is Finding.NO_BIAS_SEEN
    assert "rows are cut to 8 tokens, the least limit of those of their prompt" in report.notes


def test_a_row_of_a_small_limit_hides_no_tokens_of_other_prompts():
    generator = np.random.default_rng(7)
    right, wrong = chains(generator, 150, 1, 30), chains(generator, 150, 1, 30, hot=0.5)
    wrong[0] = replace(wrong[0], output_token_ids=(3,), finish_reason="length")
    report = judge_control(wrong, right)
    assert report.finding is Finding.BIASED
    assert "rows are cut to 1 tokens, the least limit of those of their prompt" in report.notes


def test_rows_of_the_transcripts_are_no_control_in_any_order_and_number(control):
    shuffled_rows = [control[place] for place in np.random.default_rng(0).permutation(len(control))]
    fresh = several(plain, seed=8)
    for rows, number in (
        (shuffled_rows, len(control)),
        (control[:60], 60),
        ([*control[:60], *fresh[:40]], 60),
    ):
        with pytest.raises(InvalidInput, match=f"^{number} of the {len(rows)} sampled rows of the"):
            judge_control(control, rows)
    judge_control(control, [*control[:40], *fresh[:60]])
    short = [Transcript((number,), (5,)) for number in range(60)]  # one word, and the same again
    judge_control([*short, *control[:40]], [*short, *fresh[:40]])


def test_a_control_that_drafted_is_none(control):
    drafted = {"spec_decode": {"num_draft_tokens": 900}}
    spec = [replace(row, extra=drafted) for row in several(plain, seed=8)]
    with pytest.raises(InvalidInput, match="of the control says that 900 tokens were drafted"):
        judge_control(control, spec)
    judge_control(
        spec, [replace(row, extra={"spec_decode": {"num_draft_tokens": 0}}) for row in control]
    )


def test_arms_of_models_with_two_names_are_named(control):
    fp8 = [replace(row, extra={"model": "m-fp8"}) for row in several(plain, seed=8)]
    report = judge_control(fp8, [replace(row, extra={"model": "m"}) for row in control])
    assert any("name the model 'm-fp8' and the control 'm'; if" in note for note in report.notes)
    same = judge_control(fp8, [replace(row, extra={"model": "m-fp8"}) for row in control])
    assert not any("model" in note for note in (*same.notes, *judge_control(fp8, control).notes))


def test_what_planting_says_is_found(monkeypatch):
    monkeypatch.undo()
    generator = np.random.default_rng(0)
    arms = [chains(generator, 100, 2, 30, 20) for _ in range(2)]
    rows = match(*within_limits(arms))
    kind = "tokens of other places"
    share = smallest_shares(rows, None, 1e-2, generator)[kind]
    assert 0.01 < share < 1
    number = 0
    for _ in range(10):
        labels = shuffled(rows.stratum, rows.is_speculative, 1, generator)[:, 0]
        wrong = planted(replace(rows, is_speculative=labels), kind, share, generator)
        test = PermutationTest(families_of(wrong), rows.stratum, labels, generator)
        number += test.p_value(1000) <= 1e-2
    assert number >= 7  # below that with probability 0.013 if it is nine in ten


def with_laws(generator, rows, hot=1.0, served=1.0):
    """Rows of laws that are new at each place, with their two most probable tokens served."""
    for number in range(rows):
        tokens, tops = [], []
        for place in range(12):
            seed = np.random.default_rng((number, place, *tokens[-1:]))
            ids = seed.choice(100_000, 4, replace=False)
            scores = seed.normal(0, 1.5, 4)
            law, shown = (np.exp(scores / heat) for heat in (hot, served))
            tokens.append(int(generator.choice(ids, p=law / law.sum())))
            logs = np.log(shown / shown.sum())
            order = np.argsort(-logs)[:2]
            tops.append([[int(ids[one]), float(logs[one])] for one in order])
        yield Transcript((number + 1,), tokens, finish_reason="length", top_logprobs=tops)


def test_served_log_probabilities_show_what_ids_alone_do_not():
    generator = np.random.default_rng(2)
    spec, other, control = ([*with_laws(generator, 150, hot)] for hot in (0.8, 1.0, 1.0))
    assert judge_control(other, control).finding is Finding.NO_BIAS_SEEN
    report = judge_control(spec, control)
    [comparison] = report.comparisons
    assert report.finding is Finding.BIASED and "served" in comparison.cause
    assert comparison.what.endswith("by token ids and the served log-probabilities")
    assert comparison.statistics["served surprisal"] > 4
    # they are used or not by a look at the arms, so there are two tests, and each has half
    assert comparison.p_value <= report.limit / 2 and "above 0.0005" in comparison.reasons[0]
    ids = [[replace(row, top_logprobs=None) for row in arm] for arm in (spec, control)]
    assert judge_control(*ids).finding is not Finding.BIASED


def test_served_log_probabilities_that_mean_nothing_or_something_else_are_not_used():
    generator = np.random.default_rng(3)
    spec, control = ([*with_laws(generator, 100)] for _ in range(2))
    scaled = [*with_laws(generator, 100, served=2.0)]  # as before a temperature of 1/2
    # speculation begins behind first tokens
    later = [
        replace(row, top_logprobs=[own.top_logprobs[0], *row.top_logprobs[1:]])
        for row, own in zip(scaled, spec, strict=True)
    ]
    few = [replace(row, top_logprobs=[row.top_logprobs[0], *[[]] * 11]) for row in spec]
    for rows, line in (
        (scaled, "differ by 0."),
        (later, "behind first tokens those after equal tokens differ by more than 0.25 at "),
        (spec[:3], "behind first tokens 1 places of the arms follow equal tokens, too few to"),
        (few, "the transcripts have none at 92% of the tokens, as of drafted ones"),
        ([*few[:-1], replace(few[-1], top_logprobs=None)], "1 rows have none"),
    ):
        report = judge_control(rows, control)
        [note] = [note for note in report.notes if "served" in note]
        assert note.startswith("served log-probabilities were not used: ") and line in note
        assert report.comparisons[0].what.endswith("by token ids")
    zero = [replace(row, top_logprobs=[[[1, 0.0]]] * 12) for row in spec]
    with pytest.raises(InvalidInput, match="probabilities of the transcripts are all 0, as an"):
        judge_control(zero, control)


def test_each_load_is_compared_with_the_control_under_it(control):
    hot = several(drawing(temperature=0.6), seed=4)
    fine = several(plain, seed=5)
    loads = [replace(row, concurrency=1) for row in fine]
    loads += [replace(row, concurrency=16) for row in hot]
    others = [replace(row, concurrency=4) for row in control]
    report = judge_control(loads, [*control, *others])
    assert report.notes == ("rows of the control were not compared, those of 4 at a time",)
    findings = {one.what[:32]: one.finding for one in report.comparisons}
    assert findings == {
        "the transcripts, 1 at a time, ag": Finding.NO_BIAS_SEEN,
        "the transcripts, 16 at a time, a": Finding.BIASED,
    }
    assert report.finding is Finding.BIASED and report.limit == 1e-3 / 2


def test_rows_that_repeat_each_other_in_both_arms_accuse_nobody():
    arms = []
    for seed in (1, 2):
        rows = write(seed=seed, rows=60)
        arms.append([row for row in rows for _ in range(6)])
    report = judge_control(*arms)
    assert report.finding is Finding.UNDECIDED
    assert "the rows of a prompt repeat each other" in report.comparisons[0].reasons[0]


def test_copies_of_rows_accuse_nobody_and_an_engine_that_repeats_itself_is_no_copy(control):
    def line_of(report):
        return report.comparisons[0].reasons[0]

    rows = several(plain, seed=2)
    some = [row for number, row in enumerate(rows) if number % 8 == 0]
    for arms in ([*rows, *some], control), (rows, [*control, *control]):
        report = judge_control(*arms)
        assert report.finding is Finding.UNDECIDED and report.comparisons[0].p_value < 1e-3
        assert "rows have the prompt and the output of another of their arm" in line_of(report)
        assert "copies, cached or partial answers or one seed" in line_of(report)
    single = several(plain, seed=2, copies=1, rows=60)
    report = judge_control(single * 2, several(plain, seed=1, copies=1, rows=60))
    assert report.finding is Finding.UNDECIDED and "copies, cached" in line_of(report)
    seeds = [replace(row, seed=number) for number, row in enumerate([*rows, *rows])]
    assert judge_control(seeds, control).finding is Finding.BIASED

    def likeliest(logits, ids):
        best = logits == logits.max(-1, keepdim=True).values
        return best.double() if ids.shape[1] > PROMPT else logits.softmax(-1)

    for law in (likeliest, drawing(temperature=0.1)):
        assert judge_control(several(law, seed=2), control).finding is Finding.BIASED


def test_answers_that_both_arms_repeat_are_no_copies():
    """Of answers of 9 tokens that the first two decide, as in a choice of a few sentences."""
    generator = np.random.default_rng(0)

    def choices():
        law = [0.5, 0.2, 0.1, 0.1, 0.05, 0.05]
        return [
            # the first two tokens tell answers apart, so the likeliest token is not always taken
            Transcript((prompt,), (one // 2, *(one,) * 8), finish_reason="length")
            for prompt in range(1, 21)
            for one in generator.choice(6, 20, p=law).tolist()
        ]

    found = [[*copies(match(choices(), choices()))] for _ in range(20)]
    assert found == [[]] * 20


ROWS = [
    Transcript((number,), (5, 6, 7), seed=number, finish_reason="length") for number in range(1, 4)
]
ENDED = [Transcript((number,), (5, 6, 9), finish_reason="stop") for number in range(1, 4)]
STOPPED = [Transcript((number,), (4, 6, 7), finish_reason="stop") for number in range(4, 6)]
LONG = Transcript((9,), (5,) * 9, finish_reason="length")


@pytest.mark.parametrize(
    ("spec", "control", "line"),
    [
        (ROWS, ROWS, "3 of the 3 sampled rows of the control are the same rows as the transcript"),
        (
            ROWS,
            [replace(row, output_token_ids=(1, 2)) for row in ROWS],
            "seed 1 is used in the transcripts and in the control",
        ),
        ([*ROWS, replace(ROWS[0], prompt_token_ids=(8,))], ENDED, "seed 1 is used in the transc"),
        # numbers of answers that run over all prompts, and not over those of a request
        (
            [replace(row, seed=7, sample=number) for number, row in enumerate(ROWS)],
            ENDED,
            "seed 7 is used in the transcripts",
        ),
        (
            [replace(row, seed=None) for row in ROWS],
            [replace(row, seed=None, temperature=0.5) for row in ROWS],
            "have the settings T=1 and T=0.5; allowed: the same in all",
        ),
        (
            [*ENDED, LONG],
            [LONG, *(replace(row, output_token_ids=(5, 6)) for row in ENDED)],
            "end with token 9, which the control never has although rows of it ended, too",
        ),
        (
            [*ENDED, *STOPPED, LONG],
            [LONG, *(replace(row, output_token_ids=(5, 6)) for row in ENDED), *STOPPED],
            "3 rows of the transcripts that ended before a limit end with token 9, which the contr",
        ),
        (
            [replace(row, extra={"model": name}) for row, name in zip(ENDED, "aab", strict=True)],
            STOPPED,
            "rows name 2 values of model, as 'a' and 'b'; allowed: rows of one in a file",
        ),
        (
            [*(replace(row, finish_reason="abort") for row in ENDED), LONG],
            [*STOPPED, LONG],
            "the finish reason is 'abort', as of 3 rows of the transcripts: they were given up",
        ),
        (ROWS, [replace(row, temperature=0.0) for row in ROWS], "no row at a temperature above 0"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(spec, control, line):
    with pytest.raises(InvalidInput) as error:
        judge_control(spec, control)
    assert line in str(error.value) and "\n" not in str(error.value)


def test_the_command_needs_no_target(control, tmp_path, capsys):
    names = {"spec": several(drawing(temperature=0.6), seed=3), "plain": control}
    names |= {"other": several(plain, seed=2), "few": several(plain, seed=7, copies=1, rows=2)}
    for name, rows in names.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(map(line_of, rows)))
    paths = {name: str(tmp_path / f"{name}.jsonl") for name in names}
    for name, code, verdict in (
        ("spec", 3, "biased: the engine with speculation differs from its control"),
        ("other", 0, "no difference seen"),
        ("few", 4, "undecided"),
    ):
        evidence = tmp_path / f"{name}.json"
        options = [paths[name], "--control", paths["plain"], "--evidence", str(evidence)]
        assert main(options) == code
        printed = capsys.readouterr().out
        assert printed.startswith(f"verdict: {verdict}\n") and "exact" not in printed
        found = read_sealed(evidence)
        assert found["verdict"] == verdict and set(found["files"]) == {"transcripts", "control"}
    for options, line in (
        ([], "there is nothing to judge the transcripts by; give --target"),
        (["--control", paths["plain"], "--draft", "x"], "--draft needs a --target"),
        (["--control", paths["plain"], "--markdown"], "--markdown needs a --target"),
        (["--control", paths["spec"]], "the control is the file of the transcripts"),
    ):
        assert main([paths["spec"], *options]) == 1
        printed = capsys.readouterr()
        assert line in printed.err and printed.err.count("\n") == 1 and not printed.out


def test_shuffles_stay_within_prompts():
    stratum = np.repeat([0, 1, 2], [2, 3, 5])
    labels = np.array([1, 0, 1, 0, 0, 1, 1, 1, 0, 0], dtype=bool)
    mixed = shuffled(stratum, labels, 200, np.random.default_rng(0))
    for first, last in pairwise([0, 2, 5, 10]):
        assert (mixed[first:last].sum(0) == labels[first:last].sum()).all()
    assert 60 < mixed[0].sum() < 140


def test_rows_that_hold_more_than_was_emitted_accuse_nobody(control):
    """Defect: a batch filled up with its end of sequence, or outputs with prompts, were biases."""
    filled = [replace(row, output_token_ids=(*row.output_token_ids, *[77] * 9)) for row in control]
    with pytest.raises(InvalidInput, match="there is nothing but token 77, here and in all"):
        judge_control(several(plain, seed=2), filled)
    echoed = [replace(row, output_token_ids=sum(row.written, ())) for row in control]
    with pytest.raises(InvalidInput, match="begin with their own prompts"):
        judge_control(echoed, several(plain, seed=2))


def test_who_wrote_the_arms_and_what_was_not_read_is_said(control):
    named = [
        replace(row, engine="vllm", engine_version="0.9", extra={"load": 16}) for row in control
    ]
    notes = judge_control(several(plain, seed=2), named).notes
    assert f"control: written by vllm 0.9 ({len(named)} rows)" in notes
    assert "keys of the rows that were not read: load" in notes
    trained = [replace(row, extra={"step": 3, "ignore_eos": False}) for row in control]
    notes = judge_control(several(plain, seed=2), trained).notes
    assert not any("were not read" in note for note in notes)  # defect: these had been read


def test_a_control_of_an_engine_in_a_mode_that_drafts_is_none(control):
    """Defect: OpenVINO's record says nothing of drafts, and its biased mode was its own control."""
    assisted = [replace(row, extra={"mode": "assisted"}) for row in control]
    with pytest.raises(InvalidInput, match="says mode assisted; allowed: plain"):
        judge_control(several(plain, seed=2), assisted)
    about = {"mode": "eagle", "dtype": "float32"}  # of an engine of one's own
    eagle = [replace(row, extra=about) for row in control]
    with pytest.raises(InvalidInput, match="says mode eagle; allowed: plain"):
        judge_control(several(plain, seed=2), eagle)
    trained = [replace(row, extra={"mode": "rollout"}) for row in control]
    judge_control(several(plain, seed=2), trained)
