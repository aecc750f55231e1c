"""Transcripts from servers: what is asked for, what is written, and what is said when something is wrong."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from toy_server import EOS, POSTED, VERSIONS, ToyServer, continuation

from experiments.transcripts import formats
from experiments.transcripts.server import Patience, Server
from resispec.audit.transcripts import read_transcripts
from resispec.engines import Answer, Settings, Unanswered, acceptance_record, write_transcripts
from resispec.errors import InvalidInput

PROMPTS = [(5, 6, 7 + index) for index in range(8)]
SETTINGS = Settings(temperature=0.7, top_p=0.9, top_k=5, min_p=0.01, max_new_tokens=6)
QUICK = Patience(tries=3, first_wait_s=0.01, timeout_s=5)
ENGINES = sorted(POSTED)


@pytest.fixture(params=ENGINES)
def toy(request):
    with ToyServer(request.param, has_seeds=True) as server:
        yield server


@pytest.fixture
def vllm():
    with ToyServer("vllm") as server:
        yield server


def connected(toy, **options):
    return formats.connect(toy.engine, Server(toy.url, QUICK, **options))


def write(toy, path: Path, prompts=PROMPTS, settings=SETTINGS, **options):
    return write_transcripts(connected(toy), prompts, settings, path, first_seed=100, **options)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_format_has_a_client():
    assert formats.available() == ENGINES


def test_rows_say_what_was_asked_and_emitted(toy, tmp_path):
    path = tmp_path / "new" / "rows.jsonl"
    rows = write(toy, path)
    assert read_transcripts(path) == rows
    for index, (row, line) in enumerate(zip(rows, lines(path), strict=True)):
        expected = continuation(list(PROMPTS[index]), 6, 100 + index)
        assert row.prompt_token_ids == PROMPTS[index]
        assert list(row.output_token_ids) == expected
        assert row.finish_reason == ("stop" if EOS in expected else "length")
        assert (row.seed, row.engine, row.engine_version) == (100 + index, toy.engine, VERSIONS[toy.engine])
        asked = {name: line[name] for name in ("temperature", "top_p", "top_k", "min_p")}
        assert asked == {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.01}
        assert line["repetition_penalty"] == 1 and line["presence_penalty"] == line["frequency_penalty"] == 0
        assert line["prompt_index"] == index
    assert {row.finish_reason for row in rows} == {"stop", "length"}  # both ends occur


LAW = {"temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
ASKED = {
    "vllm": LAW
    | {"model": "toy-model", "prompt": [5, 6, 7], "max_tokens": 6, "top_k": -1, "repetition_penalty": 1.0}
    | {"seed": 100, "n": 1, "stream": False, "return_token_ids": True},
    "llama_cpp": LAW
    | {"prompt": [5, 6, 7], "n_predict": 6, "top_k": 0, "repeat_penalty": 1.0, "repeat_last_n": 9}
    | {"seed": 100, "stream": False, "return_tokens": True, "ignore_eos": False, "logit_bias": []}
    | {"mirostat": 0, "dynatemp_range": 0.0}
    | {"samplers": ["penalties", "temperature", "top_k", "top_p", "min_p"]},
    "sglang": {
        "input_ids": [5, 6, 7],
        "stream": False,
        "sampling_params": LAW
        | {"max_new_tokens": 6, "top_k": -1, "repetition_penalty": 1.0, "n": 1, "sampling_seed": 100},
    },
}


def test_no_setting_is_left_to_the_server(toy, tmp_path):
    write(toy, tmp_path / "rows.jsonl", PROMPTS[:1], Settings(max_new_tokens=6))
    assert toy.posts == [ASKED[toy.engine]]


def test_sglang_has_no_seed_unless_it_is_deterministic(tmp_path):
    with ToyServer("sglang", has_seeds=False) as toy:
        rows = write(toy, tmp_path / "rows.jsonl")
        assert {row.seed for row in rows} == {None}
        assert "sampling_seed" not in toy.posts[0]["sampling_params"]
        assert write(toy, tmp_path / "rows.jsonl") == rows and len(toy.posts) == len(PROMPTS)


def test_an_older_sglang_tells_its_version_elsewhere(monkeypatch):
    with ToyServer("sglang") as toy:
        found = toy.about("/server_info")
        monkeypatch.setattr(toy, "about", {"/get_server_info": found}.get)
        assert connected(toy).version == VERSIONS["sglang"]
        monkeypatch.setattr(toy, "about", lambda _: None)
        assert connected(toy).version is None


RECORDS = {
    "vllm": {
        "engine": "vllm", "mean_acceptance_length": 1 + 10 / 43, "draft_acceptance_rate": 10 / 129,
        "acceptance_histogram": {"0": 39, "1": 1, "3": 3}, "num_accepted_draft_tokens": 10,
        "num_draft_tokens": 129, "num_spec_steps": 43, "num_spec_tokens": 3,
    },
    "sglang": {
        "engine": "sglang", "mean_acceptance_length": 1 + 63 / 43, "draft_acceptance_rate": 63 / 215,
        "acceptance_histogram": {"0": 11, "1": 14, "2": 11, "3": 4, "5": 3}, "num_accepted_draft_tokens": 63,
        "num_draft_tokens": 215, "num_spec_steps": 43,
    },
    "llama_cpp": {
        "engine": "llamacpp", "draft_acceptance_rate": 0.75, "num_accepted_draft_tokens": 30,
        "num_draft_tokens": 40,
    },
}  # fmt: skip


def test_acceptance_is_in_the_words_of_aiperf(toy, tmp_path):
    [row] = write(toy, tmp_path / "rows.jsonl", PROMPTS[:1])
    assert row.extra["spec_decode"] == RECORDS[toy.engine] | {"completion_tokens": len(row.output_token_ids)}


def test_steps_are_told_where_the_server_tells_them(vllm, tmp_path):
    def detailed(content):
        content["metrics"]["speculative_decoding"] |= {
            "per_step_accepted": [0, 3],
            "per_step_drafted": [3, 3],
        }

    vllm.alter = detailed
    [row] = write(vllm, tmp_path / "rows.jsonl", PROMPTS[:1])
    assert row.extra["spec_decode"]["per_step_accepted"] == [0, 3]


@pytest.mark.parametrize("metrics", [None, {}, {"acceptance_histogram": [1, "2"]}, {"num_draft_tokens": 9}])
def test_no_record_is_made_of_what_is_not_there(metrics, vllm, tmp_path):
    vllm.alter = lambda content: content.update(metrics={"speculative_decoding": metrics})
    [row] = write(vllm, tmp_path / "rows.jsonl", PROMPTS[:1])
    assert "spec_decode" not in row.extra


def test_a_record_that_contradicts_itself_is_none():
    assert acceptance_record("vllm", [1, 2], num_draft_tokens=1) is None
    assert acceptance_record("vllm", [0, 0], num_draft_tokens=0)["mean_acceptance_length"] == 1


def test_several_requests_are_under_way_at_a_time(toy, tmp_path):
    alone = write(toy, tmp_path / "alone.jsonl")
    toy.delay_s = 0.05
    assert write(toy, tmp_path / "together.jsonl", concurrency=4) == alone
    assert toy.most_under_way == 4
    assert sorted(line["prompt_index"] for line in lines(tmp_path / "together.jsonl")) == list(range(8))


@pytest.mark.parametrize("fault", ["500", "503", "429", "drop"])
def test_a_passing_failure_is_tried_again(fault, toy, tmp_path):
    toy.faults = {2: fault, 3: fault}
    write(toy, tmp_path / "rows.jsonl")
    assert len(toy.posts) == len(PROMPTS) + 2
    assert len(lines(tmp_path / "rows.jsonl")) == len(PROMPTS)


def test_each_wait_is_twice_the_last(vllm, monkeypatch):
    waits = []
    monkeypatch.setattr("experiments.transcripts.server.time.sleep", waits.append)
    server = Server(vllm.url, Patience(tries=4, first_wait_s=0.5))
    vllm.is_dead = True
    with pytest.raises(Unanswered, match="in 4 tries"):
        server.post("/v1/completions", {})
    assert [wait for wait in waits if wait] == [0.5, 1.0, 2.0]  # the toy server waits as well, 0 seconds


class Watching:
    """Answers when the rows of all earlier prompts can be read from the file."""

    name, version = "watching", None

    def __init__(self, path):
        self.path = path

    def check(self, settings):
        pass

    def answer(self, _prompt, _settings, seed):
        deadline = time.monotonic() + 5
        while len(self.path.read_text().splitlines()) < seed:
            assert time.monotonic() < deadline, "an answer was not written at once"
            time.sleep(0.001)
        return Answer((1,), "length", seed)


def test_a_row_is_on_disk_before_the_next_answer(tmp_path):
    path = tmp_path / "rows.jsonl"
    assert len(write_transcripts(Watching(path), PROMPTS, SETTINGS, path)) == 8


def test_a_server_that_dies_half_way_is_gone_on_with(toy, tmp_path):
    whole = write(toy, tmp_path / "whole.jsonl")
    path, before = tmp_path / "rows.jsonl", len(toy.posts)
    toy.dies_after = before + 5
    with pytest.raises(Unanswered, match=r"^prompt 5: http\S+ gives no answer at \S+ in 3 tries \("):
        write(toy, path)
    assert read_transcripts(path) == whole[:5]
    toy.is_dead, before = False, len(toy.posts)
    assert write(toy, path) == whole
    assert len(toy.posts) == before + 3
    assert path.read_text() == (tmp_path / "whole.jsonl").read_text()


def test_what_was_under_way_at_a_failure_is_written(vllm, tmp_path):
    vllm.delay_s, vllm.faults = 0.1, {1: "400"}
    with pytest.raises(InvalidInput, match=r"prompt \d: .*status 400.*so said the server"):
        write(vllm, tmp_path / "rows.jsonl", concurrency=3)
    assert len(lines(tmp_path / "rows.jsonl")) == 2
    assert len(vllm.posts) == 3  # the rest of the queue was given up


@pytest.mark.parametrize("length", [1, 10, 30, -1])
def test_a_half_written_line_is_repaired(length, vllm, tmp_path):
    path = tmp_path / "rows.jsonl"
    whole = write(vllm, path)
    written = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(written[:3]) + written[3][:length])
    before = len(vllm.posts)
    assert write(vllm, path) == whole
    assert len(vllm.posts) == before + 5
    assert path.read_bytes() == b"".join(written)


@pytest.mark.parametrize("content", ["my notes", "a,b\n1,2", '{"text": 1}\n', '{"prompt_token_ids": [1]}\n'])
def test_a_file_of_something_else_is_left_alone(content, vllm, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text(content)
    with pytest.raises(InvalidInput, match="notes.txt"):
        write(vllm, path)
    assert path.read_text() == content and not vllm.posts


def test_transcripts_of_somebody_else_are_refused(vllm, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt_token_ids": [1], "output_token_ids": [2]}\n')
    with pytest.raises(InvalidInput, match=r"line 1: prompt_index is None; allowed: .*give another file"):
        write(vllm, path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"settings": Settings(temperature=0.8, max_new_tokens=6)},
            "temperature is 0.7; it would be 0.8 now",
        ),
        ({"prompts": [(1, 2)]}, r"prompt_token_ids is \(5, 6, 7\); it would be \(1, 2\) now"),
    ],
)
def test_a_file_of_another_run_is_refused(changed, message, vllm, tmp_path):
    path = tmp_path / "rows.jsonl"
    write(vllm, path)
    before = path.read_text()
    with pytest.raises(InvalidInput, match=f"prompt 0: {message}"):
        write(vllm, path, **changed)
    assert path.read_text() == before


def test_another_seed_or_version_is_another_run(vllm, tmp_path, monkeypatch):
    path = tmp_path / "rows.jsonl"
    write(vllm, path)
    with pytest.raises(InvalidInput, match="seed is 100; it would be 7 now"):
        write_transcripts(connected(vllm), PROMPTS, SETTINGS, path, first_seed=7)
    monkeypatch.setitem(VERSIONS, "vllm", "0.33.0")
    with pytest.raises(InvalidInput, match=r"engine_version is '0\.32\.0'; it would be '0\.33\.0' now"):
        write(vllm, path)


def test_more_prompts_go_on_with_the_same_file(vllm, tmp_path):
    path = tmp_path / "rows.jsonl"
    write(vllm, path, PROMPTS[:3])
    assert len(write(vllm, path)) == 8 and len(vllm.posts) == 8
    assert len(write(vllm, path, PROMPTS[:2])) == 2 and len(vllm.posts) == 8


IDS = {"vllm": ("choices", 0, "token_ids"), "sglang": ("output_ids",), "llama_cpp": ("tokens",)}


@pytest.mark.parametrize("found", [None, [], "text", [1, 2.5], [-1], [True]])
def test_text_without_ids_is_refused_with_the_reason(found, toy, tmp_path):
    def strip(content):
        *path, last = IDS[toy.engine]
        for key in path:
            content = content[key]
        content[last] = found

    toy.alter = strip
    with pytest.raises(InvalidInput, match="prompt 0: the server returns no token ids .*encoding text again"):
        write(toy, tmp_path / "rows.jsonl")
    assert not (tmp_path / "rows.jsonl").read_text() and len(toy.posts) == 1


@pytest.mark.parametrize("fault", ["cut", "text"])
def test_an_answer_that_is_no_json_is_refused(fault, toy, tmp_path):
    toy.faults = {0: fault}
    with pytest.raises(InvalidInput, match="answers at /.* with no JSON object, but with "):
        write(toy, tmp_path / "rows.jsonl")


@pytest.mark.parametrize("spoken", ENGINES)
def test_another_format_is_refused(spoken, toy, tmp_path):
    if spoken == toy.engine:
        return
    engine = formats.connect(spoken, Server(toy.url, QUICK))
    with pytest.raises(InvalidInput, match=r"takes no requests at /\S+ \(status 404\), so it speaks another"):
        write_transcripts(engine, PROMPTS, Settings(), tmp_path / "rows.jsonl")


def test_a_refused_request_is_not_repeated(toy, tmp_path):
    toy.faults = {0: "400"}
    with pytest.raises(InvalidInput, match=r"refuses a request at .*status 400.*so said the server"):
        write(toy, tmp_path / "rows.jsonl")
    assert len(toy.posts) == 1


CHANGED = {
    "vllm": (
        lambda content: content["choices"][0].update(prompt_token_ids=[1, 5, 6, 7]),
        "read other tokens",
    ),
    "sglang": (
        lambda content: content["meta_info"].update(prompt_tokens=2),
        "read 2 tokens where the prompt",
    ),
    "llama_cpp": (lambda content: content.update(tokens_evaluated=4), "read 4 tokens where the prompt has 3"),
}


def test_a_prompt_that_the_server_changed_is_refused(toy, tmp_path):
    toy.alter, message = CHANGED[toy.engine]
    with pytest.raises(InvalidInput, match=message):
        write(toy, tmp_path / "rows.jsonl")


GIVEN_UP = {
    "vllm": lambda content: content["choices"][0].update(finish_reason="abort"),
    "sglang": lambda content: content["meta_info"].update(finish_reason={"type": "abort"}),
    "llama_cpp": lambda content: content.update(stop_type="none"),
}


def test_an_answer_that_the_server_gave_up_is_no_transcript(toy, tmp_path):
    toy.alter = GIVEN_UP[toy.engine]
    with pytest.raises(Unanswered, match="the server gave the request up"):
        write(toy, tmp_path / "rows.jsonl")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"generation_settings": {"temperature": 0.8}}, "applied temperature 0.8 where 0.7 was asked for"),
        ({"generation_settings": {"samplers": ["top_k"]}}, r"applied samplers \['top_k'\] where"),
        ({"generation_settings": {"mirostat": 2}}, "applied mirostat 2 where 0"),
        ({"generation_settings": {"grammar": "root ::= [a-z]"}}, "a grammar of its own"),
        ({"truncated": True}, "context ended within an answer"),
    ],
)
def test_llama_cpp_must_have_applied_what_was_asked(changed, message, tmp_path):
    with ToyServer("llama_cpp") as toy:
        toy.alter = lambda content: content.update(changed)
        with pytest.raises(InvalidInput, match=message):
            write(toy, tmp_path / "rows.jsonl")


@pytest.mark.parametrize(
    ("engine", "settings", "message"),
    [
        ("vllm", {"temperature": 0.005}, "vLLM would apply 0.01; allowed: 0, or from 0.01"),
        (
            "sglang",
            {"repetition_penalty": 1.1},
            "repetition_penalty is 1.1, and SGLang's counts emitted tokens",
        ),
        (
            "llama_cpp",
            {"presence_penalty": 0.5},
            "presence_penalty is 0.5, and llama.cpp's counts the prompt's",
        ),
        ("llama_cpp", {"frequency_penalty": 1.0}, "frequency_penalty is 1.0, .*allowed: 0$"),
    ],
)
def test_settings_that_mean_something_else_there_are_refused(engine, settings, message, tmp_path):
    with ToyServer(engine) as toy:
        with pytest.raises(InvalidInput, match=message):
            write(toy, tmp_path / "rows.jsonl", settings=Settings(**settings))
        assert not toy.posts and not (tmp_path / "rows.jsonl").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"top_p": 0}, "settings: top_p is 0"),
        ({"max_new_tokens": 0}, "settings: max_new_tokens is 0; allowed"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(InvalidInput, match=message):
        Settings(**settings)


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", "http://", ""])
def test_an_address_is_needed(url):
    with pytest.raises(InvalidInput, match="is no server; allowed: an address like http://localhost:8000"):
        Server(url)


def test_the_key_and_the_address_are_those_that_were_given(vllm, tmp_path):
    engine = formats.connect("vllm", Server(f"{vllm.url}/v1/", QUICK, key="secret"))
    write_transcripts(engine, PROMPTS[:1], Settings(), tmp_path / "rows.jsonl")
    assert vllm.keys == ["Bearer secret"]


def test_a_server_that_is_not_there_is_unanswered():
    with ToyServer("vllm") as toy:
        url = toy.url
    with pytest.raises(Unanswered, match=r"gives no answer at /v1/models in 3 tries \(.*refused"):
        formats.connect("vllm", Server(url, QUICK))


def test_an_unknown_format_is_refused():
    with pytest.raises(InvalidInput, match="unknown format 'tgi'; allowed: llama_cpp, sglang, vllm"):
        formats.connect("tgi", Server("http://localhost:1"))
