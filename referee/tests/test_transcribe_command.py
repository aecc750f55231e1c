"""The command: prompts of every kind, an engine in this process and behind a server, errors in one line."""

from __future__ import annotations

import json
import sys

import pytest
from toy_server import ToyServer, continuation
from toys import save_prompts, save_tiny_pair

from referee import transcribe
from referee.transcripts import read_transcripts
from resispec.models.checkpoint import read_tokenizer

NOBODY = ["--server", "http://127.0.0.1:1"]


@pytest.fixture
def folder(tmp_path):
    save_tiny_pair(tmp_path)
    save_prompts(tmp_path, 4)
    return tmp_path


def run(capsys, out, *options):
    """Exit code, standard output and the last line of standard error."""
    code = transcribe.main(["--out", str(out), *map(str, options)])
    said = capsys.readouterr()
    return code, said.out, said.err.splitlines()[-1] if said.err else ""


def ids_file(path, prompts=((5, 6), (7,))):
    path.write_text("".join(json.dumps({"prompt_token_ids": prompt}) + "\n" for prompt in prompts))
    return path


def test_transformers_on_texts(folder, capsys):
    out = folder / "rows.jsonl"
    options = [
        "--engine", "transformers", "--mode", "assisted", "--target", folder / "target", "--draft",
        folder / "draft", "--prompts", folder / "prompts.jsonl", "--num-prompts", 3, "--prompt-tokens", 5,
        "--max-new-tokens", 4, "--seed", 10, "--temperature", 0.8,
    ]  # fmt: skip
    code, said, _ = run(capsys, out, *options)
    rows = read_transcripts(out)
    count = sum(len(row.output_token_ids) for row in rows)
    assert (code, said) == (0, f"3 transcripts with {count} emitted tokens are in {out}\n")
    for row in rows:  # 0 is the tokenizer's end of sequence, since the models name none
        tokens = row.output_token_ids
        assert row.finish_reason == ("stop" if 0 in tokens else "length")
        assert len(tokens) == 4 or tokens.index(0) + 1 == len(tokens)
    encode = read_tokenizer(str(folder / "target")).encode
    texts = [json.loads(line)["text"] for line in (folder / "prompts.jsonl").read_text().splitlines()]
    assert [row.prompt_token_ids for row in rows] == [tuple(encode(text)[:5]) for text in texts[:3]]
    assert [(row.seed, row.temperature, row.engine) for row in rows] == [
        (10 + index, 0.8, "transformers, assisted") for index in range(3)
    ]


def test_a_server_on_ids(tmp_path, capsys):
    out = tmp_path / "rows.jsonl"
    with ToyServer("vllm") as toy:
        options = ["--server", toy.url, "--format", "vllm", "--num-prompts", 2, "--max-new-tokens", 5]
        code, _, _ = run(capsys, out, *options, "--prompts", ids_file(tmp_path / "ids.jsonl"))
        again, other = tmp_path / "again.jsonl", [*options, "--seed", 9]
        assert code == run(capsys, again, *other, "--prompts", out)[0] == 0  # transcripts are prompts, too
    assert sorted(row.output_token_ids for row in read_transcripts(out)) == sorted(
        tuple(continuation(prompt, 5, seed)) for seed, prompt in enumerate(([5, 6], [7]))
    )
    assert {row.prompt_token_ids for row in read_transcripts(again)} == {(5, 6), (7,)}


def test_a_server_that_dies_is_said_in_a_line_and_gone_on_with(tmp_path, capsys):
    out, prompts = tmp_path / "rows.jsonl", [(number,) for number in range(1, 6)]
    ids = ids_file(tmp_path / "ids.jsonl", prompts)
    with ToyServer("llama_cpp") as toy:
        options = ["--server", toy.url, "--format", "llama_cpp", "--prompts", ids, "--num-prompts", 5]
        options += ["--concurrency", 1, "--tries", 1]
        toy.dies_after = 3
        code, _, line = run(capsys, out, *options)
        assert code == 1 and line.startswith(f"error: prompt 3: {toy.url} gives no answer at /completion in ")
        assert line.endswith(f"; 3 transcripts are in {out}, the same command goes on from there")
        toy.is_dead, toy.dies_after = False, None
        assert run(capsys, out, *options)[0] == 0
    assert [row.prompt_token_ids for row in read_transcripts(out)] == prompts


