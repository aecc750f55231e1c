"""The gallery's table and figure from a small file, by hand."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis import gallery
from analysis.table import markdown

ROOT = Path(__file__).parents[2]
LIMIT, ALLOWED = 1e-4, 3.89
ABOUT = {
    "beside": "right", "thread": "", "status": "done", "version": "1", "device": "abacus",
    "perplexity": 20.0, "perplexity_lower": 18.0, "perplexity_upper": 22.0, "accepted_length": 2.0,
    "greedy_equal": 4, "greedy_rows": 4, "same_seed_equal": 3, "other_seed_equal": 0,
    "seed_rows": 3,
    "verdict": "no bias seen", "reason": "no deviation", "limit": LIMIT, "allowed_z": ALLOWED,
    "smallest_temperature": 0.03, "smallest_draft": 0.0331, "statistic": "rank",
    "git_commit": "0123456789abcdef", "git_is_dirty": False,
}  # fmt: skip
THREAD = "https://example.org/1"


def rows(engine, points, **changed):
    """points: of each number of tokens the chance and the z that a normal variable has there."""
    return [
        ABOUT
        | {"engine": engine, "tokens": tokens, "p_value": chance, "normal_z": far, "z": -far}
        | changed
        for tokens, (chance, far) in points.items()
    ]


@pytest.fixture
def results(tmp_path):
    far, near = (1e-9, 6.0), (0.3, 1.0)
    every = [
        *rows("right", {50: near, 100: near, 200: near}),
        *rows("slow", {50: far, 100: near, 200: far}, thread=THREAD, verdict="biased",
        accepted_length=1.5),
        *rows("hot", {50: far, 100: far}, thread=THREAD, verdict="biased", perplexity_lower=23.0),
        *rows("cool", {50: near, 100: near}, thread="openvino.md", perplexity_upper=3.0,
        greedy_equal=3),
        *rows("edge", {50: near, 100: near}, thread=THREAD, verdict="biased",
        reason="which T=1 rules out"),
        *rows("deaf", {50: near, 100: near}, other_seed_equal=3, accepted_length=np.nan),
        {"engine": "absent", "beside": "right", "thread": THREAD, "status": "not installed",
         "reason": "No module named 'abacus'", "git_commit": "0123456789abcdef",
         "git_is_dirty": False},
    ]  # fmt: skip
    (tmp_path / "embedded").mkdir()
    pd.DataFrame(every).to_csv(tmp_path / "embedded" / "gallery.csv", index=False)
    return tmp_path


def printed(capsys):
    """The rows of the printed table by the engine's name, and all of it."""
    text = capsys.readouterr().out
    cells = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in text.splitlines()
        if line[:1] == "|"
    ]
    return {row[0]: row[1:] for row in cells}, text


def test_the_table_by_hand_and_the_same_files_again(results, capsys):
    made, folder = [], results / "embedded"
    numbers = (folder / "gallery.csv").read_bytes()
    for _ in range(2):
        assert gallery.main(["--results", str(results)]) == 0
        made.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert set(made[0]) == {"gallery.csv", "gallery.md", "gallery.png", "gallery.pdf"}
    assert made[0] == made[1] and made[0]["gallery.csv"] == numbers
    found, text = printed(capsys)
    assert found["right"] == [
        "20.0 [18.0, 22.0]", "4 of 4", "2.00 (1.00 ×)", "obeyed", "pass",
        "-1.0 (rank)", "–", "**no bias seen** (TV 0.033)",
    ]  # fmt: skip
    slow = found[f"[slow]({THREAD})"]
    assert slow[2:5] == ["1.50 (0.75 ×)", "obeyed", "accepted length"]
    assert slow[5:] == ["-6.0 (rank)", "200", "**biased**"]  # it was not called biased at 100
    hot = found[f"[hot]({THREAD})"]
    assert hot[4] == "perplexity" and hot[6] == "50"
    # a low perplexity reads as better
    assert found["cool"][1] == "3 of 4" and found["cool"][4] == "T = 0"
    assert found["deaf"][2:5] == ["–", "no effect", "seeds"]
    assert found[f"[absent]({THREAD})"][0] == "not installed: No module named 'abacus'"
    assert "found 3 of 4 faults" in text
    assert "Device: abacus. Commit: 0123456789. Made by: make gallery." in text
    assert "may be 3.9 standard deviations out" in text


