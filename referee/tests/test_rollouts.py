"""Rollout files of RL trainers: their keys, masks and log-probabilities, and what is refused."""

import json

import pytest

from referee import inputs
from referee.audit import audit_arms, measure, report_lines
from referee.audit.__main__ import main
from referee.rescoring import load_scorers
from referee.rollouts import TABLE
from referee.tests.toy_engine import target, write
from referee.transcripts import Transcript, line_of, read_transcripts
from resispec.errors import InvalidInput
from tests.toys import save_tiny_pair

T1 = {"temperature": 1.0}
LOGS = [-0.5, -1.0, -1.5]
EMITTED = {"output_token_ids": (7, 8, 9), "logprobs": tuple(LOGS)}
FILES = {
    "transcripts": {"prompt_token_ids": [5, 6], "output_token_ids": [7, 8, 9], "logprobs": LOGS},
    "verl, agent loop": {
        "prompt_ids": [5, 6],
        "response_ids": [7, 8, 9],
        "response_mask": [1, 1, 1],
        "response_logprobs": LOGS,
    },
    "verl, batch": {
        "prompts": [0, 0, 5, 6],
        "responses": [7, 8, 9, 0, 0],
        "attention_mask": [0, 0, 1, 1, 1, 1, 1, 0, 0],
        "response_mask": [1, 1, 1, 0, 0],
        "rollout_log_probs": [*LOGS, 0.0, 0.0],
    },
    "TRL": {
        "prompt_ids": [0, 5, 6],
        "prompt_mask": [0, 1, 1],
        "completion_ids": [7, 8, 9, 0],
        "completion_mask": [1, 1, 1, 0],
        "sampling_per_token_logps": [*LOGS, 0.0],
    },
    "prime-rl": {
        "prompt_ids": [5, 6],
        "prompt_mask": [False, False],
        "completion_ids": [7, 8, 9],
        "completion_mask": [True, True, True],
        "completion_logprobs": LOGS,
        "completion_temperatures": [1.0, 1.0, 1.0],
    },
    "SkyRL": {
        "prompt_token_ids": [5, 6],
        "response_ids": [7, 8, 9],
        "loss_mask": [1, 1, 1],
        "rollout_logprobs": LOGS,
        "stop_reason": "length",
    },
    "slime": {
        "prompt": "a b",
        "tokens": [5, 6, 7, 8, 9],
        "response_length": 3,
        "loss_mask": [1, 1, 1],
        "rollout_log_probs": LOGS,
    },
    "NeMo Gym": {
        "prompt_token_ids": [5, 6],
        "generation_token_ids": [7, 8, 9],
        "generation_log_probs": LOGS,
    },
    "NeMo RL": {
        "token_ids": [5, 6, 7, 8, 9, 0],
        "token_loss_mask": [0, 0, 1, 1, 1, 0],
        "generation_logprobs": [0.0, 0.0, *LOGS, 0.0],
    },
    "OpenRLHF": {
        "sequences": [0, 5, 6, 7, 8, 9],
        "attention_mask": [0, 1, 1, 1, 1, 1],
        "action_mask": [0, 0, 1, 1, 1],
        "rollout_log_probs": [0.0, 0.0, *LOGS],
    },
}


def written(tmp_path, *rows):
    path = tmp_path / "rollouts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("name", FILES)
def test_each_trainers_row_is_one_transcript(name, tmp_path):
    [row] = read_transcripts(written(tmp_path, FILES[name] | {"reward": 1}), T1)
    expected = Transcript((5, 6), **EMITTED, extra=row.extra)
    if name == "SkyRL":
        expected = Transcript((5, 6), **EMITTED, extra=row.extra, finish_reason="length")
    assert row == expected
    assert row.extra["reward"] == 1 and not set(row.extra) & set().union(*TABLE.values())


def test_every_name_of_the_table_is_in_a_row_of_these_tests():
    known = set().union(*FILES.values()) | {"completion_token_ids", "tool_mask"}
    assert set().union(*TABLE.values()) <= known


