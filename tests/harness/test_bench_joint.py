"""The bench of the joint optimum on a few tiny worlds: its rows, its two tables, its files."""

import sys

import pandas as pd
import pytest

from experiments.bench import joint
from experiments.bench.joint import (
    COMPARED,
    DRAFTED,
    OPTIMUM,
    Case,
    cases,
    left_by_knowledge,
    left_by_verifiers,
)
from resispec.draws import Draws

FEW = [
    Case("3", 4, Draws.IID, "flat, far", 0),
    Case("3", 4, Draws.GREEDY, "flat, far", 0),
    Case("1-1-1", 3, Draws.IID, "sharp, near", 1),
    Case("2-1", 2, Draws.IID, "flat, near", 0, 2),
]


@pytest.fixture(scope="module")
def frame():
    return joint.measure(FEW)


def test_who_accepts_how_much(frame):
    by_case = {
        key: dict(zip(rows.verifier, rows.accepted, strict=True))
        for key, rows in frame.groupby(["shape", "draws"])
    }
    star, greedy, chain, pair = (
        by_case[key] for key in (("3", "iid"), ("3", "greedy"), ("1-1-1", "iid"), ("2-1", "iid"))
    )
    exact = {"standard", "kseq", "naive", "optimal", "traversal", COMPARED, "level_optimal"}
    assert star.keys() == {OPTIMUM} | exact
    assert greedy.keys() == {OPTIMUM, "standard", "naive", "greedy", "traversal"}
    assert chain.keys() == (star.keys() | {"block"}) and pair.keys() == {OPTIMUM, DRAFTED, COMPARED}
    assert greedy["greedy"] == pytest.approx(greedy[OPTIMUM]) and chain["block"] == pytest.approx(
        chain[OPTIMUM]
    )
    assert (
        star["optimal"] == pytest.approx(star[OPTIMUM], rel=1e-3) and star["standard"] < 0.999 * star[OPTIMUM]
    )
    assert pair[COMPARED] < pair[DRAFTED] <= pair[OPTIMUM] + 1e-9
    for found in by_case.values():
        assert max(found.values()) <= found[OPTIMUM] + 1e-9  # without ResiSpec, which is not exact


def test_the_tables(frame):
    left, unknown = left_by_verifiers(frame), left_by_knowledge(frame)
    assert left.shown.to_numpy().tolist()[1][:5] == ["3", "4", "greedy", "flat, far", left.shown[OPTIMUM][1]]
    row = left.frame.iloc[0]
    values = frame[(frame["shape"] == "3") & (frame.draws == "iid")].set_index("verifier").accepted
    assert row["standard"] == pytest.approx(100 * (1 - values["standard"] / values[OPTIMUM]), abs=1e-4)
    [known] = unknown.frame.to_dict("records")
    values = frame[frame.possible == 2].set_index("verifier").accepted
    assert known["price of not knowing, %"] == pytest.approx(
        100 * (1 - values[DRAFTED] / values[OPTIMUM]), abs=1e-4
    )
    assert known[f"{COMPARED} leaves, %"] == pytest.approx(
        100 * (1 - values[COMPARED] / values[OPTIMUM]), abs=1e-4
    )


def test_every_kind_is_a_case():
    """Two worlds with four kinds of laws each of 4 x 3 shapes and draws and 4 more, and five families."""
    found = cases(2, 1)
    assert len(found) == len(set(found)) == 2 * 4 * (4 * 3 + 4) + 4 * 5
    assert {case.shape for case in found} == set(joint.SHAPES) and {case.draws for case in found} == set(
        Draws
    )


def test_the_files(frame, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(joint, "measure", lambda _: frame)
    monkeypatch.setattr(sys, "argv", ["joint", "--results", str(tmp_path)])
    joint.main()
    page = (tmp_path / "embedded" / "joint.md").read_text()
    assert page in capsys.readouterr().out and page.count("| 2-1") == 1 and page.count("| 3 ") == 2
    assert (tmp_path / "embedded" / "joint.png").is_file() and "(joint.png)" in page
    written = pd.read_csv(tmp_path / "embedded" / "joint.csv")
    assert written.accepted.tolist() == pytest.approx(frame.accepted.tolist())
