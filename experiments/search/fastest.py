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
from typing import TYPE_CHECKING, Any

from experiments.cells import Cell
from experiments.costs.configuration import METHODS, ON_CHAINS, ONE_TOKEN, Configuration
from experiments.costs.model import SIZES, CostModel
from experiments.costs.record import costs_of
from experiments.search.candidates import FLATTER, Value, flattened, ordered, unique, widths
from experiments.search.chosen import SETTINGS, Chosen, save
from experiments.search.grow_map import DECODER
from experiments.search.measuring import (
    acceptance_task,
    check_documents,
    check_request,
    documents_of,
    length_of,
    mean_and_error,
    measuring_cell,
    one_of_each_dataset,
    rows_of,
    source_of,
)
from resispec.errors import InvalidInput
from resispec.trees import Topology, chain, from_widths
from resispec.trees.search import expected_tokens

if TYPE_CHECKING:
    from experiments.worker import Report

CHAINS = range(1, 9)  # drafted tokens of the chains that are tried
SHARES = (1, 2, 2)  # of the documents: for acceptance, for the first comparison, for the decision
NUM_PREFIXES = 8  # of each document
LEADING = 2  # configurations of every draws and verifier that are compared again
FIRST, DECISION = 1, 2

Found = dict[Configuration, Value]


@dataclass(frozen=True)
class FastestSearch:
    """The search for a file of one pair, temperature and device.

    num_prompts: documents of every data set, split over the stages. num_levels: the most levels, the root
    counted. Raises InvalidInput for values out of range.
    """

    num_prompts: int = 15
    num_levels: int = 9

    def __post_init__(self) -> None:
        check_documents(self.num_prompts, SHARES)
        if self.num_levels < 2:
            raise InvalidInput(f"search.num_levels is {self.num_levels}; allowed: from 2, the root counted")

    def check(self, path: Path, cells: Sequence[Cell]) -> None:
        """Refuse what cannot be searched for, before anything is measured. Raises InvalidInput."""
        check_request(path, cells, ("pair", "temperature"))
        for cell in cells:
            if cell.labels["decoder"] != "fastest":
                decoder = cell.labels["decoder"]
                raise InvalidInput(
                    f"tree=fastest says what drafts and verifies; decoder={decoder} does so, too; "
                    "allowed: leave the decoder out"
                )

    def __call__(self, path: Path, cells: Sequence[Cell], report: Report) -> None:
        """Search, and write the file.

        cells: those that name it; of every data set the first one's configuration counts.
        Raises InvalidInput and what `measured` raises.
        """
        self.check(path, cells)
        chosen = one_of_each_dataset(cells)
        costs = costs_of(chosen[0], report)
        judge = Judge(costs.model, length_of(chosen[0]))
        vectors, used = dict[str, list[float]](), list[Cell]()
        for draws in METHODS:
            used += (own := self._accepting(chosen, draws))
            rows = rows_of(own, f"acceptance of siblings, {draws}", report)
            vectors[draws] = mean_and_error(rows, "selected")[0].tolist()
        trees = candidates(vectors, judge, self.num_levels)
        used += (own := self._comparing(chosen, FIRST, trees))
        trees = leading(compared(own, trees, report), judge)
        used += (own := self._comparing(chosen, DECISION, trees))
        decided = compared(own, trees, report)
        about = {
            "made_from": [cell.cell_id for cell in used],
            "pair": chosen[0].labels["pair"],
            "temperature": chosen[0].labels["temperature"],
            "datasets": [cell.labels["dataset"] for cell in chosen],
            "settings": {name: chosen[0].config[name] for name in SETTINGS},
            "length": judge.length,
            "expected": [judge.facts(one, value) for one, value in decided.items()],
            **source_of(chosen[0], costs),
        }
        save(choose(decided, judge), path, about)

    def _accepting(self, cells: Sequence[Cell], draws: str) -> list[Cell]:
        drafter = DECODER["drafter"] | {"draws": draws}  # type: ignore[operator]
        labels = {"decoder": draws, "verifier": "standard", "task": "acceptance"}
        nodes = {"task": acceptance_task(draws), "decoder": DECODER | {"drafter": drafter}}
        return [measuring_cell(cell, labels, self._documents(0), **nodes) for cell in cells]

    def _comparing(self, cells: Sequence[Cell], stage: int, trees: Sequence[Configuration]) -> list[Cell]:
        """The cells that compare configurations, one a data set."""
        task = {
            "_target_": "experiments.tasks.configurations.Configurations",
            "num_prefixes": NUM_PREFIXES,
            "configurations": [one.facts for one in trees],
        }
        labels, documents = {"decoder": "several", "task": "configurations"}, self._documents(stage)
        return [measuring_cell(cell, labels, documents, task=task, decoder=DECODER) for cell in cells]

    def _documents(self, stage: int) -> range:
        return documents_of(stage, self.num_prompts, SHARES)


def compared(cells: Sequence[Cell], trees: Sequence[Configuration], report: Report) -> Found:
    """The value of every configuration over all data sets; that of one token at a time is known."""
    rows = rows_of(cells, f"{len(trees)} configurations", report)
    pairs = zip(*mean_and_error(rows, "emitted"), strict=True)
    values = [Value(float(mean), float(error)) for mean, error in pairs]
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
        """What was found of a configuration, for `about`."""
        step_s = self.costs.step_s(one, self.length)
        numbers = {
            "expected_tokens": round(value.tokens, 4),
            "standard_error": round(value.error, 4),
            "step_s": float(f"{step_s:.4g}"),
            "tokens_per_s": float(f"{value.tokens / step_s:.4g}"),
        }
        return one.facts | {"num_nodes": one.topology.num_nodes} | numbers


def candidates(vectors: Mapping[str, Sequence[float]], judge: Judge, num_levels: int) -> list[Configuration]:
    """What is compared with one token at a time.

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
    """What the fastest of every size are told apart by: the draws, or a chain with a verifier of chains."""
    is_chain = one.topology.num_levels == one.topology.num_nodes
    return "chain" if is_chain and one.draws == "iid" and one.verifier in ON_CHAINS else one.draws


def leading(found: Found, judge: Judge) -> list[Configuration]:
    """What is compared again: the fastest of every kind and size, and some of every draws and verifier."""
    trees = [one for one in found if one != ONE_TOKEN]
    ranked = sorted(trees, key=lambda one: -judge.rate(one, found[one]))
    of_size = {(kind_of(one), one.topology.num_nodes): one for one in reversed(ranked)}  # the first one stays
    of_verifier: dict[tuple[str, str], list[Configuration]] = {}
    for one in ranked:
        of_verifier.setdefault((one.draws, one.verifier), []).append(one)
    return unique([*of_size.values(), *(one for own in of_verifier.values() for one in own[:LEADING])])


def choose(decided: Found, judge: Judge) -> Chosen:
    """The fastest configuration, and the fastest of every kind and size."""
    ranked = sorted(decided, key=lambda one: -judge.rate(one, decided[one]))
    best: dict[str, dict[int, Configuration]] = {}
    for one in ranked:
        if one != ONE_TOKEN:
            best.setdefault(kind_of(one), {}).setdefault(one.topology.num_nodes, one)
    by_size = {kind: [own[size] for size in sorted(own)] for kind, own in best.items()}
    return Chosen(ranked[0], by_size)
