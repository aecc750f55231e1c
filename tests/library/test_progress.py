"""A bar where stderr is no terminal: whole lines, at intervals."""

import math
import sys

import pytest
from tqdm import std

from resispec.progress import LINES_S, progress_bar, quiet_downloads


@pytest.fixture
def clock(monkeypatch):
    """The time that bars read, in a list: the seconds."""
    seconds = [1000.0]
    monkeypatch.setattr(std, "time", lambda: seconds[0])
    return seconds


@pytest.mark.parametrize("step_s", [0.001, 1.0, 20.0, 70.0])
def test_a_log_gets_a_line_each_half_minute(step_s, capsys, clock):
    """However many things are counted between two lines."""
    num_steps = round(10 * LINES_S / step_s)
    for _ in progress_bar(range(num_steps), desc="work", unit="step"):
        clock[0] += step_s
    said = capsys.readouterr().err
    *lines, _ = said.splitlines()
    assert "\r" not in said and all(line.startswith("work: ") and "step" in line for line in lines)
    steps_between = math.ceil(LINES_S / step_s)
    assert abs(len(lines) - num_steps / steps_between) < 2


def test_short_work_and_what_is_not_to_stay_leave_no_line(capsys, clock):
    for _ in progress_bar(range(900)):
        clock[0] += LINES_S / 1000
    with progress_bar(total=4, leave=False) as bar:
        clock[0] += 2 * LINES_S
        bar.update()
        assert capsys.readouterr().err.startswith("25%")
        assert bar.maxinterval == LINES_S  # after this time tqdm's own thread would write a line
    assert not capsys.readouterr().err


def test_a_terminal_gets_one_line_that_is_drawn_over(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for _ in progress_bar(range(3), desc="work", mininterval=0):
        pass
    said = capsys.readouterr().err
    assert said.count("\r") > 3 and said.count("\n") == 1 and "100%" in said


def test_a_log_has_no_bars_of_datasets(capsys, tmp_path):
    import datasets

    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n')
    datasets.enable_progress_bars()  # a test before this one may have turned them off
    said = []
    try:
        for turn in range(2):
            files, cache = str(tmp_path / "rows.jsonl"), str(tmp_path / str(turn))
            datasets.load_dataset("json", data_files=files, split="train", cache_dir=cache)
            said.append(capsys.readouterr().err)
            quiet_downloads()
    finally:
        datasets.enable_progress_bars()
    assert "split" in said[0] and not said[1]
