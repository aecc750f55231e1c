"""Search for what decodes most tokens a second: draws, verifier and shape, or no speculation.

    python -m experiments.run tree=fastest temperature=0.6

A run whose file is missing calls this search. From how often siblings are accepted (cells, kept and resumed
like any other, on documents that no table reads) and from what steps cost on this device (experiments/costs)
it lists candidates: one token at a time, chains, and for the draws and verifiers of `METHODS` the most
promising trees of 2 to 128 positions. Their expected tokens a step are computed from laws, all on the
same drafted trees; those that lead are compared again on further documents, which decide. A configuration is
chosen by its tokens a second less one standard error, so that one which only looks faster than one token at
a time is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from experiments.cell import Cell
from experiments.costs.configuration import METHODS, ON_CHAINS, ONE_TOKEN, Configuration
from experiments.costs.model import SIZES, CostModel
from experiments.search.candidates import FLATTER, Value, flattened, ordered, unique, widths
from experiments.search.chosen import SETTINGS, Chosen, save
from experiments.search.tree_search import Measurements, TreeSearch, draft_model
from resispec.errors import InvalidInput
from resispec.trees import Topology, chain, from_widths
from resispec.trees.search import expected_tokens

CHAINS = range(1, 9)  # drafted tokens of the chains that are tried
NUM_PREFIXES = 8  # of each document
LEADING = 2  # configurations of every draws and verifier that are compared again
FIRST, DECISION = 1, 2  # stages

Compared = dict[Configuration, Value]


@dataclass(frozen=True)
class FastestSearch(TreeSearch):
    """The search for a file of one pair, temperature and device."""

    num_prompts: int = 15
    num_levels: int = 9
    SHARES: ClassVar[tuple[int, ...]] = (1, 2, 2)  # for acceptance, the first comparison and the decision

    def check(self, path: Path, cells: Sequence[Cell]) -> None:
        """Refuse what cannot be searched for, before anything is measured. Raises InvalidInput."""
        super().check(path, cells)
        others = [cell.labels["decoder"] for cell in cells if cell.labels["decoder"] != "fastest"]
        if others:
            raise InvalidInput(
                f"tree=fastest says what drafts and verifies; decoder={others[0]} does so, too; "
                "allowed: leave the decoder out"
            )

    def write(self, path: Path, measurements: Measurements) -> None:
        """Search, and write the configurations."""
        judge, vectors = Judge(measurements.costs.model, measurements.length), dict[str, list[float]]()
        for draws in METHODS:
            labels = {"decoder": draws, "verifier": "standard"}
            places = measurements.acceptance(draws, draft_model(draws), labels)
            vectors[draws] = [place.tokens for place in places]
        trees = leading(compare(measurements, FIRST, candidates(vectors, judge, self.num_levels)), judge)
        decided, cells = compare(measurements, DECISION, trees), measurements.cells
        about = {
            "made_from": measurements.measured,
            "pair": str(cells[0].labels["pair"]),
            "temperature": cells[0].labels["temperature"],
            "datasets": [str(cell.labels["dataset"]) for cell in cells],
            "settings": {name: cells[0].config[name] for name in SETTINGS},
            "length": judge.length,
            "expected": [judge.facts(one, value) for one, value in decided.items()],
            **measurements.source(),
        }
        save(choose(decided, judge), path, about)


def compare(measurements: Measurements, stage: int, trees: Sequence[Configuration]) -> Compared:
    """The value of every configuration over all data sets; that of one token at a time is known."""
    task = {
        "_target_": "experiments.tasks.shapes.Configurations",
        "num_prefixes": NUM_PREFIXES,
        "configurations": [one.facts for one in trees],
    }
    labels = {"decoder": "several", "task": "configurations"}
    cells = measurements.stage(stage, task, draft_model("without_replacement"), labels)
    values = measurements.values(cells, f"{len(trees)} configurations", "emitted")
    return {ONE_TOKEN: Value(1.0, 0.0)} | dict(zip(trees, values, strict=True))


@dataclass(frozen=True)
class Judge:
    """Tokens a second by a cost model. length: positions that are cached before a step."""

    costs: CostModel
    length: float

    def rate(self, one: Configuration, value: Value) -> float:
        """Tokens a second if a step emits one standard error less than was found."""
        return self.costs.tokens_per_s(one, max(1.0, value.tokens - value.error), self.length)

    def facts(self, one: Configuration, value: Value) -> dict[str, Any]:
        """Facts about a configuration, for `about`."""
        step_s = self.costs.step_s(one, self.length)
        numbers = {
            "expected_tokens": round(value.tokens, 4),
            "standard_error": round(value.error, 4),
            "step_s": float(f"{step_s:.4g}"),
            "tokens_per_s": float(f"{value.tokens / step_s:.4g}"),
        }
        return one.facts | {"num_nodes": one.topology.num_nodes} | numbers


def candidates(vectors: Mapping[str, Sequence[float]], judge: Judge, num_levels: int) -> list[Configuration]:
    """Configurations that are compared with one token at a time.

    vectors: by the draws, how often each place in draw order is the accepted one.
    """
    found = [Configuration("iid", name, chain(count)) for count in CHAINS for name in ON_CHAINS]
    for draws, verifiers in METHODS.items():
        for size in SIZES[1:]:
            shapes = promising(vectors[draws], size, draws, judge, num_levels)
            found += [Configuration(draws, name, shape) for name in verifiers for shape in shapes]
    return unique(found)


def promising(
    vector: Sequence[float], size: int, draws: str, judge: Judge, num_levels: int
) -> list[Topology]:
    """The trees of Sequoia's search that promise most tokens a second, if siblings are accepted so.

    One for the vector itself and one for the most even vector of its sum, see `ordered`. Where siblings are
    independent the same widths with children in equal numbers count, too.
    """
    shapes = ordered(vector, size, range(2, num_levels + 1))
    if draws == "iid":
        shapes = unique([*shapes, *(from_widths(widths(shape)) for shape in shapes)])

    def rate(shape: Topology, power: float) -> float:
        one = Configuration(draws, METHODS[draws][0], shape)
        return judge.rate(one, Value(expected_tokens(shape, flattened(vector, power)), 0.0))

    powers = (FLATTER[0], FLATTER[-1])
    return unique(max(shapes, key=lambda shape, power=power: rate(shape, power)) for power in powers)


def kind_of(one: Configuration) -> str:
    """Kind of a configuration: its draws, or "chain" for a chain with a verifier of chains."""
    is_chain = one.topology.num_levels == one.topology.num_nodes
    return "chain" if is_chain and one.draws == "iid" and one.verifier in ON_CHAINS else one.draws


def leading(found: Compared, judge: Judge) -> list[Configuration]:
    """Configurations to compare again: the fastest of every kind and size, some of every method."""
    trees = [one for one in found if one != ONE_TOKEN]
    ranked = sorted(trees, key=lambda one: -judge.rate(one, found[one]))
    of_size = {(kind_of(one), one.topology.num_nodes): one for one in reversed(ranked)}  # the first one stays
    of_verifier: dict[tuple[str, str], list[Configuration]] = {}
    for one in ranked:
        of_verifier.setdefault((one.draws, one.verifier), []).append(one)
    return unique([*of_size.values(), *(one for own in of_verifier.values() for one in own[:LEADING])])


def choose(decided: Compared, judge: Judge) -> Chosen:
    """The fastest configuration, and the fastest of every kind and size."""
    ranked = sorted(decided, key=lambda one: -judge.rate(one, decided[one]))
    best: dict[str, dict[int, Configuration]] = {}
    for one in ranked:
        if one != ONE_TOKEN:
            best.setdefault(kind_of(one), {}).setdefault(one.topology.num_nodes, one)
    by_size = {kind: [own[size] for size in sorted(own)] for kind, own in best.items()}
    return Chosen(ranked[0], by_size)
