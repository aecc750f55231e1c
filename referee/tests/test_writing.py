"""Transcripts are written one by one, and what is written is not asked again."""

import threading
import time
from dataclasses import replace

import pytest

from referee.engines import Answer, Engine, write_transcripts
from referee.engines.writing import keys_of, rows_of
from referee.tests.toy_server import PROMPTS, SETTINGS, connected, lines, write
from resispec.errors import InvalidInput
from resispec.files import locked
from resispec.sampling import Sampling


def toy_engine(answer):
    """An engine whose answer is known by its seed, which is the prompt's number."""
    engine = Engine()
    engine.name, engine.version, engine.orders = "toy", None, ["transformers"]
    engine.answer = lambda _prompt, _settings, seed: answer(seed)
    return engine


def test_several_requests_are_under_way_at_a_time(vllm, tmp_path):
    alone = write(vllm, tmp_path / "alone.jsonl")
    vllm.gathering = threading.Barrier(4)  # nobody is answered before four have asked
    together = write(vllm, tmp_path / "together.jsonl", concurrency=[4])
    assert together == [replace(row, concurrency=4) for row in alone]
    assert sorted(line["prompt_index"] for line in lines(tmp_path / "together.jsonl")) == list(
        range(8)
    )


def test_every_prompt_is_asked_for_under_every_load_and_a_load_may_come_later(vllm, tmp_path):
    path, other = tmp_path / "rows.jsonl", tmp_path / "other.jsonl"
    alone, asked = write(vllm, path, concurrency=[1]), len(vllm.posts)
    both = write(vllm, path, concurrency=[1, 4])
    assert [row.concurrency for row in both] == [1] * 8 + [4] * 8 and len(vllm.posts) == asked + 8
    assert both[:8] == alone and [row.written for row in both[8:]] == [row.written for row in alone]
    write(vllm, other)  # as an engine in this process, whose rows do not say it
    for file, loads in ((other, [4]), (path, [])):
        with pytest.raises(
            InvalidInput, match=r"concurrency is \w+; it would be \w+ now; give another file"
        ):
            write(vllm, file, concurrency=loads)


def test_a_row_is_on_disk_before_the_next_answer(tmp_path):
    path = tmp_path / "rows.jsonl"

    def answer(seed):
        deadline = time.monotonic() + 60
        while len(path.read_text().splitlines()) < seed:
            assert time.monotonic() < deadline, "an answer was not written at once"
            time.sleep(0.001)
        return Answer((1,), "length", seed)

    assert len(write_transcripts(toy_engine(answer), PROMPTS, SETTINGS, path)) == 8


def test_an_answer_of_more_tokens_than_were_asked_for_is_not_written(tmp_path):
    """An engine of one's own may give the prompt back, too."""
    for extra, expected in (
        ((1,), "prompt 0: the answer has 7 tokens; allowed: up to 6, the max_new_tokens"),
        (PROMPTS[0], "prompt 0: the answer has 9 tokens, the prompt first; allowed: up to 6"),
    ):
        engine = toy_engine(lambda seed, extra=extra: Answer((*extra, *[1] * 6), "length", seed))
        with pytest.raises(InvalidInput, match=expected):
            write_transcripts(engine, PROMPTS, SETTINGS, tmp_path / "rows.jsonl")
    assert not (tmp_path / "rows.jsonl").read_text()


def test_requests_under_way_at_a_failure_are_written(tmp_path):
    """Prompt 1 is refused while prompts 0 and 2, answered a little later, are under way as well."""
    path, asked, gathering = tmp_path / "rows.jsonl", [], threading.Barrier(3)

    def answer(seed):
        asked.append(seed)
        if seed < 3:
            gathering.wait(timeout=60)
        if seed == 1:
            raise InvalidInput("it does not like this one")
        time.sleep(0.2)
        return Answer((1,), "length", seed)

    with pytest.raises(InvalidInput, match="prompt 1: it does not like this one"):
        write_transcripts(toy_engine(answer), PROMPTS, SETTINGS, path, concurrency=[3])
    assert {0, 2} <= {line["prompt_index"] for line in lines(path)}
    assert len(asked) < len(PROMPTS)  # the rest of the queue was given up


