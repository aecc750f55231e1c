"""The embedded models: what they are trained on, and that the cache holds each whole or not at all."""

import dataclasses
import hashlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from resispec import embedded
from resispec.embedded import DRAFTS, TARGETS, ModelRecipe, Sizes, TextRecipe, store, text, train
from resispec.embedded.corpus import NAMES, Split, build_corpus, paragraph_key, read_sources
from resispec.embedded.muon import orthogonalise
from resispec.errors import InvalidInput
from resispec.files import cache_root
from resispec.models import load_pair

TEXT = TextRecipe(vocab_size=300, max_chars=30_000, max_files=12, num_prompts=5, min_prompts=1)
TARGET = ModelRecipe(
    Sizes(32, 64, 2, 2, 1), 6e-3, text=TEXT, steps=4, batch_size=4, window=16, warmup_steps=2
)
DRAFT = dataclasses.replace(TARGET, sizes=Sizes(16, 32, 1, 2, 1), learning_rate=1e-2, teacher=TARGET)


@pytest.fixture(scope="module")
def corpus() -> dict[str, Split]:
    """The held-out texts of the real models, and the beginning of their training texts."""
    return build_corpus(read_sources(), max_chars=200_000)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the tiny text, target and draft."""
    root = tmp_path_factory.mktemp("cache")
    embedded.ensure_model(DRAFT, cache_root=root)
    return root


def test_the_same_recipe_gives_the_same_bytes_and_leaves_the_callers_state_alone(
    cache: Path, tmp_path: Path
) -> None:
    random_state, threads = torch.get_rng_state(), torch.get_num_threads()
    embedded.ensure_model(DRAFT, cache_root=tmp_path)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert torch.get_num_threads() == threads
    files = [
        path.relative_to(cache)
        for path in cache.rglob("*")
        if path.is_file() and path.name != store.MANIFEST and path.suffix != ".lock"
    ]
    assert len(files) >= 13  # the text's, and those of two models
    for name in files:
        assert (cache / name).read_bytes() == (tmp_path / name).read_bytes(), name


def test_models_are_cached_apart_and_a_draft_leaves_its_teacher_alone(cache: Path) -> None:
    keys = {embedded.text_fingerprint(TEXT), embedded.model_key(TARGET), embedded.model_key(DRAFT)}
    assert {path.name for path in cache.iterdir() if path.is_dir()} == keys and len(keys) == 3
    other_draft = dataclasses.replace(DRAFT, steps=3)
    other_target = dataclasses.replace(TARGET, steps=3)
    taught_otherwise = dataclasses.replace(DRAFT, teacher=other_target)
    other_text = dataclasses.replace(TARGET, text=dataclasses.replace(TEXT, vocab_size=299))
    others = [embedded.model_key(one) for one in (other_draft, other_target, taught_otherwise, other_text)]
    assert len(keys | set(others)) == 7
    before = (cache / embedded.model_key(TARGET) / "model.safetensors").stat().st_mtime_ns
    embedded.ensure_model(other_draft, cache_root=cache)
    assert (cache / embedded.model_key(TARGET) / "model.safetensors").stat().st_mtime_ns == before


def test_the_folders_open_as_a_pair_and_prompts_are_longer_than_what_a_run_reads(cache: Path) -> None:
    target, draft = (str(cache / embedded.model_key(one)) for one in (TARGET, DRAFT))
    pair = load_pair(target, draft)
    assert pair.draft is not None
    assert pair.target.vocab_size == pair.draft.vocab_size == TEXT.vocab_size
    assert pair.tokenizer.eos_token_id == text.EOS_ID
    for name in NAMES:
        path = embedded.ensure_text(TEXT, cache) / f"{name}.jsonl"
        prompts = embedded.EmbeddedDataset(name, str(path)).prompts(1)
        tokens = pair.tokenizer.encode(prompts[0].text)
        assert len(tokens) >= TEXT.min_prompt_tokens
        assert pair.tokenizer.decode(tokens) == prompts[0].text


def test_training_lowers_the_loss_and_a_draft_follows_its_teacher() -> None:
    streams = [torch.arange(600) % 7 for _ in NAMES]
    recipe = dataclasses.replace(TARGET, steps=20)
    untrained = train.build_model(recipe, 300)
    first = train._fit(untrained, None, streams, dataclasses.replace(recipe, steps=1), _SilentBar())
    target = train.build_model(recipe, 300)
    assert train._fit(target, None, streams, recipe, _SilentBar()) < 0.5 * first
    # A teacher that says "token 5" whatever it reads: the text's own next tokens do not count.
    stubborn = _Stubborn(5)
    draft = train.build_model(dataclasses.replace(DRAFT, steps=60), 300)
    train._fit(draft, stubborn, streams, dataclasses.replace(DRAFT, steps=60), _SilentBar())
    logits = draft(input_ids=torch.arange(7)[None]).logits
    assert logits.argmax(-1).unique().tolist() == [5]


def test_the_real_models_have_the_sizes_of_their_names_and_heads_of_32() -> None:
    sizes = {name: recipe.sizes for name, recipe in TARGETS.items()} | DRAFTS
    found = {}
    for name, one in sizes.items():
        model = train.build_model(ModelRecipe(one, 1e-2), embedded.TEXT_RECIPE.vocab_size)
        found[name] = sum(weight.numel() for weight in model.parameters())
        assert model.config.max_position_embeddings == 1024
        assert one.hidden_size == 32 * one.num_attention_heads
    named = {"2m": 2_000_000, "800k": 800_000, "420k": 420_000, "180k": 180_000, "80k": 80_000}
    assert found == pytest.approx(named, rel=0.03)
    assert list(DRAFTS) == sorted(DRAFTS, key=lambda name: -found[name])


def test_unknown_models_name_the_allowed_ones() -> None:
    with pytest.raises(InvalidInput, match=r"^unknown embedded target '7b'; allowed: 2m, 800k$"):
        embedded.load_pair(target="7b")
    with pytest.raises(InvalidInput, match=r"^unknown embedded draft '68m'; allowed: 420k, 180k, 80k$"):
        embedded.load_pair(draft="68m")


def test_other_models_than_expected_are_not_trained() -> None:
    with pytest.raises(InvalidInput, match="^the embedded models 0123 were asked for; this installation"):
        embedded.load_pair(fingerprint="0123")
    with pytest.raises(InvalidInput, match="^the embedded models 0123 were asked for; this installation"):
        embedded.load_eagle_pair(fingerprint="0123")
    with pytest.raises(InvalidInput, match="^the embedded models 0123 were asked for; this installation"):
        embedded.EmbeddedDataset(NAMES[0], fingerprint="0123").prompts(1)


def test_orthogonalise_keeps_directions_and_levels_singular_values() -> None:
    matrices = torch.randn(3, 12, 5, generator=torch.Generator().manual_seed(0))
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    inner = left.mT @ orthogonalise(matrices) @ right.mT
    values = inner.diagonal(dim1=1, dim2=2)
    assert torch.allclose(inner, torch.diag_embed(values), atol=1e-4)
    assert values.min() > 0.5
    assert values.max() < 1.5


def test_no_held_out_paragraph_is_trained_on(corpus: dict[str, Split]) -> None:
    training = {
        key
        for split in corpus.values()
        for document in split.training
        for key in _long_paragraphs(document.text)
    }
    assert len(training) > 500
    held_out = [document.text for split in corpus.values() for document in split.held_out]
    assert len(set(held_out)) == len(held_out)
    for document in held_out:
        assert not training & _long_paragraphs(document)


def test_every_real_data_set_has_200_prompts_in_a_fixed_order(corpus: dict[str, Split]) -> None:
    tokenizer = text.train_tokenizer(corpus, embedded.TEXT_RECIPE.vocab_size)
    # Less text makes a slightly worse tokenizer, hence longer prompts: ask for more tokens.
    recipe = dataclasses.replace(embedded.TEXT_RECIPE, min_prompt_tokens=105)
    for name in NAMES:
        chosen = text.choose_prompts(name, corpus[name].held_out, tokenizer, recipe)
        assert 200 <= len(chosen) <= recipe.num_prompts
        assert len({document.id for document in chosen}) == len(chosen)
        assert chosen == text.choose_prompts(name, corpus[name].held_out[::-1], tokenizer, recipe)


def test_too_few_prompts_is_said_in_one_line(corpus: dict[str, Split]) -> None:
    tokenizer, documents = text.train_tokenizer(corpus, 300), corpus["embedded_code"].held_out[:3]
    with pytest.raises(InvalidInput, match=r"^embedded_code: .* gives 3 prompts; 200 are needed$"):
        text.choose_prompts("embedded_code", documents, tokenizer, embedded.TEXT_RECIPE)


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(ModelRecipe)])
def test_the_key_depends_on_every_field_of_a_models_recipe(field: str) -> None:
    value = getattr(DRAFT, field)
    other = {
        "sizes": Sizes(64, 64, 2, 2, 1),
        "teacher": None,
        "text": dataclasses.replace(TEXT, vocab_size=299),
    }.get(field, None if field in ("sizes", "teacher", "text") else (value * 2 or 1))
    changed = dataclasses.replace(DRAFT, **{field: other})
    assert embedded.model_key(changed) != embedded.model_key(DRAFT)


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(TextRecipe)])
def test_the_key_depends_on_every_field_of_the_texts_recipe(field: str) -> None:
    changed = dataclasses.replace(TEXT, **{field: getattr(TEXT, field) * 2})
    assert embedded.text_fingerprint(changed) != embedded.text_fingerprint(TEXT)


def test_the_key_depends_on_the_sources_and_the_code() -> None:
    given = [
        store.make_key(sources, "", modules)
        for sources in ({"a": b"1"}, {"a": b"2"}, {"b": b"1"}, {"a": b"1", "b": b""})
        for modules in ((), ("errors.py",), ("files.py",))
    ]
    assert len(set(given)) == len(given)


def test_an_interrupted_training_leaves_nothing_and_the_next_call_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(train, "_update", interrupt)
        embedded.ensure_model(TARGET, cache_root=tmp_path)
    folders = [path.name for path in tmp_path.iterdir() if path.is_dir()]
    assert folders == [embedded.text_fingerprint(TEXT)]
    assert (embedded.ensure_model(TARGET, cache_root=tmp_path) / store.MANIFEST).is_file()


def test_a_killed_process_leaves_nothing_that_is_used(tmp_path: Path) -> None:
    def die_half_way(folder: Path) -> dict[str, int]:
        (folder / "model").write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)
        return {}

    assert _in_child(lambda: store.ensure_folder(tmp_path, "key", die_half_way)) == -signal.SIGKILL
    assert not (tmp_path / "key").exists()
    assert [path.name for path in tmp_path.glob("*.tmp-*/*")] == ["model"]
    folder = store.ensure_folder(tmp_path, "key", _write_model)
    assert (folder / "model").read_text() == "whole"
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["key"]


def test_two_processes_that_race_share_one_training_and_the_waiting_one_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def build(folder: Path) -> dict[str, int]:
        with (tmp_path / "built").open("a") as count:
            count.write("x")
        time.sleep(0.5)
        return _write_model(folder)

    child = _fork(lambda: store.ensure_folder(tmp_path, "key", build))
    while not (tmp_path / "built").exists():
        time.sleep(0.01)
    store.ensure_folder(tmp_path, "key", build)
    assert _exit_code(child) == 0
    assert (tmp_path / "built").read_text() == "x"
    assert [record.getMessage() for record in caplog.records] == [
        f"another process is making {tmp_path / 'key'}; waiting for it"
    ]


def test_damage_is_reported_in_one_line(tmp_path: Path) -> None:
    folder = store.ensure_folder(tmp_path, "key", _write_model)
    for damage, problem in (
        (lambda: (folder / "model").write_text("who"), "model is not what was written"),
        (lambda: (folder / "model").unlink(), r"model cannot be read \(.*No such file.*\)"),
        (lambda: (folder / store.MANIFEST).write_text("{}"), "its list of files is missing"),
        (lambda: (folder / store.MANIFEST).write_text("{"), ".*manifest.json cannot be read as JSON .*"),
        (lambda: (folder / store.MANIFEST).write_text("[]"), ".*manifest.json holds a list; .*"),
        (lambda: (folder / store.MANIFEST).unlink(), ".*manifest.json cannot be read .*No such file.*"),
    ):
        damage()
        with pytest.raises(
            InvalidInput,
            match=rf"^{folder}, made at first use, is damaged: {problem}; delete that folder.*$",
        ):
            store.ensure_folder(tmp_path, "key", _write_model)


def test_a_cache_that_cannot_be_written_is_reported_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match=r"^cache folder .*file.* cannot be written .*RESISPEC_CACHE.*$"):
        store.ensure_folder(tmp_path / "file", "key", _write_model)


@pytest.mark.parametrize(
    ("modules", "named", "key"),
    [
        (
            "_TEXT_MODULES",
            {"embedded/corpus.py", "embedded/text.py"},
            lambda: embedded.text_fingerprint(TEXT),
        ),
        ("_MODEL_MODULES", {"embedded/muon.py", "embedded/train.py"}, lambda: embedded.model_key(TARGET)),
        (
            "_EAGLE_MODULES",
            {"embedded/eagle.py", "training/base.py", "training/eagle.py", "models/eagle.py"},
            lambda: embedded.eagle_fingerprint(TARGET),
        ),
        (
            "_EAGLE3_MODULES",
            {"training/eagle3.py", "models/eagle3.py"},
            lambda: embedded.eagle_fingerprint(TARGET, embedded.EAGLE3_RECIPE),
        ),
    ],
)
def test_every_file_that_decides_what_is_made_is_there_and_counts(
    monkeypatch: pytest.MonkeyPatch, modules: str, named: set[str], key: Callable[[], str]
) -> None:
    package = Path(embedded.__file__).parent.parent
    assert set(getattr(embedded, modules)) == named
    assert all((package / name).is_file() for name in named)
    found = set()
    for kept in (named, *(named - {left_out} for left_out in named)):
        with monkeypatch.context() as patch:
            patch.setattr(embedded, modules, tuple(sorted(kept)))
            for cached in (embedded.text_fingerprint, embedded.model_key, embedded.eagle_fingerprint):
                cached.cache_clear()
            found.add(key())
    for cached in (embedded.text_fingerprint, embedded.model_key, embedded.eagle_fingerprint):
        cached.cache_clear()
    assert len(found) == 1 + len(named)


def test_the_cache_root_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESISPEC_CACHE", str(tmp_path))
    assert cache_root() == tmp_path
    monkeypatch.delenv("RESISPEC_CACHE")
    assert cache_root() == Path.home() / ".cache" / "resispec"


def test_an_unknown_data_set_names_the_allowed_ones() -> None:
    with pytest.raises(
        InvalidInput,
        match="'embedded_poems'; allowed: embedded_reference, embedded_docstrings, embedded_code",
    ):
        embedded.EmbeddedDataset("embedded_poems")


class _Stubborn:
    """A model whose law is one token everywhere."""

    def __init__(self, token: int) -> None:
        self._token = token

    def __call__(self, input_ids: torch.Tensor, use_cache: bool) -> "_Stubborn":
        assert not use_cache
        logits = torch.zeros(*input_ids.shape, 300)
        logits[..., self._token] = 50.0
        self.logits = logits
        return self


class _SilentBar:
    def set_postfix(self, **values: object) -> None: ...

    def update(self) -> None: ...


def _long_paragraphs(text: str) -> set[str]:
    keys = (paragraph_key(part) for part in text.split("\n\n"))
    return {hashlib.sha256(key.encode()).hexdigest() for key in keys if len(key) >= 40}


def _write_model(folder: Path) -> dict[str, int]:
    (folder / "model").write_text("whole")
    return {"size": 1}


def _fork(work: Callable[[], object]) -> int:
    """Run `work` in a child process that ends without pytest's clean-up."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return child


def _exit_code(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _in_child(work: Callable[[], object]) -> int:
    return _exit_code(_fork(work))
