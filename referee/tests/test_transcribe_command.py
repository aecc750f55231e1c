"""The command: prompts of every kind, an engine here or behind a server, errors in one line."""

import json
import sys
import time
from functools import partial
from itertools import product
from types import SimpleNamespace

import pytest
from safetensors.torch import load_file, save_file

from referee import inputs, transcribe
from referee.prompts import PromptSource
from referee.tests.toy_server import ToyServer, continuation, lines
from referee.transcripts import read_transcripts
from resispec.data import CHAT
from resispec.errors import InvalidInput
from resispec.models.checkpoint import read_tokenizer
from tests.toys import save_prompts, save_tiny_pair


def run(capsys, out, *options):
    """Exit code, standard output and the last line of standard error."""
    code = transcribe.main(["--out", str(out), *map(str, options)])
    said = capsys.readouterr()
    return code, said.out, said.err.splitlines()[-1] if said.err else ""


def ids_file(path, prompts=((5, 6), (7,))):
    path.write_text("".join(json.dumps({"prompt_token_ids": prompt}) + "\n" for prompt in prompts))
    return path


def test_transformers_on_texts(tmp_path, capsys):
    save_tiny_pair(tmp_path)
    save_prompts(tmp_path, 4)
    out = tmp_path / "rows.jsonl"
    options = [
        "--engine", "transformers", "--mode", "assisted", "--target", tmp_path / "target",
        "--draft",
        tmp_path / "draft", "--prompts", tmp_path / "prompts.jsonl", "--num-prompts", 3,
        "--prompt-tokens", 5,
        "--max-new-tokens", 4, "--seed", 10, "--temperature", 0.8,
    ]  # fmt: skip
    code, said, _ = run(capsys, out, *options)
    rows = read_transcripts(out)
    count = sum(len(row.output_token_ids) for row in rows)
    assert (code, said) == (0, f"3 transcripts with {count} emitted tokens are in {out}\n")
    encode = read_tokenizer(str(tmp_path / "target")).encode
    texts = [line["text"] for line in lines(tmp_path / "prompts.jsonl")]
    assert [row.prompt_token_ids for row in rows] == [tuple(encode(text)[:5]) for text in texts[:3]]
    assert [(row.seed, row.temperature, row.engine) for row in rows] == [
        (10 + index, 0.8, "transformers, assisted") for index in range(3)
    ]
    # defect: under a name whose weights had changed, old rows stayed, and new ones were added
    weights = tmp_path / "target" / "model.safetensors"
    trained = {name: 1.5 * value for name, value in load_file(weights).items()}
    save_file(trained, weights, {"format": "pt"})
    code, _, line = run(capsys, out, *options)
    assert code == 1 and ": weights is '" in line


def test_a_server_that_dies_is_said_in_a_line_and_gone_on_with(tmp_path, capsys):
    out, prompts = tmp_path / "rows.jsonl", [(number,) for number in range(1, 6)]
    ids = ids_file(tmp_path / "ids.jsonl", prompts)
    with ToyServer("llama_cpp") as toy:
        server = [
            "--server",
            toy.url,
            "--format",
            "llama_cpp",
            "--num-prompts",
            5,
            "--max-new-tokens",
            5,
        ]
        options = [*server, "--prompts", ids, "--concurrency", 1, "--tries", 1]
        toy.faults = {3: "drop"}
        code, _, line = run(capsys, out, *options)
        assert code == 1 and line.startswith(
            f"error: prompt 3: {toy.url} gives no answer at /completion in "
        )
        assert line.endswith(
            "; stopped; what is written stays, and the same command goes on from there"
        )
        assert run(capsys, out, *options)[0] == 0
        again = tmp_path / "again.jsonl"  # transcripts are prompts, too
        assert run(capsys, again, *server, "--prompts", out, "--seed", 9)[0] == 0
    for path, seed in ((out, 0), (again, 9)):
        rows = sorted(read_transcripts(path), key=lambda row: row.prompt_token_ids)
        assert [row.prompt_token_ids for row in rows] == prompts
        expected = [tuple(continuation([n + 1], 5, seed + n)) for n in range(5)]
        assert [row.output_token_ids for row in rows] == expected


