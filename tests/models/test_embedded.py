"""The embedded pair: what it is trained on, and that the cache holds either a whole pair or none."""

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
from resispec.embedded import store, train
from resispec.embedded.corpus import NAMES, Split, build_corpus, paragraph_key, read_sources
from resispec.embedded.muon import orthogonalise
from resispec.embedded.recipe import Recipe, Sizes
from resispec.errors import InvalidInput
from resispec.models import load_pair

TINY = Recipe(
    vocab_size=300,
    target=Sizes(32, 64, 2, 2, 1),
    draft=Sizes(16, 32, 1, 2, 1),
    steps=4,
    batch_size=4,
    window=16,
    warmup_steps=2,
    max_chars=30_000,
    max_files=12,
    num_prompts=5,
    min_prompts=1,
)


@pytest.fixture(scope="module")
def corpus() -> dict[str, Split]:
    """The held-out texts of the real pair, and the beginning of its training texts."""
    return build_corpus(read_sources(), max_chars=200_000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return embedded.ensure_pair(TINY, tmp_path_factory.mktemp("cache"))


def test_the_same_recipe_gives_the_same_bytes_and_leaves_the_callers_state_alone(
    folder: Path, tmp_path: Path
) -> None:
    random_state, threads = torch.get_rng_state(), torch.get_num_threads()
    again = embedded.ensure_pair(TINY, tmp_path)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert torch.get_num_threads() == threads
    files = [
        path.relative_to(folder)
        for path in folder.rglob("*")
        if path.is_file() and path.name != store.MANIFEST
    ]
    assert len(files) >= 9
    for name in files:
        assert (folder / name).read_bytes() == (again / name).read_bytes(), name


def test_the_folder_opens_as_a_pair_and_prompts_are_longer_than_what_a_run_reads(folder: Path) -> None:
    pair = load_pair(str(folder / "target"), str(folder / "draft"))
    assert pair.draft is not None
    assert pair.target.vocab_size == pair.draft.vocab_size == TINY.vocab_size
    assert pair.tokenizer.eos_token_id == train.EOS_ID
    for name in NAMES:
        prompts = embedded.EmbeddedDataset(name, str(folder / f"{name}.jsonl")).prompts(1)
        tokens = pair.tokenizer.encode(prompts[0].text)
        assert len(tokens) >= TINY.min_prompt_tokens
        assert pair.tokenizer.decode(tokens) == prompts[0].text


def test_training_lowers_the_loss_of_both_models() -> None:
    streams = [torch.arange(600) % 7 for _ in NAMES]
    recipe = dataclasses.replace(TINY, steps=20)
    target, draft = train.build_models(recipe)
    first = train._fit(target, draft, streams, dataclasses.replace(recipe, steps=1), _SilentBar())
    last = train._fit(target, draft, streams, recipe, _SilentBar())
    assert last["target_loss_nats"] < 0.5 * first["target_loss_nats"]
    assert last["draft_loss_nats"] < 0.8 * first["draft_loss_nats"]


def test_the_real_pair_has_the_sizes_that_were_asked_for() -> None:
    target, draft = train.build_models(Recipe())
    assert sum(weight.numel() for weight in target.parameters()) >= 2_000_000
    assert sum(weight.numel() for weight in draft.parameters()) <= 200_000
    assert target.config.max_position_embeddings == draft.config.max_position_embeddings == 1024


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
    for text in held_out:
        assert not training & _long_paragraphs(text)


def test_every_real_data_set_has_200_prompts_in_a_fixed_order(corpus: dict[str, Split]) -> None:
    tokenizer = train.train_tokenizer(corpus, Recipe().vocab_size)
    # Less text makes a slightly worse tokenizer, hence longer prompts: ask for more tokens.
    recipe = dataclasses.replace(Recipe(), min_prompt_tokens=105)
    for name in NAMES:
        chosen = train.choose_prompts(name, corpus[name].held_out, tokenizer, recipe)
        assert 200 <= len(chosen) <= recipe.num_prompts
        assert len({document.id for document in chosen}) == len(chosen)
        assert chosen == train.choose_prompts(name, corpus[name].held_out[::-1], tokenizer, recipe)


def test_too_few_prompts_is_said_in_one_line(corpus: dict[str, Split]) -> None:
    tokenizer = train.train_tokenizer(corpus, 300)
    with pytest.raises(InvalidInput, match=r"^embedded_code: .* gives 3 prompts; 200 are needed$"):
        train.choose_prompts("embedded_code", corpus["embedded_code"].held_out[:3], tokenizer, Recipe())


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Recipe)])
def test_the_key_depends_on_every_field_of_the_recipe(field: str) -> None:
    value = getattr(TINY, field)
    other = dataclasses.replace(value, hidden_size=64) if isinstance(value, Sizes) else value * 2
    sources = {"a.py": b"1"}
    assert store.make_key(sources, repr(TINY)) != store.make_key(
        sources, repr(dataclasses.replace(TINY, **{field: other or 1}))
    )


def test_the_key_depends_on_the_sources_and_is_quick() -> None:
    keys = {
        store.make_key(sources, "")
        for sources in ({"a": b"1"}, {"a": b"2"}, {"b": b"1"}, {"a": b"1", "b": b""})
    }
    assert len(keys) == 4
    assert embedded.fingerprint(TINY) == store.make_key(read_sources(), repr(TINY))


def test_an_interrupted_training_leaves_nothing_and_the_next_call_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(train, "_update", interrupt)
        embedded.ensure_pair(TINY, tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]
    assert (embedded.ensure_pair(TINY, tmp_path) / store.MANIFEST).is_file()


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
        f"another process is training the embedded pair in {tmp_path / 'key'}; waiting for it"
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
            match=rf"^the embedded pair in {folder} is damaged: {problem}; delete that folder.*$",
        ):
            store.ensure_folder(tmp_path, "key", _write_model)


def test_a_cache_that_cannot_be_written_is_reported_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match=r"^cache folder .*file.* cannot be written .*RESISPEC_CACHE.*$"):
        store.ensure_folder(tmp_path / "file", "key", _write_model)


def test_every_file_that_decides_the_drafter_is_there_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    package = Path(embedded.__file__).parent.parent
    assert set(embedded._EAGLE_MODULES) == {"embedded/eagle.py", "training/eagle.py", "models/eagle.py"}
    assert all((package / name).is_file() for name in embedded._EAGLE_MODULES)
    keys = {embedded.eagle_fingerprint(embedded.EAGLE_RECIPE, TINY)}
    for left_out in embedded._EAGLE_MODULES:
        with monkeypatch.context() as patch:
            others = [name for name in embedded._EAGLE_MODULES if name != left_out]
            patch.setattr(embedded, "_EAGLE_MODULES", others)
            keys.add(embedded.eagle_fingerprint.__wrapped__(embedded.EAGLE_RECIPE, TINY))
    assert len(keys) == 4


def test_the_cache_root_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESISPEC_CACHE", str(tmp_path))
    assert store.default_root() == tmp_path
    monkeypatch.delenv("RESISPEC_CACHE")
    assert store.default_root() == Path.home() / ".cache" / "resispec"


def test_an_unknown_data_set_names_the_allowed_ones() -> None:
    with pytest.raises(
        InvalidInput,
        match="'embedded_poems'; allowed: embedded_reference, embedded_docstrings, embedded_code",
    ):
        embedded.EmbeddedDataset("embedded_poems")


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
