"""The bias of cells from their rows, and the sentences that compare ResiSpec with the dial."""

import numpy as np
import pandas as pd
import pytest

from analysis import lossy
from analysis.labels import Label
from analysis.load import read_plan
from analysis.stats import Interval
from tests import toy_artefacts


def row(classes, emitted=4.0, **values):
    nodes = dict.fromkeys(("few_variation", "variation", "acceptance", "ceiling"), [None, None])
    about = {"emitted": emitted, "excess": [classes, [0.0] * len(classes)], "inner": [1.0, 2.0]}
    return about | nodes | values


def test_the_classes_that_noise_chooses_have_no_mean_excess():
    """Other prompts choose the classes; chosen by their own prompts, all would seem biased."""
    generator, means, plain = np.random.default_rng(0), [], []
    for _ in range(400):
        noise = generator.normal(size=(8, 12))
        means.append(lossy.excess_of_classes(noise, noise).mean())
        plain.append(noise.sum(0).clip(min=0).sum() / 8)
    assert abs(np.mean(means)) < 4 * np.std(means) / 20 and np.mean(plain) > 1
    shifted = generator.normal(size=(8, 2)) + [20, -20]
    assert lossy.excess_of_classes(shifted, shifted) == pytest.approx(shifted[:, 0])


def test_bias_is_a_mean_over_tokens_and_weighs_nodes_by_how_often_a_step_passes_them():
    """2 prefixes a prompt: (1 * .1 + 2 * .4) / 4 a token; acceptance (1 * .5 + 2 * .8) / 3."""
    values = {"variation": [0.1, 0.4], "few_variation": [0.1, 0.1]}
    values |= {"acceptance": [0.5, 0.8], "ceiling": [0.5, 0.5]}
    found = lossy.quantities(pd.DataFrame([row([1.0, -1.0], **values)] * 8))
    wanted = {"bias": 0.225, "bias_few": 0.075, "bias_of_classes": 0.25}
    wanted |= {"node_acceptance": 0.7, "node_ceiling": 0.5}
    assert {name: one.value for name, one in found.items()} == pytest.approx(wanted)
    whole = lossy.quantities(pd.DataFrame([row([1.0, -1.0])] * 8))
    assert {name: one.value for name, one in whole.items()} == pytest.approx(
        {"bias": 0.25, "bias_few": 0.25, "bias_of_classes": 0.25}
    )


def point(bias, length):
    return lossy.BiasPoint({}, Interval(bias), Interval(length), Interval(1.0))


@pytest.mark.parametrize(
    ("bias", "length", "wanted"),
    [
        (0.2, 4.5, "needs 0.25 of its bias; at less than its bias it keeps 1.11 times its tokens."),
        (0.1, 3.0, "needs no bias; at its bias it keeps 1.67 times its tokens."),
        (0.05, 6.0, "needs more than 2.00 of its bias; at its bias it keeps 0.75 times"),
    ],
)
def test_a_rule_is_compared_with_the_curve_of_the_dial(bias, length, wanted):
    """The dial goes from 4 tokens without a bias to 5 at .1."""
    curve = [point(0.0, 4.0), point(0.1, 5.0)]
    assert wanted in lossy.compared(point(bias, length), curve)


def test_a_curve_begins_at_its_exact_verifier_and_keeps_to_its_tree(tmp_path):
    toy_artefacts.lossy(tmp_path)
    plan = read_plan("lossy", "embedded", tmp_path)
    [table] = lossy.make(plan).tables
    found = lossy.points(table.frame)
    hottest = [one for one in found if one.about["temperature"] == 1.0]
    series = {one.name: one for one in lossy.series(hottest)}
    assert [str(one.about["verifier"]) for one in series["dial on optimal, d5b3"].points] == [
        "optimal",
        "dial(chance=0.5)",
        "dial(chance=1.0)",
    ]
    assert len(series["dial on standard, own best of 121"].points) == 2
    strangers = [
        one._replace(about=one.about | {"decoder": "sequoia"}) if place % 2 else one
        for one in hottest
        for place in (0, 1)
    ]
    both = {one.name: one for one in lossy.series(strangers)}
    for name in ("dial on optimal, d5b3", "dial on optimal, Sequoia, d5b3"):
        assert len(both[name].points) == 3, name
    assert len({one.about["decoder"] for one in both["dial on optimal, d5b3"].points}) == 1
    assert not series["dial on standard, own best of 121"].is_filled
    # without a bias there is no point, and its row says nothing of it
    assert not any(str(one.about["verifier"]) == "typical" for one in found)
    notes = list(table.notes)
    assert "T = 1, d5b3: ResiSpec emits" in notes[0] and "T = 0.6, d5b3" in notes[1]


def test_a_curve_is_of_one_pair(tmp_path, monkeypatch):
    """Defect: points of several drafts of one target were joined to one line."""
    toy_artefacts.lossy(tmp_path)
    [table] = lossy.make(read_plan("lossy", "embedded", tmp_path)).tables
    own = table.frame[table.frame.pair == "embedded"]
    other = own[own.temperature == 1.0].assign(cell_id=lambda rows: "other-" + rows.cell_id)
    other["pair"] = [Label("embedded", {"draft": "420k"})] * len(other)
    frame = pd.concat([table.frame, other], ignore_index=True)
    drawn, series = [], lossy.series
    monkeypatch.setattr(lossy, "series", lambda found: drawn.extend(found) or series(found))
    lossy.draw(frame)
    assert {str(one.about["pair"]) for one in drawn} == {"embedded", "embedded_eagle"}
    assert len(drawn) == len(lossy.points(table.frame))
