"""Profiling: the split of a step adds up, and time lands where it is spent."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from test_tasks import TREE, workload
from toys import table_pair

from experiments.tasks.decode import Decode
from experiments.tasks.step_breakdown import Profile, ProfileRow
from resispec import timing
from resispec.decode import Decoder
from resispec.verifiers import ResiSpec

NAP = 1000.0


class Clock:
    """A clock that moves by one when it is read, and when somebody sleeps: no machine is too busy for it."""

    instant = 0.0
    naps = 0

    @classmethod
    def read(cls) -> float:
        cls.instant += 1.0
        return cls.instant

    @classmethod
    def nap(cls) -> None:
        cls.instant += NAP
        cls.naps += 1


class LateBudget(ResiSpec):
    """Sleeps over its budget."""

    def _budget(self, target, draft, rejected):
        Clock.nap()
        return super()._budget(target, draft, rejected)


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=Clock.read))


@pytest.mark.parametrize("verifier", ["standard", "resispec", "traversal_optimal"])
def test_a_profile_decodes_the_same_tokens_and_its_parts_add_up(verifier):
    """The whole is timed apart from its parts; between these nothing is left but readings of the clock."""
    setting = workload(verifier, prompts=2, pair=table_pair(vocab=8), length=3, drafter=TREE)
    for index in range(2):
        row, plain = Profile()(setting, index), Decode()(setting, index)
        assert type(row) is ProfileRow and row.tokens_sha256 == plain.tokens_sha256
        assert (row.num_emitted, row.num_steps) == (plain.num_emitted, plain.num_steps)
        assert row.num_timed >= 4 * row.num_steps and row.clock_s == 2 * row.num_timed + 1
        assert min(row.draft_s, row.target_s, row.verify_s, row.commit_s) > 0
        parts = row.draft_s + row.target_s + row.verify_s + row.commit_s
        assert row.profiled_s - parts == 4 * row.num_steps + 1  # from an end to the next start
        inside = row.budget_s + row.redistribution_s + row.proxy_s
        names = {"standard": 1, "resispec": 3, "traversal_optimal": 0}[verifier]
        assert (row.budget_s > 0) == (row.redistribution_s > 0) == (names == 3)
        assert (row.shaping_s > 0) == (names > 0)
        if names:
            rejections = inside / names  # each name is read once a rejection
            assert rejections >= row.num_steps and row.shaping_s - inside == (names + 1) * rejections
        assert Profile().progress([row])["shaping"].endswith("%")


def test_time_lands_in_the_part_in_which_it_is_spent():
    before = Clock.naps
    setting = replace(workload(pair=table_pair(vocab=8), length=3), decoder=Decoder(TREE, LateBudget()))
    row, slept = Profile()(setting, 0), NAP * (Clock.naps - before)
    assert slept > 0 and all(slept <= spent < slept + NAP for spent in (row.budget_s, row.verify_s))
    others = row.draft_s + row.target_s + row.commit_s + (row.verify_s - row.shaping_s)
    assert others + row.redistribution_s + row.proxy_s < NAP
