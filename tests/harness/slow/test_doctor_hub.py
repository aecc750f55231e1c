"""What the doctor finds out about repositories: from a hub, a hub that does not answer, and copies here."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import save_file
from toy_hub import CONFIG, SHA, toy_hub

from experiments.doctor import checks
from experiments.doctor.checks import OK, PROBLEM, model
from experiments.doctor.hub import Repository, Wanted, look_at
from resispec.hub import Access

SEVEN_B = "meta-llama/Llama-2-7b-hf"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME"):
        monkeypatch.setattr(constants, name, str(tmp_path / "cache"), raising=False)
    return tmp_path / "cache"


@pytest.fixture
def asked(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A hub that answers, and nothing in the cache."""
    assert not cache.exists()
    with toy_hub() as (address, asked):
        monkeypatch.setattr(constants, "ENDPOINT", address)
        pattern = address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", pattern)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield asked


def look(name: str, kind: str = "model", folder: str = "") -> Repository:
    [found] = look_at([Wanted(kind, name, None, folder)]).values()
    return found


def hub(*repositories: Repository) -> checks.Check:
    """The line about the hub."""
    patient = SimpleNamespace(repositories=dict(enumerate(repositories)))
    [line] = checks.hub(patient)
    return line


def write_copy(folder: Path, shards: int = 2) -> None:
    """Two shards with 6 and 4 numbers, of which `shards` are there."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    names = [f"model-0000{place}-of-00002.safetensors" for place in (1, 2)]
    tensors = [{"a": torch.zeros(2, 3)}, {"b": torch.zeros(4)}]
    for name, tensor in list(zip(names, tensors, strict=True))[:shards]:
        save_file(tensor, folder / name)
    index = {"weight_map": dict(zip("ab", names, strict=True))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def write_cached(cache: Path, name: str, shards: int = 2) -> Path:
    """A copy in the layout of the hub's cache."""
    home = cache / f"models--{name.replace('/', '--')}"
    write_copy(home / "snapshots" / SHA, shards)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(SHA)
    return home / "snapshots" / SHA


def test_an_open_model_has_the_size_that_the_hub_tells_and_nothing_of_it_is_kept(asked, cache):
    found = look("toy/open")
    assert found.access == Access.OPEN and found.copy is None and found.num_bytes == 1000
    assert (found.size.parameters, found.size.layers, found.size.kv_width, found.size.vocab) == (
        500,
        3,
        16,
        1000,
    )
    assert not any("safetensors" in path for path in asked)  # no weights
    assert not list(cache.rglob("*config.json"))  # else make would take the model for being there
    line = str(model(found))
    assert line.startswith("ok ") and "on the hub" in line and "to download" in line


@pytest.mark.usefixtures("asked")
def test_weights_in_pickles_are_counted_by_their_bytes_and_precision():
    assert look("toy/old").size.parameters == 2500  # 5000 bytes of float16, without the training's arguments


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize(
    ("name", "access", "said"),
    [
        ("gated", Access.GATED, "ask for access on {hub}/toy/gated, then log in: `hf auth login`"),
        ("gated401", Access.GATED, "gated, and closed to this account"),
        ("missing", Access.MISSING, "no such repository, or it is private"),
        ("private", Access.MISSING, "look at {hub}/toy/private"),
        ("revision", Access.REVISION, "there is no revision None"),
        ("token", Access.TOKEN, "the hub does not take the token"),
        ("broken", Access.REFUSED, "the hub refuses it"),
    ],
)
def test_what_cannot_be_read_says_why_and_what_to_do(name, access, said):
    found = look(f"toy/{name}")
    line = model(found)
    assert (found.access, found.is_open, line.state) == (access, False, PROBLEM)
    assert said.format(hub=constants.ENDPOINT) in str(line) and "\n" not in str(line)
    assert hub(found).state == OK  # it did answer


@pytest.mark.usefixtures("asked")
def test_of_a_data_set_the_files_of_its_own_folder_are_downloaded():
    assert look("toy/data", "dataset", "3.0.0/").num_bytes == 50
    assert look("toy/data", "dataset").num_bytes == 57


@pytest.mark.usefixtures("cache")
def test_a_hub_that_is_not_there_is_said_at_once_with_what_is_known_anyway(monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    started = time.monotonic()
    found = look_at([Wanted("model", SEVEN_B), Wanted("model", "toy/open"), Wanted("dataset", "toy/data")])
    assert time.monotonic() - started < 10
    assert {one.access for one in found.values()} == {Access.UNREACHABLE}
    known, unknown = found[Wanted("model", SEVEN_B)], found[Wanted("model", "toy/open")]
    assert known.size.parameters == 6_738_415_616 and unknown.size is None
    line = hub(*found.values())
    assert line.state == PROBLEM and "cannot be reached" in line.found and "toy/data" in line.found


@pytest.mark.usefixtures("asked")
def test_a_hub_that_never_answers_is_not_waited_for():
    started = time.monotonic()
    found = look_at([Wanted("model", "toy/slow"), Wanted("model", "toy/open")], deadline_s=1.0)
    assert time.monotonic() - started < 2.5
    assert [one.access for one in found.values()] == [Access.UNREACHABLE, Access.OPEN]


@pytest.mark.parametrize("is_there", [True, False])
def test_offline_a_complete_copy_is_enough_and_its_absence_a_problem(cache, monkeypatch, is_there):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    place = write_cached(cache, "toy/open") if is_there else None
    found = look("toy/open")
    assert (found.access, found.copy) == (Access.OFFLINE, place)
    assert {hub(found).state, model(found).state} == {OK if is_there else PROBLEM}
    if is_there:
        assert found.size.parameters == 10  # by the headers of both shards


def test_a_copy_that_lacks_a_shard_is_no_copy(cache, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    write_cached(cache, "toy/open", shards=1)
    line = str(model(look("toy/open")))
    assert (
        line.startswith("problem")
        and "the copy here is not complete" in line
        and "model-00002-of-00002.safetensors" in line
    )


@pytest.mark.usefixtures("asked")
def test_a_copy_is_used_although_the_hub_does_not_know_the_name(cache):
    write_cached(cache, "toy/missing")
    found = look("toy/missing")
    assert found.access == Access.MISSING and found.is_open and model(found).state == OK


def test_a_folder_needs_no_hub(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    write_copy(tmp_path / "own")
    found = look(str(tmp_path / "own"))
    assert found.size.parameters == 10 and hub(found).found == "not needed"
