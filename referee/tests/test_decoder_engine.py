"""This library's loop as an engine: its answers, and its account of acceptance."""

import itertools

import pytest
from toys import table_pair

from referee.engines.decoder import DecoderEngine
from resispec.decode import Decoder
from resispec.drafters import DraftModel
from resispec.errors import InvalidInput
from resispec.sampling import Sampling
from resispec.trees import complete, root_only
from resispec.verifiers import get_verifier

PAIR = table_pair(vocab=8, eos=7)


def engine(topology=complete(3, 2)):  # noqa: B008 - it is frozen
    return DecoderEngine("toy", PAIR, Decoder(DraftModel(topology), get_verifier("standard")))


def test_answers_end_where_they_should_and_repeat_with_their_seed():
    settings = Sampling(max_new_tokens=9)
    answers = [engine().answer((5, 2), settings, seed) for seed in range(20)]
    for seed, answer in enumerate(answers):
        is_end = answer.tokens[-1] == 7
        assert answer.finish_reason == ("stop" if is_end else "length") and answer.seed == seed
        assert (len(answer.tokens) == 9 or is_end) and 7 not in answer.tokens[:-1]
    assert engine().answer((5, 2), settings, 5) == answers[5]
    assert len({answer.tokens for answer in answers}) > 10
    assert len(engine().answer((1,), Sampling(max_new_tokens=1), 0).tokens) == 1


def test_settings_are_applied_and_penalties_refused():
    answer = engine().answer((3,), Sampling(temperature=0.0, max_new_tokens=6), 0)
    last, expected = 3, []
    while len(expected) < 6 and last != 7:
        last = int(PAIR.target.logits[last].argmax())
        expected.append(last)
    assert list(answer.tokens) == expected
    allowed = PAIR.target.logits.topk(2, dim=-1).indices.tolist()
    for seed in range(9):
        tokens = (3, *engine().answer((3,), Sampling(top_k=2, max_new_tokens=9), seed).tokens)
        assert all(token in allowed[before] for before, token in itertools.pairwise(tokens))
    with pytest.raises(InvalidInput, match=r"toy: presence_penalty is 0.5, and a penalty would differ from"):
        engine().check(Sampling(presence_penalty=0.5))
    engine().check(Sampling(temperature=0.3, top_k=5, top_p=0.9, min_p=0.1))


def test_the_record_adds_up():
    """Every step emits one token more than it accepts; the last step may go past the end."""
    answer = engine().answer((1, 2), Sampling(max_new_tokens=50), 1)
    record = answer.extra["spec_decode"]
    emitted = record["num_spec_steps"] + record["num_accepted_draft_tokens"]
    assert len(answer.tokens) <= emitted < len(answer.tokens) + 3
    assert record["num_draft_tokens"] == 6 * record["num_spec_steps"]
    alone = engine(root_only()).answer((1, 2), Sampling(max_new_tokens=5), 1)
    assert alone.extra["spec_decode"]["num_accepted_draft_tokens"] == 0
