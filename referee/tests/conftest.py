"""Material for trying engines of others: a tiny pair on disk, and what they are asked."""

from __future__ import annotations

import pytest
from toy_clients import ENGINES
from toy_server import ToyServer
from toys import save_tiny_pair

from resispec.models import load_pair
from resispec.sampling import Sampling


@pytest.fixture(params=ENGINES)
def toy(request):
    """A server of each format."""
    with ToyServer(request.param, has_seeds=True) as server:
        yield server


@pytest.fixture
def vllm():
    """A server that speaks vLLM's format."""
    with ToyServer("vllm") as server:
        yield server


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the models of `pair`, where engines also write theirs."""
    found = tmp_path_factory.mktemp("models")
    save_tiny_pair(found)
    return found


@pytest.fixture(scope="module")
def pair(folder):
    return load_pair(str(folder / "target"), str(folder / "draft"))


@pytest.fixture(scope="session")
def prompts():
    """Each says the same thing twice, so that drafts can be looked up in it."""
    return [(1 + index % 60, 2 + index % 40, 3, 1 + index % 60, 2 + index % 40) for index in range(45)]


@pytest.fixture(scope="session")
def sampled():
    """Sampling at temperature 1."""
    return Sampling(max_new_tokens=30)
