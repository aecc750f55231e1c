"""transformers' own `generate` as an engine: exact in every mode, unless a drafter misstates its law."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from toys import ToyTokenizer, tiny_llama

from experiments.transcripts.planted import ArgmaxEngine
from resispec.audit.z_score import surprisal_terms, z_score
from resispec.engines import Settings, write_transcripts
from resispec.errors import InvalidInput
from resispec.models import Pair, TransformersModel
from resispec.models.generate import MODES, TransformersEngine

VOCAB = 16
PROMPTS = [(1 + index % 15, 2 + index % 7, 3) for index in range(60)]
SETTINGS = Settings(max_new_tokens=10)


def tiny_pair(gap_seed: int = 1) -> Pair:
    return Pair(tiny_llama(VOCAB), tiny_llama(VOCAB, seed=gap_seed), ToyTokenizer())


def surprisal_z(pair: Pair, rows, warp=lambda logits: logits) -> float:
    """The z-score of the surprisal of every emitted token under the target's law."""
    deviation = variance = torch.zeros(0, dtype=torch.float64)
    for row in rows:
        ids = torch.tensor([[*row.prompt_token_ids, *row.output_token_ids]])
        with torch.inference_mode():
            logits = pair.target.module(ids).logits[0, len(row.prompt_token_ids) - 1 : -1].double()
        terms = surprisal_terms(warp(logits).softmax(-1), torch.tensor(row.output_token_ids))
        deviation, variance = torch.cat((deviation, terms[0])), torch.cat((variance, terms[1]))
    return z_score(float(deviation.sum()), float(variance.sum()), len(deviation)).z


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_of_transformers_is_exact(mode, tmp_path):
    pair = tiny_pair()
    rows = write_transcripts(TransformersEngine(pair, mode), PROMPTS, SETTINGS, tmp_path / "rows.jsonl")
    assert all(len(row.output_token_ids) == 10 and row.finish_reason == "length" for row in rows)
    assert {row.engine for row in rows} == {f"transformers, {mode}"}
    assert abs(surprisal_z(pair, rows)) < 4


def test_drafts_that_were_not_drawn_are_a_bias(tmp_path):
    pair = tiny_pair()
    rows = write_transcripts(ArgmaxEngine(pair), PROMPTS, SETTINGS, tmp_path / "rows.jsonl")
    assert abs(surprisal_z(pair, rows)) > 6
    assert "_get_candidate_generator" not in vars(pair.target.module)


def test_the_planted_law_of_one_token_is_that_of_the_formula():
    """The first of two tokens: the argmax x of q is kept with min(1, p/q)(x), else (p - q)+ is drawn from."""
    pair, prompt, draws = tiny_pair(), (1, 2, 3), 400
    with torch.inference_mode():
        p, q = (
            model.module(torch.tensor([prompt])).logits[0, -1].softmax(-1)
            for model in (pair.target, pair.draft)
        )
    kept = torch.zeros(VOCAB).scatter(0, q.argmax(), (p / q).clamp(max=1)[q.argmax()])
    residual = (p - q).clamp(min=0)
    expected = kept + (1 - kept.sum()) * residual / residual.sum()
    engine, settings = ArgmaxEngine(pair, num_drafted=1), Settings(max_new_tokens=2)
    tokens = torch.tensor([engine.answer(prompt, settings, seed).tokens[0] for seed in range(draws)])
    found = torch.bincount(tokens, minlength=VOCAB) / draws
    assert (expected - p).abs().sum() / 2 > 0.1  # so the next line tells them apart
    assert (found - expected).abs().max() < 4 * (0.25 / draws) ** 0.5


def test_what_a_model_folder_would_apply_is_not_applied(tmp_path):
    pair = tiny_pair()
    pair.target.module.generation_config.update(
        top_k=1, temperature=0.1, repetition_penalty=9.0, suppress_tokens=[3]
    )
    engine = TransformersEngine(pair)
    rows = write_transcripts(engine, PROMPTS, SETTINGS, tmp_path / "rows.jsonl")
    assert abs(surprisal_z(pair, rows)) < 4 and any(3 in row.output_token_ids for row in rows)