def test_a_bet_may_decide_before_a_statistic_does(results):
    path = results / "embedded" / "gallery.csv"
    frame = pd.read_csv(path)
    frame.loc[frame.engine == "edge", ["bet_tokens", "bet"]] = 70, "stray tokens"
    frame.loc[frame.engine == "hot", ["bet_tokens", "bet"]] = 90, "temperature x 1.1"
    frame.to_csv(path, index=False)
    read = gallery.read(path)
    found = {row["engine"]: row["first_biased"] for row in gallery.engines(read)}
    assert found["edge"] == 70 and found["hot"] == 50 and np.isnan(found["right"])
    table = gallery.table_of(read, "embedded")
    bets = dict(zip(table.frame.engine, table.frame.bet, strict=True))
    assert bets["edge"] == "stray tokens" and "stray tokens" in markdown(table)


def test_the_figure_has_a_mark_for_every_engine_that_ran_and_says_what_it_shows(results):
    frame = gallery.read(results / "embedded" / "gallery.csv")
    figure = gallery.draw(frame)
    [axes] = figure.axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["right", "slow", "hot", "cool", "edge", "deaf"]  # "absent" did not run
    marks = axes.collections[-6:]
    assert [mark.get_offsets()[0, 0] for mark in marks] == [200, 200, 50, 100, 100, 100]
    is_filled = [mark.get_facecolors()[0, :3].tolist() != [1, 1, 1] for mark in marks]
    assert is_filled == [False, True, True, False, True, False]
    title = "found 3 of 4 faults within 200 tokens, acquitted all 2 exact engines"
    assert figure.get_suptitle() == title
    assert axes.get_xscale() == "log"
    alarm = frame.assign(verdict=frame.verdict.mask(frame.engine == "deaf", "biased"))
    assert gallery.message(gallery.engines(alarm)).endswith("acquitted 1 of 2 exact engines")


def test_a_gallery_without_faults_says_why_engines_are_biased_that_no_z_shows():
    def engine(verdict, normal_z=2.0):
        about = {"status": "done", "thread": "", "tokens": 300.0, "allowed_z": 4.0}
        return about | {"verdict": verdict, "normal_z": normal_z}

    for second, said in (
        (engine("no bias seen"), "none of 2 runs are called biased within 300 tokens"),
        (
            engine("biased"),
            "1 of 2 runs are called biased within 300 tokens,\nfor tokens that filters leave out",
        ),
        (engine("biased", 5.0), "1 of 2 runs are called biased within 300 tokens"),
    ):
        assert gallery.message([engine("no bias seen"), second]) == said


def test_a_gallery_that_is_missing_or_has_no_engine_is_refused(tmp_path, capsys):
    assert gallery.main(["--results", str(tmp_path)]) == 1
    assert "gallery.csv is missing; `make gallery` makes it" in capsys.readouterr().err
    (tmp_path / "embedded").mkdir()
    (tmp_path / "embedded" / "gallery.csv").write_text(
        "engine,status,reason\nright,failed,too large\n"
    )
    assert gallery.main(["--results", str(tmp_path)]) == 1
    assert "gallery.csv: no engine ran, see its column reason; `make" in capsys.readouterr().err


def test_the_page_shows_the_code_as_it_is():
    """Every line of code in docs/gallery.md stands in the file that it names."""
    page = (ROOT / "docs" / "gallery.md").read_text()
    code = (ROOT / "referee" / "gallery" / "bugs.py").read_text()
    shown = [
        line.strip()
        for block in re.findall(r"```python\n(.*?)```", page, re.S)
        for line in block.split("\n")
    ]
    known = {line.strip() for line in code.split("\n")}
    assert len(shown) > 15 and not set(shown) - known
