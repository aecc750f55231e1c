"""Probes of the cost model, timed by decoding."""

from __future__ import annotations

import pytest
from toys import tiny_llama

from experiments.costs import time_steps
from resispec.errors import InvalidInput
from resispec.models import Pair


def quiet(*_):
    """A report that nobody reads."""


def test_every_probe_is_timed_by_decoding():
    pair = Pair(tiny_llama(), tiny_llama(seed=1), None)
    calls = []
    timed = time_steps.time_probes(pair, [1, 2, 3], lambda *facts: calls.append(facts), rounds=1)
    wanted = time_steps.probes(256)
    assert [one.configuration for one in timed] == [probe.configuration for probe in wanted]
    assert len(set(wanted)) == len(wanted) and len(calls) == 2 * len(wanted)
    long = 256 - 128 - time_steps.NEW_TOKENS  # what the models' context leaves of the long prompt
    assert {one.length for one in timed} == {32 + time_steps.NEW_TOKENS / 2, long + time_steps.NEW_TOKENS / 2}
    for one in timed:
        assert 0 < one.target_s < one.step_s and one.draft_s >= 0 and one.verify_s > 0
    with pytest.raises(InvalidInput, match="found an empty one"):
        time_steps.time_probes(pair, [], quiet, rounds=1)
