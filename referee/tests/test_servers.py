"""Servers: requests, what is written of answers, and one line for answers that are none."""

import asyncio
import json
import time
from base64 import b64encode

import pytest

from referee.engines import Engine, Unanswered, write_transcripts
from referee.engines.base import acceptance
from referee.servers.client import Server
from referee.servers.formats import FORMATS
from referee.tests.toy_server import (
    ENGINES,
    ESCAPES,
    HOSTILE,
    PART,
    PROMPTS,
    SETTINGS,
    VERSIONS,
    ToyServer,
    connected,
    continuation,
    logprobs,
    write,
)
from referee.transcripts import read_transcripts
from resispec.errors import InvalidInput
from resispec.sampling import Sampling

LAW = {
    "temperature": 1.0,
    "top_p": 1.0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
ASKED = {
    "vllm": LAW
    | {
        "model": "toy-model",
        "prompt": [5, 6, 7],
        "max_tokens": 6,
        "top_k": -1,
        "repetition_penalty": 1.0,
    }
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
        | {
            "max_new_tokens": 6,
            "top_k": -1,
            "repetition_penalty": 1.0,
            "n": 1,
            "sampling_seed": 100,
        },
    },
}
RECORDS = {
    "vllm": {
        "engine": "vllm", "mean_acceptance_length": 1 + 10 / 43, "draft_acceptance_rate": 10 / 129,
        "acceptance_histogram": {"0": 39, "1": 1, "3": 3}, "num_accepted_draft_tokens": 10,
        "num_draft_tokens": 129, "num_spec_steps": 43, "num_spec_tokens": 3,
    },
    "sglang": acceptance("sglang", [11, 14, 11, 4, 0, 3], 215)["spec_decode"],
    "llama_cpp": {
        "engine": "llamacpp", "draft_acceptance_rate": 0.75, "num_accepted_draft_tokens": 30,
        "num_draft_tokens": 40,
    },
}  # fmt: skip


@pytest.fixture(params=ENGINES)
def toy(request):
    """A server of each format."""
    with ToyServer(request.param, has_seeds=True) as server:
        yield server


def test_rows_say_what_was_asked_and_emitted(toy, tmp_path):
    path = tmp_path / "new" / "rows.jsonl"
    rows = write(toy, path)
    assert read_transcripts(path) == rows and {*FORMATS} == {*ENGINES, "openai"}
    for index, row in enumerate(rows):
        expected = continuation(list(PROMPTS[index]), 6, 100 + index)
        assert row.prompt_token_ids == PROMPTS[index] and list(row.output_token_ids) == expected
        assert row.finish_reason == ("stop" if 0 in expected else "length")
        assert (row.seed, row.engine, row.engine_version) == (
            100 + index,
            toy.engine,
            VERSIONS[toy.engine],
        )
        assert row.setting == "T=0.7, top_k=5, min_p=0.01" and row.extra["prompt_index"] == index
        completed = {"completion_tokens": len(expected)}
        assert row.extra["spec_decode"] == RECORDS[toy.engine] | completed  # in the words of AIPerf
    assert {row.finish_reason for row in rows} == {"stop", "length"}


def test_no_setting_is_left_to_the_server(toy, tmp_path):
    write(toy, tmp_path / "rows.jsonl", PROMPTS[:1], Sampling(max_new_tokens=6))
    assert toy.posts == [ASKED[toy.engine]]


def test_log_probabilities_are_asked_for_and_read_in_each_format(toy, tmp_path):
    engine, path = connected(toy), tmp_path / "rows.jsonl"
    engine.ask_logprobs(3)
    rows = write_transcripts(engine, PROMPTS, SETTINGS, path, first_seed=100)
    assert read_transcripts(path) == rows
    for row in rows:
        served = [logprobs(token, 3) for token in row.output_token_ids]
        is_told = [toy.engine != "llama_cpp" or token != PART for token in row.output_token_ids]
        assert [*row.top_logprobs] == [
            tuple(top) if told else () for (_, top), told in zip(served, is_told, strict=True)
        ]
        assert row.logprobs == (tuple(own for own, _ in served) if all(is_told) else None)
        assert row.extra["num_logprobs"] == 3
    assert any(PART in row.output_token_ids for row in rows)
    with pytest.raises(InvalidInput, match="num_logprobs is 3; it would be 0 now"):
        write(toy, path)


