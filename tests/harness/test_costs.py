"""The cost model's arithmetic on made-up times, its file, and that nobody measures twice."""

import itertools
import json

import pytest
import torch

from experiments import costs
from experiments.configurations import METHODS, ON_CHAINS, ONE_TOKEN, Configuration
from experiments.costs import CostModel
from experiments.grid import cells_of
from experiments.provenance import device_stem
from resispec.errors import InvalidInput
from resispec.models import Pair
from resispec.trees import chain, from_widths
from tests.harness.toy_runs import ignore
from tests.toy_costs import made_up, proportional, save_costs, timed
from tests.toys import tiny_llama


def iid(topology, verifier="standard"):
    return Configuration("iid", verifier, topology)


def fitted(**parts_of):
    """The model of probes whose parts take what functions of a probe say."""
    steps = []
    for one, num_tokens in costs.probes(256):
        length = num_tokens + costs.NEW_TOKENS / 2
        parts = {"target_s": 0.1, "draft_s": 1e-4 * (one.topology.num_levels - 1)}
        parts |= {name: part_of(one, length) for name, part_of in parts_of.items()}
        steps.append(timed(one, length, **parts))
    return CostModel.fitted(steps)


def target_s(one, length):
    """On a line in the number of positions and the cached length:
    what is between timed sizes, too.
    """
    return 1e-3 + 2e-5 * one.topology.num_nodes + 1e-6 * length


def verify_s(one, _length):
    """A walk costs what its levels and nodes cost."""
    slow = 3.0 if one.verifier == "traversal_optimal" else 1.0
    return slow * (
        1e-4 + 1e-4 * (one.topology.num_levels - 1) + 1e-5 * (one.topology.num_nodes - 1)
    )


def draft_s(one, _length):
    """A level counts the nodes that have children: 16 nodes of which 4 have some are a forward over
    4.
    """
    return 1e-3 * sum(map(bool, one.topology.children))


@pytest.mark.parametrize(
    ("seconds", "configurations", "rel"),
    [
        (
            target_s,
            [ONE_TOKEN, *(iid(from_widths((size,))) for size in (2, 4, 23, 99, 127, 199))],
            1e-3,
        ),
        (verify_s, [iid(from_widths((2, 3, 4, 4)), verifier) for verifier in METHODS["iid"]], 1e-3),
        (draft_s, [ONE_TOKEN, iid(from_widths((16, 4)))], 1e-2),
    ],
)
def test_a_part_that_was_timed_is_known_for_every_configuration(seconds, configurations, rel):
    model, part = fitted(**{seconds.__name__: seconds}), seconds.__name__.removesuffix("_s")
    for one, length in itertools.product(configurations, (10.0, 44.0, 300.0)):
        assert model.parts_s(one, length)[part] == pytest.approx(seconds(one, length), rel=rel)


def test_a_step_is_the_sum_of_its_parts():
    """A draft level takes 0.1 ms, a walk and the rest 0.01 ms each;
    the shapes were not among the timed.
    """
    model = CostModel.fitted(made_up(proportional))
    tree = from_widths((3, 5, 6, 6))
    shapes = {
        Configuration(draws, name, tree): 4 for draws, names in METHODS.items() for name in names
    }
    shapes |= {iid(chain(6), name): 6 for name in ON_CHAINS} | {ONE_TOKEN: 0}
    for one, levels in shapes.items():
        expected = levels * 1e-4 + one.topology.num_nodes * 1e-3 + 2e-5
        assert model.step_s(one, 44.0) == pytest.approx(expected, rel=1e-2)


def test_no_part_takes_less_than_no_time():
    """However noisy the times are: the largest of a growing sequence is timed far too short."""
    model = fitted(
        target_s=lambda one, _: 1e-5 if one.topology.num_nodes == 64 else proportional(one)
    )
    assert all(
        seconds >= 0 for name, seconds in model.seconds.items() if not name.startswith("rest")
    )


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_probes_are_timed_on_a_gpu():
    pair = Pair(
        *(type(model)(model.module.cuda()) for model in (tiny_llama(), tiny_llama(seed=1))), None
    )
    steps = costs.time_probes(pair, [1, 2, 3], ignore, rounds=1)
    assert CostModel.fitted(steps).step_s(ONE_TOKEN, 44.0) > 0


# The file


@pytest.fixture
def calls(monkeypatch):
    """Made-up times in place of measured ones; the list grows with every measurement."""
    calls = []
    monkeypatch.setattr(costs, "time_probes", lambda *_: calls.append(1) or made_up(proportional))
    return calls


def test_a_pair_is_measured_at_first_use_and_then_read(toy, calls):
    [cell] = cells_of(toy)
    first, again = costs.costs_of(cell, ignore), costs.costs_of(cell, ignore)
    assert len(calls) == 1 and first == again
    path = costs.file_of(cell.config)
    assert path.name == f"{device_stem(torch.device('cpu'))}.json" and path.parent.name == "timing"
    assert first.seconds == pytest.approx(CostModel.fitted(made_up(proportional)).seconds, rel=1e-3)
    entry = json.loads(path.read_text())["pairs"][first.source["entry"]]
    assert entry["pair"] == cell.labels["pair"] and {
        "load_average",
        "git_commit",
        "versions",
    } <= set(entry)
    costs.costs_of(cell, ignore, again=True)
    assert len(calls) == 2


def test_pairs_share_a_file_and_what_determines_times_tells_them_apart(toy, calls, monkeypatch):
    overrides = ("seed=7", "temperature=0.3", "num_threads=2", "dtype=bfloat16")
    cells = [cells_of([*toy, override])[0] for override in overrides]
    for cell in cells:
        costs.costs_of(cell, ignore)
    # Neither seed nor temperature counts.
    assert len(calls) == len(costs.read(costs.file_of(cells[0].config))) == 3
    [cell] = cells_of([*toy, "num_threads=null"])
    keys = []
    for threads in ("", "1", "2"):  # where they are torch's choice, by what it heeds
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        keys.append(costs.key_of(cell.config))
    # Costs without a verifier are measured again.
    monkeypatch.setattr(costs, "METHODS", {"iid": ("standard",)})
    assert len({*keys, costs.key_of(cell.config)}) == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read as JSON"),
        ('{"decoders": {}}', "holds no costs: its format is None; allowed: 'resispec costs 1'"),
        ('{"format": "resispec costs 1", "pairs": []}', "holds no costs"),
    ],
)
def test_a_damaged_file_is_one_line_and_stays(toy, text, message, calls):
    [cell] = cells_of(toy)
    path = costs.file_of(cell.config)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(InvalidInput, match=f"{path}.* {message}.*; delete it"):
        costs.costs_of(cell, ignore)
    assert not calls and path.read_text() == text


@pytest.mark.parametrize("steps", [[], None, [{"step_s": "long"}]])
def test_a_damaged_entry_is_one_line(toy, steps):
    [cell] = cells_of(toy)
    save_costs(cell.config, steps)
    with pytest.raises(InvalidInput, match=f"entry {costs.key_of(cell.config)} is damaged"):
        costs.costs_of(cell, ignore)
