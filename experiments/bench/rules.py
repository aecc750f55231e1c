"""Costs of verification: `python -m experiments.bench.rules [--device cpu|cuda]`.

Every rule's law at one node and at 40, every verifier on whole trees, as ratios to `standard` within one run,
and the memory that a law takes. All take turns in rounds, and medians count. The laws are Zipf-like, the
draft's being the target's with noise on the logits. On a CUDA device a law is also captured in a graph.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pandas as pd
import torch
from torch import Generator, Tensor
from tqdm import tqdm

from analysis.table import Table, plain
from experiments.bench.frame import Contestant, page_of, parse, peak_bytes, stem_of, take_turns, write_page
from experiments.provenance import device_name
from resispec.audit.battery import supported_draws
from resispec.core import Tree
from resispec.distributions import probabilities
from resispec.errors import InvalidInput
from resispec.trees import Topology, complete, parallel_chains
from resispec.verifiers import Draws, SiblingRule, TopDown, Verifier, available, get_verifier

NUM_SIBLINGS = 3
TIMED_NODES, MEASURED_NODES = (1, 40), (1, 10, 40)
OPTIONS: dict[str, list[dict[str, int]]] = {"optimal": [{"bins": bins} for bins in (1024, 0, 512, 2048)]}
BASELINE = ("standard", "iid")
LAW, WALK = "law", "walk on {}"


@dataclass(frozen=True)
class Extent:
    """Extent of the bench: tokens V, shapes by name, drafted trees of each, walks of each, and rounds."""

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
    draft = target + torch.randn(num_nodes, vocab, generator=generator)
    return probabilities(target, 1.0), probabilities(draft, 1.0)


def verifiers() -> dict[str, Verifier]:
    """Every registered verifier by name, with each choice of options that is timed."""
    chosen = [(name, options) for name in available() for options in OPTIONS.get(name, [{}])]
    titles = [", ".join([name, *(f"{key} {value}" for key, value in of.items())]) for name, of in chosen]
    return {title: get_verifier(name, **of) for title, (name, of) in zip(titles, chosen, strict=True)}


def rules() -> list[tuple[str, SiblingRule, Draws]]:
    """The sibling rules among the verifiers, with every kind of draws that each is defined for."""
    named = {name: verifier.rule for name, verifier in verifiers().items() if isinstance(verifier, TopDown)}
    return [(name, rule, draws) for name, rule in named.items() for draws in supported_draws(rule)]


def law_call(
    rule: SiblingRule, draws: Draws, shape: tuple[int, int], device: torch.device
) -> Callable[[], object]:
    """The law at N nodes of V tokens, `shape`; one node has no leading dimension, as in decoding."""
    generator = Generator().manual_seed(shape[0])
    target, draft = synthetic_laws(*shape, generator)
    siblings = draws.draw(draft, NUM_SIBLINGS, generator)
    inputs = tuple((value if shape[0] > 1 else value[0]).to(device) for value in (target, draft, siblings))
    return lambda: rule.law(*inputs, draws)


def captured(call: Callable[[], object]) -> Callable[[], None]:
    """A call as a CUDA graph to replay; capturing asks for a first call on a stream of its own."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def _contestant(name: str, draws: Draws, *calls: Callable[[], object]) -> Contestant:
    return Contestant((name, str(draws)), [lambda _, call=call: call() for call in calls])  # type: ignore[misc]


def time_laws(num_nodes: int, extent: Extent, device: torch.device) -> list[Contestant]:
    """Every rule's law."""
    contestants = []
    for name, rule, draws in rules():
        call = law_call(rule, draws, (num_nodes, extent.vocab), device)
        contestants.append(_contestant(name, draws, call))
        if device.type == "cuda":
            contestants.append(_contestant(f"{name}, CUDA graph", draws, captured(call)))
    take_turns(f"laws, {num_nodes} at once", contestants, extent.law_rounds, device)
    return contestants


def draft_tree(topology: Topology, draws: Draws, draft: Tensor) -> Tree:
    """A tree drafted from the laws (N, V) of its nodes."""
    generator = Generator(draft.device).manual_seed(0)
    tokens = torch.zeros_like(draft[:, 0], dtype=torch.int64)
    for parents, children in topology.families:
        tokens[children] = draws.draw(draft[parents], children.shape[1], generator)
    return Tree(topology, tokens, draws)