def test_engines_without_log_probabilities_are_refused(toy, tmp_path):
    engine = connected(toy)
    engine.ask_logprobs(2)
    keys = {
        "vllm": ("choices", 0, "logprobs"),
        "sglang": ("meta_info", "output_top_logprobs"),
        "llama_cpp": ("completion_probabilities",),
    }
    for served in (None, 3, [3, [4]], {"top_logprobs": [3, [4]], "token_logprobs": 5}):
        toy.changes = {keys[toy.engine]: served}
        with pytest.raises(InvalidInput, match="the server returns log-probabilities for 0 of"):
            write_transcripts(engine, PROMPTS[:1], SETTINGS, tmp_path / "rows.jsonl")

    class Other(Engine):
        name = "other"

    with pytest.raises(InvalidInput, match="other returns no log-probabilities that a transcript"):
        Other().ask_logprobs(2)


FILTERS = {"temperature": 0.7, "top_k": 5, "top_p": 0.9}


def test_sglang_has_no_seed_unless_it_is_deterministic_and_older_ones_tell_it_elsewhere(
    tmp_path, monkeypatch
):
    with ToyServer("sglang", has_seeds=False) as toy:
        rows = write(toy, tmp_path / "rows.jsonl")
        assert {row.seed for row in rows} == {None}
        assert "sampling_seed" not in toy.posts[0]["sampling_params"]
        assert write(toy, tmp_path / "rows.jsonl") == rows and len(toy.posts) == len(PROMPTS)
        monkeypatch.setattr(toy, "about", {"/get_server_info": toy.about("/server_info")}.get)
        assert connected(toy).version == VERSIONS["sglang"]
        monkeypatch.setattr(toy, "about", lambda _: None)
        assert connected(toy).version is None


def test_acceptance_is_told_where_the_server_tells_it(vllm, tmp_path):
    keys = "metrics", "speculative_decoding"
    vllm.changes = {(*keys, "per_step_accepted"): [0, 3]}
    [row] = write(vllm, tmp_path / "rows.jsonl", PROMPTS[:1])
    assert row.extra["spec_decode"]["per_step_accepted"] == [0, 3]
    for index, metrics in enumerate(
        (None, {"acceptance_histogram": [1, "2"]}, {"num_draft_tokens": 9})
    ):
        vllm.changes = {keys: metrics}
        [row] = write(vllm, tmp_path / f"{index}.jsonl", PROMPTS[:1])
        assert "spec_decode" not in row.extra
    assert acceptance("vllm", [1, 2], num_draft_tokens=1) == {}  # it contradicts itself
    assert acceptance("llamacpp", None, 40, num_accepted=10**400) == {}
    assert acceptance("vllm", [0, 0], 0)["spec_decode"]["mean_acceptance_length"] == 1


@pytest.mark.parametrize("spoken", ["openai", "vllm"])
@pytest.mark.parametrize(
    ("owner", "software", "version", "name"),
    [
        ("mine", "uvicorn", "0.1", "mine"),
        ("vllm", "uvicorn", "0.32.0", "vllm"),
        (None, "mine/0.3 (linux)", None, "mine"),
        (None, None, None, "toy"),
    ],
)
def test_a_server_is_named_as_it_names_itself(spoken, owner, software, version, name, monkeypatch):
    with ToyServer("vllm") as toy:
        toy.owner, toy.software = owner, software
        about = toy.about
        versions = {"/version": {"version": version} if version else None}
        monkeypatch.setattr(toy, "about", lambda path: versions.get(path, about(path)))
        engine = connected(toy, spoken)
        assert (engine.name, engine.version) == (name, version)
        for settings, message in (
            (Sampling(temperature=0.005), "vLLM would apply 0.01"),
            (Sampling(**FILTERS, filter_order="llama.cpp"), "filter_order is llama.cpp"),
        ):
            if name == "vllm":
                with pytest.raises(InvalidInput, match=message):
                    engine.check(settings)
            elif spoken == "openai":
                engine.check(settings)


