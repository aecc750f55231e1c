"""What is said when a server gives no answer, or one that is no transcript."""

from __future__ import annotations

import pytest
from toy_clients import ENGINES, PROMPTS, QUICK, every_toy, lines, vllm_toy, write
from toy_server import ToyServer

from experiments.transcripts import formats
from experiments.transcripts.server import Patience, Server
from resispec.engines import Settings, Unanswered, write_transcripts
from resispec.errors import InvalidInput

toy = pytest.fixture(params=ENGINES)(every_toy)
vllm = pytest.fixture(vllm_toy)


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
    assert waits == [0.5, 1.0, 2.0]


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
