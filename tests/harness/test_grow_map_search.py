"""From a pair to a grow map: acceptance by place in draw order, the search for a tree, and what its decoding then emits."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from toys import TableModel, ToyTokenizer, same_everywhere, save_tiny_search

from experiments.tasks.acceptance import Acceptance
from experiments.cells import plan
from experiments.search.grow_map import acceptance
from experiments.tasks import Context
from resispec.trees import grow_map
from resispec.audit.enumerate import sibling_weights
from resispec.core import Draws
from resispec.decode import Decoder, Sampling
from resispec.drafters import DraftModel, NoDraft
from resispec.models import Pair
from resispec.trees.search import expected_tokens, search
from resispec.verifiers import get_rule, get_verifier


def true_vector(pair, count):
    """The acceptance of each place in draw order, summed over every tuple that could be drawn."""
    p, q = (torch.softmax(model.logits[0], -1) for model in (pair.target, pair.draft))
    tuples = torch.tensor(list(itertools.permutations(range(len(p)), count)))
    weights = sibling_weights(q.expand(len(tuples), -1), tuples, Draws.WITHOUT_REPLACEMENT)
    shape = (len(tuples), len(p))
    law = get_rule("standard").law(p.expand(shape), q.expand(shape), tuples, Draws.WITHOUT_REPLACEMENT)
    return weights @ law.select


def test_the_measured_vector_is_the_enumerated_one():
    pair, task = same_everywhere(), Acceptance(3, "without_replacement")
    decoder = Decoder(NoDraft(), get_verifier("standard"))
    context = Context(pair, decoder, Sampling(1.0, 4000, 4050), [("p0", [0, 1])], seed=0)
    row = task(context, 0)
    assert row.num_contexts == 4000
    measured = torch.tensor(row.selected, dtype=torch.float64) / 4000
    assert (measured - true_vector(pair, 3)).abs().max() < 0.02  # about 4 standard errors


def test_positions_follow_the_prompt_and_laws_belong_to_what_was_written():
    """A target that counts up and a draft that is right only after an odd token: the first child is accepted every other time."""
    vocab = 6
    target = torch.full((vocab, vocab), -1e9)
    target[torch.arange(vocab), (torch.arange(vocab) + 1) % vocab] = 0.0
    draft = target.clone()
    draft[::2] = draft[::2].roll(1, dims=1)
    context = Context(
        Pair(TableModel(target), TableModel(draft), ToyTokenizer()),
        Decoder(NoDraft(), get_verifier("standard")),
        Sampling(1.0, 9, 64),
        [("p0", [3, 4, 5])],
        seed=0,
    )
    row = Acceptance(1, "without_replacement")(context, 0)
    assert row.num_contexts == 9 and row.selected == [5.0]  # after 5, 1, 3, 5, 1 of 5, 0, 1, 2, 3, 4, 5, 0, 1


def test_a_found_tree_emits_what_the_search_expects():
    """Where the model of the search holds, decoding must agree with it: within 4 standard errors over 1,500 steps."""
    pair = same_everywhere()
    vector = true_vector(pair, 5).tolist()
    topology = search(vector, 12, 5).topology(12, 5)
    decoder = Decoder(DraftModel(topology, Draws.WITHOUT_REPLACEMENT), get_verifier("standard"))
    found = decoder.generate(pair, [0], Sampling(1.0, 3000, 4000), torch.Generator().manual_seed(0))
    emitted = torch.tensor(found.num_emitted[:-1], dtype=torch.float64)
    error = float(emitted.std() / len(emitted) ** 0.5)
    assert abs(float(emitted.mean()) - expected_tokens(topology, vector)) < 4 * error < 0.2


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return save_tiny_search(tmp_path_factory.mktemp("growmap"), 8)


def make(*arguments):
    command = [
        sys.executable,
        "-m",
        "experiments.search.grow_map",
        "--prompts",
        "4",
        "--levels",
        "5",
        *arguments,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_map_is_made_once_and_decodes(toy):
    [cell] = plan([*toy, "decoder=sequoia", "tree=growmap_64"])
    before = cell.cell_id
    done = make(*toy, "tree=growmap_64")
    assert done.returncode == 0, done.stderr
    path = Path(cell.config["tree"]["path"])
    assert str(path).endswith("results/embedded/growmap/llama2_7b__jf68m.jsonl.T1.0.64.json")
    assert f"{path}: 64 nodes in levels" in done.stderr
    topology = grow_map.load(path, num_nodes=64)
    about = json.loads(path.read_text())["about"]
    vector = pd.read_csv(path.with_name("llama2_7b__jf68m.jsonl.T1.0.acceptance.csv"), comment="#")
    assert list(vector.position) == list(range(1, 33)) and 0 < vector.probability.sum() <= 1 + 1e-6
    assert topology.num_levels == about["num_levels"] <= 5
    assert about["expected_tokens"] == pytest.approx(
        expected_tokens(topology, vector.probability.tolist()), abs=1e-3
    )
    written = path.read_text()
    again = make(*toy, "tree=growmap_64")
    assert (
        again.returncode == 0
        and "made from the same measurement already" in again.stderr
        and path.read_text() == written
    )
    [cell] = plan([*toy, "decoder=sequoia", "tree=growmap_64"])
    assert cell.cell_id != before  # what the map holds decides, not its name
    [measured] = plan([
        *(override for override in toy if "num_prompts" not in override), "task=acceptance", "decoder=sequoia", "tree=root",
        "first_prompt=3", "num_prompts=4",
    ])  # fmt: skip
    assert measured.cell_id == about["acceptance_cell"]
    rows = [json.loads(line) for line in (measured.folder / "rows.jsonl").read_text().splitlines()]
    assert [row["prompt_id"] for row in rows] == [
        "p3",
        "p4",
        "p5",
        "p6",
    ]  # documents that the cell itself does not measure
    frame = acceptance(measured)
    assert frame.probability.iloc[0] == pytest.approx(
        sum(row["selected"][0] for row in rows) / sum(row["num_contexts"] for row in rows)
    )


def test_the_number_of_nodes_is_searched_where_it_is_not_given(toy, tmp_path):
    done = make(*toy, "tree=growmap", f"tree.path={tmp_path}/best.json")
    assert done.returncode == 0, done.stderr
    about = json.loads((tmp_path / "best.json").read_text())["about"]
    assert set(about["target_s"]) == {"1", "2", "4", "8", "16", "32", "64", "128"}
    assert (
        grow_map.load(tmp_path / "best.json").num_nodes in map(int, about["target_s"])
        and about["expected_speedup"] >= 1
    )


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["tree=growmap"], "tree.path must be given"),
        (["tree=growmap_64", "tree.num_nodes=0"], "tree.num_nodes is 0; allowed: from 1"),
        (["tree=growmap_64", "pair.draft=/nowhere/at/all"], "model folder /nowhere/at/all does not exist"),
    ],
)
def test_what_cannot_be_made_is_one_line(toy, overrides, message):
    given = [override.split("=")[0] for override in overrides]
    done = make(*(override for override in toy if override.split("=")[0] not in given), *overrides)
    last = done.stderr.splitlines()[-1]
    assert (
        done.returncode == 1
        and last.startswith("error: ")
        and message in last
        and "Traceback" not in done.stderr
    )


def test_a_cell_whose_map_is_missing_says_how_to_make_it(toy, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "experiments.run", *toy, "decoder=sequoia", "tree=growmap", f"tree.path={tmp_path}/none.json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1 and "python -m experiments.search.grow_map makes one" in done.stderr
