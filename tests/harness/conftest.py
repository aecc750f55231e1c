"""Toy cells for every test of the harness."""

import pytest

from tests.harness.toy_runs import save_toys, toy_overrides


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A tiny pair, a tiny EAGLE drafter and eight documents, which no test changes."""
    return save_toys(tmp_path_factory.mktemp("toys"))


@pytest.fixture
def toy(folder, tmp_path):
    """Overrides of a toy cell, with a results folder of the test's own."""
    return toy_overrides(folder, tmp_path / "results")