def test_prompts_that_are_not_padded_need_no_mask(tmp_path):
    """A token twice at the start is padding only where a trainer pads."""
    for names in (("prompt_ids", "response_ids"), ("prompt_token_ids", "output_token_ids")):
        row = dict(zip(names, ([1, 1, 5], [7]), strict=True))
        [found] = read_transcripts(written(tmp_path, row), T1)
        assert found.written == ((1, 1, 5), (7,))
    trl = {"prompt_ids": [1, 5], "completion_ids": [7, 8], "attention_mask": [1, 1]}
    assert read_transcripts(written(tmp_path, trl), T1)[0].written == ((1, 5), (7, 8))


def test_a_prompt_beside_prompt_and_output_in_one_is_the_same_or_a_text(tmp_path):
    for name, prompt in (("OpenRLHF", {"prompts": ["a b"]}), ("NeMo RL", {"prompt_ids": [5, 6]})):
        [found] = read_transcripts(written(tmp_path, FILES[name] | prompt), T1)
        assert found.written == ((5, 6), (7, 8, 9))


def test_results_of_tools_are_context_and_every_turn_is_a_row(tmp_path):
    row = {
        "prompt_ids": [5],
        "completion_ids": [7, 8, 1, 2, 9, 0],
        "completion_mask": [1, 1, 1, 1, 1, 0],
        "tool_mask": [1, 1, 0, 0, 1, 1],
        "logprobs": [-1.0, -2.0, 0.0, 0.0, -3.0, 0.0],
        "finish_reason": "stop",
    }
    first, last = read_transcripts(written(tmp_path, row), T1)
    assert first.written == ((5,), (7, 8)) and first.logprobs == (-1.0, -2.0)
    assert last.written == ((5, 7, 8, 1, 2), (9,)) and last.logprobs == (-3.0,)
    assert (first.finish_reason, last.finish_reason) == (None, "stop")
    assert last.place.endswith("line 1, turn 2")


VERL = FILES["verl, agent loop"]


@pytest.mark.parametrize(
    ("row", "settings", "line"),
    [
        (VERL, {}, "does not say its temperature, as a trainer's does not; give --settings temp"),
        (VERL | {"temperature": 0.7}, T1, "temperature is 0.7 and the settings given say 1.0"),
        (VERL | {"completion_ids": [1]}, T1, "response_ids and completion_ids differ, and each"),
        (VERL | {"response_mask": [0, 0, 0]}, T1, "the masks leave no token; a trainer masks"),
        (VERL | {"response_mask": [1, 1]}, T1, "response_mask has 2 values; allowed: one for each"),
        (VERL | {"response_mask": [1, 0.5, 1]}, T1, "response_mask has other values than 0 and 1"),
        (VERL | {"response_logprobs": [-1.0]}, T1, "response_logprobs has 1 values; allowed: one"),
        (
            VERL | {"response_logprobs": [1.0] * 3},
            T1,
            "logprobs holds 1.0; allowed: finite numbers",
        ),
        (VERL | {"prompt_mask": [1, 0]}, T1, "prompt_mask is not one 0 or 1 for each token of the"),
        (VERL | {"attention_mask": [1, 0, 1, 1, 1]}, T1, "attention_mask is not one 0 or 1 for"),
        (
            {"prompts": [0, 5, 6], "responses": [7, 8, 9], "response_mask": [1, 1, 1]},
            T1,
            "prompt beside responses can begin with padding, and no mask says where this one beg",
        ),
        (
            {"prompt_ids": [0, 0, 5, 6], "completion_ids": [7, 8], "completion_mask": [1, 1]},
            T1,
            "prompt beside completion_ids can begin with padding, and no mask says where this one",
        ),
        (
            {"sequences": [0, 0, 5, 6, 7, 8], "action_mask": [0, 0, 0, 1, 1]},
            T1,
            "prompt beside sequences can begin with padding, and no mask says where this one begi",
        ),
        (
            {
                "prompt_token_ids": [0, 0, 5, 6],
                "output_token_ids": [7, 8, 9, 3],
                "attention_mask": [0, 0, 1, 1],
            },
            T1,
            "attention_mask has 4 values, as many as the prompt has tokens and the output, so wh",
        ),
        (VERL | {"response_ids": [[7, 8, 9]] * 3}, T1, "holds [7, 8, 9]; allowed: whole numbers"),
        ({"tokens": [1, 2, 3]}, T1, "tokens is prompt and output in one, and nothing says where"),
        ({"prompts": "a", "responses": "b"}, T1, "prompt_token_ids is missing; the ids that the"),
        ({"prompt_ids": [1]}, T1, "output_token_ids is missing"),
        (
            {"prompt_token_ids": [5, 6], "token_ids": [7, 8, 9]},
            T1,
            "token_ids beside prompt_token_ids, with which it does not begin: it can be the output",
        ),
        (
            FILES["prime-rl"] | {"completion_temperatures": [1.0, 1.0, 0.5]},
            {},
            "completion_temperatures differ within the row",
        ),
        (FILES["prime-rl"] | {"temperature": 0.5}, {}, "temperature and completion_temperatures d"),
        (
            FILES["transcripts"] | {"top_logprobs": [[[1, 0.0], [2, 0.0]]] * 3},
            {},
            "2 tokens with a mass of 2, all with log-probability 0, as an engine writes that does",
        ),
    ],
)
def test_what_could_mean_two_things_is_refused(row, settings, line, tmp_path):
    with pytest.raises(InvalidInput) as error:
        read_transcripts(written(tmp_path, row), settings)
    assert line in str(error.value) and "\n" not in str(error.value)