def test_a_time_out_under_load_has_a_hint_and_the_order_of_an_unknown_server_is_asked_for(
    tmp_path, capsys
):
    ids = ids_file(tmp_path / "ids.jsonl")
    with ToyServer("vllm") as toy:
        options = ["--server", toy.url, "--prompts", ids, "--num-prompts", 2, "--timeout", 1]
        options += ["--tries", 1, "--format"]
        toy.faults = dict.fromkeys(range(9), "silent")
        for load, is_hinted in ((2, True), (1, False)):
            given = [*options, "vllm", "--concurrency", load]
            code, _, line = run(capsys, tmp_path / f"{load}.jsonl", *given)
            assert code == 1 and "gives no whole answer" in line
            assert ("too many requests at a time? try --concurrency 1" in line) is is_hinted
        toy.faults = dict.fromkeys(range(99), "drop")
        code, _, line = run(capsys, tmp_path / "drop.jsonl", *options, "vllm", "--concurrency", 2)
        assert code == 1 and "--concurrency 1" not in line
        toy.faults, asked = {}, len(toy.posts)
        filters = ["--top-p", 0.9, "--top-k", 5, "--temperature", 0.7]
        code, _, line = run(capsys, tmp_path / "f.jsonl", *options, "openai", *filters)
        assert (
            code == 1
            and "is not known; give --filter-order, an engine that does the same: tra" in line
        )
        penalty = ["--presence-penalty", 0.5]
        code, _, line = run(capsys, tmp_path / "f.jsonl", *options, "openai", *penalty)
        assert code == 1 and "openai: which tokens this engine's penalties count" in line
        assert len(toy.posts) == asked
        order = [*filters, "--filter-order", "sglang"]
        assert run(capsys, tmp_path / "f.jsonl", *options, "openai", *order)[0] == 0
        # a format says how a server is asked, and its name what it does
        toy.owner, asked = "mlx-lm", len(toy.posts)
        code, _, line = run(capsys, tmp_path / "g.jsonl", *options, "vllm", *filters)
        assert code == 1 and "mlx-lm" in line and "give --filter-order" in line
        assert len(toy.posts) == asked
    assert {row.filter_order for row in read_transcripts(tmp_path / "f.jsonl")} == {"sglang"}


def test_a_model_of_a_server_is_chosen_by_name(tmp_path, capsys):
    ids, out = ids_file(tmp_path / "ids.jsonl"), tmp_path / "rows.jsonl"
    with ToyServer("vllm") as toy:
        toy.models = ["base", "my-lora"]
        options = ["--server", toy.url, "--prompts", ids, "--num-prompts", 2, "--format", "openai"]
        code, _, line = run(capsys, out, *options)
        assert code == 1 and "name one with --model: base, my-lora" in line and not toy.posts
        assert run(capsys, out, *options, "--model", "my-lora")[0] == 0
        assert {post["model"] for post in toy.posts} == {"my-lora"}
        assert run(capsys, out, *options, "--model", "base")[0] == 1  # the file is my-lora's
    assert {row.extra["model"] for row in read_transcripts(out)} == {"my-lora"}


def test_the_tokens_are_said_before_the_first_request(tmp_path, capsys):
    ids = ids_file(tmp_path / "ids.jsonl")
    options = [*NOBODY, "--format", "vllm", "--tries", "1", "--prompts", ids, "--num-prompts", "2"]
    assert transcribe.main(["--out", str(tmp_path / "rows.jsonl"), *map(str, options)]) == 1
    first, second, last = capsys.readouterr().err.splitlines()
    assert first.startswith("asks for at most 128 tokens (2 prompts x 64)")
    assert second.startswith("warning: ") and last.startswith("error: ")


def test_stopping_it_loses_nothing_that_was_written(tmp_path, capsys, monkeypatch):
    out, ids = tmp_path / "rows.jsonl", ids_file(tmp_path / "ids.jsonl")

    def stop(*_):
        raise KeyboardInterrupt

    with ToyServer("vllm") as toy:
        options = ["--server", toy.url, "--format", "vllm", "--prompts", ids, "--num-prompts", 2]
        with monkeypatch.context() as patched:
            patched.setattr("tqdm.tqdm.update", stop)
            code, _, line = run(capsys, out, *options, "--concurrency", 1)
        assert code == 130 and line.startswith("error: stopped; what is written stays")
        assert len(read_transcripts(out)) == 1
        with monkeypatch.context() as patched:  # while a request is under way that gets no answer
            patched.setattr("tqdm.tqdm.update", stop)
            toy.faults[len(toy.posts) + 1] = "silent"
            begin, other = time.monotonic(), tmp_path / "other.jsonl"
            assert run(capsys, other, *options, "--concurrency", 2)[0] == 130
            assert time.monotonic() - begin < 10
        assert run(capsys, out, *options, "--concurrency", "1,4")[0] == 0
    rows = read_transcripts(out)
    asked = sorted((row.concurrency, row.extra["prompt_index"]) for row in rows)
    assert asked == [*product((1, 4), (0, 1))]


