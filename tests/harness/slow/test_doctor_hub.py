"""The doctor's findings about repositories: from a hub, a hub that is silent, and copies here."""

import json
import time
from importlib import import_module
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants, get_session, set_client_factory
from huggingface_hub.utils._http import default_client_factory
from safetensors.torch import save_file

from experiments.cell import Cell
from experiments.doctor import __main__ as doctor
from experiments.doctor import device, needs
from experiments.doctor.device import Device
from experiments.doctor.needs import GIB, OK, PROBLEM, Needs
from resispec.errors import InvalidInput
from resispec.hub import find_weights
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
}
REFUSED = {
    "gated": (403, "GatedRepo", "it is gated; ask for access at {hub}/toy/gated and log in"),
    "missing": (404, "RepoNotFound", "there is no such repository, or it is private"),
    "token": (401, "", "the token is not valid; log in"),
    "revision": (404, "RevisionNotFound", "it has no revision None"),
    "broken": (500, "", "Server Error"),
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
            return http.Response(200, json=CONFIG, headers={"ETag": SHA, "X-Repo-Commit": SHA})
        siblings = [{"rfilename": file, "size": size} for file, size in files.items()]
        counted = (
            {"safetensors": {"parameters": {"F16": 500}, "total": 500}}
            if SHARDS[0] in files
            else {}
        )
        return http.Response(
            200, json={"id": "toy/any", "sha": SHA, "siblings": siblings, **counted}
        )

    transport = http.MockTransport(answer)
    set_client_factory(lambda: http.Client(transport=transport, follow_redirects=True))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    yield paths
    set_client_factory(default_client_factory)


@pytest.fixture(autouse=True)
def gpu(monkeypatch):
    """A device of 24 GiB."""
    monkeypatch.setattr(device, "ask", lambda *_: Device("Toy GPU", 24 * GIB, 24 * GIB))


def needs_of(**config):
    """The needs of a cell with this pair and data set, and their lines but the device's."""
    config = {
        "device": "cuda",
        "devices": [],
        "dtype": "float32",
        "pair": {},
        "dataset": {},
    } | config
    config["pair"] = {"_target_": "resispec.models.load_pair"} | config["pair"]
    cell = Cell({"pair": "toy", "dataset": "toy"}, config)
    found = Needs([cell])
    _, *lines = found.lines(cell)
    return found, lines


def line_of(name):
    """The line about a model."""
    _, [line, *_] = needs_of(pair={"target": name})
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
    found = find_weights("toy/open", None)
    assert (found.folder, found.num_bytes, found.num_parameters) == (None, 1000, 500)
    assert not any("safetensors" in path for path in asked)  # no weights
    assert not list(cache.rglob("*config.json"))  # else make would take the model for being there
    line = str(line_of("toy/open"))
    assert line.startswith("ok ") and "on the hub, 0.0 GiB to download" in line
    # Pickles are counted without the training's arguments.
    assert find_weights("toy/old", None).num_parameters == 2500


def test_a_name_that_no_hub_can_have_is_refused_in_one_line():
    with pytest.raises(InvalidInput, match="model a/b--c is no name of a hub: .*; ways out: "):
        find_weights("a/b--c", None)


@pytest.mark.usefixtures("asked")
def test_what_is_to_be_downloaded_needs_room_and_memory(monkeypatch, tmp_path):
    monkeypatch.setitem(FILES["open"], SHARDS[0], 16 * GIB)
    found, lines = needs_of(pair={"target": "toy/open"})
    [memory] = [line for line in lines if line.name == "pair toy"]
    assert memory.state == PROBLEM and "weights 32.0 GiB in float32" in memory.found
    assert "dtype=float16, or a smaller pair" in memory.found
    monkeypatch.setattr(
        doctor.shutil, "disk_usage", lambda _: doctor.shutil._ntuple_diskusage(0, 0, 2 * GIB)
    )
    assert [line.state for line in doctor.disk(found, tmp_path / "new")] == [PROBLEM, OK]


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_says_why_and_what_to_do(name):
    *_, said = REFUSED[name]
    line = line_of(f"toy/{name}")
    assert line.state == PROBLEM and said.format(hub=constants.ENDPOINT) in line.found
    assert "ways out: " in line.found and "\n" not in str(line)


@pytest.mark.usefixtures("cache")
def test_a_hub_that_is_not_there_is_said_at_once(monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    started = time.monotonic()
    _, lines = needs_of(pair={"target": "toy/open"}, dataset={"repo": "toy/data"})
    assert time.monotonic() - started < 10
    for line, name in zip(lines, ("model toy/open", "dataset toy/data"), strict=True):
        assert (line.state, line.name) == (PROBLEM, name) and "cannot be reached" in line.found


@pytest.mark.usefixtures("asked")
def test_a_hub_that_never_answers_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(needs, "DEADLINE_S", 1.0)
    started = time.monotonic()
    _, lines = needs_of(pair={"target": "toy/slow", "draft": "toy/open"})
    assert time.monotonic() - started < 2.5
    assert [line.state for line in lines] == [PROBLEM, OK]
    assert "gave no answer within 1 s" in lines[0].found


@pytest.mark.parametrize("shards", [0, 1, 2])
def test_offline_a_complete_copy_is_enough_and_its_absence_a_problem(cache, monkeypatch, shards):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    place = cached(cache, "toy/open", SHA, lambda to: write_copy(to, shards)) if shards else None
    line = line_of("toy/open")
    assert line.state == (OK if shards == 2 else PROBLEM)
    expected = ["is not cached", f"is not complete ({place} lacks {SHARDS[1]})", f"in {place}"]
    assert expected[shards] in line.found


@pytest.mark.usefixtures("asked")
def test_a_copy_is_used_where_the_hub_answers_and_a_folder_needs_no_hub(cache, tmp_path, asked):
    place = cached(cache, "toy/open", SHA, write_copy)
    assert find_weights("toy/open", None).folder == Path(place)
    asked.clear()
    own = write_copy(tmp_path / "own")
    size = sum((own / name).stat().st_size for name in SHARDS)
    assert find_weights(str(own), None).num_bytes == size and not asked
