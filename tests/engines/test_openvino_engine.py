"""OpenVINO GenAI as an engine that is not ours: biased with a draft model, and why (docs/openvino.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("openvino_genai", reason="the extra `engines` is not installed")
pytest.importorskip("gguf", reason="the extra `engines` is not installed")

import numpy as np

from experiments.engines import openvino_law as law
from experiments.engines import openvino_reproduction as reproduction
from experiments.engines.openvino_genai import OpenVinoEngine
from resispec.audit.transcripts import Finding, audit_transcripts
from resispec.engines import Settings, write_transcripts
from resispec.errors import InvalidInput
from resispec.models import Pair
from resispec.models.generate import MODES, TransformersEngine
from resispec.models.scoring import pair_scorers


@pytest.fixture(scope="module")
def engines(pair, folder):
    return {mode: OpenVinoEngine(pair, folder / "openvino", mode) for mode in MODES}


@pytest.fixture(scope="module")
def found():
    """What the engine emits on four tokens, (1000, 3)."""
    return law.count_tokens(1000)


@pytest.mark.parametrize("mode", ["plain", "prompt_lookup"])
def test_without_a_draft_model_it_is_exact(pair, engines, mode, prompts, sampled, tmp_path):
    rows = write_transcripts(engines[mode], prompts, sampled, tmp_path / "rows.jsonl")
    assert audit_transcripts(rows, *pair_scorers(pair)).finding == Finding.CONSISTENT
    assert {row.engine for row in rows} == {f"OpenVINO GenAI, {mode}"}


def test_with_a_draft_model_it_is_biased(pair, engines, prompts, sampled, tmp_path):
    rows = write_transcripts(engines["assisted"], prompts, sampled, tmp_path / "rows.jsonl")
    report = audit_transcripts(rows, *pair_scorers(pair))
    assert report.finding == Finding.BIASED
    assert abs(report.judgements[0].comparison.groups["all"]["surprisal"].z) > 8


def test_greedy_decoding_is_that_of_the_model_in_every_mode(pair, engines, prompts):
    settings, reference = Settings(temperature=0, max_new_tokens=40), TransformersEngine(pair)
    for prompt in prompts[:3]:
        answers = [engine.answer(prompt, settings, 0).tokens for engine in engines.values()]
        assert len(set(answers)) == 1
        assert answers[0] == reference.answer(prompt, settings, 0).tokens[: len(answers[0])]


def test_settings_are_applied(pair, engines, prompts, sampled, tmp_path):
    settings = Settings(temperature=0.7, top_k=5, repetition_penalty=1.2, max_new_tokens=30)
    rows = write_transcripts(engines["plain"], prompts, settings, tmp_path / "rows.jsonl")
    assert audit_transcripts(rows, pair_scorers(pair)[0]).finding == Finding.CONSISTENT
    rows = write_transcripts(engines["plain"], prompts, sampled, tmp_path / "others.jsonl")
    assert len({row.output_token_ids for row in rows}) == len(rows)


def test_what_cannot_be_asked_is_refused(pair, engines, folder, sampled):
    with pytest.raises(InvalidInput, match="unknown mode 'beam'"):
        OpenVinoEngine(pair, folder / "openvino", "beam")
    with pytest.raises(InvalidInput, match="a draft model is needed"):
        OpenVinoEngine(Pair(pair.target, None, pair.tokenizer), folder / "openvino", "assisted")
    with pytest.raises(InvalidInput, match="min_p is 0.1, and OpenVINO GenAI's comes before top_p"):
        engines["plain"].check(Settings(min_p=0.1))
    with pytest.raises(InvalidInput, match="the prompt holds token 64; the model's vocabulary ends at 63"):
        engines["plain"].answer((64,), sampled, 0)


def test_the_first_hypothesis_is_the_law_of_the_target():
    exact = law.P[law.PROMPT][:, None] * law.P
    assert np.allclose(law.HYPOTHESES[0].law(), exact, atol=1e-12)
    for hypothesis in law.HYPOTHESES[1:]:
        assert np.isclose(hypothesis.law().sum(), 1)
        assert np.abs(hypothesis.law() - exact).sum() / 2 > 0.002


def test_the_law_of_two_tokens_is_that_of_the_source_and_of_nothing_else(found):
    exact = law.HYPOTHESES[0].law()
    tokens = found["with a draft model"]
    assert law.fit(exact, found["without a draft model"]).p_value > 1e-3
    assert law.fit(law.HYPOTHESES[-1].law(), tokens).p_value > 1e-3
    for hypothesis in law.HYPOTHESES[:-1]:
        assert law.fit(hypothesis.law(), tokens).p_value < 1e-6, hypothesis.name


def test_the_source_read_as_a_program_gives_every_token(found):
    tokens = found["with a draft model"]
    assert np.array_equal(tokens, [law.replay(seed) for seed in range(len(tokens))])


def test_the_reproduction_needs_no_other_file_and_says_what_it_finds(capsys):
    assert "resispec" not in Path(reproduction.__file__).read_text()
    reproduction.main(60)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("openvino-genai 2026.4.1") and len(lines) == 33
    assert lines[2] == "  expected          [0.5 0.3 0.1 0.1]"
