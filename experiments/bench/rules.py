"""What verification costs: `python -m experiments.bench.rules [--device cpu|cuda]`.

Every rule's law at one node and at 40, every verifier on whole trees, as ratios to `standard` within one run,
and the memory that a law takes. All take turns in rounds, so that a busy machine slows all alike, and
medians count. The laws are Zipf-like, the draft's being the target's with noise on the logits. On a CUDA
device every law is also captured in a graph.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch
from torch import Generator, Tensor
from tqdm import tqdm

from analysis.report import Table, markdown, plain
from experiments.bench.contest import Timed, captured, contest
from experiments.bench.options import Options, stem_of, write_page
from experiments.bench.peak_memory import peak_bytes
from experiments.provenance import device_name
from resispec.audit.battery import supported_draws
from resispec.core import Tree
from resispec.distributions import probabilities
from resispec.errors import InvalidInput
from resispec.trees import Topology, complete, parallel_chains
from resispec.verifiers import Draws, SiblingRule, TopDown, Verifier, available, get_verifier

NUM_SIBLINGS = 3
TIMED_NODES, MEASURED_NODES = (1, 40), (1, 10, 40)
OPTIONS: dict[str, list[dict[str, Any]]] = {"optimal": [{"bins": bins} for bins in (1024, 0, 512, 2048)]}
BASELINE = ("standard", "iid")
LAW, WALK = "law", "walk on {}"


@dataclass(frozen=True)
class Size:
    """How large a bench is: tokens V, shapes by name, drafted trees of each, walks of each, and rounds."""

    vocab: int = 32_000
    shapes: Mapping[str, Topology] = field(
        default_factory=lambda: {"d5b3": complete(5, 3), "10 paths of 12": parallel_chains(10, 12)}
    )
    trees: int = 6
    walks: int = 4
    law_rounds: int = 30
    walk_rounds: int = 7


def synthetic_laws(num_nodes: int, vocab: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """The target's and the draft's laws (N, V), float32; the nodes share a ranking of the tokens."""
    ranking = torch.randperm(vocab, generator=generator) + 1
    target = -1.2 * ranking.float().log() + 1.5 * torch.randn(num_nodes, vocab, generator=generator)
    return probabilities(target, 1.0), probabilities(
        target + torch.randn(num_nodes, vocab, generator=generator), 1.0
    )


def verifiers() -> list[tuple[str, Verifier]]:
    """Every registered verifier by name, with each choice of options that is timed."""
    return [
        (
            ", ".join([name, *(f"{key} {value}" for key, value in options.items())]),
            get_verifier(name, **options),
        )
        for name in available()
        for options in OPTIONS.get(name, [{}])
    ]


def rules() -> list[tuple[str, SiblingRule, Draws]]:
    """The sibling rules among the verifiers, with every kind of draws that each is defined for."""
    named = [(name, verifier.rule) for name, verifier in verifiers() if isinstance(verifier, TopDown)]
    return [(name, rule, draws) for name, rule in named for draws in supported_draws(rule)]


def law_call(
    rule: SiblingRule, draws: Draws, shape: tuple[int, int], device: torch.device
) -> Callable[[], object]:
    """The law at N nodes of V tokens, `shape`; one node has no leading dimension, as in decoding."""
    generator = Generator().manual_seed(shape[0])
    target, draft = synthetic_laws(*shape, generator)
    siblings = draws.draw(draft, NUM_SIBLINGS, generator)
    given = tuple((value if shape[0] > 1 else value[0]).to(device) for value in (target, draft, siblings))
    return lambda: rule.law(*given, draws)


def _timed(name: str, draws: Draws, calls: Sequence[Callable[[], object]]) -> Timed:
    """A contestant that does the same in every round."""
    return Timed((name, str(draws)), [lambda _, call=call: call() for call in calls])


def time_laws(num_nodes: int, size: Size, device: torch.device) -> list[Timed]:
    """Every rule's law."""
    contestants = []
    for name, rule, draws in rules():
        call = law_call(rule, draws, (num_nodes, size.vocab), device)
        contestants.append(_timed(name, draws, [call]))
        if device.type == "cuda":
            contestants.append(_timed(f"{name}, CUDA graph", draws, [captured(call)]))
    contest(f"laws, {num_nodes} at once", contestants, size.law_rounds, device)
    return contestants


def draft_tree(
    topology: Topology, draws: Draws, target: Tensor, draft: Tensor
) -> tuple[Tree, Tensor, Tensor]:
    """A tree drafted from the laws (N, V) of its nodes, and these laws."""
    generator, tokens = (
        Generator(draft.device).manual_seed(0),
        torch.zeros_like(draft[:, 0], dtype=torch.int64),
    )
    for parents, children in topology.families:
        tokens[children] = draws.draw(draft[parents], children.shape[1], generator)
    return Tree(topology, tokens, draws), target, draft


