"""The embedded text and models, recipes' keys, and the cache, which holds only whole results."""

import copy
import dataclasses
import hashlib
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from recipes.embedded import corpus, publish, recipe, text
from recipes.embedded.corpus import build_corpus, read_sources
from recipes.embedded.recipe import TEXT_RECIPE, DrafterRecipe, Sizes
from recipes.smollm2 import questions
from recipes.smollm2 import recipe as smollm2_recipe
from recipes.smollm2.questions import QuestionsRecipe
from recipes.training.recipe import EagleRecipe
from resispec import embedded, kept
from resispec.embedded import NAMES, committed
from resispec.errors import InvalidInput
from resispec.files import cache_root
from resispec.kept import CHECKPOINT
from resispec.packages import Package
from tests.models.toy_recipes import DRAFT, TARGET, TEXT

# Keys


@pytest.fixture
def plain(monkeypatch):
    """Keys of another source text and of other libraries, the same on every machine."""
    monkeypatch.setattr(
        kept, "_versions", lambda: {"python": "3", **dict.fromkeys(kept._LIBRARIES, "1")}
    )
    for module in (recipe, questions):
        monkeypatch.setattr(module, "text_key", lambda it: kept.make_key(it, {"a.py": b"text"}))


@pytest.mark.usefixtures("plain")
def test_keys_are_golden():
    """A changed key trains every pair of a user anew, and renames the cells measured on it."""
    assert (
        TEXT_RECIPE.key() == "4a7a0450b3ee1124"
        and smollm2_recipe.TARGET.key() == "32e3a822e8d28f1f"
    )
    golden = {
        "target_2m": "edfb0fc94f823660",
        "draft_2m_80k": "5e49b0d4ae7fe5f1",
        "target_800k": "d63d5e542323a85e",
        "draft_800k_420k": "dec59bb8090a166e",
        "eagle_2m": "5f974b9d82ec787f",
        "eagle3_2m_1024": "6c083a73fc377114",
    }
    assert {name: recipe.PARTS[name].key() for name in golden} == golden


def test_what_comes_with_the_package_keeps_its_keys():
    """Published cells are named by them, whatever Python and libraries are installed."""
    keys = {name: committed.key(name) for name in recipe.PARTS}
    assert keys == {
        "texts": "c75782a17843cddb",
        "target_2m": "9f527b7d0ecc48b3",
        "draft_2m_80k": "a6dd00097634b880",
        "target_800k": "fe140b1cdaf7ad72",
        "draft_800k_420k": "988ce05656174527",
        "draft_800k_180k": "6b7052f46104f8ff",
        "draft_800k_80k": "6d875a6320525a01",
        "eagle_2m": "bef6aaa382c3c21e",
        "eagle3_2m_1024": "4870589f7c515d3b",
    }
    assert {path.name for path in committed.ROOT.iterdir()} == {*keys}
    assert all((committed.folder(name) / "README.md").is_file() for name in keys)


def test_a_damaged_part_of_the_package_is_told(tmp_path, monkeypatch):
    shutil.copytree(committed.ROOT / "draft_2m_80k", tmp_path / "draft_2m_80k")
    (tmp_path / "draft_2m_80k" / "config.json").write_text("{}")
    monkeypatch.setattr(committed, "ROOT", tmp_path)
    damaged = "draft_2m_80k, a part of resispec, is damaged: config.json is not what was written;"
    with pytest.raises(InvalidInput, match=damaged):
        committed.folder.__wrapped__("draft_2m_80k")


