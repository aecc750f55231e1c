"""llama.cpp and OpenVINO GenAI as engines: the first is exact in every mode, the second is not."""

from dataclasses import replace
from pkgutil import resolve_name

import pytest

from referee.audit import Finding, audit_arms, audit_transcripts, measure
from referee.engines import write_transcripts
from referee.engines.base import ENGINES
from referee.engines.generate import TransformersEngine
from referee.rescoring import pair_scorers
from resispec.errors import InvalidInput
from resispec.models import TransformersModel, build_llama, load_pair
from resispec.sampling import Sampling
from tests.toys import save_tiny_pair

EXTRA = "the extra `engines` is not installed"
PACKAGES = {"llama_cpp": "xllamacpp", "openvino_genai": "openvino_genai"}
PROMPTS = [
    (1 + index % 60, 2 + index % 40, 3, 1 + index % 60, 2 + index % 40) for index in range(45)
]
"""Each says the same thing twice, so that drafts can be looked up in it."""
SAMPLED = Sampling(max_new_tokens=30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the models of `pair`, where engines also write theirs."""
    found = tmp_path_factory.mktemp("models")
    save_tiny_pair(found)
    return found


@pytest.fixture(scope="module")
def pair(folder):
    return load_pair(str(folder / "target"), str(folder / "draft"))


@pytest.fixture(params=PACKAGES)
def engine(request, pair, folder):
    """A function that makes an engine of a mode."""
    pytest.importorskip(PACKAGES[request.param], reason=EXTRA)
    pytest.importorskip("gguf", reason=EXTRA)
    kind = resolve_name(ENGINES[request.param])

    def make(mode="plain", **options):
        return kind(pair, folder / request.param, mode, **options)

    make.package = request.param
    (folder / request.param).mkdir(exist_ok=True)
    return make


@pytest.mark.parametrize("mode", ["plain", "assisted", "prompt_lookup"])
def test_every_mode_is_exact_but_openvino_with_a_draft_model(engine, mode, pair, tmp_path):
    is_llama = engine.package == "llama_cpp"
    loaded = {"slots": 16}
    for number, options in enumerate(
        [loaded, {"by_ratio": True}] if is_llama and mode == "assisted" else [{}]
    ):
        loads = (1, 16) if options == loaded or not is_llama else ()
        path = tmp_path / f"{number}.jsonl"
        rows = write_transcripts(engine(mode, **options), PROMPTS, SAMPLED, path, concurrency=loads)
        report = audit_transcripts(rows, *pair_scorers(pair))
        is_biased = not is_llama and mode == "assisted"
        assert report.finding is (Finding.BIASED if is_biased else Finding.NO_BIAS_SEEN)
        assert {row.engine.partition(", ")[2] for row in rows} == {mode}
        if is_llama:
            records = [row.extra["spec_decode"] for row in rows if "spec_decode" in row.extra]
            assert (sum(record["num_draft_tokens"] for record in records) > 0) == (mode != "plain")
        if is_biased:
            groups = [judgement.comparison.groups["all"] for judgement in report.judgements]
            assert max(abs(statistics["surprisal"].z) for statistics in groups) > 8


def test_seeds_are_applied(engine):
    plain = engine()
    first = plain.answer((1, 2), SAMPLED, seed=3)
    assert plain.answer((1, 2), SAMPLED, seed=3) == first
    assert plain.answer((1, 2), SAMPLED, seed=4).tokens != first.tokens


OWN_FILTERS = {
    "llama_cpp": {"top_k": 40, "top_p": 0.95, "min_p": 0.05, "filter_order": "llama.cpp"},
    "openvino_genai": {"top_k": 8, "top_p": 0.4, "min_p": 0.3, "filter_order": "openvino"},
}
"""llama.cpp's defaults, and filters whose order matters in OpenVINO GenAI."""
OTHER_ORDERS = {"llama_cpp": "transformers", "openvino_genai": "vllm"}


def test_filters_are_applied_in_the_engines_own_order_and_another_one_does_not_pass(
    engine, pair, tmp_path
):
    settings = Sampling(temperature=0.6, max_new_tokens=30, **OWN_FILTERS[engine.package])
    many = PROMPTS * 3
    rows = write_transcripts(engine(), many, settings, tmp_path / "rows.jsonl")
    arm = measure(rows, pair_scorers(pair)[0])
    assert (
        audit_arms(arm).finding is Finding.NO_BIAS_SEEN and int((~arm.terms.is_inside).sum()) <= 4
    )
    others = [replace(row, filter_order=OTHER_ORDERS[engine.package]) for row in rows]
    assert audit_arms(measure(others, pair_scorers(pair)[0])).finding is not Finding.NO_BIAS_SEEN


def test_a_file_that_is_given_is_run(pair, tmp_path):
    """It holds the draft, whose law the rows have then, and not the target's."""
    pytest.importorskip("xllamacpp", reason=EXTRA)
    from referee.engines.gguf_file import write_gguf
    from referee.engines.llama_cpp import LlamaCppEngine

    write_gguf(pair.draft_model(), pair.tokenizer, tmp_path / "given.gguf")
    engine = LlamaCppEngine(pair, tmp_path, file=tmp_path / "given.gguf")
    rows = write_transcripts(engine, PROMPTS, SAMPLED, tmp_path / "rows.jsonl")
    target, draft = pair_scorers(pair)
    assert audit_transcripts(rows, draft).finding is Finding.NO_BIAS_SEEN
    assert audit_transcripts(rows, target).finding is Finding.BIASED
    assert [path.name for path in tmp_path.glob("*.gguf")] == ["given.gguf"]
    assert engine.name == "llama.cpp, plain of given.gguf"


def test_greedy_decoding_is_that_of_the_model(engine, pair):
    settings, reference = Sampling(temperature=0, max_new_tokens=40), TransformersEngine(pair)
    for mode in ("plain", "assisted"):
        tokens = engine(mode).answer(PROMPTS[0], settings, 0).tokens
        assert tokens == reference.answer(PROMPTS[0], settings, 0).tokens[: len(tokens)]


def test_requests_that_the_engine_cannot_answer_are_refused(engine):
    with pytest.raises(
        InvalidInput, match="unknown mode 'beam'; allowed: plain, assisted, prompt_lookup"
    ):
        engine("beam")
    with pytest.raises(InvalidInput, match="presence_penalty is 1.0"):
        engine().check(Sampling(presence_penalty=1.0))
    if engine.package == "openvino_genai":
        with pytest.raises(InvalidInput, match="filter_order is vllm, which is another law there"):
            engine().check(Sampling(min_p=0.1, top_p=0.9, filter_order="vllm"))
        with pytest.raises(
            InvalidInput, match="the prompt holds token 64; the model's vocabulary ends at 63"
        ):
            engine().answer((64,), SAMPLED, 0)


def test_only_a_plain_llama_is_written(pair, tmp_path):
    pytest.importorskip("gguf", reason=EXTRA)
    from referee.engines.gguf_file import write_gguf

    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    for other in ({"attention_bias": True}, {"hidden_act": "gelu"}):
        model = TransformersModel(build_llama(**sizes, num_attention_heads=4, **other))
        with pytest.raises(InvalidInput, match="allowed: a llama with default ones, silu, and no"):
            write_gguf(model, pair.tokenizer, tmp_path / "model.gguf")
    assert not list(tmp_path.iterdir())
