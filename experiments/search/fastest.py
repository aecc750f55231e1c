"""Search for the decoder of most tokens a second: draws, verifier and shape, or no speculation.

A run whose file is missing calls this search. It lists candidates by the acceptance of siblings:
chains, and for the draws and verifiers of `METHODS` the most promising trees of 2 to 128 positions.
Their expected tokens a step are computed from laws, all on the same drafted trees. The leading ones
and one token at a time then race on this machine: all decode the same prompts in turns. The fastest
race again, on further prompts, and the one with most tokens a second is the answer.

An estimate says which candidates lead: expected tokens over the seconds of a step's forwards, see
`resispec.trees.search.Times`. It leaves out drawing, verification and all else that a step does,
which the race measures.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

from experiments.cell import Cell
from experiments.configurations import (
    DRAWN_AS,
    METHODS,
    ON_CHAINS,
    ONE_TOKEN,
    SETTINGS,
    Chosen,
    Configuration,
    check_settings,
)
from experiments.search.candidates import FLATTER, Value, flattened, ordered, widths_of
from experiments.search.tree_search import (
    SIZES,
    SearchStage,
    TreeSearch,
    check_one,
    draft_model,
    rounded,
)
from resispec.errors import InvalidInput
from resispec.trees import Topology, chain, from_widths
from resispec.trees.search import Times, expected_tokens

CHAINS = range(1, 9)  # drafted tokens of the chains that are tried
TREES = (2, 3, *SIZES[1:])  # numbers of nodes of the trees that are tried
LEADING = 3  # sizes of every kind and verifier whose best configuration races
FINALISTS = 5  # configurations that race again
COMPARISON, HEAT, FINAL = 1, 2, 3  # numbers of stages; stage 0 measures acceptance

Rates = Mapping[Configuration, float]
"""Tokens a second of configurations, estimated or measured."""


@dataclass
class FastestSearch(TreeSearch):
    """The search for a file of one pair, temperature and device."""

    num_prompts: int = 15
    num_levels: int = 9
    STAGES: ClassVar[tuple[SearchStage, ...]] = (
        SearchStage(1, times=len(METHODS.keys() - DRAWN_AS)),
        SearchStage(1, 8),
        SearchStage(1),
        SearchStage(2),
    )

    def stand_in(self) -> None:
        """See `TreeSearch.stand_in`: the decoder is found with the tree."""

    def check(self, path: Path, cells: Sequence[Cell]) -> None:
        """See `TreeSearch.check`."""
        super().check(path, cells)
        for name in SETTINGS:
            check_one(path, name, (cell.config[name] for cell in cells))
        decoders = [cell.labels["decoder"] for cell in cells if cell.labels["decoder"] != "fastest"]
        if decoders:
            found = f"decoder={decoders[0]} does so, too; allowed: leave the decoder out"
            raise InvalidInput(f"tree=fastest says what drafts and verifies; {found}")

    def check_found(self, path: Path, cell: Cell) -> None:
        """See `TreeSearch.check_found`: the settings count, too."""
        super().check_found(path, cell)
        check_settings(path, cell.config)

    def write(self, path: Path) -> None:
        """See `TreeSearch.write`."""
        times = self.times({*TREES, *(count + 1 for count in CHAINS)})
        trees = candidates(self.vectors(), times, self.num_levels)
        values = self.compare(trees)
        estimates = {one: estimate(one, value, times) for one, value in values.items()}
        heat = self.race(HEAT, leaders(estimates))
        final = self.race(FINAL, ranked(heat)[:FINALISTS])
        order = list(dict.fromkeys([*ranked(final), *ranked(heat)]))
        rates = heat | final
        about = self.origin(
            made_from=self.measured,
            datasets=[str(cell.labels["dataset"]) for cell in self.cells],
            settings={name: self.cells[0].config[name] for name in SETTINGS},
            raced=[
                one.facts
                | {
                    "num_nodes": one.topology.num_nodes,
                    "expected_tokens": round(values[one].tokens, 4),
                    "standard_error": round(values[one].error, 4),
                    "tokens_per_s": rounded(rates[one], 4),
                }
                for one in order
            ],
        )
        Chosen(order[0], best(estimates, order)).save(path, about)

    def vectors(self) -> dict[str, list[float]]:
        """The acceptance of siblings by place, for all draws."""
        vectors = {}
        for draws in (draws for draws in METHODS if draws not in DRAWN_AS):
            labels = {"decoder": draws, "verifier": "standard"}
            vectors[draws] = [v.tokens for v in self.acceptance(draft_model(draws), labels)]
        return vectors | {draws: vectors[other] for draws, other in DRAWN_AS.items()}

    def compare(self, trees: Sequence[Configuration]) -> dict[Configuration, Value]:
        """The value of every configuration, and of one token at a time, whose value is known."""
        facts, decoder = {tree: tree.facts for tree in trees}, draft_model("without_replacement")
        labels = {"decoder": "several"}
        values = self.compared(COMPARISON, "configurations", facts, decoder, labels)
        return {ONE_TOKEN: Value(1.0, 0.0)} | values

    def race(self, number: int, trees: Sequence[Configuration]) -> dict[Configuration, float]:
        """Tokens a second of configurations and of one token at a time, which decode in turns."""
        from experiments.tasks.race import tokens_per_s  # imports torch

        entries = list(dict.fromkeys([ONE_TOKEN, *trees]))
        target = "experiments.tasks.race.Heat"
        task = {"_target_": target, "configurations": [entry.facts for entry in entries]}
        labels, decoder = {"decoder": "several", "task": "heat"}, draft_model("iid")
        # a profile knows how many prompts it takes until its device has captured its graphs
        warmup_prompts = max(1, self.cells[0].config["warmup_prompts"])
        cells = self.stage(number, task, decoder, labels, warmup_prompts=warmup_prompts)
        title = f"race of {len(entries)}, stage {number + 1} of {len(self.STAGES)}"
        rows = self.rows(cells, title, self._cell_size(self.STAGES[number]), is_timed=True)
        return dict(zip(entries, tokens_per_s(rows), strict=True))


def estimate(one: Configuration, value: Value, times: Times) -> float:
    """Expected tokens over the seconds of a step's forwards."""
    return value.tokens / times.step_s(one.topology.num_nodes, one.topology.num_levels)