def time_walks(shape: str, size: Size, device: torch.device) -> list[Timed]:
    """Every verifier on trees of one shape, with all draws that it takes.

    A walk has a seed of its own, the same for all verifiers and in every round.
    """
    topology, contestants = size.shapes[shape], []
    laws = [
        synthetic_laws(topology.num_nodes, size.vocab, Generator().manual_seed(seed))
        for seed in range(size.trees)
    ]
    laws = [(target.to(device), draft.to(device)) for target, draft in laws]
    for draws in Draws:
        trees = [draft_tree(topology, draws, *pair) for pair in laws] * size.walks
        for name, verifier in verifiers():
            calls = [_walk(verifier, tree, seed, device) for seed, tree in enumerate(trees)]
            try:
                calls[0]()
            except InvalidInput:  # not with these draws, or not on trees
                continue
            contestants.append(_timed(name, draws, calls))
    contest(f"walks on {shape}", contestants, size.walk_rounds, device)
    return contestants


def _walk(
    verifier: Verifier, tree: tuple[Tree, Tensor, Tensor], seed: int, device: torch.device
) -> Callable[[], object]:
    return lambda: verifier.verify(*tree, Generator(device).manual_seed(seed))


@torch.inference_mode()
def measure(size: Size, device: torch.device) -> pd.DataFrame:
    """One tidy row per figure: what was measured, verifier, draws, N, quantity, value."""
    contests = [(LAW, nodes, time_laws(nodes, size, device)) for nodes in TIMED_NODES]
    for shape, topology in size.shapes.items():
        contests.append((WALK.format(shape), topology.num_nodes, time_walks(shape, size, device)))
    rows: list[tuple[str, str, str, int, str, float]] = []
    for measured, nodes, contestants in contests:
        [baseline] = [timed.milliseconds for timed in contestants if timed.labels == BASELINE]
        for timed in contestants:
            figures = {"ms": timed.milliseconds, "ratio": timed.milliseconds / baseline}
            rows += [(measured, *timed.labels, nodes, *figure) for figure in figures.items()]
    for name, rule, draws in tqdm(rules(), desc="memory", unit="rule"):
        for nodes in MEASURED_NODES:
            peak = peak_bytes(law_call(rule, draws, (nodes, size.vocab), device), device)
            rows.append((LAW, name, str(draws), nodes, "peak_bytes", peak))
    return pd.DataFrame(rows, columns=["measured", "verifier", "draws", "num_nodes", "quantity", "value"])


def table(frame: pd.DataFrame, measured: str, columns: Sequence[tuple[str, str, int, float]]) -> Table:
    """A line for every verifier and draws.

    columns: of each its title, its quantity, N, and what it is divided by.
    """
    figures = {tuple(row[:5]): row[5] for row in frame.itertuples(index=False)}
    found = []
    for verifier, draws in dict.fromkeys(key[1:3] for key in figures if key[0] == measured):
        values = {
            title: figures.get((measured, verifier, draws, nodes, what), math.nan) / unit
            for title, what, nodes, unit in columns
        }
        found.append({"verifier": verifier, "draws": draws, **values})
    caption = f"What a {measured} costs, as ratios to `standard` within one run."
    return plain("bench_rules", pd.DataFrame(found), caption)


def page_of(frame: pd.DataFrame, size: Size, device: torch.device) -> str:
    """The figures for people."""

    def times(nodes: int) -> list[tuple[str, str, int, float]]:
        return [(f"N = {nodes}, {what}", what, nodes, 1.0) for what in ("ms", "ratio")]

    memory = [
        (f"N = {n}, bytes a node and token", "peak_bytes", n, float(n * size.vocab)) for n in MEASURED_NODES
    ]
    source = (
        f"`python -m experiments.bench.rules --device {device.type}` on {device_name(device)}, "
        f"{torch.get_num_threads()} thread, torch {torch.__version__}, load average "
        f"{os.getloadavg()[0]:.1f} at the end. V = {size.vocab:,}, float32. "
        "Ratios are to `standard` with i.i.d. draws and as many nodes N."
    )
    laws = (
        f"Laws: {NUM_SIBLINGS} siblings a node, the median of {size.law_rounds} rounds in which all took "
        "turns. Memory: the most that a call holds at once beyond its input; a single law in float32 is 4 "
        "bytes a node and token."
    )
    walks = (
        f"Walks: the mean over {size.walks} walks of each of {size.trees} trees, a walk's time being its "
        f"median over {size.walk_rounds} rounds. A walk is longer where more is accepted. d5b3 has "
        f"{NUM_SIBLINGS} children a node; 10 paths of 12 that branch at the root are what was searched for "
        "with `traversal_optimal` on the embedded pair at T = 1."
    )
    tables = [markdown(table(frame, LAW, [column for n in TIMED_NODES for column in times(n)] + memory))]
    for shape, topology in size.shapes.items():
        tables.append(markdown(table(frame, WALK.format(shape), times(topology.num_nodes))))
    return "\n".join([*tables, source, "", laws, "", walks, ""])


def main() -> None:
    """Measure, print, and write results/embedded/bench_rules.{md,csv}.

    On CUDA the files are results/timing/bench_rules_DEVICE.{md,csv}.
    """
    options = Options(__doc__, "cpu").parse_args()
    torch.set_num_threads(1)  # as decoding on a CPU: see conf/profile/embedded.yaml
    size, device = Size(), torch.device(options.device)
    frame = measure(size, device)
    page = page_of(frame, size, device)
    stem = stem_of("bench_rules", options.results, device)
    write_page(stem, page, frame)


if __name__ == "__main__":
    main()
