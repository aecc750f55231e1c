"""This library's loop as an engine: what it answers, and what it says about its acceptance."""

import itertools

import pytest
from toys import table_pair

from resispec.decode import Decoder
from resispec.drafters import DraftModel
from resispec.engines import Settings, write_transcripts
from resispec.engines.decoder import DecoderEngine
from resispec.errors import InvalidInput
from resispec.trees import complete, root_only
from resispec.verifiers import get_verifier

PAIR = table_pair(vocab=8, eos=7)
PROMPTS = [(1 + index % 6, 2) for index in range(40)]


def engine(topology=complete(3, 2)):  # noqa: B008 - it is frozen
    return DecoderEngine("toy", PAIR, Decoder(DraftModel(topology), get_verifier("standard")))


def test_answers_end_where_they_should_and_repeat_with_their_seed(tmp_path):
    settings = Settings(max_new_tokens=9)
    rows = write_transcripts(engine(), PROMPTS, settings, tmp_path / "rows.jsonl")
    for row in rows:
        is_end = row.output_token_ids[-1] == 7
        assert row.finish_reason == ("stop" if is_end else "length")
        assert len(row.output_token_ids) == 9 or is_end
        assert 7 not in row.output_token_ids[:-1]
    again = engine().answer(PROMPTS[5], settings, 5)
    assert again.tokens == rows[5].output_token_ids and again.seed == rows[5].seed == 5
    assert any(engine().answer(PROMPTS[5], settings, seed).tokens != again.tokens for seed in range(6, 12))


def test_temperature_0_is_the_likeliest_token():
    answer = engine().answer((3,), Settings(temperature=0.0, max_new_tokens=6), 0)
    last, expected = 3, []
    while len(expected) < 6 and last != 7:
        last = int(PAIR.target.logits[last].argmax())
        expected.append(last)
    assert list(answer.tokens) == expected


def test_the_record_adds_up():
    """Every step emits one token more than it accepts; the last step may go past the end."""
    answer = engine().answer((1, 2), Settings(max_new_tokens=50), 1)
    record = answer.extra["spec_decode"]
    emitted = record["num_spec_steps"] + record["num_accepted_draft_tokens"]
    assert len(answer.tokens) <= emitted < len(answer.tokens) + 3
    assert record["num_draft_tokens"] == 6 * record["num_spec_steps"]
    alone = engine(root_only()).answer((1, 2), Settings(max_new_tokens=5), 1)
    assert alone.extra["spec_decode"]["num_accepted_draft_tokens"] == 0


def test_fewer_tokens_than_a_tree_has_levels():
    assert len(engine().answer((1,), Settings(max_new_tokens=1), 0).tokens) == 1


def test_settings_that_the_loop_has_not_are_refused():
    with pytest.raises(InvalidInput, match=r"toy: presence_penalty is 0.5, and a penalty would differ from"):
        engine().check(Settings(presence_penalty=0.5))
    engine().check(Settings(temperature=0.3, top_k=5, top_p=0.9, min_p=0.1))


def test_what_top_k_leaves_out_is_not_emitted():
    allowed = PAIR.target.logits.topk(2, dim=-1).indices.tolist()
    for seed in range(9):
        found = (3, *engine().answer((3,), Settings(top_k=2, max_new_tokens=9), seed).tokens)
        assert all(token in allowed[before] for before, token in itertools.pairwise(found))
