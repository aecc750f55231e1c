"""Costs of verification: `python -m experiments.bench.rules [--device cpu|cuda]`.

The bench times every rule's law at one node and at 40, and every verifier on whole trees, as ratios
to `standard` within one run, and measures the memory of a law. All take turns in rounds, and
medians count.
The laws are Zipf-like; the draft's law is the target's with noise on the logits. On a CUDA device a
law is also captured in a graph.
"""

import os
from argparse import Namespace
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pandas as pd
import torch
from torch import Generator, Tensor

from analysis.table import Table, plain
from experiments.bench.frame import Measured, peak_bytes, run_bench, take_turns
from experiments.provenance import device_name
from resispec.audit.battery import supported_draws
from resispec.core import Tree
from resispec.cuda_graphs import CudaGraphs
from resispec.errors import InvalidInput
from resispec.progress import progress_bar
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
from resispec.verifiers.base import reads_numbers

VOCAB = 32_000
NUM_SIBLINGS = 3
TIMED_NODES, MEASURED_NODES = (1, 40), (1, 10, 40)
SHAPES = {"d5b3": complete(5, 3), "10 paths of 12": parallel_chains(10, 12)}
TREES, WALKS = 6, 4
"""Drafted trees of each shape, and walks of each tree."""
LAW_ROUNDS, WALK_ROUNDS = 30, 7
BINS = (1024, 0, 512, 2048)
BASELINE = ("standard", "iid")
TimesByRule = dict[tuple[str, str], float]
"""Milliseconds by verifier and draws."""


def synthetic_laws(num_nodes: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """The target's and the draft's laws (N, V), float32;
    the nodes share a ranking of the tokens.
    """
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
    by_name = {
        name: verifier.rule
        for name, verifier in verifiers().items()
        if isinstance(verifier, TopDown)
    }
    return [
        (name, rule, draws) for name, rule in by_name.items() for draws in supported_draws(rule)
    ]


def law_call(
    rule: SiblingRule, draws: DrawsKind, num_nodes: int, device: torch.device
) -> Callable[[], object]:
    """A call that computes the law at N nodes; one node has no leading dimension,
    as in decoding.
    """
    generator = Generator().manual_seed(num_nodes)
    target, draft = synthetic_laws(num_nodes, generator)
    siblings = draws.draw(draft, NUM_SIBLINGS, generator)
    inputs = tuple(
        (value if num_nodes > 1 else value[0]).to(device) for value in (target, draft, siblings)
    )
    return lambda: rule.law(*inputs, draws)


def time_laws(num_nodes: int, device: torch.device) -> TimesByRule:
    """Times of every rule's law."""
    calls = {}
    for name, rule, draws in rules():
        calls[name, str(draws)] = call = law_call(rule, draws, num_nodes, device)
        if device.type == "cuda" and not reads_numbers(rule):
            unit = CudaGraphs(lambda *_, call=call: (call(),))
            calls[f"{name}, CUDA graph", str(draws)] = partial(
                unit, None, torch.empty(0, device=device)
            )
    turns = {key: [lambda _, call=call: call()] for key, call in calls.items()}
    return take_turns(f"laws, {num_nodes} at once", turns, LAW_ROUNDS, device)


def draft_tree(topology: Topology, draws: DrawsKind, draft: Tensor) -> Tree:
    """A tree drafted from the laws (N, V) of its nodes."""
    generator = Generator(draft.device).manual_seed(0)
    tokens = torch.zeros_like(draft[:, 0], dtype=torch.int64)
    for parents, children in topology.families:
        tokens[children] = draws.draw(draft[parents], children.shape[1], generator)
    return Tree(topology, tokens, draws)


def time_walks(shape: str, device: torch.device) -> TimesByRule:
    """Times of verifiers on trees of one shape with all their draws;
    a walk has one seed in all rounds.
    """
    topology, calls = SHAPES[shape], {}
    cpu_laws = [
        synthetic_laws(topology.num_nodes, Generator().manual_seed(seed)) for seed in range(TREES)
    ]
    laws = [(target.to(device), draft.to(device)) for target, draft in cpu_laws]
    for draws in Draws:
        trees = [
            (draft_tree(topology, draws, draft), target, draft) for target, draft in laws
        ] * WALKS
        for name, verifier in verifiers().items():
            walks = [
                lambda _, verifier=verifier, tree=tree, seed=seed: verifier.verify(
                    *tree, Generator(device).manual_seed(seed)
                )
                for seed, tree in enumerate(trees)
            ]
            with suppress(InvalidInput):  # not with these draws, or not on trees
                walks[0](0)
                calls[name, str(draws)] = walks
    return take_turns(f"walks on {shape}", calls, WALK_ROUNDS, device)


@torch.inference_mode()
def costs(device: torch.device) -> pd.DataFrame:
    """One tidy row per figure: what was measured, verifier, draws, N, quantity, value."""
    series = [("law", nodes, time_laws(nodes, device)) for nodes in TIMED_NODES]
    for shape, topology in SHAPES.items():
        series.append((f"walk on {shape}", topology.num_nodes, time_walks(shape, device)))
    rows = [
        (measured, *names, nodes, quantity, value / unit)
        for measured, nodes, times in series
        for names, value in times.items()
        for quantity, unit in (("ms", 1.0), ("ratio", times[BASELINE]))
    ]
    for name, rule, draws in progress_bar(rules(), desc="memory", unit="rule"):
        for nodes in MEASURED_NODES:
            peak = peak_bytes(law_call(rule, draws, nodes, device), device)
            rows.append(("law", name, str(draws), nodes, "peak_bytes", peak))
    return pd.DataFrame(
        rows, columns=["measured", "verifier", "draws", "num_nodes", "quantity", "value"]
    )


def table(frame: pd.DataFrame, measured: str) -> Table:
    """A line for every verifier and draws: times and ratios by N,
    and bytes where they were measured.
    """
    rows = frame[frame.measured == measured]
    wide = rows.pivot_table("value", ["verifier", "draws"], ["quantity", "num_nodes"], sort=False)
    wide = wide.loc[list(dict.fromkeys(zip(rows.verifier, rows.draws, strict=True)))]
    titles = {"ms": "ms", "ratio": "ratio", "peak_bytes": "bytes a node and token"}
    order = sorted(wide, key=lambda column: (column[0] == "peak_bytes", column[1]))
    shown = pd.DataFrame(
        {
            f"N = {nodes}, {titles[what]}": wide[what, nodes]
            / (nodes * VOCAB if what == "peak_bytes" else 1)
            for what, nodes in order
        }
    )
    caption = f"What a {measured} costs, as ratios to `standard` within one run."
    return plain("bench_rules", shown.reset_index(), caption)


def measure(options: Namespace) -> Measured:
    """Laws and walks, a table each."""
    device, frame = options.device, costs(options.device)
    source = (
        f"`python -m experiments.bench.rules --device {device.type}` on {device_name(device)}, "
        f"{torch.get_num_threads()} thread, torch {torch.__version__}, load average "
        f"{os.getloadavg()[0]:.1f} at the end. V = {VOCAB:,}, float32. "
        "Ratios are to `standard` with i.i.d. draws and as many nodes N."
    )
    laws = (
        f"Laws: {NUM_SIBLINGS} siblings a node, the median of {LAW_ROUNDS} rounds in which all "
        "took turns. Memory: the most that a call holds at once beyond its input; a single law in "
        "float32 is 4 bytes a node and token."
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
