"""Which cells may run at the same time: any, but never two whose times count."""

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

from experiments import check, processes, scheduler
from experiments.cell import Cell
from experiments.grid import cells_of
from experiments.scheduler import Job
from experiments.search.tree_search import TIMED_PROMPTS
from resispec.errors import InvalidInput


def cell(name, is_timed):
    config = {"audit": not is_timed, "timed": True, "num_prompts": 1, "jobs": 2, "results": "r"}
    config |= {
        "device": "cpu",
        "devices": [],
        "num_threads": 1,
        "pair": {"name": "one"},
        "profile": "toy",
        "tree": {},
    }
    config |= {"seed": name}  # a setting of its own
    search = {
        "_target_": "experiments.search.tree_search.GrowMapSearch",
        "num_prompts": 40 + ord(name[-1]),
    }
    config |= {"search": search, "max_tuning_prompts": None}
    return Cell({"dataset": name}, config)


def test_what_is_audited_or_said_to_be_untimed_is_not_timed():
    timed, audit = cells_of(["audit=false,true"])
    assert timed.is_timed and not audit.is_timed
    for artefact in ("figure1", "figure2", "table4", "table5", "frontier/bound"):
        assert not any(one.is_timed for one in cells_of([f"experiment={artefact}"])), artefact
    for given in (
        ["experiment=table1", "audit=false"],
        ["experiment=figure3"],
        ["warmup_prompts=0"],
    ):
        assert all(one.is_timed for one in cells_of(given)), given


def job(is_timed, pair="one", gpu=None):
    return Job(print, 1, "a", lambda *_: ([], []), 1, pair, is_timed, gpu=gpu)


TIMED, UNTIMED, OTHER = job(True), job(False), job(False, "other")


@pytest.mark.parametrize(
    ("one", "running", "opened", "may"),
    [
        (TIMED, [TIMED], {"one"}, False),
        (TIMED, [UNTIMED], {"one"}, True),
        # the first cell of a pair runs alone: it may have to be trained
        (OTHER, [TIMED], {"one"}, False),
        (TIMED, [OTHER], {"one"}, False),
        (OTHER, [], set(), True),
        (OTHER, [TIMED], {"one", "other"}, True),
    ],
)
def test_a_cell_runs_beside_others_but_for_a_second_timed_one_and_a_new_pair(
    one, running, opened, may
):
    free = scheduler.free_gpus(one, running, opened, [None], limit=2)
    assert free == [None] * may


@pytest.mark.parametrize(
    ("one", "running", "opened", "free"),
    [
        (TIMED, [], set(), ["a", "b", "c"]),
        (TIMED, [job(True, gpu="a")], {"one"}, ["b", "c"]),  # a timed cell on each
        # and nothing else beside it, nor it beside something else
        (UNTIMED, [job(True, gpu="b"), job(False, gpu="a")], {"one"}, ["c", "a"]),
        (TIMED, [job(False, gpu=name) for name in "abc"], {"one"}, []),
        (UNTIMED, [job(False, gpu=name) for name in "abcab"], {"one"}, ["c"]),
        # until a pair is loaded, its other cells wait, and those of other pairs do not
        (UNTIMED, [job(True, gpu="a")], set(), []),
        (OTHER, [job(True, gpu="a")], set(), ["b", "c"]),
    ],
)
def test_a_timed_cell_has_a_gpu_of_its_own_and_others_share_one(one, running, opened, free):
    assert scheduler.free_gpus(one, running, opened, ["a", "b", "c"], limit=2) == free


@pytest.mark.parametrize(
    ("changed", "cores", "jobs"),
    [
        ({}, 4, 2),
        ({}, 1, 1),
        ({"jobs": 8}, 4, 4),
        ({"num_threads": 2}, 4, 2),
        ({"num_threads": None}, 4, 1),
        ({"device": "cuda"}, 4, 1),
        ({"device": "cuda", "devices": [0, 1]}, 1, 2),
    ],
)
def test_as_many_cells_run_at_a_time_as_there_are_cores_for(monkeypatch, changed, cores, jobs):
    monkeypatch.setattr(
        scheduler.os, "sched_getaffinity", lambda _: set(range(cores)), raising=False
    )
    assert scheduler.jobs_of(cell("a", True).config | changed) == jobs


def test_the_cell_that_takes_the_most_threads_says_how_many_run_at_a_time(monkeypatch):
    monkeypatch.setattr(scheduler.os, "sched_getaffinity", lambda _: set(range(4)), raising=False)
    limits: list[int] = []
    monkeypatch.setattr(scheduler, "_run", lambda _jobs, _total, limit, *_: limits.append(limit))
    cells = [cell(name, True) for name in "ab"]
    cells[1].config["num_threads"] = 4
    scheduler.run_cells(cells, 2, print)
    scheduler.run_searches({Path(f"{one}.json"): [one] for one in cells})
    assert limits == [1, 1]


