"""Arms: a fault in a later turn, at one start or behind a long context is found, its arm named."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from referee.audit import Finding, audit_transcripts, measure, report_lines
from referee.conditions import between, condition_of, in_order
from referee.engines import Answer, write_transcripts
from referee.engines.chat import TURN_SEEDS, Chat
from referee.tests.test_writing import toy_engine
from referee.tests.toy_engine import (
    PROMPT,
    VOCABULARY,
    ToyEngine,
    drawing,
    plain,
    quantised,
    target,
    write,
)
from referee.transcripts import Condition, line_of, read_transcripts
from resispec.errors import InvalidInput
from resispec.sampling import Sampling

SETTINGS = Sampling(max_new_tokens=30)
_IDS = torch.randint(1, VOCABULARY, (200, PROMPT), generator=torch.Generator().manual_seed(5))
PROMPTS = [tuple(ids) for ids in _IDS.tolist()]
CUT = drawing(top_k=10)
RIGHT = ("no bias seen", ())


def found(report):
    """The verdict of every arm, and the arms from which it differs, by its name."""
    return {line.name: (str(line.finding), line.differs_from) for line in report.arms}


def in_arm(rows, **condition):
    return [replace(row, **condition) for row in rows]


# chats


def chat(turns):
    return Chat(turns, lambda index, turn: PROMPTS[index + turn - 1][:3])


def chats(path, engine, turns=3, number=70):
    return write_transcripts(engine, PROMPTS[:number], SETTINGS, path, chat=chat(turns))


@pytest.mark.slow
def test_a_leak_between_turns_is_found_in_later_turns_and_a_right_engine_is_acquitted(tmp_path):
    """The leaking engine goes on from the answer of another chat, as with rows of its cache."""
    answers = []

    def leaking(prompt):
        answers.append(prompt)
        if len(prompt) <= PROMPT:
            return prompt
        other = answers[-4] if len(answers) > 4 else prompt
        return (*other[: len(prompt) - 3], *prompt[-3:])

    right = audit_transcripts(chats(tmp_path / "right.jsonl", ToyEngine()), target())
    assert right.finding is Finding.NO_BIAS_SEEN
    assert found(right) == {"turn 1": RIGHT, "later turns": RIGHT}
    leak = audit_transcripts(chats(tmp_path / "leak.jsonl", ToyEngine(read=leaking)), target())
    assert leak.finding is Finding.BIASED
    assert found(leak)["turn 1"] == RIGHT and found(leak)["later turns"][0] == "biased"
    assert leak.headline.startswith("found only in: later turns; likely cause: ")
    lines = list(report_lines(leak))
    [place] = [place for place, line in enumerate(lines) if line.startswith("arm  ")]
    assert lines[place + 1].split()[:2] == ["turn", "1"]
    rows = read_transcripts(tmp_path / "leak.jsonl")
    count = sum(len(row.output_token_ids) for row in rows if row.turn > 1)
    assert lines[place + 2].split()[:3] == ["later", "turns", f"{count:,}"]


def counted(path, turns, number=5, load=2):
    """Chats with an engine whose answers are known by their seeds, and the seeds asked for."""
    asked = []

    def answer(seed):
        asked.append(seed)
        return Answer((1 + seed % 50, 3), "length", seed)

    rows = write_transcripts(
        toy_engine(answer), PROMPTS[:number], SETTINGS, path, 9, [load], chat=chat(turns)
    )
    return rows, asked


def test_every_turn_holds_the_conversation_before_it_and_has_its_own_seed(tmp_path):
    rows, asked = counted(tmp_path / "rows.jsonl", 3)
    assert [(row.extra["prompt_index"], row.turn) for row in rows] == [
        *product(range(5), (1, 2, 3))
    ]
    for first, *others in (rows[start : start + 3] for start in range(0, 15, 3)):
        index, last = first.extra["prompt_index"], first
        assert first.prompt_token_ids == PROMPTS[index]
        for row in others:
            said = PROMPTS[index + row.turn - 1][:3]
            assert row.prompt_token_ids == sum(last.written, ()) + said
            assert row.seed == 9 + index + (row.turn - 1) * TURN_SEEDS
            last = row
    assert len(set(asked)) == 15


def test_an_end_of_turn_is_not_said_twice():
    talk = Chat(2, lambda *_: (7, 8))
    [row] = in_arm(write(rows=1), turn=1, output_token_ids=(5, 7), finish_reason="stop")
    assert talk.prompt(0, row) == (*row.prompt_token_ids, 5, 7, 8)
    assert talk.prompt(0, replace(row, finish_reason="length"))[-4:] == (5, 7, 7, 8)


def test_a_stopped_chat_goes_on_from_its_rows_and_gets_further_turns(tmp_path):
    path = tmp_path / "rows.jsonl"
    whole, _ = counted(path, 3)
    written = sorted(path.read_text().splitlines(keepends=True))
    kept = [
        line
        for row, line in zip(read_transcripts(path), path.open(), strict=True)
        if row.turn == 1 or row.extra["prompt_index"] == 4
    ]
    path.write_text("".join(kept) + written[0][:40])
    rows, asked = counted(path, 3)
    assert rows == whole and len(asked) == 2 * 4
    more, asked = counted(path, 4)
    assert len(more) == 20 and len(asked) == 5
    assert [row for row in more if row.turn < 4] == whole
    path.write_text("".join(line_of(row) for row in rows if row.turn != 2))
    with pytest.raises(InvalidInput, match="turn 3 is there and the turn before it is not"):
        counted(path, 3)
    other = replace(rows[0], output_token_ids=(60,))
    path.write_text("".join(map(line_of, [other, *rows[1:]])))
    with pytest.raises(InvalidInput, match="prompt 0: prompt_token_ids is .* it would be"):
        counted(path, 3)
    with pytest.raises(InvalidInput, match="turn is 1; it would be None now"):
        write_transcripts(toy_engine(None), PROMPTS[:5], SETTINGS, path, 9, [2])


# starts, contexts, and several kinds at a time


def test_a_wrong_state_at_one_start_is_found_there_whichever_start_it_is():
    for wrong, others in ((2, (1, 3)), (1, (2, 3))):
        laws = {start: CUT if start == wrong else plain for start in (1, 2, 3)}
        rows = [row for start, law in laws.items() for row in in_arm(write(law), restart=start)]
        report = audit_transcripts(rows, target())
        verdicts = found(report)
        assert report.finding is Finding.BIASED and verdicts[f"start {wrong}"][0] == "biased"
        assert {verdicts[f"start {start}"][0] for start in others} == {"no bias seen"}
        assert "what the engine emits depends on how it has started" in report.summary
        assert report.headline.startswith(f"found only in: start {wrong}; ")
    assert verdicts["start 2"][1] == verdicts["start 3"][1] == ("start 1",)
    right = [row for start in (1, 2, 3) for row in in_arm(write(), restart=start)]
    report = audit_transcripts(right, target())
    assert report.finding is Finding.NO_BIAS_SEEN and set(found(report).values()) == {RIGHT}
    # each start against the target, and two of them against the first
    assert len(report.judgements) == 5
    assert "between its starts no difference was found" in report.summary


def test_the_cause_is_that_of_the_start_that_is_wrong_and_not_of_its_difference_from_another():
    """Defect: beside a start that was too cold a right one was too hot, which was the cause."""
    rows = in_arm(write(drawing(temperature=0.7)), restart=1) + in_arm(write(seed=1), restart=2)
    report = audit_transcripts(rows, target())
    assert report.finding is Finding.BIASED
    assert report.headline.startswith("found only in: start 1; likely cause: a temperature lower")


def test_an_engine_that_is_wrong_behind_a_long_context_is_found_there(tmp_path):
    def law(logits, ids):
        return CUT(logits, ids) if len(ids) > 2 * PROMPT else plain(logits, ids)

    rows, path = [], tmp_path / "rows.jsonl"
    for context, prompts in {
        0: PROMPTS[:60],
        30: [sum(PROMPTS[n : n + 5], ()) for n in range(60)],
    }.items():
        rows += write_transcripts(ToyEngine(law), prompts, SETTINGS, path, context=context)
    assert len(read_transcripts(path)) == len(rows) == 120
    report = audit_transcripts(rows, target())
    assert found(report)["prompts as they are"] == RIGHT
    assert found(report)["30 tokens of context"][0] == "biased"


def test_arms_of_several_kinds_are_compared_where_one_kind_differs():
    conditions = in_order([Condition(load, None, turn) for load in (1, 4) for turn in (1, 2)])
    pairs = [(kind.name, arm, base) for kind, arm, base in between(conditions, has_control=False)]
    one, later, four, both = conditions
    assert pairs == [
        ("concurrency", four, one),
        ("concurrency", both, later),
        ("turn", later, one),
        ("turn", both, four),
    ]
    names = {kind.name for kind, *_ in between(conditions, has_control=True)}
    assert names == {"concurrency"}
    [row] = in_arm(write(rows=1), turn=7, concurrency=4)
    assert condition_of(row) == both


def test_with_a_control_later_turns_are_compared_with_its_later_turns():
    """A drift of another arithmetic depends on the context, so it differs between turns."""
    engine = quantised(3)
    arms = [
        in_arm(write(engine=engine, seed=seed, rows=60), turn=1)
        + in_arm(write(engine=engine, seed=seed + 1, rows=60), turn=2)
        for seed in (0, 2)
    ]
    report = audit_transcripts(arms[0], target(), control=arms[1])
    whats = [one.comparison.what for one in report.judgements]
    assert whats[:2] == [f"transcripts, {turn} against the control" for turn in found(report)]
    assert report.finding is Finding.NO_BIAS_SEEN and not any("against turn 1" in w for w in whats)
    with pytest.raises(InvalidInput, match="the control has no rows of later turns with a context"):
        audit_transcripts(arms[0], target(), control=in_arm(write(seed=5)))


def test_no_statistic_mixes_starts_and_tokens_of_a_chat_count_in_order():
    rows = [
        replace(row, turn=turn, extra={"prompt_index": place})
        for turn in (3, 2)
        for place, row in enumerate(write(rows=3))
    ]
    arm = measure(rows, target())
    assert arm.order == [3, 0, 4, 1, 5, 2]
    assert list(arm.by_condition) == [Condition(turn=2)]
    starts = measure(in_arm(rows[:3], restart=2) + in_arm(rows[:3], restart=1), target())
    assert [len(part.transcripts) for part in starts.by_condition.values()] == [3, 3]
    assert [one.restart for one in starts.by_condition] == [1, 2]


def test_rows_of_one_chat_are_one_prompt_of_a_comparison():
    arms = [
        [
            replace(row, turn=2, extra={"prompt_index": place % 10})
            for place, row in enumerate(write(seed=seed))
        ]
        for seed in (0, 1)
    ]
    difference = audit_transcripts(arms[0], target(), control=arms[1]).judgements[0]
    assert "an arm has 10 prompts; at least 20 are needed" in difference.reasons[0]
