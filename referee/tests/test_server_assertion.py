"""The assertion on a server: exact ones pass in every format, and a faulty one fails.

The first line of the failure is the likely cause.
"""

import json
import sys
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer, models

from referee.deciding import LOOK
from referee.testing import assert_exact_server, server
from referee.testing.fixtures import given
from referee.tests.toy_server import ENGINES, free_port, lines
from resispec.errors import InvalidInput
from resispec.models.loading import save_model
from tests.toys import tiny_llama

TOKENS = ["<eos>", *"abcdefghijk"]
"""The tokens of the toy server."""


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A target by whose law every token is as likely, as the toy server's is, and another one."""
    folder = tmp_path_factory.mktemp("desk")
    # The toy server's first tokens after prompts that end in 6, with their seeds, are by chance as
    # far from uniform as one set in a hundred thousand; those of 300 other endings are not.
    ids = "".join(
        json.dumps({"prompt_token_ids": [n % 11 + 1, n % 7 + 1, 8]}) + "\n" for n in range(250)
    )
    (folder / "ids.jsonl").write_text(ids)
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(TOKENS)}, []))
    for name, scale in (("uniform", 0.0), ("other", 1.0)):
        module = tiny_llama(vocab=len(TOKENS)).module
        with torch.no_grad():
            module.lm_head.weight.mul_(scale)
        save_model(module, tokenizer, folder / name, eos_token="<eos>")
    return folder


@pytest.fixture
def options(desk, tmp_path):
    port = free_port()

    def of(engine, target, **changes):
        command = [sys.executable, "-m", "referee.tests.toy_server", engine, str(port), "0"]
        prompts = str(desk / "ids.jsonl")
        asked = {"prompts": prompts, "tokens": 2000, "max_new_tokens": 12, "device": "cpu"}
        address = {"address": f"http://127.0.0.1:{port}", "format": engine, "folder": tmp_path}
        return {"command": command, "target": str(desk / target)} | asked | address | changes

    return of


@pytest.mark.parametrize("engine", ENGINES)
def test_an_exact_server_is_acquitted_in_every_format(engine, options, tmp_path):
    report = assert_exact_server(**options(engine, "uniform"))
    assert report.subject.startswith(engine) and ": no bias seen" in report.subject
    assert len(lines(tmp_path / "transcripts.jsonl")) == 2000 // 12


def test_a_faulty_server_fails_and_the_first_line_is_the_likely_cause(options, tmp_path):
    in_ini = given([f"folder = {tmp_path}"])
    with pytest.raises(AssertionError) as raised:
        assert_exact_server(**options("vllm", "other", **in_ini))
    first, second, *rest = str(raised.value).splitlines()
    assert first.startswith("likely cause: a temperature higher than the rows say")
    assert second.startswith("verdict: biased")
    assert rest[-1] == f"rows and logs: {tmp_path}"
    assert any(line.startswith("note: the audit's own check") for line in rest)
    assert len(lines(tmp_path / "transcripts.jsonl")) < 2000 // 12  # bets ended it


def test_a_control_with_the_rows_of_the_transcripts_clears_nothing(options, monkeypatch):
    """Defect: a server that ignores seeds was its own control, and acquitted."""
    asked, original = [], server._asked

    def same(*given):
        asked.append(asked[0] if asked else original(*given))
        return asked[-1]

    monkeypatch.setattr(server, "_asked", same)
    with pytest.raises(InvalidInput, match="rows of the control are the same rows as the"):
        assert_exact_server(**options("vllm", "other", control="again"))
    assert len(asked) == 2


@pytest.mark.slow
def test_a_control_clears_what_both_arms_have_and_no_more(options, tmp_path):
    """The control is started when the first arm deviates from the target."""

    def judged(folder, extra, control, target):
        given = options("vllm", target, tokens=4000, folder=tmp_path / folder)
        words = given.pop("command")[:-1]
        return assert_exact_server([*words, extra], control=[*words, *control], **given)

    with pytest.raises(AssertionError, match=r"(?s)^likely cause: .*speculation differs from the "):
        judged("differ", "9", ("0", "plain"), "uniform")
    report = judged("both", "0", ("0", "plain"), "other")
    assert "without speculation, too, the engine differs" in str(report)
    arms = [lines(tmp_path / "both" / f"{arm}.jsonl") for arm in ("transcripts", "control")]
    prompts = [sorted(row["prompt_token_ids"] for row in arm) for arm in arms]
    assert prompts[0] == prompts[1]
    assert not {row["seed"] for row in arms[0]} & {row["seed"] for row in arms[1]}
    assert len(arms[0]) == 4000 // 2 // 12
    judged("exact", "0", ("0", "plain"), "uniform")
    assert not (tmp_path / "exact" / "control.jsonl").exists()
    with pytest.raises(InvalidInput, match="of the control says that 129 tokens were drafted"):
        judged("drafts", "9", ("9",), "uniform")


def test_too_few_tokens_are_no_acquittal_and_budgets_end_it(options, tmp_path, monkeypatch):
    def rows_of(folder, **changes):
        with pytest.raises(AssertionError, match="^undecided: .* at least 1000"):
            assert_exact_server(**options("vllm", "uniform", folder=folder, **changes))
        return len(lines(folder / "transcripts.jsonl"))

    assert rows_of(tmp_path / "tokens", tokens=120) == 120 // 12
    clock = SimpleNamespace(monotonic=iter((0.0, 200.0, 301.0)).__next__)
    monkeypatch.setattr("referee.testing.server.time", clock)
    assert rows_of(tmp_path / "seconds", seconds=300) == 2 * LOOK


def test_what_is_wrong_is_said_before_a_server_is_started(options, tmp_path):
    for changes, message in (
        ({"targets": "x"}, "unknown option 'targets'; allowed: format, target, draft, control"),
        ({"target": ""}, "needs a target"),
        ({"tokens": 2e3}, "tokens is 2000.0; allowed: a whole number from 1"),
        ({"start_s": "long"}, "start_s is 'long'; allowed: a number above 0"),
        ({"temperature": 0.0}, "temperature is 0.0"),
        (given(["folder = 5"]), "folder is 5; allowed: text"),
        ({"format": "nope"}, "unknown server_format 'nope'"),
        ({"tokens": 50_000}, "4166 prompts were asked for and"),
    ):
        with pytest.raises(InvalidInput, match=message):
            assert_exact_server(**options("vllm", "uniform") | changes)
        assert not [*tmp_path.iterdir()]


def test_options_in_an_ini_are_lines_of_key_and_value():
    command = "serve --x '{\"k\": 5}' --y=2"
    lines = [f"command = {command}", "tokens = 500", "seconds=0.5"]
    assert given(lines) == {"command": command, "tokens": 500, "seconds": 0.5}
    with pytest.raises(InvalidInput, match="'tokens' in pytest's ini; allowed: KEY = VALUE"):
        given(["tokens"])
