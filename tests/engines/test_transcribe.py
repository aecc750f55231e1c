"""What servers are asked, and what is written of their answers."""

from __future__ import annotations

import pytest
from toy_clients import ENGINES, PROMPTS, connected, every_toy, lines, vllm_toy, write
from toy_server import EOS, VERSIONS, ToyServer, continuation

from experiments.transcripts import formats
from experiments.transcripts.server import Server
from resispec.engines import Settings, acceptance_record
from resispec.errors import InvalidInput
from resispec.transcripts import read_transcripts

toy = pytest.fixture(params=ENGINES)(every_toy)
vllm = pytest.fixture(vllm_toy)


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


def test_an_unknown_format_is_refused():
    with pytest.raises(InvalidInput, match="unknown format 'tgi'; allowed: llama_cpp, sglang, vllm"):
        formats.connect("tgi", Server("http://localhost:1"))