def test_a_server_without_a_name_is_openai_and_a_path_it_lacks_is_no_error(vllm, tmp_path):
    vllm.software = "\x1b"  # nothing that is printed
    engine = connected(vllm, "openai")
    assert engine.name == "openai"
    with ToyServer("vllm") as toy:
        toy.gets = {"/version": 405}
        assert connected(toy, "openai").version is None
        [row] = write_transcripts(engine, PROMPTS[:1], Sampling(), tmp_path / "rows.jsonl")
        assert row.engine == "openai" and row.extra["spec_decode"]["engine"] == "openai"


def test_settings_that_mean_something_else_there_are_refused(tmp_path):
    for name, settings, message in (
        (
            "vllm",
            FILTERS | {"filter_order": "llama.cpp"},
            "filter_order is llama.cpp, which is another law",
        ),
        (
            "sglang",
            FILTERS | {"filter_order": "vllm"},
            "filter_order is vllm, which is another law there",
        ),
        (
            "llama_cpp",
            FILTERS | {"filter_order": "sglang"},
            "filter_order is sglang, which is another law",
        ),
        ("sglang", FILTERS | {"min_p": 0.1, "filter_order": "sglang"}, "allowed: two of them"),
    ):
        with ToyServer(name) as toy, pytest.raises(InvalidInput, match=message):
            write(toy, tmp_path / "rows.jsonl", settings=Sampling(**settings))
        assert not toy.posts and not (tmp_path / "rows.jsonl").exists()


def test_a_passing_failure_is_tried_again_after_longer_and_longer_waits(
    vllm, tmp_path, monkeypatch
):
    vllm.faults = {2: "500", 3: "429", 5: "drop"}
    rows = write(vllm, tmp_path / "rows.jsonl")
    assert len(vllm.posts) == len(PROMPTS) + 3 and len(rows) == len(PROMPTS)
    waits, vllm.faults = [], dict.fromkeys(range(99), "drop")

    async def sleep(seconds):
        waits.append(seconds)

    monkeypatch.setattr("referee.servers.client.sleep", sleep)
    with pytest.raises(Unanswered, match="in 4 tries"):
        Server(vllm.url, tries=4).post("/v1/completions", {})
    assert waits == [0.5, 1.0, 2.0]


def test_a_server_answers_where_an_event_loop_runs(vllm):
    """A notebook runs one."""

    async def asked():
        return Server(vllm.url).get("/version")

    assert asyncio.run(asked()) == {"version": VERSIONS["vllm"]}


@pytest.mark.parametrize("fault", [*HOSTILE, "500"])
def test_a_request_has_an_end_whatever_the_server_does(vllm, fault, monkeypatch):
    """All tries share a limit of time, answers have one of bytes; a status alone is tried again."""
    monkeypatch.setattr("referee.servers.client.MOST_BYTES", 2**17)
    message = {
        "flood": "answers at /v1/completions with more than 0.12 MiB",
        "packed": "answers at /v1/completions in 'gzip'; it was asked",
        "500": "within 0.5 s .status 500",
    }.get(fault, "gives no whole answer at /v1/completions within 0.5 s .it is silent, or slow")
    vllm.faults, started = dict.fromkeys(range(9), fault), time.monotonic()
    with pytest.raises(InvalidInput, match=message):
        Server(vllm.url, timeout_s=0.5, first_wait_s=0.2, tries=9).post(
            "/v1/completions", {"prompt": [1]}
        )
    assert time.monotonic() - started < 5 and len(vllm.posts) == (2 if fault == "500" else 1)


