"""Enumeration of every exact verifier on at least 300 random worlds.

`python docs/studies/random_worlds.py` writes random_worlds.csv. Found: every verifier with all
draws that it is defined for emits the target's law on all of its worlds, the largest total
variation being 1e-15. ResiSpec and `hsd` as published, which stand beside them, are away from it by
up to .48 and .22.

A world is a tree with random laws p and q after every token, of the kinds of the audit's battery
(sparse, peaked, tied, denormal, nearly equal, ...), and the law of the tokens that a step emits is
summed over everything that could have been drafted, in float64. Paths and chains are among the
trees for the verifiers that are defined on nothing else.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from resispec.audit.as_sibling_rule import rule_of
from resispec.audit.battery import KINDS, is_defined, tree_cases, worst
from resispec.core import Draws, DrawsKind
from resispec.draws import Hub
from resispec.progress import progress_bar
from resispec.trees import chain, complete, from_child_counts, parallel_chains
from resispec.verifiers import SpecHub, Verifier, as_verifier, available, get_verifier
from resispec.verifiers.rehearsal import is_defined_on

FEWEST_WORLDS = 300
CSV = Path(__file__).with_suffix(".csv")
TREES = (
    (complete(2, 2), 4),
    (complete(2, 3), 3),
    (complete(3, 2), 2),
    (from_child_counts([[2], [1, 2], [0, 1, 0]]), 2),
    (chain(2), 4),
    (chain(4), 2),
    (parallel_chains(2, 2), 2),
)
"""Topologies, each with its vocabulary: at most 64 drafted trees a world."""


def measured(name: str, verifier: Verifier, draws: DrawsKind) -> dict[str, object]:
    """The largest total variation of a verifier's emitted law from the target's, over worlds."""
    trees = [
        (topology, vocab) for topology, vocab in TREES if is_defined_on(verifier, draws, topology)
    ]
    seeds = range(1, 1 + -(-FEWEST_WORLDS // (len(trees) * len(KINDS))))
    error = max(worst(tree_cases(verifier, draws, seed, trees)).error for seed in seeds)
    worlds = len(seeds) * len(trees) * len(KINDS)
    return {"verifier": name, "draws": str(draws), "num_worlds": worlds, "total_variation": error}


def cases() -> Iterator[tuple[str, Verifier, DrawsKind]]:
    """Every registered verifier with the draws it is defined for, and SpecHub's with its own."""
    for name in available():
        verifier = get_verifier(name)
        for draws in Draws:
            if any(is_defined(rule_of(verifier), draws, siblings) for siblings in (1, 2)):
                yield name, verifier, draws
    yield "spec_hub", as_verifier(SpecHub()), Hub()


if __name__ == "__main__":
    rows = pd.DataFrame([measured(*case) for case in progress_bar([*cases()], unit="verifier")])
    rows.to_csv(CSV, index=False, float_format="%.2g")
    sys.stdout.write(f"{rows.to_string(index=False)}\n")
