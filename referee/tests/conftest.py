"""A server that speaks vLLM's format, for tests of clients and of what is written."""

import pytest

from referee.tests.toy_server import ToyServer


@pytest.fixture
def vllm():
    with ToyServer("vllm") as server:
        yield server
