"""Costs of verification: `python -m experiments.bench.rules [--device cpu|cuda]`.

The bench times every rule's law at one node and at 40, and every verifier on whole trees, as ratios
to `standard` within one run. All take turns in rounds, and medians count. The laws are Zipf-like;
the draft's law is the target's with noise on the logits.
"""

import os
from argparse import Namespace
from collections.abc import Callable
from contextlib import suppress

import pandas as pd
import torch
from torch import Generator, Tensor

from analysis.table import Table, plain
from experiments.bench.frame import Measured, origin, run_bench, take_turns
from resispec.audit.battery import supported_draws
from resispec.core import Tree
from resispec.errors import InvalidInput
from resispec.trees import Topology, complete, parallel_chains
from resispec.verifiers import (
    Draws,
    DrawsKind,
    SiblingRule,
    TopDown,
    Verifier,
    available,
    get_verifier,
)

VOCAB = 32_000
NUM_SIBLINGS = 3
NODES = (1, 40)
SHAPES = {"d5b3": complete(5, 3), "10 paths of 12": parallel_chains(10, 12)}
TREES, WALKS = 6, 4
"""Drafted trees of each shape, and walks of each tree."""
LAW_ROUNDS, WALK_ROUNDS = 30, 7
BINS = (1024, 0, 512, 2048)
BASELINE = ("standard", "iid")
COLUMNS = ("measured", "verifier", "draws", "num_nodes", "quantity", "value")
TimesByRule = dict[tuple[str, str], float]
"""Milliseconds by verifier and draws."""


def synthetic_laws(num_nodes: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """The target's and the draft's laws (N, V), float32; the nodes share a ranking of tokens."""
    ranking = torch.randperm(VOCAB, generator=generator) + 1
    target = -1.2 * ranking.float().log() + 1.5 * torch.randn(num_nodes, VOCAB, generator=generator)
    draft = target + torch.randn(num_nodes, VOCAB, generator=generator)
    return target.softmax(-1), draft.softmax(-1)


def verifiers() -> dict[str, Verifier]:
    """Every registered verifier by name, `optimal` with each number of bins that is timed."""
    by_name = {name: get_verifier(name) for name in available() if name != "optimal"}
    return by_name | {f"optimal, bins {bins}": get_verifier("optimal", bins=bins) for bins in BINS}


def rules() -> list[tuple[str, SiblingRule, DrawsKind]]:
    """The sibling rules among the verifiers, with every kind of draws that each is defined for."""
    named = {name: one.rule for name, one in verifiers().items() if isinstance(one, TopDown)}
    return [(name, rule, draws) for name, rule in named.items() for draws in supported_draws(rule)]


def law_call(
    rule: SiblingRule, draws: DrawsKind, num_nodes: int, device: torch.device
) -> Callable[[], object]:
    """A call that computes the law at N nodes; one has no leading dimension, as in decoding."""
    generator = Generator().manual_seed(num_nodes)
    target, draft = synthetic_laws(num_nodes, generator)
    siblings = draws.draw(draft, NUM_SIBLINGS, generator)
    if num_nodes == 1:
        target, draft, siblings = target[0], draft[0], siblings[0]
    inputs = target.to(device), draft.to(device), siblings.to(device)
    return lambda: rule.law(*inputs, draws)


def time_laws(num_nodes: int, device: torch.device) -> TimesByRule:
    """Times of every rule's law."""
    calls = {}
    for name, rule, draws in rules():
        call = law_call(rule, draws, num_nodes, device)
        calls[name, str(draws)] = [lambda _, call=call: call()]
    return take_turns(f"laws, {num_nodes} at once", calls, LAW_ROUNDS, device)


def draft_tree(topology: Topology, draws: DrawsKind, draft: Tensor) -> Tree:
    """A tree drafted from the laws (N, V) of its nodes."""
    generator = Generator(draft.device).manual_seed(0)
    tokens = torch.zeros_like(draft[:, 0], dtype=torch.int64)
    for parents, children in topology.families:
        tokens[children] = draws.draw(draft[parents], children.shape[1], generator)
    return Tree(topology, tokens, draws)


def time_walks(topology: Topology, title: str, device: torch.device) -> TimesByRule:
    """Times of verifiers on trees of one shape with all their draws; a walk keeps its seed."""
    laws, calls = [], {}
    for seed in range(TREES):
        target, draft = synthetic_laws(topology.num_nodes, Generator().manual_seed(seed))
        laws.append((target.to(device), draft.to(device)))
    for draws in Draws:
        trees = [(draft_tree(topology, draws, draft), target, draft) for target, draft in laws]
        for name, verifier in verifiers().items():
            walks = [
                lambda _, verifier=verifier, tree=tree, seed=seed: verifier.verify(
                    *tree, Generator(device).manual_seed(seed)
                )
                for seed, tree in enumerate(trees * WALKS)
            ]
            with suppress(InvalidInput):  # not with these draws, or not on trees
                walks[0](0)
                calls[name, str(draws)] = walks
    return take_turns(title, calls, WALK_ROUNDS, device)


@torch.inference_mode()
def costs(device: torch.device) -> pd.DataFrame:
    """One tidy row per figure, with COLUMNS."""
    series = [("law", nodes, time_laws(nodes, device)) for nodes in NODES]
    for shape, topology in SHAPES.items():
        title = f"walk on {shape}"
        series.append((title, topology.num_nodes, time_walks(topology, title, device)))
    rows = []
    for measured, nodes, times in series:
        for names, milliseconds in times.items():
            rows.append((measured, *names, nodes, "ms", milliseconds))
            rows.append((measured, *names, nodes, "ratio", milliseconds / times[BASELINE]))
    return pd.DataFrame(rows, columns=COLUMNS)


def table(frame: pd.DataFrame, measured: str) -> Table:
    """A line for every verifier and draws: times and ratios by N."""
    rows = frame[frame.measured == measured]
    columns = ("N = " + rows.num_nodes.astype(str) + ", " + rows.quantity).rename("column")
    shown = rows.assign(column=columns).pivot_table(
        "value", ["verifier", "draws"], "column", sort=False
    )
    caption = f"What a {measured} costs, as ratios to `standard` within one run."
    return plain("bench_rules", shown.reset_index(), caption)


def measure(options: Namespace) -> Measured:
    """Laws and walks, a table each."""
    frame = costs(options.device)
    source = (
        f"{origin('rules', options.device)}, {torch.get_num_threads()} thread, load average "
        f"{os.getloadavg()[0]:.1f} at the end. "
        f"V = {VOCAB:,}, float32. Ratios are to `standard` with i.i.d. draws and as many nodes N."
    )
    laws = (
        f"Laws: {NUM_SIBLINGS} siblings a node, the median of {LAW_ROUNDS} rounds in which all "
        "took turns."
    )
    walks = (
        f"Walks: the mean over {WALKS} walks of each of {TREES} trees, a walk's time being its "
        f"median over {WALK_ROUNDS} rounds. A walk is longer where more is accepted. d5b3 has "
        f"{NUM_SIBLINGS} children a node; 10 paths of 12 branch at the root alone, as the trees "
        "that are searched for with `traversal_optimal` on the embedded pair at T = 1 nearly do."
    )
    return [table(frame, name) for name in frame.measured.unique()], [source, laws, walks], frame


if __name__ == "__main__":
    run_bench("bench_rules", __doc__, measure)
