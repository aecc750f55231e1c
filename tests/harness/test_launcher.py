"""Which cells may run at the same time: any, but never two whose times count."""

from __future__ import annotations

import subprocess
import threading
from itertools import pairwise
from types import SimpleNamespace

from experiments import launcher
from experiments.cells import Cell
from experiments.plan import cells_of


def cell(name: str, is_timed: bool) -> Cell:
    config = {"audit": not is_timed, "warmup_prompts": 1, "num_prompts": 1, "jobs": 2, "results": "r"}
    return Cell({"name": name}, config)


def test_audits_and_tasks_without_a_warm_up_are_not_timed() -> None:
    timed, audit = cells_of(["audit=false,true"])
    assert timed.is_timed and not audit.is_timed
    assert not any(one.is_timed for one in cells_of(["experiment=figure1"]))
    assert all(one.is_timed for one in cells_of(["experiment=table1", "audit=false"]))


def test_the_next_cell_is_timed_only_while_no_other_timed_one_runs() -> None:
    timed, untimed = cell("t", True), cell("u", False)
    pending = [untimed, timed, timed, untimed]
    assert launcher._next(pending, []) == 1
    assert launcher._next(pending, [timed]) == 0
    assert launcher._next(pending, [untimed]) == 1
    assert launcher._next([timed], [timed]) is None
    assert launcher._next([untimed], [untimed]) == 0
    assert launcher._next([], [untimed]) is None


class Recorded:
    """Stands in for a worker: a subprocess that ends by itself, and what ran beside it when it began."""

    running: list[Cell] = []
    beside: list[list[Cell]] = []
    lock = threading.Lock()

    def __init__(self, number: int, target: object, work: Cell, report: object) -> None:
        del target, report
        self.number, self.work = number, work
        with self.lock:
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
        return 0, ""

    def stop(self) -> None:
        raise AssertionError("nothing was to be stopped")


def test_all_cells_run_two_at_a_time_and_never_two_timed_ones(monkeypatch) -> None:
    monkeypatch.setattr(launcher, "Process", Recorded)
    monkeypatch.setattr(launcher, "os", SimpleNamespace(cpu_count=lambda: 2))
    cells = [cell(str(place), is_timed=place % 2 == 0) for place in range(8)]
    launcher.run_cells(cells)
    assert len(Recorded.beside) == 8 and not Recorded.running
    assert max(map(len, Recorded.beside)) == 2
    assert all(sum(one.is_timed for one in beside) <= 1 for beside in Recorded.beside)
    begun = [beside[-1] for beside in Recorded.beside]
    for is_timed in (True, False):  # in the order in which they were asked for
        names = [one.labels["name"] for one in begun if one.is_timed == is_timed]
        assert all(first < second for first, second in pairwise(names))