def test_nothing_that_a_terminal_obeys_is_written_or_said(vllm, tmp_path, monkeypatch):
    monkeypatch.setitem(VERSIONS, "vllm", f"9{ESCAPES}.1" + 200 * "0")
    vllm.changes = {("choices", 0, "finish_reason"): f"end{ESCAPES}"}
    path = tmp_path / "rows.jsonl"
    [row] = write(vllm, path, PROMPTS[:1])
    assert row.finish_reason == "end[2J]0;mine5m" and row.engine_version.startswith(
        "9[2J]0;mine5m.10"
    )
    assert len(row.engine_version) == 100
    assert write(vllm, path, PROMPTS[:1]) == [row] and len(vllm.posts) == 1  # it is the same engine
    path.write_text(json.dumps(json.loads(path.read_text()) | {"engine": f"x{ESCAPES}"}))
    assert read_transcripts(path)[0].engine == "x[2J]0;mine5m"
    vllm.faults = {1: "400"}
    with pytest.raises(InvalidInput, match="so said the server") as found:
        write(vllm, tmp_path / "others.jsonl", PROMPTS[:1])
    assert str(found.value).isprintable()


UNFIT = [
    ("vllm", ("choices", 0, "prompt_token_ids"), [1, 5, 6], "read other tokens"),
    ("vllm", ("usage", "prompt_tokens"), 4, "read 4 tokens where the prompt has 3"),
    ("vllm", ("usage", "completion_tokens"), 9, "counts 9 emitted tokens and returns the ids of "),
    ("vllm", ("choices", 0, "finish_reason"), "abort", "gave the request up"),
    ("sglang", ("meta_info", "prompt_tokens"), 2, "read 2 tokens where the prompt h"),
    ("sglang", ("meta_info", "finish_reason"), {"type": "abort"}, "gave the request up"),
    ("sglang", ("meta_info", "completion_tokens"), 9, "counts 9 emitted tokens and returns the"),
    ("llama_cpp", ("tokens_evaluated",), 4, "read 4 tokens where the prompt has 3"),
    ("llama_cpp", ("stop_type",), "none", "gave the request up"),
    ("llama_cpp", ("tokens_predicted",), 7, "counts 7 emitted tokens and returns the ids of 6"),
    ("llama_cpp", ("generation_settings", "temperature"), 0.8, "applied temperature 0.8"),
    ("llama_cpp", ("generation_settings", "temperature"), 10**400, "applied temperature inf"),
    ("llama_cpp", ("generation_settings", "samplers"), ["top_k"], "applied samplers "),
    ("llama_cpp", ("generation_settings", "grammar"), "root ::= [a-z]", "a grammar of"),
    ("llama_cpp", ("truncated",), True, "context ended within an answer"),
]
"""Formats, values of an answer by their keys, and words about them."""


def test_answers_that_are_no_transcript_are_refused(toy, tmp_path):
    path = tmp_path / "rows.jsonl"

    def refused(error, message):
        with pytest.raises(error, match=message):
            write(toy, path)
        assert not path.read_text()

    toy.faults = {0: "400", 1: "cut"}
    refused(InvalidInput, r"refuses a request at .*status 400.*so said the server")
    refused(InvalidInput, "answers at /.* with no JSON object, but with ")
    assert len(toy.posts) == 2  # none is repeated
    for tokens in (None, [], "text", [1, 2.5], [-1], [True]):
        toy.changes = {FORMATS[toy.engine].tokens: tokens}
        refused(InvalidInput, "prompt 0: the server returns no token ids .*encoding text again")
    for keys, value, message in (case for engine, *case in UNFIT if engine == toy.engine):
        toy.changes = {keys: value}
        refused(Unanswered if "gave" in message else InvalidInput, message)
    for spoken in set(ENGINES) - {toy.engine}:
        with pytest.raises(InvalidInput, match=r"refuses a request at /\S+ \(status 404\)"):
            write_transcripts(connected(toy, spoken), PROMPTS, Sampling(), path)


def test_a_servers_own_counts_may_lack_the_end_or_be_absent(toy, tmp_path):
    """Servers may count the end of sequence or not, and llama.cpp counts drafts behind it.

    Servers that count nothing say 0.
    """
    emitted = [continuation(list(prompt), 6, 100 + n) for n, prompt in enumerate(PROMPTS)]
    ended = next(n for n, tokens in enumerate(emitted) if 0 in tokens)
    number, keys = len(emitted[ended]), FORMATS[toy.engine].num_emitted

    def rows(value):
        toy.changes = {keys: value}
        name = f"{value}.jsonl"
        options = {"first_seed": 100 + ended}
        prompts = PROMPTS[ended : ended + 1]
        return write_transcripts(connected(toy), prompts, SETTINGS, tmp_path / name, **options)

    for value in (number - 1, number, number + 1, 0, None, "9"):
        assert len(rows(value)) == 1
    if toy.engine == "llama_cpp":
        assert len(rows(number + 3)) == 1
    else:
        with pytest.raises(InvalidInput, match="counts .* emitted tokens and returns the ids of"):
            rows(number + 2)