class Recorded(Job):
    """A job whose process ends by itself, and the jobs that ran beside it when it began."""

    running: ClassVar[list[Job]] = []
    beside: ClassVar[list[list[Job]]] = []
    busy: ClassVar[set[str]] = set()

    def start(self, _report):
        self.running.append(self)
        self.beside.append(list(self.running))
        sleep = subprocess.Popen(["sleep", "0.05"], stdout=subprocess.PIPE)
        self.channel, self.process = sleep.stdout, SimpleNamespace(pid=None, join=sleep.wait)

    def read(self):
        return bool(self.channel.read())

    def end(self):
        self.process.join()
        self.running.remove(self)
        is_busy = self.name in self.busy
        self.busy.discard(self.name)
        return processes.BUSY if is_busy else 0, []


def test_cells_and_searches_run_two_at_a_time_and_never_two_timed_cells(monkeypatch):
    monkeypatch.setattr(scheduler, "Job", Recorded)
    monkeypatch.setattr(scheduler, "jobs_of", lambda _: 2)
    monkeypatch.setattr(scheduler, "AGAIN_S", 0.01)
    monkeypatch.setattr(scheduler, "read_status", lambda *_: SimpleNamespace(state="done"))
    monkeypatch.setattr(Cell, "cell_id", property(str))
    Recorded.busy.update({"2", "7"})  # another run measures these at first
    cells, done = [cell(str(place), is_timed=place % 2 == 0) for place in range(8)], []
    pauses = []
    scheduler.run_cells(cells, 8, done.append, lambda: pauses.append(list(Recorded.running)))
    assert len(Recorded.beside) == 10 and not Recorded.running
    assert pauses and not any(one.is_timed for running in pauses for one in running)
    assert len(Recorded.beside[0]) == 1 and max(map(len, Recorded.beside)) == 2
    assert all(sum(one.is_timed for one in beside) <= 1 for beside in Recorded.beside)
    begun = [beside[-1] for beside in Recorded.beside]
    assert sorted(map(str, done)) == [str(place) for place in range(8)]
    for is_timed in (True, False):  # in the order in which they were asked for
        names = [one.name for one in begun if one.is_timed == is_timed]
        first = [name for name in dict.fromkeys(names) if name not in ("2", "7")]
        assert first == sorted(first)

    Recorded.beside.clear()  # as many searches run at a time
    scheduler.run_searches({Path(f"{name}.json"): [cell(name, True)] for name in "abc"})
    assert len(Recorded.beside) == 3 and not Recorded.running
    assert max(map(len, Recorded.beside)) == 2
    sizes = {job.name: job.size for beside in Recorded.beside for job in beside}
    num_prompts = {name: 40 + ord(name) for name in "abc"}
    assert sizes == {f"{name}.json": num + TIMED_PROMPTS for name, num in num_prompts.items()}


def test_a_cell_whose_code_changes_while_it_is_measured_is_not_done_and_is_named(
    monkeypatch, capsys
):
    monkeypatch.setattr(scheduler, "Job", Recorded)
    monkeypatch.setattr(scheduler, "jobs_of", lambda _: 1)
    status = scheduler.Status("stale", "its code has changed: rule.py")
    monkeypatch.setattr(scheduler, "read_status", lambda *_: status)
    monkeypatch.setattr(Cell, "cell_id", property(str))
    measured, done = cell("a", is_timed=False), []
    scheduler.run_cells([measured], 1, done.append)
    said = f"error: {measured}: while it was measured, its code has changed: rule.py"
    assert not done and said in capsys.readouterr().err


def test_without_a_terminal_progress_is_a_line_now_and_then(monkeypatch, capsys):
    now = [100.0]
    monkeypatch.setattr(scheduler.time, "monotonic", lambda: now[0])
    progress = scheduler.Progress(200, 2)
    report = progress.start(1, "a", 200)
    for done in range(201):
        report("a: measured", done, 200)
        now[0] += scheduler.LINES_S / 128
    progress.say("error: b")
    progress.close()
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("  ")[0] for line in lines[:2]] == ["[1/2] a", "[1/2] a: measured 128/200"]
    assert len(lines) == 3 and lines[2] == "error: b" and " 64% [" in lines[1]


def test_what_a_job_leaves_out_counts_as_no_work(monkeypatch, capsys):
    """Defect: a search whose measurements were there already counted as work done in no time."""
    monkeypatch.setattr(scheduler, "LINES_S", 0.0)
    progress = scheduler.Progress(20, 2)
    report = progress.start(1, "a", 10)
    for done in (0, 5):
        report("a", done, 10)
    progress.finish(1, 10, is_over=True)
    progress.start(2, "b", 10)
    assert "[2/2] b  33% [" in capsys.readouterr().err.splitlines()[-1]
    progress.close()


def test_a_server_that_is_killed_before_it_starts_a_process_is_one_line(monkeypatch):
    """As by SIGKILL during the checks; the next start makes a new server."""

    def start(_):
        raise EOFError("unexpected EOF")

    with monkeypatch.context() as patched:
        patched.setattr(processes.PROCESSES.Process, "start", start)
        with pytest.raises(
            InvalidInput, match="was killed before it could start one; the same command goes"
        ):
            check.rehearse_cells([])
    check.rehearse_cells([])
