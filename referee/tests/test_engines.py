"""Engines in this process: this library's loop, and transformers' own `generate` in every mode."""

from dataclasses import replace

import pytest
import torch

from referee.audit import measure
from referee.engines import write_transcripts
from referee.engines.base import MODES
from referee.engines.decoder import DecoderEngine
from referee.engines.generate import TransformersEngine
from referee.rescoring import pair_scorers
from resispec.decode import Decoder
from resispec.drafters import DraftModel
from resispec.errors import InvalidInput
from resispec.models import Pair, TransformersModel
from resispec.sampling import Sampling
from resispec.trees import complete, root_only
from resispec.verifiers import get_verifier
from tests.toys import ToyTokenizer, table_pair, tiny_llama

PROMPTS = [(1 + index % 15, 2 + index % 7, 3) for index in range(60)]
SETTINGS = Sampling(max_new_tokens=10)


def ours(topology):
    decoder = Decoder(DraftModel(topology), get_verifier("standard"))
    return DecoderEngine("toy", table_pair(vocab=8, eos=7), decoder)


def test_our_answers_end_where_they_should_and_repeat_with_their_seed():
    engine, settings = ours(complete(3, 2)), Sampling(max_new_tokens=9)
    answers = [engine.answer((5, 2), settings, seed) for seed in range(20)]
    for seed, answer in enumerate(answers):
        reason = "stop" if answer.tokens[-1] == 7 else "length"
        assert (answer.finish_reason, answer.seed) == (reason, seed)
    assert {answer.finish_reason for answer in answers} == {"stop", "length"}
    assert engine.answer((5, 2), settings, 5) == answers[5]
    assert len({answer.tokens for answer in answers}) > 10
    with pytest.raises(
        InvalidInput, match=r"toy: presence_penalty is 0.5, and a penalty would differ from"
    ):
        engine.check(Sampling(presence_penalty=0.5))


def test_our_record_adds_up():
    """Every step emits one token more than it accepts; the last step may go past the end."""
    answer = ours(complete(3, 2)).answer((1, 2), Sampling(max_new_tokens=50), 1)
    record = answer.extra["spec_decode"]
    emitted = record["num_spec_steps"] + record["num_accepted_draft_tokens"]
    assert len(answer.tokens) <= emitted < len(answer.tokens) + 3
    assert record["num_draft_tokens"] == 6 * record["num_spec_steps"]
    assert sum(record["acceptance_histogram"].values()) == record["num_spec_steps"]
    alone = ours(root_only()).answer((1, 2), SETTINGS, 1)
    assert alone.extra["spec_decode"]["num_accepted_draft_tokens"] == 0


def tiny_pair(seed=1):
    return Pair(tiny_llama(16), tiny_llama(16, seed=seed), ToyTokenizer())


def surprisal_z(pair, rows):
    return measure(rows, pair_scorers(pair)[0]).statistics()["surprisal"].z


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_of_transformers_is_exact(mode, tmp_path):
    """Whatever the folder of a model would apply."""
    pair = tiny_pair()
    pair.target.module.generation_config.update(
        top_k=1, temperature=0.1, repetition_penalty=9.0, suppress_tokens=[3]
    )
    usual = pair.target.module.generation_config
    engine = TransformersEngine(pair, mode)
    rows = write_transcripts(engine, PROMPTS[:30], SETTINGS, tmp_path / "rows.jsonl")
    assert pair.target.module.generation_config is usual  # of others that share the model
    assert all(len(row.output_token_ids) == 10 and row.finish_reason == "length" for row in rows)
    assert {row.engine for row in rows} == {f"transformers, {mode}"}
    assert abs(surprisal_z(pair, rows)) < 4 and any(3 in row.output_token_ids for row in rows)
    settings = Sampling(temperature=0.7, top_k=5, max_new_tokens=10)
    rows = write_transcripts(engine, PROMPTS[:30], settings, tmp_path / "others.jsonl")
    assert abs(surprisal_z(pair, rows)) < 4
    assert abs(surprisal_z(pair, [replace(row, temperature=1.0, top_k=0) for row in rows])) > 4
    ids, greedy = [1, 2], Sampling(temperature=0, max_new_tokens=20)
    for _ in range(20):
        ids.append(int(pair.target.module(torch.tensor([ids])).logits[0, -1].argmax()))
    assert engine.answer((1, 2), greedy, 0).tokens == tuple(ids[2:])


