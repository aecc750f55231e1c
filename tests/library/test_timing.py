"""Parts of a stopwatch: nested, counted, and absent where nothing may wait."""

import threading
import time

import pytest
import torch

from resispec import timing
from resispec.timing import Stopwatch, clock_seconds, measuring, part

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("looks_inside", "parts", "num_timed"),
    [(True, {"outer", "outer/inner", "inner"}, 5), (False, {"outer", "inner"}, 3)],
)
def test_parts_are_nested_and_a_part_holds_those_inside(looks_inside, parts, num_timed):
    watch = Stopwatch(CPU, looks_inside)
    with measuring(watch):
        for _ in range(2):
            with part("outer"):
                time.sleep(0.002)
                with part("inner"):
                    time.sleep(0.005)
        with part("inner"):  # elsewhere it is another part
            time.sleep(0.001)
    assert set(watch.seconds) == parts and watch.num_timed == num_timed
    inside = watch.seconds.get("outer/inner", 0.010)
    assert (
        inside >= 0.010
        and watch.seconds["inner"] >= 0.001
        and watch.seconds["outer"] >= inside + 0.004
    )


def test_a_part_that_fails_ends_and_the_stopwatch_stops():
    watch = Stopwatch(CPU)
    with pytest.raises(ZeroDivisionError), measuring(watch), part("outer"), part("inner"):
        raise ZeroDivisionError
    with part("after"):
        pass
    with measuring(watch), part("outer"):
        pass
    assert set(watch.seconds) == {"outer", "outer/inner"} and watch.num_timed == 3


def test_only_what_is_inside_is_timed():
    watch, other = Stopwatch(CPU), Stopwatch(CPU)
    with measuring(watch):
        with measuring(other), part("theirs"):
            pass
        with measuring(None), part("nobody's"):
            pass
        thread = threading.Thread(target=lambda: part("elsewhere").__enter__())
        thread.start()
        thread.join()
        with part("ours"):
            pass
    assert list(watch.seconds) == ["ours"] and list(other.seconds) == ["theirs"]


def test_a_part_of_nothing_reads_no_clock_and_empty_parts_say_what_it_costs(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(timing, "now", None)
        with part("idle"), part("inside"):
            pass
    monkeypatch.setattr(timing, "now", lambda _device: time.sleep(0.001) or time.perf_counter())
    assert clock_seconds(CPU, 5) >= 0.010  # both ends of five parts
    assert clock_seconds(CPU, 0) < 0.010


def test_both_ends_of_a_part_wait_for_the_device_unless_it_is_captured(monkeypatch):
    waited, is_capturing = [], False
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: is_capturing)
    device = torch.device("cuda")
    watch = Stopwatch(device)
    with measuring(watch):
        with part("eager"):
            assert waited == [device]
        is_capturing = True
        with part("captured"):
            pass
    assert waited == [device, device] and list(watch.seconds) == ["eager"]