def candidates(
    vectors: Mapping[str, Sequence[float]], times: Times, num_levels: int
) -> list[Configuration]:
    """Configurations to compare. vectors: draws -> acceptance by place."""
    configurations = [
        Configuration("iid", name, chain(count)) for count in CHAINS for name in ON_CHAINS
    ]
    for draws, verifiers in METHODS.items():
        for size in TREES:
            shapes = promising(vectors[draws], size, draws, times, num_levels)
            configurations += [
                Configuration(draws, name, shape) for name in verifiers for shape in shapes
            ]
    return list(dict.fromkeys(configurations))


def promising(
    vector: Sequence[float], size: int, draws: str, times: Times, num_levels: int
) -> list[Topology]:
    """The trees of Sequoia's search that promise most tokens a second, given siblings' acceptance.

    One tree is for the vector itself and one for the most even vector of its sum, see `ordered`. If
    siblings are independent, trees of the same widths with evenly spread children are tried, too.
    """
    if not (shapes := ordered(vector, size, range(2, num_levels + 1))):
        return []  # so few levels do not hold so many nodes
    if DRAWN_AS.get(draws, draws) == "iid":
        shapes += [from_widths(widths_of(shape)) for shape in shapes]

    def promised(power: float, shape: Topology) -> float:
        tokens = expected_tokens(shape, flattened(vector, power))
        return tokens / times.step_s(size, shape.num_levels)

    best = (max(shapes, key=partial(promised, power)) for power in (FLATTER[0], FLATTER[-1]))
    return list(dict.fromkeys(best))


def kind_of(one: Configuration) -> str:
    """Kind of a configuration: its draws, or "chain" for a chain with a verifier of chains."""
    is_chain = one.topology.num_levels == one.topology.num_nodes
    return "chain" if is_chain and one.draws == "iid" and one.verifier in ON_CHAINS else one.draws


def ranked(rates: Rates) -> list[Configuration]:
    """All configurations, the fastest first."""
    return sorted(rates, key=lambda one: -rates[one])


def of_every_size(rates: Rates) -> dict[tuple[str, str], dict[int, Configuration]]:
    """(kind, verifier) -> number of nodes -> the fastest configuration of these, the fastest first.

    One token at a time is left out.
    """
    groups: dict[tuple[str, str], dict[int, Configuration]] = {}
    for one in ranked(rates):
        if one != ONE_TOKEN:
            of_size = groups.setdefault((kind_of(one), one.verifier), {})
            of_size.setdefault(one.topology.num_nodes, one)
    return groups


def leaders(estimates: Rates) -> list[Configuration]:
    """Configurations that race: of every kind and verifier the best of LEADING sizes."""
    return [
        one
        for of_size in of_every_size(estimates).values()
        for one in itertools.islice(of_size.values(), LEADING)
    ]


def best(estimates: Rates, order: Sequence[Configuration]) -> dict[str, list[Configuration]]:
    """The best configurations of every kind by rising number of nodes.

    Those of a kind have the verifier that was its fastest in the race; of a size the best one by
    estimate counts. order: all that raced, the fastest first.
    """
    groups = of_every_size(estimates)
    verifiers: dict[str, str] = {}
    for one in order:
        if one != ONE_TOKEN:
            verifiers.setdefault(kind_of(one), one.verifier)
    return {
        kind: [one for _, one in sorted(groups[kind, verifier].items())]
        for kind, verifier in verifiers.items()
    }