def test_a_request_without_a_seed_is_not_drawn_again_once_it_was_begun(tmp_path):
    """Long answers fail more often, so the ones that are kept would be too short."""
    with ToyServer("sglang", has_seeds=False) as toy:
        toy.faults = {1: "503", 2: "429"}
        assert len(write(toy, tmp_path / "rows.jsonl")) == len(PROMPTS)
        for number, fault in enumerate(("504", "500", "drop")):
            asked = len(toy.posts)
            toy.faults = {asked: fault}
            with pytest.raises(InvalidInput, match="another try would draw another answer"):
                write(toy, tmp_path / f"{number}.jsonl")
            assert len(toy.posts) == asked + 1
    with ToyServer("sglang", has_seeds=True) as toy:
        toy.faults = {1: "504", 3: "drop"}
        assert len(write(toy, tmp_path / "seeds.jsonl")) == len(PROMPTS)


def test_a_server_of_openais_format_uses_seeds_only_if_it_is_known_to(tmp_path):
    """Defect: an unknown server's rows had seeds, and what it broke off was drawn again."""
    with ToyServer("vllm") as toy:
        toy.owner = "vllm"
        assert connected(toy, "openai").has_seeds
        toy.owner = "mine"
        [row] = write_transcripts(
            connected(toy, "openai"), PROMPTS[:1], SETTINGS, tmp_path / "rows.jsonl"
        )
        assert row.seed is None and "seed" in toy.posts[-1]
        toy.faults = {1: "504"}
        with pytest.raises(InvalidInput, match="another try would draw another answer"):
            write_transcripts(
                connected(toy, "openai"), PROMPTS[:1], SETTINGS, tmp_path / "others.jsonl"
            )


@pytest.mark.parametrize("has_seeds", [False, True])
def test_a_slow_or_aborted_answer_without_a_seed_is_not_asked_for_again_later(has_seeds, tmp_path):
    """Defect: the same command drew it anew, until one was short enough to come in time."""

    def problem(toy, name):
        server = Server(toy.url, tries=3, first_wait_s=0.01, timeout_s=0.5)
        with pytest.raises(InvalidInput) as caught:
            write_transcripts(FORMATS["sglang"](server), PROMPTS, SETTINGS, tmp_path / name)
        assert isinstance(caught.value, Unanswered) is has_seeds
        line = "another try would draw another answer"
        assert (line in str(caught.value)) is not has_seeds and "\n" not in str(caught.value)
        return str(caught.value)

    with ToyServer("sglang", has_seeds=has_seeds) as toy:
        toy.faults = {0: "503", 1: "silent"}
        assert "gives no whole answer at /generate within 0.5 s" in problem(toy, "slow.jsonl")
        toy.changes = {("meta_info", "finish_reason"): {"type": "abort"}}
        assert "gave the request up (finish reason 'abort')" in problem(toy, "aborted.jsonl")
        toy.changes = {("meta_info", "finish_reason"): None}
        assert "gave the request up (finish reason None)" in problem(toy, "none.jsonl")


def test_a_request_that_was_not_begun_in_time_can_be_asked_for_again(tmp_path):
    with ToyServer("sglang", has_seeds=False) as toy:
        toy.faults = dict.fromkeys(range(9), "503")
        engine = FORMATS["sglang"](Server(toy.url, first_wait_s=5, timeout_s=0.5))
        with pytest.raises(Unanswered, match="within 0.5 s .status 503"):
            write_transcripts(engine, PROMPTS, SETTINGS, tmp_path / "rows.jsonl")


