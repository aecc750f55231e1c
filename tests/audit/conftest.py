"""Fixtures of the tests of audits."""

import pytest

from experiments.auditing import evidence
from resispec.draws import Draws
from tests.audit.audit_toys import toy_material, use


@pytest.fixture
def small(monkeypatch):
    """Too little material for a verdict without a bias, quickly."""
    use(monkeypatch, toy_material(num_prompts=2, num_tuples=40), lambda _: [Draws.IID])
    monkeypatch.setattr(evidence, "NUM_TURNS", 1)
    monkeypatch.setattr("resispec.audit.battery.KINDS", ("random",))
    monkeypatch.setattr("resispec.audit.battery.RESIDUAL_MASSES", (1e-1,))
    monkeypatch.setattr("resispec.audit.battery.TREES", evidence.TREES[:2])
