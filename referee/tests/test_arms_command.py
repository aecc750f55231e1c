"""The command asks for arms: several starts of a server, turns of chats, long contexts."""

import sys
from collections import Counter

import pytest

from referee.prompts import PromptSource, tool_result
from referee.tests.test_transcribe_command import ids_file, run
from referee.tests.toy_server import ToyServer, free_port, lines
from referee.transcripts import read_transcripts
from resispec.errors import InvalidInput
from resispec.models import TransformersTokenizer
from resispec.models.checkpoint import read_tokenizer
from tests.toys import save_prompts, save_tiny_pair

IDS = [(number, number + 1) for number in range(1, 41)]


@pytest.fixture
def started(tmp_path):
    """Options for a server that a command starts, and a function that says how often it did."""
    port = free_port()
    ids, starts = ids_file(tmp_path / "ids.jsonl", IDS), tmp_path / "it's starts"
    command = f'"{sys.executable}" -m referee.tests.started_server {port} "{starts}"'
    options = ["--server", f"http://127.0.0.1:{port}", "--format", "vllm", "--start", command]
    options += ["--prompts", ids, "--num-prompts", 4, "--max-new-tokens", 5]
    return options, lambda: starts.stat().st_size


def test_every_start_is_asked_for_everything_and_no_whole_one_is_started_again(
    started, tmp_path, capsys
):
    options, num_starts = started
    out = tmp_path / "rows.jsonl"
    code, said, _ = run(capsys, out, *options, "--restarts", 3)
    rows = read_transcripts(out)
    assert code == 0 and said.startswith("12 transcripts with ") and num_starts() == 3
    assert Counter(row.restart for row in rows) == {1: 4, 2: 4, 3: 4}
    first, second, third = (
        [row.output_token_ids for row in rows if row.restart == start] for start in (1, 2, 3)
    )
    assert sorted(first) == sorted(third) != sorted(second)  # the server's own state
    assert (tmp_path / "rows.jsonl.server.log").is_file()

    # the second start was broken off
    kept = [line for line in out.open() if '"restart":2' not in line or '_index":3' not in line]
    out.write_text("".join(kept))
    assert run(capsys, out, *options, "--restarts", 3)[0] == 0
    assert num_starts() == 4 and len(read_transcripts(out)) == 12
    # a whole file is checked against what a start says
    assert run(capsys, out, *options, "--restarts", 3)[0] == 0 and num_starts() == 5
    code, _, line = run(capsys, out, *options, "--restarts", 3, "--temperature", 0.5)
    assert code == 1 and "temperature is 1.0; it would be 0.5 now" in line
    # defect: a server that was started otherwise was not asked, or asked for the rest
    otherwise = [str(option).replace(" -m ", " -B -m ") for option in options]
    code, _, line = run(capsys, out, *otherwise, "--restarts", 3)
    assert code == 1 and "started_by is" in line
    # another load is asked of every start
    assert run(capsys, out, *options, "--restarts", 2, "--concurrency", 1)[0] == 0
    assert num_starts() == 9 and len(read_transcripts(out)) == 12 + 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--engine", "transformers", "--start", "x"],
            "--start starts a server; give its --server",
        ),
        (["--engine", "transformers", "--restarts", "2"], "--restarts needs --start, the command"),
        (
            ["--server", "http://127.0.0.1:1", "--format", "vllm", "--start", "x", "--target", "y"]
            + ["--until-decided"],
            "--until-decided looks between the prompts of one start",
        ),
        (
            ["--server", "http://127.0.0.1:1", "--format", "vllm", "--turns", "41"],
            "41 turns of chats take further documents: 42 prompts were asked for and ",
        ),
        (
            ["--server", "http://127.0.0.1:1", "--format", "vllm", "--context", "0,4096"],
            "a context of 4096 tokens takes further documents: ",
        ),
    ],
)
def test_arms_that_cannot_be_asked_for_are_one_line(options, message, tmp_path, capsys):
    ids = ids_file(tmp_path / "ids.jsonl", IDS)
    given = ["--prompts", ids, "--num-prompts", 2, *options]
    code, _, line = run(capsys, tmp_path / "rows.jsonl", *given)
    assert code == 1 and line.startswith("error: ") and message in line
    assert not (tmp_path / "rows.jsonl").exists()


def test_turns_contexts_and_loads_are_asked_for_together(tmp_path, capsys):
    save_tiny_pair(tmp_path)
    save_prompts(tmp_path, 12)
    out = tmp_path / "rows.jsonl"
    with ToyServer("vllm") as toy:
        options = ["--server", toy.url, "--format", "vllm", "--target", tmp_path / "target"]
        options += ["--prompts", tmp_path / "prompts.jsonl", "--num-prompts", 2, "--turns", 3]
        options += ["--prompt-tokens", 4, "--max-new-tokens", 5, "--concurrency", "1,2"]
        assert run(capsys, out, *options, "--context", "0,24")[0] == 0
        asked = [post["prompt"] for post in toy.posts]
    rows = read_transcripts(out)
    assert len(rows) == len(lines(out)) == len(asked) == 2 * 3 * 2 * 2
    assert Counter(row.condition[1:] for row in rows) == {
        (None, turn, context): 4 for turn in (1, 2, 3) for context in (0, 24)
    }
    tokenizer = TransformersTokenizer(read_tokenizer(str(tmp_path / "target")))
    for row in rows:
        index = row.extra["prompt_index"]
        if row.turn == 1:
            assert len(row.prompt_token_ids) == (row.context or 4)
        if row.turn == 3:
            text = lines(tmp_path / "prompts.jsonl")[index + 2]["text"]
            said = tokenizer.encode_turn(text, 4, None, tool_result(index, 3))
            assert row.prompt_token_ids[-len(said) :] == tuple(said)
            assert len(said) > len(tokenizer.encode_turn(text, 4, None))


def test_a_long_context_is_made_of_the_documents_that_follow(tmp_path):
    path = ids_file(tmp_path / "ids.jsonl", IDS)
    short = PromptSource(str(path), 9, None).prompts(2, 7)
    assert short == [(2, 3, 3, 4, 4, 1, 2), (3, 4, 4, 5, 5, 2, 3)]
    assert PromptSource(str(path), 9, None).prompts(5, 7)[:2] == short
    assert PromptSource(str(path), 9, None).prompts(2, 1) == IDS[:2]
    with pytest.raises(InvalidInput, match="a context of 400 tokens takes further documents"):
        PromptSource(str(path), 9, None).prompts(2, 400)