@pytest.mark.parametrize("spoken", ["openai", "vllm"])
def test_one_of_several_models_is_asked_by_its_name_alone(vllm, spoken):
    make, server = FORMATS[spoken], Server(vllm.url)
    assert make(server, "toy-model").model == make(server).model == "toy-model"
    vllm.models = ["base", f"my-lora{ESCAPES}"]
    with pytest.raises(InvalidInput, match="several models; name one with --model: base, my-lora"):
        make(server)
    with pytest.raises(InvalidInput, match="serves no model 'toy-model'; allowed: base, my-lora"):
        make(server, "toy-model")
    assert make(server, "base").model == "base"
    vllm.models = []
    assert make(server).model is None and make(server, "hidden").model == "hidden"


def test_addresses_and_keys(vllm, tmp_path, monkeypatch):
    for url in (
        "localhost:8000",
        "ftp://x",
        "http://",
        "http://localhost:99999",
        "http://localhost:0",
        "",
    ):
        with pytest.raises(
            InvalidInput, match="is no server; allowed: an address like http://localhost:8"
        ):
            Server(url)
    engine = FORMATS["vllm"](Server(f"{vllm.url}/v1/", key="secret"))
    write_transcripts(engine, PROMPTS[:1], Sampling(), tmp_path / "rows.jsonl")
    assert vllm.keys == ["Bearer secret"]
    monkeypatch.setenv("ALL_PROXY", "socks4://a.org:1")
    with pytest.raises(InvalidInput, match="the proxy that the environment names cannot be used"):
        Server("http://b.org")


def test_a_key_is_sent_where_nobody_else_reads_it():
    for url in ("https://a.org", "http://localhost:1", "http://127.0.0.9", "http://[::1]:8000/v1"):
        Server(url, key="secret")
    Server("http://a.org", key="secret", plain_key=True)
    for url, key, message in (
        (
            "http://a.org",
            "secret",
            "without encryption; allowed: https, an address of this machine, or --pl",
        ),
        ("http://localhost.a.org", "secret", "without encryption"),
        ("http://10.0.0.1", "secret", "without encryption"),
        ("https://a.org", "sec\nret", "key holds a character that no request can carry"),
        ("https://a.org", "s\u00e9cret", "key holds a character that no request can carry"),
    ):
        with pytest.raises(InvalidInput, match=message) as found:
            Server(url, key=key)
        assert key not in str(found.value)


def test_a_password_in_an_address_is_sent_and_never_shown(vllm, tmp_path, monkeypatch):
    path, address = tmp_path / "rows.jsonl", vllm.url.replace("://", "://me:pass%40word@")
    engine = FORMATS["vllm"](Server(address))
    write_transcripts(engine, PROMPTS[:1], Sampling(), path)
    assert vllm.keys == ["Basic " + b64encode(b"me:pass@word").decode()]
    assert "pass" not in path.read_text() and engine.server.url == vllm.url
    vllm.faults = {1: "400"}
    with pytest.raises(InvalidInput, match="refuses a request") as found:
        engine.server.post("/v1/completions", {})
    messages = [str(found.value)]
    Server("http://me:password@a.org", plain_key=True)
    for url, key, message in (
        (
            "http://me:password@a.org/v1",
            None,
            "the password for http://a.org/v1 would be sent without encry",
        ),
        (
            "https://me:password@a.org",
            "secret",
            "holds a name or password, beside its key; allowed: one",
        ),
        ("http://me:pass/word@a.org", None, "'http://...@a.org' is no server"),
        ("ftp://me:p@ssword@a.org", None, "'ftp://...@a.org' is no server"),
        ("me:password@a.org:1", None, "'...@a.org:1' is no server"),
        ("http://me:password@a.org:99999", None, "'http://...@a.org:99999' is no server"),
    ):
        with pytest.raises(InvalidInput, match=message) as found:
            Server(url, key=key)
        messages.append(str(found.value))
    monkeypatch.setenv("ALL_PROXY", "http://me:pass/word@b.org")
    with pytest.raises(InvalidInput, match="the proxy that the environment names") as found:
        Server("http://b.org")
    assert not any(
        part in text for text in [*messages, str(found.value)] for part in ("pass%", "pass/", "me:")
    )
