"""The figure of the joint optimum: it shows the rows of its table, and its sentence is computed."""

import re
from pathlib import Path

import pytest

from analysis import joint

PUBLISHED = Path(__file__).parents[2] / "results" / "published" / "embedded"


@pytest.fixture(scope="module")
def frame():
    return joint.read(PUBLISHED / "joint.csv")


def test_marks_are_means_over_worlds_and_bars_their_range(frame):
    [axes] = joint.draw(frame).axes
    shapes = [tick.get_text() for tick in axes.get_xticklabels()]
    assert set(shapes) == set(frame["shape"])
    for name, drawn in zip(joint.VERIFIERS, axes.containers, strict=True):
        assert drawn.get_label() == name
        for shape, x, height, bar in zip(
            shapes, *drawn.lines[0].get_data(), drawn.lines[2][0].get_segments(), strict=True
        ):
            worlds = frame[(frame["shape"] == shape) & (frame.draws == "iid") & (frame.possible == 1)]
            accepted = worlds.pivot(index=["laws", "seed"], columns="verifier", values="accepted")
            left = 100 * (1 - accepted[name] / accepted["joint optimum"])
            assert len(left) == 12 and abs(x - shapes.index(shape)) < 0.5
            assert height == pytest.approx(left.mean(), abs=1e-3)
            assert bar[:, 1] == pytest.approx([left.min(), left.max()], abs=1e-3)
            assert axes.get_ylim()[0] <= left.min() and left.max() <= axes.get_ylim()[1]


def test_the_title_says_what_the_two_best_leave(frame):
    figure, rows = joint.draw(frame), joint.left(frame)
    means = rows.groupby("verifier").left.mean()
    assert figure.get_suptitle() == joint.message(rows)
    said = re.search(
        r", level_optimal leaves ([\d.]+) % in the mean, traversal_optimal ([\d.]+) %", joint.message(rows)
    )
    assert [float(number) for number in said.groups()] == pytest.approx(
        means[["level_optimal", "traversal_optimal"]].tolist(), abs=0.05
    )


def test_a_script_of_its_own_draws_it_again(tmp_path, frame, capsys):
    (tmp_path / "embedded").mkdir()
    assert joint.main(["--results", str(tmp_path)]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("joint: ") and line.endswith("joint.csv'; `make joint` makes it")
    frame.to_csv(tmp_path / "embedded" / "joint.csv", index=False)
    assert joint.main(["--results", str(tmp_path)]) == 0
    assert {path.suffix for path in (tmp_path / "embedded").iterdir()} == {".csv", ".png", ".pdf"}
