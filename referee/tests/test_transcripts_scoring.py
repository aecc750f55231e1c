"""Rescoring: the model's own logits in pieces of any size, and laws as transformers makes them."""

from dataclasses import replace

import pytest
import torch
from transformers import Phi3Config, Phi3ForCausalLM

from referee import rescoring
from referee.audit import audit_transcripts
from referee.audit.own_check import own_check
from referee.rescoring import Scorer, check_fit, check_numbers, penalised, rescore
from referee.tests.toy_engine import EOS, VOCABULARY, target, write
from referee.transcripts import Transcript
from resispec.errors import InvalidInput, NoVerdict
from resispec.sampling import warped
from tests.toys import tiny_llama

PENALTIES = {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2}


@pytest.mark.parametrize(("held", "positions"), [(2**24, 8192), (5 * 3 * VOCABULARY, 150), (1, 1)])
def test_every_token_has_the_models_own_logits_in_pieces_of_any_size(monkeypatch, held, positions):
    rows = [
        *write(rows=7, new=20, **PENALTIES),
        Transcript((3,), (4,)),
        Transcript((1,) * 200, (2,) * 57),
    ]
    whole = {one.row: penalised(one, rows[one.row]) for [one] in rescore([target()], rows)}
    monkeypatch.setattr(rescoring, "MAX_LOGITS", held)
    monkeypatch.setattr(rescoring, "MAX_POSITIONS", positions)
    parts = {}
    for stretch, twin in rescore([target(), target()], rows):
        assert torch.equal(stretch.logits, twin.logits)
        parts.setdefault(stretch.row, []).append(stretch)
    for number, row in enumerate(rows):
        check_fit([target()], [row])
        prompt, outputs = row.written
        stretches = sorted(parts[number], key=lambda stretch: stretch.first)
        ends = [stretch.first + len(stretch.logits) for stretch in stretches]
        assert [stretch.first for stretch in stretches] == [0, *ends[:-1]] and ends[-1] == len(
            outputs
        )
        with torch.no_grad():
            logits = (
                target().module(torch.tensor([[*prompt, *outputs]])).logits[0, len(prompt) - 1 : -1]
            )
        pieces = torch.cat([stretch.logits for stretch in stretches])
        torch.testing.assert_close(pieces, logits, atol=2e-4, rtol=1e-4)
        pieces = torch.cat([penalised(stretch, row) for stretch in stretches])
        torch.testing.assert_close(pieces, whole[number], atol=2e-4, rtol=1e-4)


def test_laws_are_those_that_transformers_generate_draws_from():
    """Its own scores, after its processors in its order, token by token."""
    settings = {
        "temperature": 0.8,
        "top_k": 20,
        "top_p": 0.9,
        "min_p": 0.02,
        "repetition_penalty": 1.2,
    }
    prompt = torch.tensor([[5, 9, 5, 33, 7, 2]])
    torch.manual_seed(0)
    out = target().module.generate(
        prompt, do_sample=True, max_new_tokens=24, output_scores=True, return_dict_in_generate=True,
        pad_token_id=EOS, eos_token_id=EOS, **settings,
    )  # fmt: skip
    row = Transcript(tuple(prompt[0].tolist()), tuple(out.sequences[0, 6:].tolist()), **settings)
    [[stretch]] = rescore([target()], [row])
    law = warped(penalised(stretch, row), row).softmax(-1)
    assert len(law) == 24 or row.output_token_ids[-1] == EOS
    torch.testing.assert_close(law, torch.stack(out.scores)[:, 0].softmax(-1), atol=1e-5, rtol=1e-3)


