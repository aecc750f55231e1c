"""Published checkpoints, file by file: folders and the hub's cache, and what the hub may answer."""

import json
from types import SimpleNamespace

import httpx
import pytest
import torch
from huggingface_hub import HfApi, constants, errors
from huggingface_hub.utils import filter_repo_objects

from resispec import hub
from resispec.errors import InvalidInput
from resispec.models import features_of, load_eagle_pair, load_pair
from tests.models.toy_architectures import distance
from tests.models.toy_layouts import LAYOUTS, build, cached, write_layout

pytestmark = pytest.mark.numerics

COMMIT = "0" * 39 + "1"
TOKENS = [1, 5, 9, 3, 14, 2, 7, 11, 6, 4, 12, 13]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_weight_and_law_is_the_checkpoint_s_own(name, cache):
    """By its hub name, from the cache alone: parameters bit by bit, logits of the plain module."""
    config, *_ = LAYOUTS[name]
    cached(cache, name, COMMIT, lambda folder: write_layout(name, folder))
    pair = load_pair(name, None)
    own = build(config)
    dtype = getattr(torch, config["torch_dtype"])
    expected = {key: value.to(dtype).float() for key, value in own.state_dict().items()}
    found = pair.target.module.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], value) for key, value in expected.items())
    own.load_state_dict(expected)
    with torch.inference_mode():
        logits = own(input_ids=torch.tensor([TOKENS])).logits[0]
    assert distance(pair.target.head(features_of(pair.target, TOKENS)), logits) < 1e-5
    is_tied = found["lm_head.weight"].data_ptr() == found["model.embed_tokens.weight"].data_ptr()
    assert is_tied == config["tie_word_embeddings"]
    assert pair.tokenizer.encode("abc d") == [1, 3, 13, 3, 7] and pair.tokenizer.eos_token_id == 2
    assert pair.commits() == {"target": COMMIT, "draft": None} and pair.end_token_ids == {2}


@pytest.mark.parametrize("load", [load_pair, load_eagle_pair])
@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_revision_that_is_not_cached_is_named(load, role, cache):
    name = "JackFram/llama-68m"
    cached(cache, name, COMMIT, lambda folder: write_layout(name, folder))
    with pytest.raises(InvalidInput, match=f"model {name} at revision {'a' * 40} is not cached"):
        load(name, name, **{f"{role}_revision": "a" * 40})


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        ({"eos_token_id": 4}, {"eos_token_id": [7, 9]}, {7, 9}),
        ({"eos_token_id": [4, 9, 11]}, {"do_sample": True}, {4, 9, 11}),
        ({"eos_token_id": None}, {}, {2}),  # the tokenizer's
    ],
)
def test_the_files_name_the_tokens_that_end_a_text(tmp_path, config, generation, expected):
    folder = tmp_path / "model"
    write_layout("meta-llama/Llama-2-7b-chat-hf", folder)
    plain = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(plain | config))
    (folder / "generation_config.json").write_text(json.dumps(generation))
    assert load_pair(str(folder), None).end_token_ids == expected


@pytest.fixture
def answer(monkeypatch):
    """Makes the hub list these files of a repository, and `download` what is asked of it then."""

    def make(files, download):
        info = SimpleNamespace(
            sha=COMMIT, siblings=[SimpleNamespace(rfilename=name) for name in files]
        )
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(HfApi, "repo_info", lambda *_, **__: info)
        monkeypatch.setattr(hub, "snapshot_download", download)

    return make


REFUSALS = {
    "it is gated; ask for access at https://huggingface.co/o/m and log in": (
        errors.GatedRepoError,
        403,
    ),
    "there is no such repository, or it is private; check": (errors.RepositoryNotFoundError, 404),
    "it has no revision v2": (errors.RevisionNotFoundError, 404),
    "the token is not valid; log in with `hf auth login` or set HF_TOKEN": (
        errors.HfHubHTTPError,
        401,
    ),
}


@pytest.mark.parametrize("message", REFUSALS)
def test_what_the_hub_refuses_is_one_line_with_what_to_do(monkeypatch, answer, message):
    """Where files are asked for, as a gated repository does, or at once."""
    kind, status = REFUSALS[message]

    def refuse(*_, **__):
        response = httpx.Response(
            status, request=httpx.Request("GET", "https://hub/api/models/o/m")
        )
        raise kind("said\n\nmore", response=response)

    answer([], refuse)
    for _ in range(2):
        with pytest.raises(InvalidInput, match=f"^model o/m .*{message}.*$"):
            load_pair("o/m", None, target_revision="v2")
        monkeypatch.setattr(HfApi, "repo_info", refuse)


def test_a_connection_that_breaks_half_way_is_gone_on_with(answer, cache):
    """What is asked for is the commit that the hub named, the same one again."""
    asked = []

    def download(name, revision, **_):
        asked.append((name, revision))
        if len(asked) == 1:
            raise httpx.ReadError("connection reset")
        return cached(
            cache, name, COMMIT, lambda folder: write_layout("JackFram/llama-68m", folder)
        )

    answer(["config.json", "model.safetensors"], download)
    with pytest.raises(
        InvalidInput, match="downloaded: connection reset; files that have arrived are kept"
    ):
        load_pair("o/m", None)
    assert load_pair("o/m", None).commits()["target"] == COMMIT
    assert asked == [("o/m", COMMIT)] * 2


def test_what_a_name_stood_for_is_kept_for_when_the_hub_is_away(answer, cache, monkeypatch):
    """Defect: a model that was downloaded by its commit was not found by its name."""

    def download(name, **_):
        folder = cached(cache, name, COMMIT, lambda to: write_layout("JackFram/llama-68m", to))
        (folder.parents[1] / "refs" / "main").unlink()  # the hub's library writes none here
        return folder

    real = hub.snapshot_download
    answer(["config.json", "model.safetensors"], download)
    assert hub.cached_commit("o/m") is None
    load_pair("o/m", None)
    monkeypatch.setattr(hub, "snapshot_download", real)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub.cached_commit("o/m") == COMMIT and hub.cached_commit("no/name/of one") is None
    assert hub.cached_commit("o/m", "main") == COMMIT and hub.cached_commit("o/m", "v1") is None
    assert load_pair("o/m", None).commits()["target"] == COMMIT


def test_only_files_that_loading_takes_are_downloaded(answer):
    """Of two copies of the weights one, and nothing of other folders and formats."""
    small = [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer.model",
        "merges.txt",
    ]
    others = [
        "original/config.json",
        "consolidated.safetensors",
        "x.gguf",
        "README.md",
        "a/model.safetensors",
    ]
    shards = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    pickles = [f"pytorch_model-0000{n}-of-00002.bin" for n in (1, 2)]
    for weights, expected in (([*shards, *pickles], shards), (pickles, pickles)):
        files, taken = [*small, *others, *weights], []

        def download(_, revision, files=files, taken=taken, **patterns):
            taken += filter_repo_objects(files, **patterns)
            return revision

        answer(files, download)
        hub.model_folder("o/m", None)
        assert set(taken) == {*small, *expected}
