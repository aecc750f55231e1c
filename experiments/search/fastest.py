"""Search for the decoder of most tokens a second: draws, verifier and shape, or no speculation.

A run whose file is missing calls this search. It lists candidates by the acceptance of siblings and
the costs of steps on this device (experiments/costs.py): one token at a time, chains, and for the
draws and verifiers of `METHODS` the most promising trees of 2 to 128 positions. Their expected
tokens a step are computed from laws, all on the same drafted trees; the leading ones are compared
again on further documents, which decide. A configuration is chosen by its tokens a second less one
standard error, so that a configuration which only looks faster than one token at a time is not
chosen.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

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
from experiments.costs import SIZES, rounded
from experiments.search.candidates import FLATTER, Value, flattened, ordered, widths_of
from experiments.search.tree_search import SearchStage, TreeSearch, draft_model
from resispec.errors import InvalidInput
from resispec.trees import Topology, chain, from_widths
from resispec.trees.search import expected_tokens

CHAINS = range(1, 9)  # drafted tokens of the chains that are tried
LEADING = 2  # configurations of every method, draws and verifier, that are compared again
FIRST, DECISION = 1, 2  # numbers of stages; stage 0 measures acceptance

ValueByConfiguration = Mapping[Configuration, Value]
Rate = Callable[[Configuration, Value], float]
"""Tokens a second of a configuration whose expected tokens a step are known."""


@dataclass
class FastestSearch(TreeSearch):
    """The search for a file of one pair, temperature and device."""

    num_prompts: int = 15
    num_levels: int = 9
    STAGES: ClassVar[tuple[SearchStage, ...]] = (
        SearchStage(1, times=len(METHODS.keys() - DRAWN_AS)),
        SearchStage(2, 8),
        SearchStage(2, 8),
    )

    def stand_in(self) -> None:
        """See `TreeSearch.stand_in`: the decoder is found with the tree."""

    def check(self, path: Path, cells: Sequence[Cell]) -> None:
        """See `TreeSearch.check`."""
        super().check(path, cells)
        decoders = [cell.labels["decoder"] for cell in cells if cell.labels["decoder"] != "fastest"]
        if decoders:
            found = f"decoder={decoders[0]} does so, too; allowed: leave the decoder out"
            raise InvalidInput(f"tree=fastest says what drafts and verifies; {found}")

    def check_found(self, path: Path, config: Mapping[str, Any]) -> None:
        """See `TreeSearch.check_found`."""
        check_settings(path, config)

    def write(self, path: Path) -> None:
        """See `TreeSearch.write`."""
        rate, vectors = self.rate, {}
        for draws in (draws for draws in METHODS if draws not in DRAWN_AS):
            labels = {"decoder": draws, "verifier": "standard"}
            vectors[draws] = [v.tokens for v in self.acceptance(draft_model(draws), labels)]
        vectors |= {draws: vectors[other] for draws, other in DRAWN_AS.items()}
        values = self.compare(FIRST, candidates(vectors, rate, self.num_levels))
        finalists = self.compare(DECISION, leading(values, rate))
        about = self.origin(
            made_from=self.measured,
            datasets=[str(cell.labels["dataset"]) for cell in self.cells],
            settings={name: self.cells[0].config[name] for name in SETTINGS},
            length=self.length,
            expected=[
                self.facts(configuration, value) for configuration, value in finalists.items()
            ],
        )
        choose(finalists, rate).save(path, about)

    def rate(self, one: Configuration, value: Value) -> float:
        """Tokens a second if a step emits one standard error less than the measured tokens."""
        return max(1.0, value.tokens - value.error) / self.costs.step_s(one, self.length)

    def compare(self, stage: int, trees: Sequence[Configuration]) -> dict[Configuration, Value]:
        """The value of every configuration, and of one token at a time, whose value is known."""
        facts, decoder = {tree: tree.facts for tree in trees}, draft_model("without_replacement")
        values = self.compared(stage, "configurations", facts, decoder, {"decoder": "several"})
        return {ONE_TOKEN: Value(1.0, 0.0)} | values

    def facts(self, one: Configuration, value: Value) -> dict[str, Any]:
        """Facts about a configuration, for `about`."""
        step_s = self.costs.step_s(one, self.length)
        return one.facts | {
            "num_nodes": one.topology.num_nodes,
            "expected_tokens": round(value.tokens, 4),
            "standard_error": round(value.error, 4),
            "step_s": rounded(step_s, 4),
            "tokens_per_s": rounded(value.tokens / step_s, 4),
        }


def candidates(
    vectors: Mapping[str, Sequence[float]], rate: Rate, num_levels: int
) -> list[Configuration]:
    """Configurations to compare with one token at a time. vectors: draws -> acceptance by place."""
    configurations = [
        Configuration("iid", name, chain(count)) for count in CHAINS for name in ON_CHAINS
    ]
    for draws, verifiers in METHODS.items():
        for size in SIZES[1:]:
            shapes = promising(vectors[draws], size, draws, rate, num_levels)
            configurations += [
                Configuration(draws, name, shape) for name in verifiers for shape in shapes
            ]
    return list(dict.fromkeys(configurations))


def promising(
    vector: Sequence[float], size: int, draws: str, rate: Rate, num_levels: int
) -> list[Topology]:
    """The trees of Sequoia's search that promise most tokens a second,
    given the acceptance of siblings.

    One tree is for the vector itself and one for the most even vector of its sum, see `ordered`. If
    siblings are independent, trees of the same widths with evenly spread children are tried, too.
    """
    if not (shapes := ordered(vector, size, range(2, num_levels + 1))):
        return []  # so few levels do not hold so many nodes
    if DRAWN_AS.get(draws, draws) == "iid":
        shapes += [from_widths(widths_of(shape)) for shape in shapes]

    def promised(power: float, shape: Topology) -> float:
        value = Value(expected_tokens(shape, flattened(vector, power)), 0.0)
        return rate(Configuration(draws, METHODS[draws][0], shape), value)

    best = (max(shapes, key=partial(promised, power)) for power in (FLATTER[0], FLATTER[-1]))
    return list(dict.fromkeys(best))


def kind_of(one: Configuration) -> str:
    """Kind of a configuration: its draws, or "chain" for a chain with a verifier of chains."""
    is_chain = one.topology.num_levels == one.topology.num_nodes
    return "chain" if is_chain and one.draws == "iid" and one.verifier in ON_CHAINS else one.draws


def ranked(found: ValueByConfiguration, rate: Rate) -> list[Configuration]:
    """All trees that were compared, the fastest first."""
    return sorted(
        (tree for tree in found if tree != ONE_TOKEN), key=lambda tree: -rate(tree, found[tree])
    )


def leading(found: ValueByConfiguration, rate: Rate) -> list[Configuration]:
    """Configurations to compare again: the fastest of every kind and size,
    and LEADING of every method.
    """
    trees = ranked(found, rate)
    # the first stays
    of_size = {(kind_of(tree), tree.topology.num_nodes): tree for tree in reversed(trees)}
    of_method: dict[tuple[str, str], list[Configuration]] = {}
    for tree in trees:
        of_method.setdefault((tree.draws, tree.verifier), []).append(tree)
    leaders = (tree for group in of_method.values() for tree in group[:LEADING])
    return list(dict.fromkeys([*of_size.values(), *leaders]))


def choose(decided: ValueByConfiguration, rate: Rate) -> Chosen:
    """The fastest configuration, and the fastest of every kind and size."""
    best: dict[str, dict[int, Configuration]] = {}
    for tree in ranked(decided, rate):
        best.setdefault(kind_of(tree), {}).setdefault(tree.topology.num_nodes, tree)
    by_size = {kind: [of_kind[size] for size in sorted(of_kind)] for kind, of_kind in best.items()}
    return Chosen(max(decided, key=lambda tree: rate(tree, decided[tree])), by_size)