CHAT_PAIR = """# @package _global_
pair: {{_target_: resispec.models.load_pair, target: {0}/target, draft: {0}/draft,
       device: "${{device}}",
       dtype: "${{dtype}}", fingerprint: "${{nobody:}}", label: {{order: 1}}}}
prompt_template: chat
"""


def test_a_pair_of_chat_models_is_asked_by_its_template_and_named_data_sets_are_read(
    tmp_path, capsys, monkeypatch
):
    save_tiny_pair(tmp_path)
    save_prompts(tmp_path, 3)
    tokenizer = read_tokenizer(str(tmp_path / "target"))
    tokenizer.chat_template = "gh{{ messages[0].content }}gh gh"
    tokenizer.save_pretrained(tmp_path / "target")
    for group, text in (
        ("pair", CHAT_PAIR.format(tmp_path)),
        ("dataset", f"_target_: resispec.data.JsonlDataset\npath: {tmp_path}/prompts.jsonl\n"),
    ):
        (tmp_path / "conf" / group).mkdir(parents=True)
        (tmp_path / "conf" / group / f"toy_{group}.yaml").write_text(text)
    monkeypatch.setattr(inputs, "CONF", tmp_path / "conf")
    options = [
        "--engine",
        "transformers",
        "--mode",
        "assisted",
        "--target",
        "toy_pair",
        "--num-prompts",
        3,
    ]
    options += ["--prompts", "toy_dataset", "--prompt-tokens", 4, "--max-new-tokens", 3]
    assert run(capsys, tmp_path / "rows.jsonl", *options)[0] == 0
    texts = [line["text"] for line in lines(tmp_path / "prompts.jsonl")]
    cut = [tokenizer.decode(tokenizer.encode(text)[:4]) for text in texts]
    rows = read_transcripts(tmp_path / "rows.jsonl")
    assert [row.prompt_token_ids for row in rows] == [
        tuple(tokenizer.encode(f"gh{text}gh gh")) for text in cut
    ]


@pytest.mark.parametrize(
    ("named", "order", "last"),
    [
        ([], "llama.cpp", "temperature"),
        (["--filter-order", "transformers"], "transformers", "min_p"),
    ],
)
def test_filters_are_in_the_engines_order_unless_another_is_named(
    named, order, last, tmp_path, capsys
):
    out, ids = tmp_path / "rows.jsonl", ids_file(tmp_path / "ids.jsonl")
    with ToyServer("llama_cpp") as toy:
        options = [
            "--server",
            toy.url,
            "--format",
            "llama_cpp",
            "--prompts",
            ids,
            "--num-prompts",
            2,
        ]
        assert run(capsys, out, *options, "--top-p", 0.9, *named)[0] == 0
    assert {row.filter_order for row in read_transcripts(out)} == {order}
    assert {post["samplers"][-1] for post in toy.posts} == {last}


NOBODY = ["--server", "http://127.0.0.1:1"]
PROMPTS = {
    '{"prompt_token_ids": [1]}\n{"text": "a"}\n': "line 2 has no prompt_token_ids; all rows have",
    '{"prompt_token_ids": [1, -1]}\n': "line 1: prompt_token_ids holds -1; allowed: whole numbers",
    '{"prompt_token_ids": [1]}\n': "2 prompts were asked for and",
    '{"text": "abc"}\n{"text": "def"}\n': "the prompts are texts, which the tokenizer of the "
    "server's",
}
OPTIONS = [
    (NOBODY, "--server needs a --format; allowed: llama_cpp, openai, sglang, vllm"),
    (
        [*NOBODY, "--format", "nope"],
        "unknown server_format 'nope'; known: llama_cpp, openai, sglang, vllm",
    ),
    (
        ["--engine", "transformers", "--mode", "prompt_lookup", "--concurrency", "4"],
        "has one request at a t",
    ),
    ([*NOBODY, "--format", "vllm", "--tries", "1"], "gives no answer at /v1/models"),
    (
        [*NOBODY, "--format", "sglang", "--model", "x"],
        "--model chooses among the models of /v1/mod",
    ),
    (
        ["--engine", "transformers", "--model", "x"],
        "--model chooses among the models of a --server",
    ),
    (
        ["--server", "http://a.org", "--format", "vllm"],
        "the key for http://a.org would be sent without encr",
    ),
    (["--engine", "transformers", "--target", "x", "--mode", "assisted"], "needs a --draft"),
    (
        ["--engine", "transformers", "--draft", "x"],
        "--mode plain uses no --draft; allowed: --mode as",
    ),
    (["--engine", "transformers", "--num-drafted", "7"], "--mode plain drafts nothing"),
    ([*NOBODY, "--mode", "plain"], "--mode plain is for an --engine; a server drafts as it was"),
    ([*NOBODY, "--draft", "x"], "--draft x is for an --engine; a server drafts as it was"),
    (["--engine", "llama_cpp"], "--engine llama_cpp needs the package xllamacpp; pip install"),
    (["--engine", "transformers", "--prompts", "mine"], "unknown prompts 'mine'; allowed: c4, "),
]


