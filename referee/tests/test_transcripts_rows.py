"""Files of transcripts: what is read and written, and one line for all that is wrong with one."""

import json

import pytest
import torch

from referee.transcripts import Transcript, read_transcripts, setting_meant
from resispec.errors import InvalidInput

ROW = {"prompt_token_ids": [5, 0], "output_token_ids": [7, 7, 1]}


def written(tmp_path, *rows):
    path = tmp_path / "rows.jsonl"
    path.write_text(
        "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    )
    return path


def test_what_a_row_does_not_say_is_off(tmp_path):
    [found] = read_transcripts(
        written(tmp_path, ROW | {"top_k": -1, "top_p": None, "topk": None, "took_s": 1})
    )
    assert found == Transcript((5, 0), (7, 7, 1), extra={"topk": None, "took_s": 1})
    assert found.setting == "T=1" and found.written == ((5, 0), (7, 7, 1))
    assert Transcript([1], [2]) == Transcript((1,), (2,))
    assert Transcript((1,), (2,), temperature=1).setting == Transcript((1,), (2,), top_p=1).setting


def test_settings_within_another_key_can_repeat_those_of_the_row(tmp_path):
    row = ROW | {"temperature": 0.6, "presence_penalty": -0.5}
    told = {
        "temperature": 0.6000000238418579,  # as float32
        "top_k": -1,
        "top_p": None,
        "min_p": 0,
        "presence_penalty": -0.5,
        "draft_temperature": 2,
    }
    [found] = read_transcripts(written(tmp_path, row | {"sampling_params": told}))
    assert found.temperature == 0.6 and found.extra == {"sampling_params": told}


LOGGED = [
    # vLLM's SamplingParams
    {
        "temperature": 1.0, "top_k": -1, "min_tokens": 0, "logit_bias": None, "bad_words": [],
        "ignore_eos": True, "allowed_token_ids": None, "thinking_token_budget": None,
        "structured_outputs": {"json": None, "disable_fallback": False, "_backend": None},
    },
    # SGLang's sampling_params
    {"min_new_tokens": 0, "json_schema": None, "regex": None, "ebnf": None, "logit_bias": {}},
    # llama.cpp's generation_settings
    {
        "dynatemp_range": 0.0, "top_n_sigma": -1.0, "xtc_probability": 0.0, "xtc_threshold": 0.1,
        "typical_p": 1.0, "dry_multiplier": 0.0, "dry_base": 1.75, "mirostat": 0,
        "mirostat_tau": 5.0, "grammar": "", "grammar_triggers": [], "ignore_eos": False,
        "logit_bias": [], "repeat_penalty": 1.0, "dry_sequence_breakers": [":"],
    },
    # transformers' generation_config
    {
        "min_length": 0, "typical_p": 1.0, "epsilon_cutoff": 0.0, "no_repeat_ngram_size": 0,
        "encoder_repetition_penalty": 1.0, "num_beams": 1, "suppress_tokens": None,
        "forced_eos_token_id": None, "guidance_scale": None, "use_cache": True,
    },
    {"response_format": {"type": "text"}, "tool_choice": "auto", "watermark": False},
]  # fmt: skip
"""Settings of requests, as engines log them, all off."""
ON = {
    "min_tokens": 16, "logit_bias": {"5": -1.5}, "bad_words": ["a"], "allowed_token_ids": [1],
    "structured_outputs": {"json": {"type": "object"}}, "grammar": "root ::= [a-z]",
    "typical_p": 0.9, "no_repeat_ngram_size": 3, "xtc_probability": 0.5, "dry_multiplier": 0.8,
    "mirostat": 2, "minTokens": 1, "top_n_sigma": 1.0, "thinking_token_budget": 0,
    "response_format": {"type": "json_object"}, "num_beams": 4, "regex": "[0-9]*",
    "tool_choice": "required", "watermark": True, "lora_path": "adapter",
    "best_of": 5, "do_sample": False, "truncate_prompt_tokens": 2, "samplers": "kt",
    "sampling_params": "SamplingParams(n=1, temperature=0.7, top_p=0.9)",
}  # fmt: skip


def test_settings_that_no_transcript_can_declare_are_refused_unless_they_are_off(tmp_path):
    rows = [ROW | {"engine": "vllm", "sampling_params": logged} for logged in LOGGED]
    assert len(read_transcripts(written(tmp_path, *rows))) == len(rows)
    for name, value in ON.items():
        for extra in ({name: value}, {"request": {"sampling_params": {name: value}}}):
            path = written(tmp_path, ROW, ROW | {"engine": "vllm"} | extra)
            with pytest.raises(InvalidInput, match="another law that no transcript can") as caught:
                read_transcripts(path)
            assert str(caught.value).startswith(f"{path}, line 2: ") and name in str(caught.value)
    for engine in ("llama.cpp", "llama-server"):  # whose ends of sequence it rules out
        row = ROW | {"engine": engine, "generation_settings": {"ignore_eos": True}}
        with pytest.raises(InvalidInput, match="generation_settings.ignore_eos is True, which"):
            read_transcripts(written(tmp_path, row))


def test_filters_are_in_the_order_of_the_engine_unless_a_row_says_another(tmp_path):
    row = ROW | {"engine": "llama.cpp, assisted"}
    rows = read_transcripts(written(tmp_path, row, row | {"filter_order": "vllm"}))
    assert [found.filter_order for found in rows] == ["llama.cpp", "vllm"]


def test_a_transcript_made_in_a_program_is_judged_like_a_row():
    """Defect: it had the order of transformers, and settings that its engine applies otherwise."""
    given = {"prompt_token_ids": (1,), "output_token_ids": (2,), "temperature": 0.5, "top_p": 0.75}
    assert Transcript(**given, engine="llama.cpp").filter_order == "llama.cpp"
    assert Transcript(**given).filter_order == "transformers"
    with pytest.raises(InvalidInput, match="SGLang's counts emitted tokens alone"):
        Transcript(**given, engine="sglang", repetition_penalty=1.3)
    with pytest.raises(InvalidInput, match="the order in which this engine applies"):
        Transcript(**given, engine="mine")


def test_what_decides_the_law_beside_a_setting_is_looked_at():
    given = {"prompt_token_ids": (1,), "output_token_ids": (2,), "engine": "llama.cpp"}
    greedy, penalty = {"temperature": 0}, {"repetition_penalty": 1.3}
    usual = ["penalties", "dry", "top_k", "typ_p", "top_p", "min_p", "temperature"]
    fine = (
        (greedy, {"do_sample": False}),
        ({}, {"repeat_last_n": 64}),
        (penalty, {"penalty_last_n": -1}),
        (penalty, {"repeat_last_n": 2}),  # the whole text
        ({"top_p": 0.9, "filter_order": "vllm"}, {"samplers": ["temperature", "top_k", "top_p"]}),
        ({"top_p": 0.9}, {"samplers": usual}),
        ({}, {"messages": [{"temperature": 21}], "requests": [{"temperature": 1.0}]}),
    )
    for settings, extra in fine:
        assert Transcript(**given, **settings, extra=extra).extra == extra
    refused = (
        (penalty, {"repeat_last_n": 1}, "allowed: -1"),
        ({"top_p": 0.9}, {"samplers": usual[::-1]}, "allowed: penalties, top_k, top_p, min_p, te"),
        ({"top_p": 0.9}, {"samplers": ["temperature"]}, "allowed: penalties"),
        ({}, {"requests": [{"temperature": 0.7}]}, "the key 'requests.temperature' is not read"),
        ({}, {"params": [{"logit_bias": {"1": 2}}]}, "params.logit_bias is"),
        (penalty, {"samplers": usual[1:]}, "allowed: penalties, top_k"),
        ({}, {"samplers": [*usual, "infill"]}, "allowed: penalties, top_k"),
        (penalty, {"repetition_context_size": 1}, "allowed: -1"),
    )
    for settings, extra, message in refused:
        with pytest.raises(InvalidInput, match=message):
            Transcript(**given, **settings, extra=extra)
    # by default llama.cpp's penalty reaches 64 tokens back
    long = given | {"prompt_token_ids": (1,) * 64}
    assert Transcript(**given, **penalty) and Transcript(**long)
    assert Transcript(**long, **penalty, extra={"repeat_last_n": 65})
    with pytest.raises(InvalidInput, match="no key says that it applied to all 65 tokens"):
        Transcript(**long, **penalty)


def test_a_path_is_no_name_of_an_engine(tmp_path):
    """Defect: below a folder called llama.cpp every row was one of it, below others none was."""
    long = ROW | {"prompt_token_ids": [1] * 64, "repetition_penalty": 1.3}
    for folder, engine in (("llama.cpp", "vllm"), ("llamacpp_runs", None), ("vllm", "llama.cpp")):
        (tmp_path / folder).mkdir()
        path = written(tmp_path / folder, long | {"engine": engine})
        if engine != "llama.cpp":
            assert len(read_transcripts(path)) == 1
            continue
        with pytest.raises(InvalidInput) as caught:
            read_transcripts(path)
        assert str(caught.value).startswith(f"{path}, line 1: llama.cpp: repetition_penalty is 1.3")


BAD = {
    "[1]": "expected a JSON object, found [1]",
    "{": "is not JSON",
    '{"prompt": "a", "completion": "b"}': "prompt_token_ids is missing",
    '{"output_token_ids": []}': "output_token_ids is empty; allowed: a list of token ids, at "
    "least one",
    '{"output_token_ids": "abc"}': "output_token_ids is 'abc'; allowed: a list",
    '{"output_token_ids": [true]}': "holds True; allowed: whole numbers from 0",
    '{"prompt_token_ids": [-1]}': "holds -1; allowed: whole numbers from 0",
    '{"prompt_token_ids": [18446744073709551616]}': "allowed: whole numbers from 0, below 2147483",
    '{"temperature": 1e-300}': "temperature is 1e-300; allowed: 0, which is greedy, or from 1e-6",
    '{"top_k": 2.0}': "top_k is 2.0; allowed: whole numbers from 0",
    '{"top_k": 1' + 400 * "0" + "}": "allowed: whole numbers from 0, where 0 is off, below 21474",
    '{"top_logprobs": [[[9223372036854775808, -1]], [], []]}': "holds [[9223372036854775808, -1]]; "
    "allowed: lists of [id, log-probability], ids from 0, below 2147483648",
    '{"top_logprobs": [[[-2, -1]], [], []]}': "holds [[-2, -1]]; allowed: lists of [id, log-prob",
    '{"logprobs": [-1' + 400 * "0" + ", 0, 0]}": "allowed: finite numbers up to 0",
    '{"min_p": 1.1}': "min_p is 1.1; allowed: from 0 to 1",
    '{"repetition_penalty": 0}': "repetition_penalty is 0; allowed: from 0.001",
    '{"presence_penalty": "a"}': "presence_penalty is 'a'; allowed: from -1000",
    '{"filter_order": ["vllm"]}': "filter_order is ['vllm']; allowed: transformers, llama.cpp, "
    "vllm",
    '{"seed": "x"}': "seed is 'x'; allowed: whole numbers",
    '{"engine": 3}': "engine is 3; allowed: text",
    '{"temprature": 0.5}': "the key 'temprature' is not read; did you mean temperature? Allowed",
    '{"top-p": 0.5}': "the key 'top-p' is not read; did you mean top_p?",
    '{"id": "x", "index": 0, "metrics": {}, "sampling_params": {"temperature": 0.6}}': "the key "
    "'sampling_params.temperature' is not read; did you mean temperature? Allowed for the "
    "settings, as keys of the row itself: temperature, top_p",
    '{"request": {"params": {"stop": null, "temp": 0.6}}}': "the key 'request.params.temp' is not",
    '{"temperature": 0.6, "generation_config": {"temperature": 0.7}}': "_config.temperature' is no",
    '{"options": {"top_k": true}}': "the key 'options.top_k' is not read; did you mean top_k?",
}
"""Lines, or keys of an otherwise good row, that are wrong."""


def test_what_is_wrong_is_said_in_one_line_with_its_place(tmp_path):
    for row, expected in BAD.items():
        if row.startswith('{"') and "completion" not in row:
            row = ROW | json.loads(row)
        path = written(tmp_path, ROW, row)
        with pytest.raises(InvalidInput) as caught:
            read_transcripts(path)
        assert expected in str(caught.value) and "\n" not in str(caught.value)
        assert str(caught.value).startswith(f"{path}, line 2")
    twice = json.dumps(ROW)[:-1] + ', "temperature": 0.5, "temperature": 1.0}'
    with pytest.raises(InvalidInput, match="the key 'temperature' is there twice"):
        read_transcripts(written(tmp_path, twice))  # defect: the last one counted
    with pytest.raises(InvalidInput, match=r"is tensor\(\[1\]\); allowed: a list of token ids"):
        Transcript(torch.tensor([1]), (2,))
    with pytest.raises(InvalidInput, match="are empty; at least one row"):
        read_transcripts(written(tmp_path))


@pytest.mark.parametrize(
    ("engine", "settings", "expected"),
    [
        ("vllm", {"temperature": 0.001}, "temperature is 0.001, and vLLM would apply 0.01"),
        ("SGLang", {"repetition_penalty": 1.1}, "1.1, and SGLang's counts emitted tokens alone"),
        ("sglang", {"min_p": 0.1, "top_k": 5, "top_p": 0.9}, "min_p, top_k and top_p are on"),
        ("llama.cpp, plain", {"presence_penalty": 0.5}, "llama.cpp's counts the prompt's tokens"),
        ("openvino_genai", {"frequency_penalty": 0.5}, "OpenVINO GenAI's subtracts it from"),
        ("llama-server", {"presence_penalty": 0.5}, "llama.cpp's counts the prompt's tokens"),
        ("1Cat-vLLM", {"temperature": 0.001}, "temperature is 0.001, and vLLM would apply 0.01"),
        ("TensorRT-LLM", {"presence_penalty": 0.5}, "TensorRT-LLM's counts the prompt's tokens"),
        ("TensorRT-LLM", {"temperature": 0.7, "top_p": 0.9}, "the order in which this engine"),
        ("mine", {"temperature": 0.7, "top_p": 0.9}, "give filter_order in the row or"),
        ("mine", {"frequency_penalty": 0.5}, "which tokens this engine's penalties count"),
        ("ollama", {"repetition_penalty": 1.1}, "which tokens this engine's penalties count"),
    ],
)
def test_settings_that_the_engine_applies_in_another_way_are_refused(
    tmp_path, engine, settings, expected
):
    """Rows are read as they are asked for; another engine may apply them as they are declared."""
    path = written(tmp_path, ROW, ROW | settings | {"engine": engine})
    with pytest.raises(InvalidInput) as caught:
        read_transcripts(path)
    assert str(caught.value).startswith(f"{path}, line 2: {engine}: ")
    assert expected in str(caught.value)
    told = {"engine": "mine", "filter_order": "vllm"}
    for other in ({}, told, {"engine": engine, **dict.fromkeys(settings)}):
        assert len(read_transcripts(written(tmp_path, ROW, ROW | settings | other))) == 2


def test_a_key_that_is_nearly_a_setting_is_told_from_others():
    for name, keys in {
        "temperature": (
            "temprature",
            "Temperature",
            "temp",
            "temperatures",
            "rollout_temperature",
        ),
        "top_p": ("topp", "top-p", "TOP_P", "topP"),
        "repetition_penalty": ("repeat_penalty", "repetition-penalty"),
        "frequency_penalty": ("freq_penalty",),
        "min_p": ("minp",),
    }.items():
        assert {key: setting_meant(key) for key in keys} == dict.fromkeys(keys, name)
    others = (
        "stop",
        "prompt",
        "steps",
        "max_tokens",
        "draft_temperature",
        "latency_s",
        "top_logprobs",
        "1",
        "",
    )
    assert not any(map(setting_meant, others))
