"""What exact verifiers leave: `python -m experiments.bench.joint`.

On small random worlds, with p and q after every sequence of a few tokens, the joint optimum is a linear
program (`resispec.audit.joint`). Every exact verifier is enumerated on the same worlds. A second table asks
how much of that optimum takes laws that no drafted tree shows. The figure, which `analysis.joint` draws again
from the rows, has the draws for which most verifiers are defined.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import product

import pandas as pd
import torch
from tqdm import tqdm

from analysis.figures import save_figure
from analysis.joint import OPTIMUM, draw
from analysis.report import Table, markdown, plain
from experiments.bench.options import Options, stem_of, write_page
from resispec.audit.joint import JointProgram, account, mixtures, random_world
from resispec.errors import InvalidInput
from resispec.trees import Topology, chain, complete, from_child_counts
from resispec.verifiers import Draws, available, get_verifier

DRAFTED, COMPARED = "joint optimum, drafted knowledge", "traversal_optimal"
EXACT = [name for name in available() if name != "resispec"]
ONE, ALL = (Draws.IID,), tuple(Draws)
SHAPES: dict[str, tuple[Topology, int, tuple[Draws, ...]]] = {
    "1-1-1": (chain(3), 3, ONE),
    "3": (complete(2, 3), 4, ALL),
    "2-1": (from_child_counts([[2], [1, 1]]), 3, ALL),
    "2-1, second only": (from_child_counts([[2], [0, 1]]), 3, ALL),
    "2-2": (complete(3, 2), 2, ONE),
    "3-1": (from_child_counts([[3], [1, 1, 1]]), 2, ONE),
    "2-1-1": (from_child_counts([[2], [1, 1], [1, 1]]), 2, ONE),
}
"""By their children a level: topologies, V, and the draws that they are measured with."""
LAWS = {
    "flat, near": (1.0, 0.5),
    "flat, far": (1.0, 1.0),
    "sharp, near": (3.0, 0.5),
    "sharp, far": (3.0, 1.0),
}
"""Sharpness of p and q, and their distance, see `random_world`."""
POSSIBLE = {("2-1", 2): 6, ("2-1", 3): 2, ("2-1, second only", 3): 3, ("3-1", 2): 3, ("2-1-1", 2): 2}
"""By shape and V: how many laws are possible after a sequence that was not drafted."""


@dataclass(frozen=True)
class Case:
    """Random worlds of one kind: all mixtures of `possible` ones."""

    shape: str
    vocab: int
    draws: Draws
    laws: str
    seed: int
    possible: int = 1

    def accepted(self) -> dict[str, float]:
        """What the optimum and exact verifiers accept, a mean over the worlds."""
        topology = SHAPES[self.shape][0]
        seeds = range(100 * self.seed, 100 * self.seed + self.possible)
        worlds = mixtures([random_world(topology, self.vocab, *LAWS[self.laws], seed) for seed in seeds])
        alone = [JointProgram(topology, self.draws, [world]).solve().accepted for world in worlds]
        found = {OPTIMUM: sum(alone) / len(worlds)}
        if self.possible > 1:
            found[DRAFTED] = JointProgram(topology, self.draws, worlds).solve().accepted
        for name in EXACT if self.possible == 1 else (COMPARED,):
            try:
                enumerated = [account(get_verifier(name), topology, world, self.draws) for world in worlds]
            except InvalidInput:  # not with these draws, or not on trees
                continue
            found[name] = sum(one.accepted for one in enumerated) / len(worlds)
        return found


def cases(worlds: int, families: int) -> list[Case]:
    """So many worlds of every kind, and so many families of worlds for what is not drafted."""
    alone = [
        Case(shape, vocab, draws, laws, seed)
        for shape, (_, vocab, kinds) in SHAPES.items()
        for draws, laws, seed in product(kinds, LAWS, range(worlds))
    ]
    return alone + [
        Case(shape, vocab, Draws.IID, laws, seed, possible)
        for (shape, vocab), possible in POSSIBLE.items()
        for laws, seed in product(LAWS, range(families))
    ]


def measure(found: list[Case]) -> pd.DataFrame:
    """One tidy row per case and verifier, the joint optimum being one of them."""
    rows = [
        {**asdict(case), "draws": str(case.draws), "verifier": name, "accepted": accepted}
        for case in tqdm(found, desc="joint optimum", unit="world")
        for name, accepted in case.accepted().items()
    ]
    return pd.DataFrame(rows)


def left_of(means: pd.DataFrame) -> pd.DataFrame:
    """By how much, in %, each column is less than the optimum; the solver's rounding is not shown."""
    return (100 * (1 - means.drop(columns=OPTIMUM).div(means[OPTIMUM], axis=0))).round(4) + 0.0  # no -0


def left_by_verifiers(frame: pd.DataFrame) -> Table:
    """A row per shape, draws and laws: what the optimum accepts, and how much less verifiers do, in %."""
    keys = ["shape", "vocab", "draws", "laws"]
    means = frame[frame.possible == 1].pivot_table("accepted", keys, "verifier", sort=False)
    left = left_of(means)
    shown = pd.concat((means[OPTIMUM], left[[name for name in EXACT if name in left]]), axis=1)
    caption = "Tokens that the best exact verifier accepts, and how many of them, in %, each verifier leaves."
    specs = dict.fromkeys(left, ".1f") | {OPTIMUM: ".3f"}
    return plain("joint", shown.reset_index().rename(columns={"vocab": "V"}), caption, specs=specs)


def left_by_knowledge(frame: pd.DataFrame) -> Table:
    """The same optimum, with what it takes to know laws that were not drafted."""
    keys = ["shape", "vocab", "possible", "laws"]
    means = frame[frame.possible > 1].pivot_table("accepted", keys, "verifier", sort=False)
    names = {DRAFTED: "price of not knowing, %", COMPARED: f"{COMPARED} leaves, %"}
    left = left_of(means)[list(names)].rename(columns=names)
    shown = pd.concat((means[OPTIMUM], left), axis=1)
    caption = "What of the joint optimum is lost where laws are known at drafted places only; i.i.d. draws."
    specs = dict.fromkeys(shown, ".3f")
    renamed = shown.reset_index().rename(columns={"vocab": "V", "possible": "possible laws"})
    return plain("joint_knowledge", renamed, caption, specs=specs)


def main() -> None:
    """Solve, enumerate, print, and write results/embedded/joint.{md,csv,png,pdf}."""
    options = Options(__doc__, None).parse_args()
    torch.set_num_threads(1)  # small tensors
    worlds, families = 3, 1
    frame = measure(cases(worlds, families))
    tables = "\n".join(markdown(table) for table in (left_by_verifiers(frame), left_by_knowledge(frame)))
    notes = (
        f"`python -m experiments.bench.joint`: means over {worlds} random worlds of every kind. Shapes are "
        "children a level. Laws are Dirichlet, flat with parameter 1 and sharp with 1/3; q is a law of its "
        "own where far, and half p's where near. Possible laws: after each sequence below the root, p and q "
        "are one of so many pairs, all combinations are worlds, and a verifier sees which pair it is at "
        "drafted places only. What the optimum is: docs/optimal-verification.md. The figure is of i.i.d. "
        "draws: of every shape the mean over all its worlds, and the range from the least to the most."
    )
    stem = stem_of("joint", options.results, torch.device("cpu"))
    save_figure(draw(frame), stem)
    picture = "![what verifiers leave of the joint optimum](joint.png)"
    write_page(stem, f"{tables}\n{picture}\n\n{notes}\n", frame)


if __name__ == "__main__":
    main()
