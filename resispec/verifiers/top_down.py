"""Walk a tree from its root with a sibling rule: accept a child, or emit a residual token."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from math import prod
from typing import Any, cast

import torch
from torch import Generator, Tensor

from resispec.core import Tree, Verdict
from resispec.distributions import check_chances, choose, draw_one, normalise, sum_tolerance
from resispec.errors import InvalidInput
from resispec.trees import families_on
from resispec.verifiers.base import (
    Outcomes,
    SiblingRule,
    Verifier,
    interface_of,
    is_first,
    law_of,
    naming,
    rule_name,
)
from resispec.verifiers.recursive import Recursive


def as_verifier(rule_or_verifier: SiblingRule | Verifier) -> Verifier:
    """Return a verifier as it is and a sibling rule wrapped in `TopDown`, see `interface_of`.

    Raises InvalidInput for others.
    """
    interface = interface_of(rule_or_verifier)
    if interface is SiblingRule:
        return TopDown(cast(SiblingRule, rule_or_verifier))
    if interface is None or not hasattr(rule_or_verifier, "verify"):
        kind = type(rule_or_verifier).__name__
        parts = "neither `law` (a sibling rule) nor `verify` and `outcomes` (a tree verifier)"
        found = "`outcomes` but no `verify`" if interface else parts
        raise InvalidInput(f"{kind} is no verifier: it has {found}")
    return cast(Verifier, rule_or_verifier)


def applied_rule(verifier: Verifier) -> SiblingRule | None:
    """The rule whose law is that of `outcomes` at every node; None if there is no such rule."""
    if isinstance(verifier, TopDown) and type(verifier).outcomes is TopDown.outcomes:
        return verifier.rule
    return None


@dataclass(frozen=True)
class TopDown:
    """A verifier that applies `rule` at every node it visits (SpecInfer, Algorithm 2).

    If the residual token equals a drafted sibling, the walk goes on at that sibling: the emitted
    law is the same, with more tokens.
    """

    rule: SiblingRule

    def verify(
        self, tree: Tree, target_probs: Tensor, draft_probs: Tensor, generator: Generator
    ) -> Verdict:
        """Draw a verdict, visiting only the nodes of one path.

        Raises InvalidInput when the rule returns tensors of wrong shapes, and FloatingPointError
        when it returns an invalid law: NaN, negative masses, a sum other than 1. The residual is
        checked only when it is drawn from, and a `Recursive` rule only for the siblings needed to
        decide.
        """
        path, tokens, node = list[int](), list[int](), 0
        token_ids: list[int] = tree.tokens.tolist()
        while children := tree.topology.children[node]:
            family = slice(children[0], children[-1] + 1)
            siblings, ids = tree.tokens[family], token_ids[family]
            with naming(rule_name(self.rule), node):
                law = self._in_turn(target_probs[node], draft_probs[node], siblings, tree.draws)
                index = choose(islice(law, len(children)), generator)
                if index < len(children):
                    token = ids[index]
                else:
                    residual = next(law)
                    token = draw_one(residual, generator, sum_tolerance(residual))
            tokens.append(token)
            if token not in ids:
                return Verdict(tuple(path), tuple(tokens))
            node = children[index if index < len(children) else ids.index(token)]
            path.append(node)
        with naming("target", node):
            return Verdict(tuple(path), (*tokens, draw_one(target_probs[node], generator)))

    def _in_turn(self, *arguments: Any) -> Iterator[Tensor]:
        """The rule's law piece by piece, as in `Recursive.in_turn`.

        arguments: those of `SiblingRule.law`.
        """
        if isinstance(self.rule, Recursive) and type(self.rule).law is Recursive.law:
            return self.rule.in_turn(*arguments)
        law = law_of(self.rule, *arguments)
        check_chances(law.select.tolist(), sum_tolerance(law.select))
        return iter((*law.select.split(1), law.residual))

    def outcomes(self, tree: Tree, target_probs: Tensor, draft_probs: Tensor) -> Outcomes:
        """The law that `verify` draws from, in the target's precision; every node is visited."""
        families = families_on(tree.topology, target_probs.device)
        if not families.groups:
            return Outcomes(torch.ones_like(target_probs[:, 0]), target_probs.clone())
        # As much as possible is done for all families at once: on a device every operation takes
        # time.
        tokens = tree.tokens.index_select(0, families.children)
        sizes = [children.shape for _, children in families.groups]
        siblings = [
            ids.view(size)
            for ids, size in zip(tokens.split([*map(prod, sizes)]), sizes, strict=True)
        ]
        target, draft = (
            probs.index_select(0, families.parents).split([count for count, _ in sizes])
            for probs in (target_probs, draft_probs)
        )
        laws = [
            law_of(self.rule, *group, tree.draws)
            for group in zip(target, draft, siblings, strict=True)
        ]
        del target, draft  # as large as the laws
        select = torch.cat([law.select.flatten() for law in laws])
        residual = torch.cat([law.residual for law in laws])
        del laws
        rest = (1 - families.sums(select)).clamp_min(0)
        residual = normalise(residual, residual)
        repeats = residual[families.owners, tokens]  # residual tokens that were drafted
        if not tree.draws.are_distinct:
            repeats = torch.where(
                torch.cat([is_first(ids).flatten() for ids in siblings]), repeats, 0.0
            )
        # Probabilities of going on to a child, or of stopping at a parent, given that the parent
        # was reached.
        going = select + rest.index_select(0, families.owners) * repeats
        stopping = rest * (1 - families.sums(repeats)).clamp_min(0)
        ones = torch.ones_like(target_probs[:, 0])
        enter = ones.index_copy(0, families.children, going)
        leave = ones.index_copy(0, families.parents, stopping)
        undrafted = residual.index_put((families.owners, tokens), residual.new_zeros(()))
        final = target_probs.index_copy(0, families.parents, normalise(undrafted, residual))
        reach = [ones[:1]]
        for level in tree.topology.levels[1:]:
            reached = reach[-1].index_select(0, families.above[level.start - 1 : level.stop - 1])
            reach.append(reached * enter[level.start : level.stop])
        return Outcomes(torch.cat(reach) * leave, final)
