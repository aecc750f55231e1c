"""Figures read in colour and in grey, and what they say is computed."""

from __future__ import annotations

import itertools
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Annotation, Text

from analysis import figure1, figures
from analysis.frontier import figure

PUBLISHED = Path(__file__).parents[2] / "results" / "published" / "embedded"


@pytest.fixture(scope="module")
def frontier() -> pd.DataFrame:
    frame = pd.read_csv(PUBLISHED / "frontier.csv")
    return frame.fillna(dict.fromkeys(("tree", "verifier", "verdict"), ""))


def test_markers_are_distinct_and_colours_are_okabe_and_itos() -> None:
    palette = {"#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7"}
    every = [*figures.LOOKS.values()]
    assert {look.colour for look in (*every, *figures.OTHERS)} - {figures.GREY} <= palette
    assert len({look.marker for look in (*every, *figures.OTHERS)}) == len(every) + len(figures.OTHERS)
    assert len({look.colour for look in every}) == len(every)
    # those that stand side by side in the figures also differ in lightness or in the line
    for one, other in itertools.combinations(("standard", "resispec", figures.CEILING, "optimal"), 2):
        first, second = figures.LOOKS[one], figures.LOOKS[other]
        assert first.line != second.line or abs(lightness(first) - lightness(second)) > 0.1


def lightness(look: figures.Look) -> float:
    return float(np.dot(mpl.colors.to_rgb(look.colour), (0.299, 0.587, 0.114)))


def test_unknown_verifiers_get_looks_of_their_own() -> None:
    looks = figures.looks(["standard", "mine", "yours", "mine"])
    assert looks["mine"] != looks["yours"] and looks["standard"] == figures.LOOKS["standard"]


def test_names_move_apart_as_little_as_needed() -> None:
    assert figures.spread([1.0, 2.0], [0.5, 0.5]).tolist() == [1.0, 2.0]
    assert figures.spread([1.0, 1.0], [0.5, 0.5]).tolist() == [0.75, 1.25]
    assert figures.spread([1.0, 1.1, 5.0], [1.0, 2.0, 1.0]).tolist() == pytest.approx([0.3, 1.8, 5.0])
    assert figures.spread([], []).tolist() == []
    generator = np.random.default_rng(0)
    for _ in range(50):
        wanted, heights = np.sort(generator.uniform(0, 5, 9)), generator.uniform(0.1, 0.5, 9)
        places = figures.spread(wanted, heights)
        assert (np.diff(places) >= (heights[1:] + heights[:-1]) / 2 - 1e-12).all()


def test_the_frontiers_lines_are_named_without_overlaps(frontier: pd.DataFrame) -> None:
    drawn = figure.draw(frontier)
    canvas = FigureCanvasAgg(drawn)
    canvas.draw()
    width, height = canvas.get_width_height()
    for axes in drawn.axes:
        names = [text for text in axes.texts if isinstance(text, Annotation)]
        assert len(names) >= 6 and axes.get_legend() is None
        boxes = [Text.get_window_extent(text) for text in names]  # of the names, without their leaders
        assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
        assert all(box.x0 >= 0 and box.x1 <= width and box.y0 >= 0 and box.y1 <= height for box in boxes)
    titles = [drawn.get_suptitle(), *(axes.get_title() for axes in drawn.axes)]
    assert titles[1:] == ["Python reference, 121 positions", "Python reference, T = 1"]


def test_the_frontiers_title_says_what_the_data_say(frontier: pd.DataFrame) -> None:
    own = frontier[(frontier.dataset == "embedded_reference") & (frontier.temperature == 1.0)]

    def best(rows: pd.DataFrame) -> float:
        return rows[(rows.quantity == "accepted_length_gain") & (rows.verdict == "exact")].value.max()

    said = f"Exact verification reaches {best(own):.1f}× SpecInfer's accepted length at 121 positions"
    assert figure.message(own) == f"{said}; ResiSpec's gain is bias"
    assert figure.message(own[own.verifier != "resispec"]) == said
    lower = own[(own.tree != "best_121") & (own.decoder == "specinfer")]
    said = f"Exact verification reaches {best(lower):.1f}× SpecInfer's accepted length at 64"
    assert figure.message(lower).startswith(said)
    unaudited = own.assign(verdict="")
    assert figure.message(unaudited) == "Accepted length of exact verification, and of ResiSpec"


def test_positions_are_in_a_trees_name() -> None:
    names = [
        "d5b3",
        "d7b2",
        "d4b5",
        "d3b11",
        "best_64",
        "growmap_121",
        "chain",
        "complete(branching=3, depth=5)",
    ]
    assert [figure.positions(name) for name in names] == [121, 127, 156, 133, 64, 121, None, None]


def test_figures_of_few_cells_are_drawn(frontier: pd.DataFrame) -> None:
    for frame in (frontier.iloc[:0], frontier[frontier.decoder == "autoregressive"], frontier.iloc[:40]):
        figure.draw(frame).draw_without_rendering()


def test_figure1_has_a_panel_for_every_setting() -> None:
    frame = pd.read_csv(PUBLISHED / "figure1.csv")
    drawn = figure1.draw(frame.fillna({"quantity": ""}), ["temperature", "dataset"])
    drawn.draw_without_rendering()
    titles = [axes.get_title() for axes in drawn.axes]
    assert len(titles) == 6 and titles[0] == "Python reference, T = 1"
    [legend] = drawn.legends
    assert [text.get_text() for text in legend.get_texts()] == ["standard", "ResiSpec", "ceiling"]
