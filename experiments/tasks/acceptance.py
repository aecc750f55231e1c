"""How often a node's first, second, ... child is the accepted one: what tree search needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from experiments.tasks.base import CountedTask, Workload, identity, share
from experiments.tasks.prefix_laws import PrefixRow, written
from resispec.audit.as_sibling_rule import rule_of
from resispec.draws import Draws
from resispec.models import features_of

BLOCK = 32  # positions whose laws are in memory at once


@dataclass(frozen=True)
class AcceptanceRow(PrefixRow):
    """Probability by place in draw order that a child is the accepted one, summed over prefixes.

    Every position of the text that the target wrote ends a prefix; in the rest of them no child is accepted.
    """

    selected: list[float]


@dataclass(frozen=True)
class Acceptance(CountedTask):
    """Acceptance by place in draw order under a star of `num_siblings` children (Sequoia, section 3.1).

    Source: arXiv 2402.12374.

    The target writes a continuation of every prompt, and the cell's verifier meets fresh children at each of
    its positions. Its law gives the probability of accepting each of them, so no acceptance is drawn.
    """

    row: ClassVar[type[AcceptanceRow]] = AcceptanceRow
    num_siblings: int
    draws: Draws

    @torch.inference_mode()
    def __call__(self, workload: Workload, index: int) -> AcceptanceRow:
        """See `Task`."""
        generator, draws = workload.generator(index), Draws(self.draws)
        tokens = written(workload, index, generator)
        rule = rule_of(workload.decoder.verifier)
        selected = torch.zeros(self.num_siblings, dtype=torch.float64)
        for target_probs, draft_probs in _laws(workload, index, tokens):
            siblings = draws.draw(draft_probs, self.num_siblings, generator)
            law = rule.law(target_probs, draft_probs, siblings, draws)
            selected += law.select.double().sum(0).cpu()
        return AcceptanceRow(
            **identity(workload, index), num_prefixes=len(tokens), selected=selected.tolist()
        )

    def progress(self, rows: Sequence[AcceptanceRow]) -> dict[str, str]:
        """The acceptance of the first child."""
        first, prefixes = sum(row.selected[0] for row in rows), sum(row.num_prefixes for row in rows)
        return {"first": share(first, prefixes, ".3f")}


def _laws(workload: Workload, index: int, tokens: list[int]) -> Iterator[tuple[Tensor, Tensor]]:
    """Both models' laws (C, V) of every token that was written, in blocks of at most BLOCK positions."""
    target, draft = workload.pair.target, workload.pair.draft_model()
    prompt, warp = workload.prompts[index][1], workload.sampling.warp
    sequence = [*prompt, *tokens[:-1]]
    features = [features_of(model, sequence)[len(prompt) - 1 :] for model in (target, draft)]
    for of_target, of_draft in zip(*(rows.split(BLOCK) for rows in features), strict=True):
        yield warp.law(target.head(of_target)), warp.law(draft.head(of_draft))