def test_prompts_have_the_template_of_their_pair(monkeypatch):
    """A pair with its own template, one with its tokenizer's, and models that take texts."""
    templates = []
    tokenizer = SimpleNamespace(
        encode_prompt=lambda prompt, length, template: templates.append(template) or [1]
    )
    monkeypatch.setattr(inputs, "pair_of", lambda *_: SimpleNamespace(tokenizer=tokenizer))
    for pair in ("llama2_7b_chat__eagle", "smollm2", "embedded"):
        find = partial(inputs.tokenizer_of.__wrapped__, pair, "cpu", "float32")
        assert PromptSource("embedded_reference", 8, find).prompts(1) == [(1,)]
    assert templates[0].endswith("{text} [/INST] ") and templates[1:] == [CHAT, None]


def test_a_package_without_conf_has_its_own_pair_and_texts(tmp_path, monkeypatch):
    tokenizer, template = inputs.tokenizer_of("embedded", "cpu", "float32")
    expected = PromptSource("embedded_reference", 5, lambda: (tokenizer, template)).prompts(3)
    monkeypatch.setattr(inputs, "CONF", tmp_path / "conf")
    monkeypatch.setitem(sys.modules, "hydra.utils", None)
    monkeypatch.setitem(sys.modules, "omegaconf", None)
    inputs._pair.cache_clear()
    find = partial(inputs.tokenizer_of.__wrapped__, "embedded", "cpu", "float32")
    assert PromptSource("embedded_reference", 5, find).prompts(3) == expected
    assert len(inputs.scorers("embedded", None, "cpu", "float32")) == 2
    allowed = "allowed: embedded_code, embedded_docstrings, embedded_reference, or a .jsonl file"
    with pytest.raises(InvalidInput, match=allowed):
        inputs.documents("c4", 1)


def test_whatever_is_wrong_is_said_in_a_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv(transcribe.KEY, "secret")
    monkeypatch.setitem(sys.modules, "xllamacpp", None)  # as where the extra is not installed
    monkeypatch.delitem(sys.modules, "referee.engines.llama_cpp", raising=False)
    path, ids = tmp_path / "prompts.jsonl", ids_file(tmp_path / "ids.jsonl")
    cases = [([*NOBODY, "--format", "vllm", "--prompts", path], *case) for case in PROMPTS.items()]
    for options, content, message in (
        *cases,
        *((options, "", message) for options, message in OPTIONS),
    ):
        path.write_text(content)
        given = ["--prompts", ids, "--num-prompts", 2, *options]
        code, _, line = run(capsys, tmp_path / "rows.jsonl", *given)
        assert code == 1 and line.startswith("error: ") and message in line, message
    for options, message in (
        ([], "one of the arguments --server --engine is required"),
        (
            ["--engine", "transformers", "--seed", "9" * 23],
            "allowed: a number from 0, of 18 digits at most",
        ),
    ):
        with pytest.raises(SystemExit, match="2"):
            run(capsys, tmp_path / "rows.jsonl", *options)
        assert message in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("name", ["ids.jsonl", "link.jsonl", "hard.jsonl"])
def test_the_prompts_are_not_written_over(name, tmp_path, capsys):
    ids = ids_file(tmp_path / "ids.jsonl")
    before = ids.read_bytes()
    (tmp_path / "link.jsonl").symlink_to(ids)
    (tmp_path / "hard.jsonl").hardlink_to(ids)
    options = [*NOBODY, "--format", "vllm", "--prompts", ids, "--num-prompts", 2]
    code, _, line = run(capsys, tmp_path / name, *options)
    assert code == 1 and line.endswith(
        "is read by this command, which would write over it; give another name"
    )
    assert ids.read_bytes() == before
    assert "a folder; allowed: the name of a file" in run(capsys, "", *options)[2]


def test_no_file_is_written_in_the_folder_of_a_model(tmp_path, capsys):
    options = [*NOBODY, "--format", "vllm", "--target", tmp_path / "model"]
    (tmp_path / "model").mkdir()
    code, _, line = run(capsys, tmp_path / "model" / "rows.jsonl", *options)
    assert (
        code == 1
        and "is in the folder of the model" in line
        and not [*(tmp_path / "model").iterdir()]
    )
