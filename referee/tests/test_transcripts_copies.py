"""Copies of rows are no new evidence, and repetitions by chance are no copies."""

from dataclasses import replace

import pytest

from referee.audit import Finding, audit_transcripts
from referee.tests.toy_engine import drawing, target, write
from referee.transcripts import Transcript
from resispec.errors import InvalidInput


def moved(rows, by):
    """The rows as they stand further down in a file."""
    return [replace(row, place=f"rows.jsonl, line {n + by}") for n, row in enumerate(rows, 1)]


def test_rows_that_repeat_others_are_refused_and_not_counted_twice():
    rows = write(rows=20)
    line = r"^\d+ sampled rows have .* of another, or go on from it \(the first: rows.jsonl, "
    with pytest.raises(InvalidInput, match=line) as caught:
        audit_transcripts(rows + moved(rows, 20), target())
    assert "line 21 repeats rows.jsonl, line 1)" in str(caught.value)
    assert "\n" not in str(caught.value)
    control = write(seed=1)
    longest = max(control, key=lambda row: len(row.output_token_ids))
    with pytest.raises(InvalidInput, match="^1 sampled rows have"):
        audit_transcripts(write(), target(), control=control + moved([longest], 80))


def test_an_engine_that_repeats_itself_since_it_is_biased_is_called_biased():
    """Defect: rows of an engine that takes the likeliest token were refused as copies."""
    rows = [
        row for n in range(3) for row in moved(write(drawing(temperature=1e-4), rows=20), 20 * n)
    ]
    report = audit_transcripts(rows, target())
    assert report.finding is Finding.BIASED and report.cause
    kept = report.judgements[0].comparison.rows
    assert 20 <= kept < 30  # likely answers may come twice by chance
    line = (
        f"{60 - kept} sampled rows have the prompt and the output of another, or go on from it "
        "(the first: rows.jsonl, line 21 repeats rows.jsonl, line 1), "
    )
    [note] = [note for note in report.notes if note.startswith(line)]
    assert note.endswith("colder than the rows say; the first of each such answer counts")


def test_rows_that_chance_repeats_are_judged():
    """Short answers, likely ones and greedy ones, and those of the same request under other loads.

    Rows that have their seeds say themselves whether they share them.
    """
    short = [row for seed in range(40) for row in write(seed=seed, new=1, rows=30)]
    likely = [
        row
        for seed in range(3)
        for row in write(drawing(temperature=0.002), seed=seed, temperature=0.002)
    ]
    loads = [replace(row, concurrency=load) for load in (1, 16) for row in write()]
    greedy = write(drawing(temperature=1e-4), temperature=0)
    for rows in (short, likely, loads, greedy * 2):
        outputs = [(row.prompt_token_ids, row.output_token_ids) for row in rows]
        assert len(set(outputs)) < len(outputs)
        assert audit_transcripts(rows, target()).finding is Finding.NO_BIAS_SEEN
    twice = [replace(row, seed=n % 80) for n, row in enumerate(write() * 2)]
    assert audit_transcripts(twice, target()).finding is Finding.UNDECIDED


def test_short_likely_answers_are_the_same_in_two_runs_and_the_run_itself_is_no_control():
    """Without the target no law says how likely that is, and the arms are refused."""
    settings = {"temperature": 0.04}
    law = drawing(**settings)
    arms = [write(law, seed=seed, new=3, **settings) for seed in (1, 2)]
    equal = sum(row.written == other.written for row, other in zip(*arms, strict=True))
    assert equal > len(arms[0]) / 2
    report = audit_transcripts(arms[0], target(), control=arms[1])
    assert report.finding is not Finding.BIASED
    for control in (arms[0], [*arms[0][:70], *arms[1][70:]]):
        with pytest.raises(InvalidInput, match="are the same rows as the transcripts have"):
            audit_transcripts(arms[0], target(), control=control)


@pytest.mark.parametrize("kept", [0.5, 0.95])
def test_a_partial_row_beside_the_whole_one_is_a_copy(kept):
    """Defect: it counted once more, and an engine was acquitted, or accused, by as much."""
    rows = write(rows=30)
    partial = [
        replace(row, output_token_ids=row.output_token_ids[: max(1, int(kept * length))])
        for row in rows
        if (length := len(row.output_token_ids)) > 20
    ]
    with pytest.raises(InvalidInput, match="of another, or go on from it"):
        audit_transcripts(rows + moved(partial, 30), target())


def test_other_seeds_explain_no_copies():
    rows = [replace(row, seed=number) for number, row in enumerate(write(rows=20))]
    copies = [replace(row, seed=100 + number) for number, row in enumerate(moved(rows, 20))]
    with pytest.raises(InvalidInput, match="sampled rows have the prompt and the output"):
        audit_transcripts(rows + copies, target())
    with pytest.raises(InvalidInput, match="are the same rows as the transcripts have"):
        audit_transcripts(rows, target(), control=copies)
    again = [replace(row, place="control", extra={"run": 2}) for row in rows]
    assert audit_transcripts(rows, target(), control=again)  # one seed explains equal rows


def test_a_seed_that_asks_for_a_random_one_is_none():
    row = {"prompt_token_ids": (1,), "output_token_ids": (2,)}
    assert Transcript(**row, engine="llama.cpp", seed=4294967295).seed is None
    assert Transcript(**row, engine="vLLM", seed=-1).seed is None
    assert Transcript(**row, engine="sglang", seed=-1).seed == -1


def test_answers_at_temperature_0_to_one_prompt_count_once():
    """Defect: 25 equal answers were 25 times the evidence."""
    greedy = write(drawing(temperature=1e-4), temperature=0, rows=10, new=20)
    [once] = audit_transcripts(greedy, target()).judgements
    [often] = audit_transcripts(greedy * 25, target()).judgements
    assert often.smallest_bias == once.smallest_bias
    assert often.comparison.effective == once.comparison.effective < 300
    assert "repeat those of another row" in often.comparison.facts[1]
