"""Bias of a verifier along what the target writes: how far the law of an emitted token is off.

After every prefix a tree is drafted, and the verifier's outcomes on it are computed, so nothing is
accepted or refused by chance. Two things follow.

- The excess of classes of tokens over all levels of the tree, see `resispec.audit.excess`: for
  every verifier.
- For a verifier that applies a sibling rule at every node, the total variation at one node. The
  rule reads the laws at the node and the siblings drawn there, and both are independent of what led
  there: given the context, a token has the same law at every level. So no tree is needed; tuples of
  siblings are drawn again, some choose the set where the emitted law exceeds p, and the others
  measure it. The node is drawn with the chance that the step passes it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor

from experiments.tasks.base import Task, Workload, identity, share
from experiments.tasks.prefix_laws import PrefixRow, written_prefixes
from experiments.tasks.sampled_trees import Root, check_leaves, has_likeliest
from resispec.audit.ceiling import ceiling
from resispec.audit.enumerate import total_variation
from resispec.audit.estimate import Tuples, estimate
from resispec.audit.excess import NUM_CLASSES, passed, tree_excess
from resispec.audit.row_checks import (
    RETURNED,
    CheckedRule,
    accepted,
    check_own_outcomes,
    check_stops,
    emitted,
)
from resispec.core import Draft
from resispec.decode import Decoder
from resispec.drafters import DraftModel, Eagle
from resispec.errors import InvalidInput, NotDefined
from resispec.verifiers import SiblingRule
from resispec.verifiers.base import outcomes_of
from resispec.verifiers.top_down import applied_rule


@dataclass(frozen=True)
class BiasRow(PrefixRow):
    """A prompt's trees, one after each prefix, and a node of each.

    emitted: expected tokens of a step, summed over trees. excess: [half][class], summed over every
    second tree, from the first and from the second on. The other lists have one entry a prefix.
    inner: expected tokens of a step that follow a node with children, which alone can be biased.
    For sibling rules, at the drawn node, else None: few_variation and variation, the total
    variation that `num_tuples` and twice as many tuples show, at most the true one in expectation;
    acceptance: that a sibling is emitted; ceiling: the highest acceptance of exact rules, None if
    it is not known.
    """

    num_tuples: int
    emitted: float
    excess: list[list[float]]
    inner: list[float]
    few_variation: list[float | None]
    variation: list[float | None]
    acceptance: list[float | None]
    ceiling: list[float | None]


NODE = ("few_variation", "variation", "acceptance", "ceiling")


@dataclass(frozen=True)
class Bias(Task):
    """Excess of classes, and total variation at nodes, of the cell's verifier on its trees.

    num_prefixes: those of the target's text after a prompt, with a tree each. num_tuples: sampled
    tuples of siblings for a node; for the second number of a node, twice as many others.
    """

    row: ClassVar[type[BiasRow]] = BiasRow
    num_prefixes: int
    num_tuples: int

    def check(self, decoder: Decoder) -> None:
        """See `Task`; a tree must be drafted, without the laws of earlier steps."""
        drafter = _drafter(decoder)
        super().check(decoder)
        check_leaves(decoder.verifier, drafter.draws, drafter.topology)

    @torch.inference_mode()
    def __call__(self, workload: Workload, index: int) -> BiasRow:
        """See `Task`.

        The trees do not depend on the verifier: all verifiers of a seed see the same ones.
        """
        verifier, generator = workload.decoder.verifier, workload.generator(index)
        drafter = _drafter(workload.decoder)
        check_own_outcomes(verifier)
        rule = None if applied_rule(verifier) is None else CheckedRule.of(verifier)
        prefixes = written_prefixes(workload, index, generator, self.num_prefixes)
        total, excess = 0.0, torch.zeros(2, NUM_CLASSES, dtype=torch.float64)
        nodes: dict[str, list[Any]] = {name: [] for name in ("inner", *NODE)}
        chance = workload.generator(index)  # of nodes and tuples; that of trees is left alone
        for place, prefix in enumerate(prefixes):
            root = Root(workload.pair, prefix, workload.sampling.warp)
            draft = root.draft(drafter, generator)
            laws = root.laws(workload.pair.target, draft.tree)
            outcomes = outcomes_of(verifier, draft.tree, laws, draft.probs)
            check_stops(outcomes.stop)
            check_stops(outcomes.final[outcomes.stop > RETURNED], "masses of a final token")
            excess[place % 2] += tree_excess(draft.tree, outcomes, laws, draft.probs).cpu()
            reached = passed(draft.tree, outcomes.stop)
            total += float(reached.sum())  # a token follows every node that is reached
            reached = _at_inner_nodes(draft, reached)
            nodes["inner"].append(float(reached.sum()))
            values: dict[str, float | None] = dict.fromkeys(NODE)
            if rule is not None and bool(reached.any()):
                node = int(reached.multinomial(1, generator=chance))
                values = self._at_node(rule, draft, laws, node, chance, has_likeliest(drafter))
            for name, value in values.items():
                nodes[name].append(value)
        return BiasRow(
            **identity(workload, index),
            num_prefixes=len(prefixes),
            num_tuples=self.num_tuples,
            emitted=total,
            excess=excess.tolist(),
            **nodes,
        )

    def _at_node(
        self,
        rule: SiblingRule,
        draft: Draft,
        target_probs: Tensor,
        node: int,
        generator: Generator,
        is_fixed: bool,
    ) -> dict[str, float | None]:
        """The entries of a row at a node with children.

        is_fixed: whether the siblings follow from the prefix, so that there is one tuple alone.
        """
        p, q, children = target_probs[node], draft.probs[node], draft.tree.topology.children[node]
        draws, siblings = draft.tree.draws, draft.tree.tokens[list(children)]
        if is_fixed:
            law = rule.law(p, q, siblings, draws)
            variation = total_variation(emitted(law, siblings), p)
            numbers = variation, variation, float(accepted(law, siblings))
            return dict(zip(NODE, (*numbers, float(p[siblings.unique()].sum())), strict=True))
        few, many = (
            estimate(rule, p, q, Tuples(len(children), draws, count), generator)
            for count in (self.num_tuples, 2 * self.num_tuples)
        )
        try:
            highest = float(ceiling(p, q, len(children), draws))
        except NotDefined:
            highest = None
        numbers = few.total_variation.value, many.total_variation.value, many.acceptance
        return dict(zip(NODE, (*numbers, highest), strict=True))

    def progress(self, rows: Sequence[BiasRow]) -> dict[str, str]:
        """The expected accepted length."""
        emitted, prefixes = sum(row.emitted for row in rows), sum(row.num_prefixes for row in rows)
        return {"accepted_length": share(emitted, prefixes, ".2f")}


def _drafter(decoder: Decoder) -> DraftModel | Eagle:
    """A decoder's drafter.

    Raises InvalidInput if it drafts nothing, or from laws of earlier steps, which a prefix lacks.
    """
    drafter = decoder.drafter
    if not isinstance(drafter, DraftModel | Eagle) or drafter.recycled:
        allowed = "allowed: a decoder with a draft, and recycled=0"
        raise InvalidInput(f"bias is measured on trees that a prefix alone leads to; {allowed}")
    return drafter


def _at_inner_nodes(draft: Draft, reached: Tensor) -> Tensor:
    """The chances (N,) of nodes with children; 0 at leaves."""
    has_children = [bool(children) for children in draft.tree.topology.children]
    return reached * torch.tensor(has_children, device=reached.device)
