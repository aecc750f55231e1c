"""Which cells may run at the same time: any, but never two whose times count."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import ClassVar

import pytest

from experiments import launcher
from experiments.cells import Cell
from experiments.plan import cells_of


def cell(name: str, is_timed: bool, pair: str = "one") -> Cell:
    config = {"audit": not is_timed, "timed": True, "num_prompts": 1, "jobs": 2, "results": "r"}
    return Cell({"name": name}, config | {"device": "cpu", "num_threads": 1, "pair": {"name": pair}})


def test_what_is_audited_or_said_to_be_untimed_is_not_timed() -> None:
    timed, audit = cells_of(["audit=false,true"])
    assert timed.is_timed and not audit.is_timed
    for artefact in ("figure1", "figure2", "table4", "table5", "frontier/bound"):
        assert not any(one.is_timed for one in cells_of([f"experiment={artefact}"])), artefact
    for given in (["experiment=table1", "audit=false"], ["experiment=figure3"], ["warmup_prompts=0"]):
        assert all(one.is_timed for one in cells_of(given)), given
    assert cells_of(["timed=false"])[0].cell_id == cells_of([])[0].cell_id


def queue(*cells: Cell) -> launcher._Queue:
    """A queue in which every pair was opened before."""
    found = launcher._Queue(enumerate(cells))
    for one in cells:
        found.opened(one)
    return found


def test_the_next_cell_is_timed_only_while_no_other_timed_one_runs() -> None:
    timed, untimed = cell("t", True), cell("u", False)
    assert queue(timed, untimed).next([]) == (0, timed)
    assert queue(untimed, timed).next([]) == (0, untimed)  # in order when nothing runs
    assert queue(timed, untimed).next([timed]) == (1, untimed)
    assert queue(timed).next([timed]) is None
    assert queue(timed, untimed).next([untimed]) == (0, timed)
    assert queue().next([untimed]) is None


def test_the_first_cell_of_a_pair_runs_alone_since_the_pair_may_have_to_be_trained() -> None:
    known, other = cell("k", True), cell("o", False, pair="other")
    waiting = queue(known)
    waiting.put_back(1, other)
    waiting._not_before.clear()
    assert waiting.next([known]) is None  # the other pair is not there yet
    assert waiting.next([]) == (0, known)
    assert waiting.next([]) == (1, other)
    waiting.put_back(2, cell("k2", False))
    waiting._not_before.clear()
    assert waiting.next([other]) is None
    waiting.opened(other)
    assert waiting.next([other]) is not None


def test_a_cell_that_another_run_measures_is_looked_at_again_after_a_while(monkeypatch) -> None:
    instants = iter([10.0, 10.0, 10.0 + 2 * launcher.AGAIN_S])
    monkeypatch.setattr(launcher.time, "monotonic", lambda: next(instants))
    waiting = queue()
    waiting.put_back(7, cell("b", False))
    assert waiting.next([]) is None and len(waiting) == 1
    assert waiting.next([]) == (7, cell("b", False))


@pytest.mark.parametrize(
    ("changed", "cores", "jobs"),
    [
        ({}, 4, 2),
        ({}, 1, 1),
        ({"jobs": 8}, 4, 4),
        ({"num_threads": 2}, 4, 2),
        ({"num_threads": 4}, 4, 1),
        ({"num_threads": None}, 4, 1),
        ({"device": "cuda"}, 4, 1),
    ],
)
def test_as_many_cells_run_at_a_time_as_there_are_cores_for(monkeypatch, changed, cores, jobs) -> None:
    monkeypatch.setattr(launcher.os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    assert launcher.jobs_of(cell("a", True).config | changed) == jobs


class Recorded:
    """Stands in for a worker: a subprocess that ends by itself, and what ran beside it when it began."""

    running: ClassVar[list[Cell]] = []
    beside: ClassVar[list[list[Cell]]] = []
    busy: ClassVar[set[str]] = set()

    def __init__(self, number: int, target: object, work: Cell, report: object) -> None:
        del target, report
        self.number, self.work = number, work
        self.running.append(work)
        self.beside.append(list(self.running))
        self._process = subprocess.Popen(["sleep", "0.05"], stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self.channel = self._process.stdout

    def read(self) -> bool:
        return bool(self.channel.read())

    def end(self) -> tuple[int, str]:
        self._process.wait()
        self.channel.close()
        self.running.remove(self.work)
        if not isinstance(self.work, Cell):  # a search
            return 0, ""
        is_busy = self.work.labels["name"] in self.busy
        self.busy.discard(self.work.labels["name"])
        return (launcher.BUSY if is_busy else 0), ""


def test_all_cells_run_two_at_a_time_and_never_two_timed_ones(monkeypatch) -> None:
    monkeypatch.setattr(launcher, "Process", Recorded)
    monkeypatch.setattr(launcher, "jobs_of", lambda _: 2)
    monkeypatch.setattr(launcher, "AGAIN_S", 0.01)
    Recorded.busy.update({"2", "7"})  # another run measures these at first
    cells = [cell(str(place), is_timed=place % 2 == 0) for place in range(8)]
    launcher.run_cells(cells)
    assert len(Recorded.beside) == 10 and not Recorded.running
    assert len(Recorded.beside[0]) == 1 and max(map(len, Recorded.beside)) == 2
    assert all(sum(one.is_timed for one in beside) <= 1 for beside in Recorded.beside)
    begun = [beside[-1] for beside in Recorded.beside]
    assert {one.labels["name"] for one in begun} == set("01234567")
    for is_timed in (True, False):  # in the order in which they were asked for
        names = [one.labels["name"] for one in begun if one.is_timed == is_timed]
        first = [name for name in dict.fromkeys(names) if name not in ("2", "7")]
        assert first == sorted(first)


def test_as_many_searches_run_at_a_time_as_cells_do(monkeypatch) -> None:
    monkeypatch.setattr(launcher, "Process", Recorded)
    monkeypatch.setattr(launcher, "jobs_of", lambda _: 2)
    Recorded.beside.clear()
    launcher.run_searches({Path(f"{name}.json"): [cell(name, True)] for name in "abc"})
    assert len(Recorded.beside) == 3 and not Recorded.running
    assert max(map(len, Recorded.beside)) == 2