def test_batches_of_transformers_are_exact_and_an_arm_of_their_own(tmp_path):
    """Prompts of several lengths: short ones are padded; a row that ends before others is cut."""
    pair, ends = tiny_pair(), {7, 8}
    pair.target.module.generation_config.eos_token_id = sorted(ends)
    pair = replace(pair, target=TransformersModel(pair.target.module))
    engine = TransformersEngine(pair)
    mixed = [prompt * (1 + place % 3) for place, prompt in enumerate(PROMPTS[:40])]
    rows = write_transcripts(engine, mixed, SETTINGS, tmp_path / "rows.jsonl", 0, [1, 8])
    alone, together = rows[: len(mixed)], rows[len(mixed) :]
    assert [row.seed for row in alone] == list(range(len(mixed))) and {
        row.seed for row in together
    } == {None}
    for arm in (alone, together):
        assert abs(surprisal_z(pair, arm)) < 4
        assert {row.output_token_ids[-1] for row in arm if row.finish_reason == "stop"} == ends
        for row in arm:
            assert (row.finish_reason == "stop") == (row.output_token_ids[-1] in ends)
            assert not ends.intersection(row.output_token_ids[:-1])
    greedy = Sampling(temperature=0, max_new_tokens=8)
    answers = engine.answers(mixed[:6], greedy, range(6))
    expected = [engine.answer(prompt, greedy, 0).tokens for prompt in mixed[:6]]
    assert [one.tokens for one in answers] == expected
    assert not TransformersEngine(pair, "assisted").takes_batches


def test_a_seed_decides_alone_and_nobody_else_is_disturbed():
    engine = TransformersEngine(tiny_pair(), "assisted")
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = engine.answer((1, 2), SETTINGS, seed=3)
    assert torch.equal(torch.rand(3), expected)
    assert engine.answer((1, 2), SETTINGS, seed=3) == first
    assert engine.answer((1, 2), SETTINGS, seed=4).tokens != first.tokens


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_drafts_as_it_is_named(mode):
    pair = tiny_pair(seed=0)  # the draft is the target's equal, so all that it drafts is kept
    widths = []
    pair.target.module.register_forward_pre_hook(
        lambda _module, _given, named: widths.append(named["input_ids"].shape[1]), with_kwargs=True
    )
    engine = TransformersEngine(pair, mode, num_drafted=4)
    answer = engine.answer((1, 2, 3, 1, 2, 3, 1, 2), SETTINGS, 0)
    assert len(answer.tokens) == 10 and (max(widths[1:]) > 1) == (mode != "plain")
    assert mode != "assisted" or len(widths) <= 5


def test_what_generate_cannot_do_is_refused(tmp_path):
    engine = TransformersEngine(tiny_pair())
    for prompt, settings, message in (
        ((1, 99), {}, "the prompt holds token 99; the model's vocabulary ends at 15"),
        (
            (1,) * 250,
            {},
            "a prompt of 250 tokens and 128 new ones need 378 positions; the model has 256",
        ),
        (
            (1,),
            {"presence_penalty": 1.0},
            "presence_penalty is 1.0, and `generate` has none; allowed: 0",
        ),
    ):
        with pytest.raises(InvalidInput, match=message):
            write_transcripts(engine, [prompt], Sampling(**settings), tmp_path / "rows.jsonl")
    with pytest.raises(
        InvalidInput, match="unknown mode 'beam'; allowed: plain, assisted, prompt_lookup"
    ):
        TransformersEngine(tiny_pair(), "beam")
    with pytest.raises(InvalidInput, match="a draft model is needed"):
        TransformersEngine(Pair(tiny_llama(16), None, ToyTokenizer()), "assisted")