def test_settings_are_read_from_a_command_line():
    assert inputs.settings("temperature=0.7,top_k=50") == {"temperature": 0.7, "top_k": 50}
    for text in ("temp=1", "temperature", "top_k=1.5", "temperature=1,temperature=1", "top_p=2"):
        with pytest.raises(Exception, match="allowed|no number"):
            inputs.settings(text)


def test_reported_log_probabilities_are_compared_with_the_rescored_ones():
    rows = write(rows=6)
    arm = measure(rows, target())
    values = (-arm.terms.loss).tolist()
    told = []
    for row in rows:
        count = len(row.output_token_ids)
        part, values = values[:count], values[count:]
        told.append((row, part))

    def notes(change):
        changed = [
            Transcript(*row.written, logprobs=[change(value) for value in part])
            for row, part in told
        ]
        return [note for note in audit_arms(measure(changed, target())).notes if "probab" in note]

    number = sum(len(part) for _, part in told)
    assert notes(lambda value: value) == [
        f"transcripts: log-probabilities that the engine reported, of {number} tokens, differ "
        "from the rescored ones by 0 on average, and by more than 0.25 at 0.00% of them"
    ]
    assert (
        "by 0.5 on average, and by more than 0.25 at 100.00% of them"
        in notes(lambda value: value - 0.5)[0]
    )
    assert "are reported as 0, as an engine writes" in notes(lambda _: 0.0)[0]


def test_a_trainers_file_is_judged_as_the_transcripts_that_it_holds(tmp_path, capsys):
    save_tiny_pair(tmp_path)
    [engine] = load_scorers([str(tmp_path / "target")], "cpu")
    rows = write(engine=engine)
    (tmp_path / "rows.jsonl").write_text("".join(map(line_of, rows)))
    trainer = [
        {
            "prompts": [0, 0, *row.prompt_token_ids],
            "responses": [*row.output_token_ids, 0, 0],
            "attention_mask": [0, 0, *[1] * sum(map(len, row.written)), 0, 0],
            "finish_reason": row.finish_reason,
        }
        for row in rows
    ]
    printed = []
    for path in (tmp_path / "rows.jsonl", written(tmp_path, *trainer)):
        options = ["--target", str(tmp_path / "target"), "--device", "cpu"]
        assert main([str(path), *options, "--settings", "temperature=1"]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] and printed[0].startswith("verdict: no bias seen")
    assert [*report_lines(audit_arms(measure(rows, engine)))][0] in printed[0]
