"""What the doctor finds out about repositories: from a hub,
a hub that does not answer, and copies here.
"""

import json
import time
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub import constants
from huggingface_hub.utils import get_session
from safetensors.torch import save_file

from experiments.doctor import checks
from experiments.doctor.checks import OK, PROBLEM, model
from experiments.doctor.hub import Wanted, look_at
from resispec.hub import Access
from tests.models.toy_layouts import cached

SHA = "a" * 40
CONFIG = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}
CONFIG |= {"model_type": "llama", "vocab_size": 1000, "torch_dtype": "float16"}
SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
FILES = {
    "open": {"config.json": 300, SHARDS[0]: 600, SHARDS[1]: 400},
    "old": {"config.json": 300, "pytorch_model.bin": 5000, "training_args.bin": 70},
    "data": {"1.0.0/train.parquet": 7, "3.0.0/test.parquet": 20, "3.0.0/train.parquet": 30},
}
REFUSED = {
    "gated": (
        403,
        "GatedRepo",
        Access.GATED,
        "ask for access on {hub}/toy/gated, then log in: `hf auth",
    ),
    "missing": (404, "RepoNotFound", Access.MISSING, "no such repository, or it is private"),
    "token": (401, "", Access.TOKEN, "the hub does not take the token"),
    "revision": (404, "RevisionNotFound", Access.REVISION, "there is no revision None"),
    "broken": (500, "", Access.REFUSED, "the hub refuses it"),
}
"""Names under "toy/" -> status and code of the refusal, and what is said of it."""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of the hub."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME"):
        monkeypatch.setattr(constants, name, str(tmp_path / "cache" / "hub"), raising=False)
    return tmp_path / "cache"


@pytest.fixture
def asked(cache, monkeypatch):
    """What a toy hub is asked, with nothing in the cache."""
    assert not cache.exists()
    # httpx, or what took its place
    http = import_module(type(get_session()).__module__.partition(".")[0])
    paths = []

    def answer(request):
        path = request.url.path
        paths.append(path)
        name = path.partition("toy/")[2].partition("/")[0]
        is_file, files = "/resolve/" in path, FILES.get(name, FILES["open"])
        time.sleep(3 * (name == "slow"))
        if name in REFUSED and (is_file or not name.startswith("gated")):  # whose metadata is open
            status, code, *_ = REFUSED[name]
            message = {"X-Error-Message": "Invalid credentials in Authorization header"}
            return http.Response(
                status, headers={"X-Error-Code": code} if code else message, json={}
            )
        if is_file:
            return http.Response(200, json=CONFIG)
        siblings = [{"rfilename": file, "size": size} for file, size in files.items()]
        counted = (
            {"safetensors": {"parameters": {"F16": 500}, "total": 500}}
            if SHARDS[0] in files
            else {}
        )
        return http.Response(
            200, json={"id": "toy/any", "sha": SHA, "siblings": siblings, **counted}
        )

    client = http.Client(transport=http.MockTransport(answer))
    for place in ("huggingface_hub.hf_api", "experiments.doctor.hub"):
        monkeypatch.setattr(f"{place}.get_session", lambda: client)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return paths


def look(name, kind="model", folder=""):
    [found] = look_at([Wanted(kind, name, None, folder)]).values()
    return found


def hub(*repositories):
    """The line about the hub."""
    [line] = checks.hub(SimpleNamespace(repositories=dict(enumerate(repositories))))
    return line


def write_copy(folder, shards=2):
    """Two shards with 6 and 4 numbers, of which `shards` are there."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    tensors = [{"a": torch.zeros(2, 3)}, {"b": torch.zeros(4)}]
    for name, tensor in list(zip(SHARDS, tensors, strict=True))[:shards]:
        save_file(tensor, folder / name)
    index = {"weight_map": dict(zip("ab", SHARDS, strict=True))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def test_an_open_model_has_the_size_that_the_hub_tells_and_nothing_of_it_is_kept(asked, cache):
    found = look("toy/open")
    assert found.access == Access.OPEN and found.copy is None and found.num_bytes == 1000
    assert found.size.parameters == 500
    assert not any("safetensors" in path for path in asked)  # no weights
    assert not list(cache.rglob("*config.json"))  # else make would take the model for being there
    line = str(model(found))
    assert line.startswith("ok ") and "on the hub" in line and "to download" in line
    # Pickles are counted by their bytes and precision: 5000 of float16, without the training's
    # arguments.
    assert look("toy/old").size.parameters == 2500
    # Of a data set the files of its own folder are downloaded.
    assert [look("toy/data", "dataset", folder).num_bytes for folder in ("3.0.0/", "")] == [50, 57]


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_says_why_and_what_to_do(name):
    *_, access, said = REFUSED[name]
    found = look(f"toy/{name}")
    line = model(found)
    assert (found.access, found.is_open, line.state) == (access, False, PROBLEM)
    assert said.format(hub=constants.ENDPOINT) in str(line) and "\n" not in str(line)
    assert hub(found).state == OK  # it did answer


@pytest.mark.usefixtures("cache")
def test_a_hub_that_is_not_there_is_said_at_once(monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    started = time.monotonic()
    wanted = [
        Wanted("model", "toy/open"),
        Wanted("dataset", "toy/data"),
    ]
    absent, data = look_at(wanted).values()
    assert time.monotonic() - started < 10
    assert {absent.access, data.access} == {Access.UNREACHABLE}
    assert absent.size is None
    line = hub(absent, data)
    assert line.state == PROBLEM and "cannot be reached" in line.found and "toy/data" in line.found


@pytest.mark.usefixtures("asked")
def test_a_hub_that_never_answers_is_not_waited_for():
    started = time.monotonic()
    found = look_at([Wanted("model", "toy/slow"), Wanted("model", "toy/open")], deadline_s=1.0)
    assert time.monotonic() - started < 2.5
    assert [one.access for one in found.values()] == [Access.UNREACHABLE, Access.OPEN]


@pytest.mark.parametrize("shards", [0, 1, 2])
def test_offline_a_complete_copy_is_enough_and_its_absence_a_problem(cache, monkeypatch, shards):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    place = cached(cache, "toy/open", SHA, lambda to: write_copy(to, shards)) if shards else None
    found = look("toy/open")
    line = model(found)
    assert (found.access, found.copy) == (Access.OFFLINE, place if shards == 2 else None)
    assert {hub(found).state, line.state} == {OK if shards == 2 else PROBLEM}
    if shards == 2:
        assert found.size.parameters == 10  # by the headers of both shards
    elif shards == 1:
        assert "the copy here is not complete" in line.found and SHARDS[1] in line.found


@pytest.mark.usefixtures("asked")
def test_a_copy_is_used_although_the_hub_does_not_know_the_name_and_a_folder_needs_no_hub(
    cache, tmp_path
):
    cached(cache, "toy/missing", SHA, write_copy)
    found = look("toy/missing")
    assert found.access == Access.MISSING and found.is_open and model(found).state == OK
    found = look(str(write_copy(tmp_path / "own")))
    assert found.size.parameters == 10 and hub(found).found == "not needed"