def test_a_half_written_line_is_repaired_and_more_prompts_go_on(vllm, tmp_path):
    path = tmp_path / "rows.jsonl"
    whole = write(vllm, path)
    written = path.read_bytes().splitlines(keepends=True)
    for length, missing in ((1, 5), (30, 5), (-1, 4)):  # the last one lacks its line break alone
        path.write_bytes(b"".join(written[:3]) + written[3][:length])
        before = len(vllm.posts)
        assert write(vllm, path) == whole and len(vllm.posts) == before + missing
        assert path.read_bytes() == b"".join(written)
    before = len(vllm.posts)
    assert write(vllm, path, PROMPTS[:2]) == whole[:2]
    assert len(write(vllm, path, [*PROMPTS, (1,)])) == 9 and len(vllm.posts) == before + 1


def test_the_last_line_of_another_file_is_not_cut_off(vllm, tmp_path):
    """Defect: a user's own rows lost the last one, where no line break ended it, or it was cut."""
    path = tmp_path / "mine.jsonl"
    own = b'{"prompt_token_ids":[1],"output_token_ids":[2]}'
    written = tmp_path / "written.jsonl"
    write(vllm, written)
    others = written.read_bytes()
    asked = len(vllm.posts)
    for content, settings, message in (
        (own + b"\n" + own, SETTINGS, "line 1: prompt_index is None"),
        (own, SETTINGS, "line 1: prompt_index is None"),
        (own + b"\n" + own[:-20], SETTINGS, "line 1: prompt_index is None"),
        (others[:-1], Sampling(temperature=0.8), "temperature is 0.7; it would be 0.8 now"),
        (others[:-20], Sampling(temperature=0.8), "temperature is 0.7; it would be 0.8 now"),
    ):
        path.write_bytes(content)
        with pytest.raises(InvalidInput, match=message):
            write(vllm, path, settings=settings)
        assert path.read_bytes() == content
    assert len(vllm.posts) == asked


def test_rows_are_looked_for_without_a_change_of_their_file(vllm, tmp_path):
    """Another process may be writing the line that is not whole."""
    path = tmp_path / "rows.jsonl"
    rows = write(vllm, path)
    path.write_bytes(path.read_bytes() + b'{"prompt_token_ids":[5')
    before = path.read_bytes()
    assert rows_of(path, keys_of(len(PROMPTS))) == rows
    assert rows_of(path, keys_of(len(PROMPTS) + 1)) is None
    assert rows_of(tmp_path / "none.jsonl", keys_of(1)) is None
    assert path.read_bytes() == before


def test_a_file_of_something_else_or_of_another_run_is_left_alone(vllm, tmp_path, monkeypatch):
    path = tmp_path / "notes.txt"

    def refused(message, **changed):
        before = path.read_text()
        with pytest.raises(InvalidInput, match=message):
            write_transcripts(connected(vllm), **(given | changed))
        assert path.read_text() == before

    given = {"prompts": PROMPTS, "settings": SETTINGS, "path": path, "first_seed": 100}
    for content, message in (
        ("a,b\n1,2", "notes.txt"),
        (
            '{"prompt_token_ids": [1], "output_token_ids": [2]}\n',
            "line 1: prompt_index is None; allowed: .*",
        ),
    ):
        path.write_text(content)
        refused(message)
    assert not vllm.posts
    path.unlink()
    write(vllm, path)
    refused("prompt 0: temperature is 0.7; it would be 0.8 now", settings=Sampling(temperature=0.8))
    refused(
        r"prompt 0: prompt_token_ids is \(5, 6, 7\); it would be \(1, 2\) now", prompts=[(1, 2)]
    )
    refused("seed is 100; it would be 7 now", first_seed=7)
    longer = replace(SETTINGS, max_new_tokens=99)
    refused(f"max_new_tokens is {SETTINGS.max_new_tokens}; it would be 99 now", settings=longer)
    monkeypatch.setattr(
        vllm, "about", lambda _: {"data": [{"id": "another-model"}], "version": "0.32.0"}
    )
    refused("model is 'toy-model'; it would be 'another-model' now")


def test_two_processes_do_not_write_to_one_file(vllm, tmp_path):
    with (
        locked(tmp_path / ".rows.jsonl.lock"),
        pytest.raises(TimeoutError, match="held by another process"),
    ):
        write(vllm, tmp_path / "rows.jsonl")