def test_stopping_it_loses_nothing_that_was_written(tmp_path, capsys, monkeypatch):
    out, ids = tmp_path / "rows.jsonl", ids_file(tmp_path / "ids.jsonl")

    def stop(*_):
        raise KeyboardInterrupt

    with ToyServer("vllm") as toy:
        options = ["--server", toy.url, "--format", "vllm", "--prompts", ids, "--num-prompts", 2]
        with monkeypatch.context() as patched:
            patched.setattr("referee.engines.writing.tqdm.update", stop)
            code, _, line = run(capsys, out, *options, "--concurrency", 1)
        assert code == 1 and line.startswith("error: stopped; what is written stays")
        assert len(read_transcripts(out)) == 1
        assert run(capsys, out, *options)[0] == 0
    assert len(read_transcripts(out)) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"prompt_token_ids": [1]}\n{"text": "a"}\n', "line 2 has no prompt_token_ids; all rows have"),
        ('{"prompt_token_ids": [1, -1]}\n', "line 1: prompt_token_ids holds -1; allowed: whole numbers"),
        ('{"prompt_token_ids": []}\n', "line 1: prompt_token_ids is empty"),
        ('{"prompt_token_ids": [1]}\n', "2 prompts were asked for and"),
        ("{half\n", "line 1 is not JSON"),
        ('{"text": "abc"}\n{"text": "def"}\n', "the prompts are texts, which the tokenizer of the server's"),
        ('{"other": "abc"}\n', "line 1 has no text"),
    ],
)
def test_prompts_that_are_none_are_said_in_a_line(content, message, tmp_path, capsys):
    path = tmp_path / "prompts.jsonl"
    path.write_text(content)
    options = [*NOBODY, "--format", "vllm", "--prompts", path, "--num-prompts", 2]
    code, _, line = run(capsys, tmp_path / "rows.jsonl", *options)
    assert code == 1 and line.startswith("error: ") and message in line


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (NOBODY, "--server needs a --format; allowed: llama_cpp, sglang, vllm"),
        (["--server", "127.0.0.1", "--format", "vllm"], "'127.0.0.1' is no server"),
        ([*NOBODY, "--format", "vllm", "--tries", "1"], "gives no answer at /v1/models"),
        ([*NOBODY, "--format", "vllm", "--top-p", "2"], "top_p is 2.0; allowed: above 0, up to 1"),
        (["--engine", "transformers", "--target", "x", "--mode", "assisted"], "needs a --draft"),
        (["--engine", "llama_cpp"], "--engine llama_cpp needs the package xllamacpp; pip install"),
        (["--engine", "transformers", "--target", "./nowhere"], "model folder ./nowhere does not exist"),
        (["--engine", "transformers", "--prompts", "mine"], "unknown prompts 'mine'; allowed: embedded_"),
    ],
)
def test_a_wrong_command_line_is_said_in_a_line(options, message, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "xllamacpp", None)  # as where the extra is not installed
    monkeypatch.delitem(sys.modules, "referee.engines.llama_cpp", raising=False)
    ids = ["--prompts", ids_file(tmp_path / "ids.jsonl"), "--num-prompts", 2]
    code, _, line = run(capsys, tmp_path / "rows.jsonl", *ids, *options)
    assert code == 1 and line.startswith("error: ") and message in line


@pytest.mark.parametrize("options", [[], ["--server", "x", "--engine", "transformers"]])
def test_one_engine_is_needed(options, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        run(capsys, tmp_path / "rows.jsonl", *options)