def test_a_part_is_published_whole_but_for_the_training_text(tmp_path, monkeypatch):
    monkeypatch.setenv("RESISPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(committed, "ROOT", tmp_path / "files")
    publish.write("texts", TEXT)
    names = {path.name for path in (tmp_path / "files" / "texts").iterdir()}
    prompts = {f"{name}.jsonl" for name in NAMES}
    assert names == {"README.md", "manifest.json", "tokenizer.json", *prompts}
    assert kept.damage(tmp_path / "files" / "texts") is None
    card = " ".join((tmp_path / "files" / "texts" / "README.md").read_text().split())
    assert "vocab_size = 300" in card and "PSF-2.0" in card


@pytest.mark.usefixtures("plain")
def test_a_key_depends_on_every_field_of_its_recipe():
    """With the version, which nobody gives, and all that the recipe builds on."""
    values = {"sizes": Sizes(64, 64, 2, 2, 1), "text": dataclasses.replace(TEXT, vocab_size=299)}
    values["package"] = Package("other-pack", "1.2", "other_pack/toy.txt", "0" * 64)
    drafter = DrafterRecipe(TARGET, EagleRecipe())
    for one in (TEXT, DRAFT, drafter, QuestionsRecipe(), smollm2_recipe.TARGET):
        keys = {one.key()}
        for field in dataclasses.fields(one):
            value, changed = getattr(one, field.name), copy.copy(one)
            is_recipe = field.name in ("teacher", "target", "training")
            other = dataclasses.replace(value, seed=1) if is_recipe else values.get(field.name)
            object.__setattr__(changed, field.name, other or (value or 0) * 2 or 1)
            keys.add(changed.key())
        assert len(keys) == 1 + len(dataclasses.fields(one))
    sources = ({"a": b"1"}, {"a": b"2"}, {"b": b"1"}, {"a": b"1", "b": b""})
    assert len({kept.make_key(TEXT, content) for content in sources}) == len(sources)


def test_unknown_names_and_other_models_than_expected_are_refused():
    expected = "the embedded models 0123 were asked for; this installation makes"
    for load, message in (
        (
            lambda: embedded.load_pair(draft="68m"),
            "unknown embedded draft '68m' of target 2m; allowed: 80k",
        ),
        (lambda: embedded.load_pair(fingerprint="0123"), expected),
        (lambda: embedded.load_eagle_pair(fingerprint="0123"), expected),
        (
            lambda: embedded.load_eagle_pair("800k"),
            r"unknown embedded EAGLE drafter 800k \(num_draftable=None\); allowed: 2m \(num_",
        ),
        (
            lambda: embedded.EmbeddedDataset(NAMES[0], fingerprint="0123").prompts(1),
            "the prompts of ",
        ),
        (lambda: embedded.EmbeddedDataset("poems"), "unknown data set 'poems'; allowed: embedded_"),
    ):
        with pytest.raises(InvalidInput, match=f"^{message}"):
            load()


# Text


def test_the_split_of_a_source_is_golden():
    """Another text for the same key would pass for the one that a pair was trained on."""
    lines = [f'def f{n}():\n    """{"word " * 50}{n}"""\n\n\nx = {n}\n\n' for n in range(40)]
    sources = {f"stdlib/m{number}.py": "".join(lines[number:]).encode() for number in range(20)}
    sources[corpus.TOPICS] = f"topics = { ({'a': 'one ' * 200, 'b': 'two ' * 200})!r}".encode()
    digest = hashlib.sha256(repr(build_corpus(sources, max_chars=9000)).encode()).hexdigest()
    assert digest[:16] == "980e6f9daebf9c26"


def test_prompts_are_long_enough_in_a_fixed_order_and_not_too_few():
    splits = build_corpus(read_sources(), max_chars=100_000, max_files=120)
    tokenizer = text.train_tokenizer(splits, 300)
    for name in NAMES:
        documents = splits[name].held_out
        chosen = text.choose_prompts(name, documents, tokenizer, TEXT)
        assert len({document.id for document in chosen}) == len(chosen) == TEXT.num_prompts
        assert chosen == text.choose_prompts(name, documents[::-1], tokenizer, TEXT)
        for document in chosen:
            tokens = tokenizer.encode(document.text).ids
            assert (
                len(tokens) >= TEXT.min_prompt_tokens and tokenizer.decode(tokens) == document.text
            )
    with pytest.raises(InvalidInput, match=r"^embedded_code: .* gives 3 prompts; 200 are needed$"):
        text.choose_prompts(NAMES[2], splits[NAMES[2]].held_out[:3], tokenizer, TEXT_RECIPE)


# The cache


class Toy(kept.Kept):
    """A recipe that is made by a function."""

    def __init__(self, build):
        self.build = build

    def key(self):
        return "key"

    def make(self, folder):
        self.build(folder)
        (folder / "model").write_text("whole")
        return {"size": 1}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RESISPEC_CACHE", str(tmp_path))
    return tmp_path


def fork(work):
    """Run `work` in a child, ended without pytest's clean-up; returns a function for its code."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return lambda: os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_killed_process_leaves_nothing_that_is_used_but_its_checkpoint(cache):
    def die_half_way(folder):
        for name in ("model", "more", CHECKPOINT):
            (folder / name).write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)

    found = []
    assert fork(Toy(die_half_way).folder)() == -signal.SIGKILL
    assert not (cache / "key").exists()
    folder = Toy(lambda folder: found.extend(path.name for path in folder.iterdir())).folder()
    assert found == [CHECKPOINT] and {path.name for path in folder.iterdir()} == {
        "model",
        kept.MANIFEST,
    }
    assert [path.name for path in cache.iterdir() if path.is_dir()] == ["key"]


def test_two_processes_that_race_share_one_training_and_the_waiting_one_says_so(cache, caplog):
    def build(_folder):
        with (cache / "built").open("a") as count:
            count.write("x")
        time.sleep(0.5)

    exit_code = fork(Toy(build).folder)
    while not (cache / "built").exists():
        time.sleep(0.01)
    Toy(build).folder()
    assert exit_code() == 0 and (cache / "built").read_text() == "x"
    assert [record.getMessage() for record in caplog.records] == [
        f"another process is making {cache / 'key'}; waiting for it"
    ]


@pytest.mark.usefixtures("cache")
def test_the_seconds_of_a_making_leave_out_those_of_what_it_builds_on():
    below = Toy(lambda _: time.sleep(0.5))
    above = Toy(lambda _: (below.folder(), time.sleep(0.1)))
    above.below, below.key = below, lambda: "below"
    seconds = [
        kept.files.read_sealed(one.folder() / kept.MANIFEST)["seconds"] for one in (above, below)
    ]
    assert 0.1 <= seconds[0] < 0.5 <= seconds[1]


def test_damage_is_reported_in_one_line(cache):
    toy = Toy(lambda _: None)
    folder = toy.folder()
    for damage, problem in (
        (lambda: (folder / "model").write_text("who"), "model is not what was written"),
        (lambda: (folder / kept.MANIFEST).write_text("{}"), "its list of files is missing"),
    ):
        damage()
        with pytest.raises(
            InvalidInput, match=rf"^{folder}, made at first .* damaged: {problem}; delete.*$"
        ):
            toy.folder()
    (cache / "file").write_text("")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RESISPEC_CACHE", str(cache / "file"))
        with pytest.raises(
            InvalidInput, match=r"^cache folder .*file.* cannot be written .*RESISPEC_CACHE"
        ):
            toy.folder()
        patch.delenv("RESISPEC_CACHE")
        assert cache_root() == Path.home() / ".cache" / "resispec"
