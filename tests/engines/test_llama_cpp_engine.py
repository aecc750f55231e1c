"""llama.cpp's server as an engine that is not ours: exact in every mode."""

from __future__ import annotations

import pytest

pytest.importorskip("xllamacpp", reason="the extra `engines` is not installed")
pytest.importorskip("gguf", reason="the extra `engines` is not installed")

from experiments.engines.gguf_file import write_gguf
from experiments.engines.llama_cpp import LlamaCppEngine
from resispec.audit.transcripts import Finding, audit_transcripts
from resispec.engines import Settings, write_transcripts
from resispec.errors import InvalidInput
from resispec.models import Pair, TransformersModel, build_llama, load_pair
from resispec.models.generate import TransformersEngine
from resispec.models.scoring import pair_scorers


@pytest.mark.parametrize(
    ("mode", "options"),
    [("plain", {}), ("assisted", {}), ("assisted", {"by_ratio": True}), ("prompt_lookup", {})],
)
def test_every_mode_of_llama_cpp_is_exact(pair, folder, prompts, sampled, tmp_path, mode, options):
    engine = LlamaCppEngine(pair, folder, mode, **options)
    rows = write_transcripts(engine, prompts, sampled, tmp_path / "rows.jsonl")
    report = audit_transcripts(rows, *pair_scorers(pair))
    assert report.finding == Finding.CONSISTENT
    assert {row.engine for row in rows} == {f"llama.cpp, {mode}"}
    drafted = [row.extra["spec_decode"]["num_draft_tokens"] for row in rows if "spec_decode" in row.extra]
    assert (sum(drafted) > 0) == (mode != "plain")


def test_settings_are_applied(pair, folder, prompts, tmp_path):
    settings = Settings(temperature=0.7, top_k=5, max_new_tokens=30)
    engine = LlamaCppEngine(pair, folder, "assisted", by_ratio=True)
    rows = write_transcripts(engine, prompts, settings, tmp_path / "rows.jsonl")
    assert audit_transcripts(rows, *pair_scorers(pair)).finding == Finding.CONSISTENT
    assert audit_transcripts(rows, pair_scorers(_other(folder))[0]).finding == Finding.BIASED


def test_greedy_decoding_is_that_of_the_model(pair, folder, prompts):
    settings = Settings(temperature=0, max_new_tokens=40)
    engine, reference = LlamaCppEngine(pair, folder), TransformersEngine(pair)
    for prompt in prompts[:5]:
        found = engine.answer(prompt, settings, 0).tokens
        assert found == reference.answer(prompt, settings, 0).tokens[: len(found)]


def test_a_seed_decides_alone(pair, folder, sampled):
    engine = LlamaCppEngine(pair, folder)
    first = engine.answer((1, 2), sampled, seed=3)
    assert engine.answer((1, 2), sampled, seed=3) == first
    assert engine.answer((1, 2), sampled, seed=4).tokens != first.tokens


def test_what_cannot_be_asked_is_refused(pair, folder):
    with pytest.raises(InvalidInput, match="unknown mode 'beam'; allowed: plain, assisted, prompt_lookup"):
        LlamaCppEngine(pair, folder, "beam")
    with pytest.raises(InvalidInput, match="a draft model is needed"):
        LlamaCppEngine(Pair(pair.target, None, pair.tokenizer), folder, "assisted")
    with pytest.raises(InvalidInput, match="presence_penalty is 1.0"):
        LlamaCppEngine(pair, folder).check(Settings(presence_penalty=1.0))


def test_what_is_no_plain_llama_is_not_written(pair, tmp_path):
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    biased = TransformersModel(build_llama(**sizes, num_attention_heads=4, attention_bias=True))
    with pytest.raises(InvalidInput, match="allowed: a llama with default ones and no biases"):
        write_gguf(biased, pair.tokenizer, tmp_path / "model.gguf")
    assert not list(tmp_path.iterdir())


def _other(folder):
    """A pair whose target is the draft."""
    return load_pair(str(folder / "draft"), None)