def time_walks(shape: str, extent: Extent, device: torch.device) -> list[Contestant]:
    """Every verifier on trees of one shape, with all draws that it takes.

    A walk has a seed of its own, the same for all verifiers and in every round.
    """
    topology, contestants = extent.shapes[shape], []
    seeds = map(Generator().manual_seed, range(extent.trees))
    both = [synthetic_laws(topology.num_nodes, extent.vocab, generator) for generator in seeds]
    laws = [(target.to(device), draft.to(device)) for target, draft in both]
    for draws in Draws:
        trees = [(draft_tree(topology, draws, draft), target, draft) for target, draft in laws] * extent.walks
        for name, verifier in verifiers().items():
            calls = [
                lambda verifier=verifier, tree=tree, seed=seed: verifier.verify(  # type: ignore[misc]
                    *tree, Generator(device).manual_seed(seed)
                )
                for seed, tree in enumerate(trees)
            ]
            try:
                calls[0]()
            except InvalidInput:  # not with these draws, or not on trees
                continue
            contestants.append(_contestant(name, draws, *calls))
    take_turns(f"walks on {shape}", contestants, extent.walk_rounds, device)
    return contestants


@torch.inference_mode()
def measure(extent: Extent, device: torch.device) -> pd.DataFrame:
    """One tidy row per figure: what was measured, verifier, draws, N, quantity, value."""
    timed = [(LAW, nodes, time_laws(nodes, extent, device)) for nodes in TIMED_NODES]
    for shape, topology in extent.shapes.items():
        timed.append((WALK.format(shape), topology.num_nodes, time_walks(shape, extent, device)))
    rows: list[tuple[str, str, str, int, str, float]] = []
    for measured, nodes, contestants in timed:
        [baseline] = [one.milliseconds for one in contestants if one.labels == BASELINE]
        for one in contestants:
            rows.append((measured, *one.labels, nodes, "ms", one.milliseconds))
            rows.append((measured, *one.labels, nodes, "ratio", one.milliseconds / baseline))
    for name, rule, draws in tqdm(rules(), desc="memory", unit="rule"):
        for nodes in MEASURED_NODES:
            peak = peak_bytes(law_call(rule, draws, (nodes, extent.vocab), device), device)
            rows.append((LAW, name, str(draws), nodes, "peak_bytes", peak))
    return pd.DataFrame(rows, columns=["measured", "verifier", "draws", "num_nodes", "quantity", "value"])


def table(frame: pd.DataFrame, measured: str, vocab: int) -> Table:
    """A line for every verifier and draws: times and ratios by N, and bytes where they were measured."""
    rows = frame[frame.measured == measured]
    wide = rows.pivot_table("value", ["verifier", "draws"], ["quantity", "num_nodes"], sort=False)
    wide = wide.loc[list(dict.fromkeys(zip(rows.verifier, rows.draws, strict=True)))]
    titles = {"ms": "ms", "ratio": "ratio", "peak_bytes": "bytes a node and token"}
    order = sorted(wide, key=lambda column: (column[0] == "peak_bytes", column[1]))
    shown = pd.DataFrame(
        {
            f"N = {nodes}, {titles[what]}": wide[what, nodes] / (nodes * vocab if what == "peak_bytes" else 1)
            for what, nodes in order
        }
    )
    caption = f"What a {measured} costs, as ratios to `standard` within one run."
    return plain("bench_rules", shown.reset_index(), caption)


def page(frame: pd.DataFrame, extent: Extent, device: torch.device) -> str:
    """The figures for people."""
    source = (
        f"`python -m experiments.bench.rules --device {device.type}` on {device_name(device)}, "
        f"{torch.get_num_threads()} thread, torch {torch.__version__}, load average "
        f"{os.getloadavg()[0]:.1f} at the end. V = {extent.vocab:,}, float32. "
        "Ratios are to `standard` with i.i.d. draws and as many nodes N."
    )
    laws = (
        f"Laws: {NUM_SIBLINGS} siblings a node, the median of {extent.law_rounds} rounds in which all took "
        "turns. Memory: the most that a call holds at once beyond its input; a single law in float32 is 4 "
        "bytes a node and token."
    )
    walks = (
        f"Walks: the mean over {extent.walks} walks of each of {extent.trees} trees, a walk's time being its "
        f"median over {extent.walk_rounds} rounds. A walk is longer where more is accepted. d5b3 has "
        f"{NUM_SIBLINGS} children a node; 10 paths of 12 that branch at the root are what was searched for "
        "with `traversal_optimal` on the embedded pair at T = 1."
    )
    tables = [table(frame, measured, extent.vocab) for measured in frame.measured.unique()]
    return page_of(tables, source, laws, walks)


def main() -> None:
    """Measure, print, and write results/embedded/bench_rules.{md,csv}.

    On CUDA the files are results/timing/bench_rules_DEVICE.{md,csv}.
    """
    options, extent = parse(__doc__), Extent()
    torch.set_num_threads(1)  # as decoding on a CPU: see conf/profile/embedded.yaml
    frame = measure(extent, options.device)
    text = page(frame, extent, options.device)
    write_page(stem_of("bench_rules", options.results, options.device), text, frame)


if __name__ == "__main__":
    main()
