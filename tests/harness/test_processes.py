"""Processes that share items: results in order, and the first failure ends them all."""

import os
import time
from itertools import count

import pytest

from experiments import processes
from resispec.errors import InvalidInput

NAMES = ("one", "two", "three")


class Bar:
    """A bar that counts how often it was moved and shown."""

    def __init__(self):
        self.moved = self.shown = 0

    def update(self):
        self.moved += 1

    def refresh(self):
        self.shown += 1


def results(function, *items, gpus=(None, None)):
    bar = Bar()
    return processes.results(function, items, NAMES, bar, gpus), bar


class Kept:
    """A function that keeps something in its process: how often it was called there."""

    def __init__(self):
        self.calls = count(1)

    def __call__(self, *_):
        return next(self.calls)


def process_of(seconds):
    time.sleep(seconds)
    return seconds, os.getpid(), os.environ.get(processes.GPUS)


def fail(name):
    if name == "raises":
        raise InvalidInput("of no use")
    if name == "exits":
        os._exit(0)
    if name == "killed":
        os.kill(os.getpid(), 9)
    time.sleep(600)


def test_results_are_in_order_and_a_process_keeps_what_the_function_keeps():
    """The first item takes long, so that one process has all others."""
    found, bar = results(process_of, (0.5,), (0.0,), (0.1,))
    assert [seconds for seconds, *_ in found] == [0.5, 0.0, 0.1] and bar.moved == 3
    assert found[0][1] != found[1][1] == found[2][1] != os.getpid()
    assert results(Kept(), (), (), (), gpus=[None])[0] == [1, 2, 3]
    assert results(Kept())[0] == []


def test_a_process_sees_the_gpu_that_it_is_given_and_else_what_the_command_sees(monkeypatch):
    """The server was started before the variable was set or deleted, as by a test before."""
    found, _ = results(process_of, (0.3,), (0.3,), gpus=["GPU-b", "7"])
    assert {gpu for *_, gpu in found} == {"GPU-b", "7"}
    monkeypatch.setenv(processes.GPUS, "GPU-c")
    assert results(process_of, (0.0,), gpus=[None])[0][0][2] == "GPU-c"
    monkeypatch.delenv(processes.GPUS)
    assert results(process_of, (0.0,), gpus=[None])[0][0][2] is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("raises", "^of no use$"),
        ("exits", "^two ended its process$"),
        ("killed", r"^two ended its process \(signal 9\)$"),
    ],
)
def test_the_first_failure_is_raised_and_ends_the_others(name, message):
    started = time.monotonic()
    with pytest.raises(InvalidInput, match=message):
        results(fail, ("sleeps",), (name,), ("sleeps",))
    assert time.monotonic() - started < 60


def test_work_that_takes_long_shows_that_it_is_waited_for(monkeypatch):
    monkeypatch.setattr(processes, "LINES_S", 0.01)
    assert results(process_of, (0.3,))[1].shown >= 3
