"""Rescoring: the model's own logits however they are cut into pieces, and laws as transformers makes them."""

import pytest
import torch
from toy_engine import EOS, VOCABULARY, target, write

from resispec.errors import InvalidInput
from resispec.models import scoring
from resispec.models.scoring import Scorer, check_fit, rescore
from resispec.models.warpers import penalised, tempered, truncated
from resispec.transcripts import Transcript


def by_token(stretches):
    """(row, index of the output token) -> its logits, each token once."""
    found = {}
    for stretch in stretches:
        for offset, logits in enumerate(stretch.logits):
            assert (stretch.row, stretch.first + offset) not in found
            found[stretch.row, stretch.first + offset] = logits
            assert stretch.tokens[offset] == stretch.outputs[stretch.first + offset]
    return found


@pytest.mark.parametrize(("held", "positions"), [(2**24, 8192), (5 * 3 * VOCABULARY, 150), (1, 1)])
def test_every_token_has_the_models_own_logits_in_pieces_of_any_size(monkeypatch, held, positions):
    monkeypatch.setattr(scoring, "MAX_LOGITS", held)
    monkeypatch.setattr(scoring, "MAX_POSITIONS", positions)
    rows = [one.written for one in write(rows=7, new=20)]
    rows.append(((3,), (4,)))  # nothing before the first column that counts
    found = by_token(one for [one] in rescore([target()], rows))
    assert len(found) == sum(len(outputs) for _, outputs in rows)
    for row, (prompt, outputs) in enumerate(rows):
        with torch.no_grad():
            logits = target().module(torch.tensor([[*prompt, *outputs]])).logits[0, len(prompt) - 1 : -1]
        mine = torch.stack([found[row, index] for index in range(len(outputs))])
        torch.testing.assert_close(mine, logits, atol=2e-4, rtol=1e-4)


def test_two_models_rescore_the_same_tokens():
    rows = [one.written for one in write(rows=3, new=9)]
    for one, other in rescore([target(), target()], rows):
        assert (one.row, one.first) == (other.row, other.first) and torch.equal(one.logits, other.logits)


SETTINGS = {
    "temperature": {"temperature": 0.7},
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.1},
    "repetition": {"repetition_penalty": 1.3},
    "reward": {"repetition_penalty": 0.8, "temperature": 1.5},
    "all": {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.2},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_laws_are_those_that_transformers_generate_draws_from(name):
    """Its own scores, after its processors in its order, token by token."""
    settings = SETTINGS[name]
    prompt = torch.tensor([[5, 9, 5, 33, 7, 2]])
    torch.manual_seed(0)
    out = target().module.generate(
        prompt, do_sample=True, max_new_tokens=24, output_scores=True, return_dict_in_generate=True,
        pad_token_id=EOS, eos_token_id=EOS, **{"top_k": 0, **settings},
    )  # fmt: skip
    one = Transcript(tuple(prompt[0].tolist()), tuple(out.sequences[0, 6:].tolist()), **settings)
    expected = torch.stack(out.scores)[:, 0].softmax(-1)
    [[stretch]] = rescore([target()], [one.written])
    found = truncated(tempered(penalised(stretch, one), one), one).softmax(-1)
    assert len(found) == 24 or one.output_token_ids[-1] == EOS
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-3)


def test_presence_and_frequency_penalties_count_emitted_tokens_alone():
    """As OpenAI's documentation has it: mu[j] - c[j] * frequency - (c[j] > 0) * presence."""
    one = Transcript((3, 4, 4), (8, 8, 3, 8, 9), presence_penalty=0.5, frequency_penalty=0.25)
    [[stretch]] = rescore([target()], [one.written])
    change = penalised(stretch, one) - stretch.logits
    expected = torch.zeros(5, VOCABULARY)
    for index, counts in enumerate(({}, {8: 1}, {8: 2}, {8: 2, 3: 1}, {8: 3, 3: 1})):
        for token, count in counts.items():
            expected[index, token] = -0.25 * count - 0.5
    torch.testing.assert_close(change, expected, atol=1e-5, rtol=1e-5)


def test_penalties_are_the_same_in_pieces(monkeypatch):
    settings = {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2}
    [one] = write(rows=1, new=30, **settings)
    [[whole]] = rescore([target()], [one.written])
    monkeypatch.setattr(scoring, "MAX_LOGITS", 4 * VOCABULARY)
    parts = [stretch for [stretch] in rescore([target()], [one.written])]
    assert len(parts) > 3
    torch.testing.assert_close(
        torch.cat([penalised(part, one) for part in parts]), penalised(whole, one), atol=2e-4, rtol=1e-4
    )


@pytest.mark.parametrize(
    ("sequence", "expected"),
    [
        (((1, 64), (2,)), "file, line 3: prompt_token_ids holds 64; allowed: ids below 64"),
        (((1,), (2, 99)), "file, line 3: output_token_ids holds 99; allowed: ids below 64"),
        (((1,) * 200, (2,) * 58), "file, line 3: 200 prompt and 58 output tokens; allowed: 257 together"),
    ],
)
def test_what_the_model_cannot_have_read_or_written_is_refused(sequence, expected):
    with pytest.raises(InvalidInput) as caught:
        check_fit(target(), sequence, "file, line 3")
    assert str(caught.value).startswith(expected)


def test_the_longest_sequence_that_fits_is_rescored():
    sequence = ((1,) * 200, (2,) * 57)
    check_fit(target(), sequence, "")
    assert len(by_token(one for [one] in rescore([target()], [sequence]))) == 57


def test_every_end_of_sequence_token_and_default_of_a_model_is_known():
    module = target().module
    assert target().eos_token_ids == (EOS,) and target().defaults == {}
    given = module.generation_config.eos_token_id, module.generation_config.top_p
    try:
        module.generation_config.eos_token_id, module.generation_config.top_p = [7, 3], 0.9
        found = Scorer(module, EOS)
        assert found.eos_token_ids == (EOS, 3, 7) and found.defaults == {"top_p": 0.9}
    finally:
        module.generation_config.eos_token_id, module.generation_config.top_p = given
