"""Expected tokens a step of candidate topologies, from laws of drafted trees; see experiments.search.best_shape."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from experiments.tasks.prefixes import identity, written_contexts
from experiments.tasks.drafted import Root, expected_emitted, filled_by_draft_model, part
from experiments.tasks import Context
from resispec.core import Draws
from resispec.errors import InvalidInput
from resispec.law_rows import ShapesRow
from resispec.record import write_atomically
from resispec.trees import Topology, union

COMPARED = (Draws.IID, Draws.WITHOUT_REPLACEMENT, Draws.POINT_MASS)
"""Draws of which the first siblings follow the law of fewer siblings; of greedy ones the last is special."""


def save_shapes(shapes: Sequence[Topology], path: Path) -> None:
    """Write candidates for `Shapes`, each as its parents; folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps([shape.parents for shape in shapes]) + "\n")


@dataclass(frozen=True)
class Shapes:
    """Expected tokens a step of every candidate with the cell's verifier and the draws of its decoder.

    All candidates are parts of one drafted tree a context, so their differences are paired, and no coin is thrown.
    contexts: of what the target writes after a prompt. path: the candidates, written by `save_shapes`.
    """

    contexts: int
    path: str

    @torch.inference_mode()
    def __call__(self, context: Context, index: int) -> ShapesRow:
        """See `Task`. The trees do not depend on the verifier, so all verifiers of a seed see the same ones.

        Raises InvalidInput for greedy draws.
        """
        draws, generator = filled_by_draft_model(context.decoder).draws, context.generator(index)
        if draws not in COMPARED:
            raise InvalidInput(f"shapes are compared for draws {', '.join(COMPARED)}; found {draws}")
        shapes = [
            Topology(tuple(parents)) for parents in json.loads(Path(self.path).read_text(encoding="utf-8"))
        ]
        largest = union(shapes)
        emitted = [0.0] * len(shapes)
        prefixes = written_contexts(context, index, generator, self.contexts)
        for prefix in prefixes:
            root = Root(context.pair, prefix, context.sampling.temperature, len(prefix) + largest.num_nodes)
            whole = root.draft(largest, generator, draws)
            laws = root.read(context.pair.target).laws(whole.tree)
            for place, shape in enumerate(shapes):
                emitted[place] += expected_emitted(context.decoder.verifier, *part(whole, laws, shape))
        return ShapesRow(**identity(context, index, len(prefixes)), emitted=emitted)

    def progress(self, rows: Sequence[dict[str, Any]]) -> dict[str, str]:
        """The most expected tokens of any candidate."""
        totals = [sum(values) for values in zip(*(row["emitted"] for row in rows), strict=True)]
        return {"best": f"{max(totals) / sum(row['num_contexts'] for row in rows):.2f}"}
