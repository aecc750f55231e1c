"""A tree verifier as a sibling rule: the law of its first token on a tree of one drafted level."""

from dataclasses import dataclass

import torch
from torch import Tensor

from resispec.core import Tree
from resispec.trees import complete
from resispec.verifiers.base import (
    DrawsKind,
    Law,
    Outcomes,
    SiblingRule,
    Verifier,
    outcomes_of,
    require_outcomes,
)
from resispec.verifiers.top_down import applied_rule


def rule_of(verifier: Verifier) -> SiblingRule:
    """The sibling rule of a verifier: the rule that it applies at one node, or `FirstToken`.

    Raises InvalidInput for a verifier without `outcomes`.
    """
    require_outcomes(verifier)
    rule = applied_rule(verifier)
    return FirstToken(verifier) if rule is None else rule


def kept_outcomes(
    verifier: Verifier, tree: Tree, target_probs: Tensor, draft_probs: Tensor
) -> Outcomes:
    """The verifier's outcomes in memory of their own, which it may use again; see `outcomes_of`."""
    outcomes = outcomes_of(verifier, tree, target_probs, draft_probs)
    return Outcomes(outcomes.stop.clone(), outcomes.final.clone())


@dataclass(frozen=True)
class FirstToken:
    """A sibling rule made from a verifier that applies no rule at a node, such as `Block`.

    Every tuple of siblings is verified as one tree, so this is slow: about a millisecond per tuple.
    """

    verifier: Verifier

    def law(
        self, target_probs: Tensor, draft_probs: Tensor, siblings: Tensor, draws: DrawsKind
    ) -> Law:
        """See `SiblingRule.law`.

        select: the probability of stopping at a child. residual: the final token's law at the root.
        """
        vocab, count = target_probs.shape[-1], siblings.shape[-1]
        topology = complete(2, count)
        rows = [
            tensor.reshape(-1, tensor.shape[-1]) for tensor in (target_probs, draft_probs, siblings)
        ]
        select, residual = [], []
        for p, q, tokens in zip(*rows, strict=True):
            tree = Tree(topology, torch.cat((tokens.new_zeros(1), tokens)), draws)
            outcomes = kept_outcomes(
                self.verifier, tree, p.expand(count + 1, vocab), q.expand(count + 1, vocab)
            )
            select.append(outcomes.stop[1:])
            residual.append(outcomes.final[0])
        return Law(
            torch.stack(select).view(siblings.shape), torch.stack(residual).view(target_probs.shape)
        )