def test_presence_and_frequency_penalties_count_emitted_tokens_alone():
    """OpenAI's formula: mu[j] - c[j] * frequency - (c[j] > 0) * presence."""
    row = Transcript((3, 4, 4), (8, 8, 3, 8, 9), presence_penalty=0.5, frequency_penalty=0.25)
    [[stretch]] = rescore([target()], [row])
    expected = torch.zeros(5, VOCABULARY)
    for index, counts in enumerate(({}, {8: 1}, {8: 2}, {8: 2, 3: 1}, {8: 3, 3: 1})):
        for token, count in counts.items():
            expected[index, token] = -0.25 * count - 0.5
    torch.testing.assert_close(
        penalised(stretch, row) - stretch.logits, expected, atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("largest", [torch.nan, torch.inf, -torch.inf])
def test_a_law_has_a_largest_logit_that_is_finite(largest):
    logits = torch.tensor([[0.0, -torch.inf], [largest, -torch.inf]])
    check_numbers([logits[:1]] * 2, [target()] * 2, "file, line 3")
    with pytest.raises(
        NoVerdict, match="^file, line 3: the draft in float32 gives .* for 1 of 2 tokens; "
    ):
        check_numbers([logits[:1], logits], [target()] * 2, "file, line 3")


def test_rows_that_the_model_cannot_have_read_or_written_are_refused():
    for sequence, expected in (
        (((1, 64), (2,)), "prompt_token_ids holds 64; allowed: ids below 64"),
        (((1,), (2, 99)), "output_token_ids holds 99; allowed: ids below 64"),
        (((1,) * 200, (2,) * 58), "200 prompt and 58 output tokens; allowed: 257 together"),
    ):
        with pytest.raises(InvalidInput, match=f"^file, line 3: {expected}"):
            check_fit([target()], [Transcript(*sequence, place="file, line 3")])
    small = Scorer(tiny_llama(VOCABULARY // 2, layers=1).module, EOS)
    with pytest.raises(
        InvalidInput, match="holds 40; allowed: ids below 32, the draft's vocabulary"
    ):
        check_fit([target(), small], [Transcript((1,), (40,))])


def test_outputs_that_hold_their_prompts_or_are_filled_up_are_refused():
    rows = write(rows=20, new=30, seed=3)

    def changed(change):
        return [replace(row, output_token_ids=change(row)) for row in rows]

    def filled(token):
        return changed(lambda row: (row.output_token_ids + (token,) * 30)[:30])

    whole = changed(lambda row: row.prompt_token_ids + row.output_token_ids)
    for wrong, expected in (
        (whole, "the outputs of 20 of 20 rows begin with their own prompts"),
        # defect: one row of another file undid it
        ([*whole[1:], rows[0]], "the outputs of 19 of 20 rows begin with their own prompts"),
        (filled(EOS), "behind an end of sequence there is nothing but token 0, here"),
        (filled(5), "behind an end of sequence there is nothing but token 5, here"),
    ):
        check_fit([target()], rows)
        with pytest.raises(InvalidInput, match=rf"^rows.jsonl, line \d+: {expected}"):
            check_fit([target()], wrong)
    check_fit([target()], [Transcript((3,), (3, 4)), Transcript((4,), (4,))])  # by chance
    # an engine that ignores ends of sequence, and one that emits a token behind them
    check_fit([target()], [*filled(5), *filled(6)])
    for extra in ({"ignore_eos": True}, {"sampling_params": {"ignore_eos": True}}):
        check_fit([target()], [replace(row, extra=extra) for row in filled(5)])
    check_fit([target()], changed(lambda row: (*row.output_token_ids, 5)))


def test_every_end_of_sequence_token_and_default_of_a_model_is_known(monkeypatch):
    module = target().module
    assert target().eos_token_ids == (EOS,) and target().defaults == {}
    monkeypatch.setattr(module.generation_config, "eos_token_id", [7, 3])
    monkeypatch.setattr(module.generation_config, "top_p", 0.9)
    scorer = Scorer(module, EOS)
    assert scorer.eos_token_ids == (EOS, 3, 7) and scorer.defaults == {"top_p": 0.9}
    assert Scorer(module).eos_token_ids == (3, 7)


def test_an_end_of_sequence_that_the_model_has_no_logit_for_counts_as_none():
    """Defect: a tokenizer with added tokens beside a smaller model ended in an IndexError."""
    for unknown in (VOCABULARY, -1):
        scorer = Scorer(target().module, unknown)
        assert scorer.eos_token_ids == () and scorer.unknown_ends == (unknown,)
        report = audit_transcripts(write(rows=3), scorer)
        assert (
            f"the end of sequence {unknown}, which the target's files name, counts as none: the "
            f"target has logits for ids below {VOCABULARY} alone"
        ) in report.notes
    assert not any("end of sequence" in n for n in audit_transcripts(write(rows=3), target()).notes)


def test_a_forward_that_does_not_fit_into_memory_is_no_verdict(monkeypatch):
    rows = write(rows=3)

    def forward(**_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(target().module, "forward", forward)
    line = r"^a forward of \d x \d+ tokens by the model in float32 does not fit into the memory"
    for work in (lambda: rescore([target()], rows), lambda: own_check(rows, target(), None)):
        with pytest.raises(NoVerdict, match=f"{line} of cpu; allowed: what fits, as with"):
            next(work())


def test_a_window_that_a_llama_does_not_read_is_refused(monkeypatch):
    module = target().module
    monkeypatch.setattr(module.config, "sliding_window", 8, raising=False)
    with pytest.raises(InvalidInput, match="sliding_window is 8, which no layer of a llama reads"):
        Scorer(module)


def test_rows_lie_on_one_side_of_the_length_at_which_frequencies_change():
    """Batches, too, since the longest row of a batch decides for all."""
    rope = {
        "rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 24,
        "short_factor": [1.0] * 4, "long_factor": [1.0, 2.0, 4.0, 8.0],
    }  # fmt: skip
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 4, "max_position_embeddings": 64, "pad_token_id": 0}
    torch.manual_seed(0)
    config = Phi3Config(**sizes, **heads, original_max_position_embeddings=24, rope_parameters=rope)
    scorer = Scorer(Phi3ForCausalLM(config))
    tokens = tuple(range(2, 50))
    for split, end, fits in ((8, 25, True), (8, 26, False), (25, 27, False), (26, 40, True)):
        row = Transcript(tokens[:split], tokens[split:end], place="line 1")
        if fits:
            check_fit([scorer], [row])
            continue
        with pytest.raises(
            InvalidInput, match="^line 1: .* the target's frequencies .* at most 24"
        ):
            check_fit([scorer], [row])
    rows = [Transcript(tokens[:20], tokens[20:25]), Transcript(tokens[:26], tokens[26:40])]
    for (stretch,) in rescore([scorer], rows):
        row = rows[stretch.row]
        for place, logits in enumerate(stretch.logits, start=stretch.first):
            known = (*row.prompt_token_ids, *row.output_token_ids[:place])
            own = scorer.module(torch.tensor([known])).logits[0, -1]
            assert torch.allclose(logits, own, atol=1e-5)