def test_settings_are_applied(tmp_path):
    pair = tiny_pair()
    settings = Settings(temperature=0.7, top_k=5, max_new_tokens=10)
    engine = TransformersEngine(pair, "assisted")
    rows = write_transcripts(engine, PROMPTS[:40], settings, tmp_path / "rows.jsonl")

    def warp(logits):
        kept = logits.topk(5).values[..., -1:]
        return torch.where(logits < kept, -torch.inf, logits) / 0.7

    assert abs(surprisal_z(pair, rows, warp)) < 4
    assert abs(surprisal_z(pair, rows)) > 4


def test_temperature_zero_is_greedy():
    pair = tiny_pair()
    answers = [
        TransformersEngine(pair, mode).answer((1, 2), Settings(temperature=0), 0).tokens for mode in MODES
    ]
    ids = [1, 2]
    for _ in range(64):
        ids.append(int(pair.target.module(torch.tensor([ids])).logits[0, -1].argmax()))
    assert answers == [tuple(ids[2:])] * 3


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
def test_a_mode_drafts_what_it_names(mode):
    pair = tiny_pair(gap_seed=0)  # the draft is the target's equal, so all that it drafts is kept
    widths = []
    hook = pair.target.module.register_forward_pre_hook(
        lambda _module, _given, named: widths.append(named["input_ids"].shape[1]), with_kwargs=True
    )
    engine = TransformersEngine(pair, mode, num_drafted=4)
    answer = engine.answer((1, 2, 3, 1, 2, 3, 1, 2), SETTINGS, 0)
    hook.remove()
    assert len(answer.tokens) == 10
    assert (max(widths[1:]) > 1) == (mode != "plain")
    assert mode != "assisted" or len(widths) <= 5


@pytest.mark.parametrize("ends", [7, [7, 8]])
def test_the_end_of_the_sequence_is_emitted_and_said(ends):
    pair = tiny_pair()
    pair.target.module.generation_config.eos_token_id = ends
    engine = TransformersEngine(replace(pair, target=TransformersModel(pair.target.module)))
    answers = [engine.answer(prompt, Settings(max_new_tokens=8), 0) for prompt in PROMPTS[:20]]
    listed = ends if isinstance(ends, list) else [ends]
    for answer in answers:
        assert (answer.finish_reason == "stop") == (answer.tokens[-1] in listed)
        assert not set(listed) & set(answer.tokens[:-1])
        assert len(answer.tokens) == 8 or answer.finish_reason == "stop"
    assert {answer.finish_reason for answer in answers} == {"stop", "length"}


@pytest.mark.parametrize(
    ("prompt", "settings", "message"),
    [
        ((1, 99), {}, "the prompt holds token 99; the model's vocabulary ends at 15"),
        ((1,) * 250, {}, "a prompt of 250 tokens and 64 new ones need 314 positions; the model has 256"),
        ((1,), {"presence_penalty": 1.0}, "presence_penalty is 1.0, and `generate` has none; allowed: 0"),
    ],
)
def test_what_cannot_be_asked_is_refused(prompt, settings, message, tmp_path):
    with pytest.raises(InvalidInput, match=message):
        write_transcripts(
            TransformersEngine(tiny_pair()), [prompt], Settings(**settings), tmp_path / "rows.jsonl"
        )


def test_a_mode_needs_what_it_names():
    with pytest.raises(InvalidInput, match="unknown mode 'beam'; allowed: plain, assisted, prompt_lookup"):
        TransformersEngine(tiny_pair(), "beam")
    with pytest.raises(InvalidInput, match="a draft model is needed"):
        TransformersEngine(Pair(tiny_llama(VOCAB), None, ToyTokenizer()), "assisted")
