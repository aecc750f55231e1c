"""Profiling: the split of a step adds up, time lands where it is spent, and no throughput comes of it."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from types import SimpleNamespace

import pytest
from toy_runs import run_here, save_toys, toy_overrides
from toys import table_pair

from analysis import metrics
from analysis.figure3 import FIELDS
from experiments.grid import cells_of
from experiments.store import CellStore, parse
from experiments.tasks.base import Workload
from experiments.tasks.decode import Decode
from experiments.tasks.step_breakdown import Profile, ProfileRow
from resispec import timing
from resispec.decode import Decoder, Sampling
from resispec.drafters import DraftModel
from resispec.draws import Draws
from resispec.trees import complete
from resispec.verifiers import ResiSpec, Standard, get_verifier

NAP = 1000.0


DRAFTER = DraftModel(complete(3, 2), Draws.IID)


def workload(verifier, pair=None):
    prompts = [("a", [1, 2, 3]), ("b", [0, 1])]
    decoder, sampling = Decoder(DRAFTER, verifier), Sampling(1.0, 24, 64)
    return Workload(pair or table_pair(vocab=8), decoder, sampling, prompts, seed=0)


class Clock:
    """A clock that moves by one when it is read, and when somebody sleeps: no machine is too busy for it."""

    instant = 0.0

    @classmethod
    def read(cls) -> float:
        cls.instant += 1.0
        return cls.instant

    @classmethod
    def sleep(cls, seconds: float) -> None:
        cls.instant += seconds


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=Clock.read))


class Lazy(Standard):
    """Sleeps while it reshapes."""

    naps = 0

    def reshape(self, target, draft, rejected):
        Clock.sleep(NAP)
        type(self).naps += 1
        return super().reshape(target, draft, rejected)


class LateBudget(ResiSpec):
    """Sleeps over its budget."""

    naps = 0

    def _budget(self, target, draft, rejected):
        Clock.sleep(NAP)
        type(self).naps += 1
        return super()._budget(target, draft, rejected)


@pytest.mark.parametrize("verifier", ["standard", "resispec", "traversal_optimal"])
def test_a_profile_decodes_the_same_tokens(verifier):
    setting = workload(get_verifier(verifier))
    for index in range(2):
        row, plain = Profile()(setting, index), Decode()(setting, index)
        assert type(row) is ProfileRow and row.tokens_sha256 == plain.tokens_sha256
        assert (row.num_emitted, row.num_steps) == (plain.num_emitted, plain.num_steps)
        assert parse(json.dumps(asdict(row), allow_nan=False), ProfileRow) == row
        assert row.num_timed >= 4 * row.num_steps and row.clock_s > 0
        assert min(row.draft_s, row.target_s, row.verify_s, row.commit_s) > 0
        assert (row.shaping_s > 0) == (verifier != "traversal_optimal")
        assert (row.budget_s > 0) == (row.redistribution_s > 0) == (verifier == "resispec")
        assert Profile().progress([row])["shaping"].endswith("%")


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("verifier", ["standard", "resispec"])
def test_the_parts_of_a_step_add_up_to_it(verifier):
    """The whole is timed apart from its parts; between these nothing is left but readings of the clock."""
    row = Profile()(workload(get_verifier(verifier)), 0)
    parts = row.draft_s + row.target_s + row.verify_s + row.commit_s
    assert row.profiled_s - parts == 4 * row.num_steps + 1  # from the end of one to the start of the next
    steps, names = row.budget_s + row.redistribution_s + row.proxy_s, 3 if verifier == "resispec" else 1
    rejections = steps / names  # each name is read once a rejection
    assert rejections >= row.num_steps
    assert row.shaping_s - steps == (names + 1) * rejections
    assert row.clock_s == 2 * row.num_timed + 1


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(("rule", "narrowest"), [(Lazy(), "shaping_s"), (LateBudget(), "budget_s")])
def test_time_lands_in_the_part_in_which_it_is_spent(rule, narrowest):
    type(rule).naps = 0
    row = Profile()(workload(rule), 0)
    slept = NAP * type(rule).naps
    assert slept > 0 and slept <= getattr(row, narrowest) < slept + NAP
    assert slept <= row.verify_s < slept + NAP
    others = row.draft_s + row.target_s + row.commit_s + (row.verify_s - row.shaping_s)
    assert others + row.redistribution_s + row.proxy_s < NAP
    assert narrowest == "budget_s" or row.budget_s == 0


@pytest.fixture
def cells(tmp_path):
    """The same toy cell, decoded and profiled."""
    given = [*toy_overrides(save_toys(tmp_path), tmp_path / "results"), "verifier=resispec"]
    return [run_here(cells_of([f"task={task}", *given])[0]) for task in ("decode", "profile")]


def test_profiled_cells_are_apart_from_timed_ones(cells):
    """Cells of their own, with rows that no throughput can be taken from, and the other way round."""
    decoded, profiled = cells
    assert decoded.folder != profiled.folder
    rows = CellStore(profiled.folder).rows(ProfileRow)
    plain = CellStore(decoded.folder).rows(Decode().row)
    assert [row.tokens_sha256 for row in rows] == [row.tokens_sha256 for row in plain] and len(rows) == 3
    names = {field.name for field in fields(ProfileRow)}
    assert "decode_s" in set(metrics.fields()) - names
    assert set(FIELDS) <= names and not set(FIELDS) <= {field.name for field in fields(plain[0])}
