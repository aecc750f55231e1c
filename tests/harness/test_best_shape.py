"""The command that searches for the best shape: its choices, and a map from end to end on a tiny pair."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
from toys import save_tiny_search

from experiments import best_shape
from experiments.cells import plan
from experiments.search.maps import by_path, mean_and_error
from experiments.search.stages import DECISION, FINAL, Stages, leaders
from resispec.trees import grow_map
from resispec.trees import Topology, from_widths


def stages_of(overrides, prompts=30, levels=5):
    """The stages of the first map that a command line names."""
    maps = by_path(overrides, are_best=True)
    return Stages(next(iter(maps.values())), Namespace(overrides=overrides, prompts=prompts, levels=levels))


def test_a_stage_measures_every_data_set_on_documents_of_its_own(tmp_path):
    overrides = [
        "dataset=embedded_code,embedded_reference", "tree=best_16", "first_tuning_prompt=7", "temperature=0.6,1.0",
        f"results={tmp_path}",
    ]  # fmt: skip
    names = [path.name for path in by_path(overrides, are_best=True)]
    assert names == ["embedded.specinfer.T0.6.best_16.json", "embedded.specinfer.T1.0.best_16.json"]
    stages, shapes = stages_of(overrides), [from_widths((3, 2)), from_widths((5,))]
    first, third = stages.comparing(0, shapes), stages.comparing(2, shapes)
    for cells, start in ((first, 7), (third, 15)):
        assert [cell.labels["dataset"] for cell in cells] == ["embedded_code", "embedded_reference"]
        assert {(cell.config["first_prompt"], cell.config["num_prompts"]) for cell in cells} == {(start, 4)}
        assert {(cell.labels["temperature"], cell.labels["verifier"]) for cell in cells} == {
            (0.6, "traversal_optimal")
        }
        [path] = {cell.config["task"]["path"] for cell in cells}
        assert [Topology(tuple(parents)) for parents in json.loads(Path(path).read_text())] == shapes


@pytest.mark.parametrize(
    ("decoder", "draws", "verifier"),
    [
        ("sequoia", "without_replacement", "traversal"),
        ("top_k", "point_mass", "naive"),
        ("specinfer", "iid", "traversal_optimal"),
    ],
)
def test_every_kind_of_draws_has_a_map_and_a_verifier_of_its_own(decoder, draws, verifier, tmp_path):
    overrides = [f"decoder={decoder}", "tree=best_64", f"results={tmp_path}"]
    assert [path.name for path in by_path(overrides, are_best=True)] == [
        f"embedded.{decoder}.T1.0.best_64.json"
    ]
    stages = stages_of(overrides)
    for cell in stages.search.first(stages):
        assert (cell.labels["decoder"], cell.labels["verifier"]) == (decoder, verifier)
        assert cell.config["decoder"]["drafter"]["draws"] == draws
        assert cell.config["task"].get("draws", draws) == draws


def test_each_search_makes_its_own_maps():
    overrides = ["tree=growmap_64,best_64,d5b3"]
    assert [path.name for path in by_path(overrides, are_best=True)] == [
        "embedded.specinfer.T1.0.best_64.json"
    ]
    assert [path.name for path in by_path(overrides, are_best=False)] == [
        "embedded.embedded_reference.T1.0.64.json"
    ]


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return save_tiny_search(tmp_path_factory.mktemp("best"), 20)


def make(*arguments):
    """What the command prints to stderr, once it has succeeded."""
    command = [
        sys.executable,
        "-m",
        "experiments.search.best_shape",
        "--prompts",
        "15",
        "--levels",
        "5",
        *arguments,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


def rows_of(cell):
    return [json.loads(line) for line in (cell.folder / "rows.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("decoder", "verifier"), [("specinfer", "traversal_optimal"), ("sequoia", "traversal")]
)
def test_a_map_is_made_once_says_what_was_measured_and_decodes(toy, decoder, verifier):
    chosen = [*toy, "tree=best_16", f"decoder={decoder}"]
    make(*chosen)
    [(path, cells)] = by_path([*chosen, f"verifier={verifier}"], are_best=True).items()
    assert str(path).endswith(f"results/embedded/growmap/llama2_7b__jf68m.{decoder}.T1.0.best_16.json")
    topology, about = grow_map.load(path, num_nodes=16), json.loads(path.read_text())["about"]
    assert about["widths"] == [len(level) for level in topology.levels[1:]] and about["verifier"] == verifier
    assert topology.num_levels == about["num_levels"] <= 5
    assert about["frontier"][str(topology.num_levels)]["expected_tokens"] == about["expected_tokens"]
    frontier = about["frontier"]
    assert all(
        sum(one["widths"]) == 15 and len(one["widths"]) + 1 == int(levels) for levels, one in frontier.items()
    )
    assert min(map(int, frontier)) >= 2 and set(about["fastest_up_to_ratio"]) <= set(frontier)
    for one in frontier.values():
        seconds = (len(one["widths"]) * about["draft_s"] + about["target_s"]["16"]) / one["expected_tokens"]
        assert one["s_per_token"] == pytest.approx(seconds, rel=0.02)
    # The last stage's cell is found again, and holds what the map says, on documents of its own.
    stages = stages_of(chosen, prompts=15)
    decided = leaders(stages.compare(DECISION, stages.search.shapes(stages)))
    [final] = stages.comparing(FINAL, list(decided))
    rows = rows_of(final)
    assert [row["prompt_id"] for row in rows] == ["p14", "p15", "p16", "p17"]
    mean, error = mean_and_error(rows, "emitted")
    assert [one["expected_tokens"] for one in frontier.values()] == pytest.approx(mean, abs=1e-4)
    assert [one["standard_error"] for one in frontier.values()] == pytest.approx(error, abs=1e-4)
    written = path.read_text()
    assert "made from the same measurement already" in make(*chosen) and path.read_text() == written
    command = [sys.executable, "-m", "experiments.run", *chosen, f"verifier={verifier}"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    [cell] = plan([*chosen, f"verifier={verifier}"])
    assert sum(row["num_emitted"] for row in rows_of(cell)) >= 18


def test_the_fastest_is_chosen_by_time(toy, tmp_path):
    make(*toy, "--by", "time", "tree=best_16", f"tree.path={tmp_path}/best.json")
    about = json.loads((tmp_path / "best.json").read_text())["about"]
    assert about["made_from"][0] == "time"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompts", "3", "tree=best_16"], "--prompts is 3; allowed: at least 15"),
        (["--levels", "2", "tree=best_16"], "16 nodes in up to 2 levels; allowed: levels from 3"),
        (["tree=best_16", "tree.num_nodes=3"], "3 nodes in up to 5 levels; allowed"),
        (["tree=best_16", "tree.num_nodes=null"], "tree.num_nodes must be given"),
        (
            ["tree=best_16", "decoder=greedy"],
            "searched for draws iid, without_replacement, point_mass; decoder=greedy has greedy",
        ),
        (["tree=best_16", "decoder=autoregressive"], "no cell of this command line uses a map"),
        (
            ["tree=best_16", "temperature=0.6,1.0", "tree.path=/tmp/one.json"],
            "asked for with several pairs, temperatures",
        ),
        (["tree=best_16", "pair.draft=/nowhere/at/all"], "model folder /nowhere/at/all does not exist"),
    ],
)
def test_what_cannot_be_made_is_one_line(toy, arguments, message, monkeypatch, capsys):
    given = [argument.split("=")[0] for argument in arguments]
    rest = [override for override in toy if override.split("=")[0] not in given]
    monkeypatch.setattr(sys, "argv", ["best_shape", "--prompts", "15", "--levels", "5", *rest, *arguments])
    assert best_shape.main() == 1
    printed = capsys.readouterr().err
    last = printed.splitlines()[-1]
    assert last.startswith("error: ") and message in last and "Traceback" not in printed


def test_a_cell_whose_map_is_missing_says_how_to_make_it(toy, tmp_path):
    command = [
        sys.executable,
        "-m",
        "experiments.run",
        *toy,
        "tree=best_16",
        f"tree.path={tmp_path}/none.json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "experiments.search.best_shape those named best" in done.stderr
