"""The description of a planted fault, and the exact parts that faults change."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from resispec.core import Tree, Verdict
from resispec.distributions import choose, draw_one, normalise
from resispec.trees import Topology, chain, complete, from_child_counts
from resispec.verifiers import Draws, DrawsKind, Law, Outcomes, SiblingRule, Standard, TopDown


class Where(StrEnum):
    """Place of a fault, which decides what can see it.

    LAW: in what `law` or `outcomes` says. VERIFY: only in what `verify` draws; `outcomes` is right.
    DRAFTER: siblings are drawn in another way than the rule is told. LOOP: in randomness or memory
    across steps, so that a single call of `verify` looks right.
    """

    LAW = "law"
    VERIFY = "verify"
    DRAFTER = "drafter"
    LOOP = "loop"


@dataclass(frozen=True)
class Fault:
    """One planted fault, or an innocent case, which looks like a fault and has none.

    make: a new sibling rule or verifier; a new one for every sequence, since some remember. A
    verifier whose `verify` does not draw what its `outcomes` says, and whose real law is known, has
    `true_outcomes`. total_variation: the bias, 0 for an innocent case, on the laws over `vocab`
    tokens and the tree of `faults.truth`; checked by enumeration, or, for faults of the loop,
    measured once by simulating 20,000 prompts (standard error .005). draws: how the siblings are
    really drawn; where the drafter lies, an object whose `draw` and `weights` are what is done and
    whose `laws` are what the rule is told. noise: how far the draft's laws are from the target's.
    """

    name: str
    make: Callable[[], Any]
    where: Where
    total_variation: float
    draws: DrawsKind = Draws.IID
    vocab: int = 6
    topology: Topology = complete(2, 3)
    noise: float = 1.5

    @property
    def is_biased(self):
        return self.total_variation > 0


FORKED = {"vocab": 3, "topology": from_child_counts([[2], [1, 1]])}

# The standard rule in parts


def sibling(target, draft, token, rank):
    """One sibling that is tested.

    target, draft: (..., V), the law that it is tested against and the one that it was drawn from.
    token: (..., 1) int64. rank: how many siblings came before. p, q: the token's masses (..., 1), q
    never 0. chance: the right probability (..., 1) of acceptance. excess: (p - q)+, (..., V). left:
    the right law (..., V) from which the walk continues after a rejection.
    """
    p, q = (
        law.gather(-1, token) for law in (target, draft.clamp_min(torch.finfo(draft.dtype).tiny))
    )
    excess = (target - draft).clamp_min(0)
    right = {"chance": (p / q).clamp_max(1), "left": normalise(excess, target)}
    return SimpleNamespace(
        target=target, draft=draft, token=token, rank=rank, p=p, q=q, excess=excess, **right
    )


@dataclass(frozen=True)
class Sequential:
    """Tests one sibling after another: the standard rule, but for the part that a fault gives."""

    chance: Callable[[Any], Tensor] = lambda s: s.chance
    left: Callable[[Any], Tensor] = lambda s: s.left

    def law(self, target_probs, draft_probs, siblings, draws):
        target, alive, select = target_probs, torch.ones_like(target_probs[..., :1]), []
        tests = zip(draws.laws(draft_probs, siblings), siblings.split(1, -1), strict=True)
        for rank, (draft, token) in enumerate(tests):
            tested = sibling(target, draft, token, rank)
            chance = self.chance(tested)
            select.append(alive * chance)
            alive, target = alive * (1 - chance), self.left(tested)
        return Law(torch.cat(select, -1), target)


@dataclass(frozen=True)
class Rule:
    """A function with the contract of `SiblingRule.law`, as a rule."""

    law: Callable[[Tensor, Tensor, Tensor, DrawsKind], Law]


def ruling(name, total_variation, law, **options):
    """A fault of a whole rule."""
    return Fault(name, lambda: Rule(law), Where.LAW, total_variation, **options)


# The walk down a tree in parts


class Node(NamedTuple):
    """A node with children.

    siblings: their tokens. law: the rule's. target_probs, draft_probs: (N, V).
    """

    tree: Tree
    place: int
    children: tuple[int, ...]
    siblings: list[int]
    law: Law
    target_probs: Tensor
    draft_probs: Tensor


@dataclass(frozen=True)
class Walk(TopDown):
    """The walk of `TopDown`; a fault overrides a part, and `outcomes` still says what is right."""

    rule: SiblingRule = field(default_factory=Standard)

    def draw(self, node, generator):
        """The rank of the selected sibling, or None for a residual token, and the token."""
        index = choose(node.law.select, generator)
        if index < len(node.children):
            return index, node.siblings[index]
        return None, draw_one(node.law.residual, generator)

    def drawn(self, node):
        """The law that `draw` has."""
        return node.law

    def bonus_law(self, tree, place, law):  # noqa: ARG002 - faults differ by place
        """The law (V,) of the token after a leaf, whose target is `law`."""
        return law

    def child(self, node, index, token):
        """The child at which the walk goes on after what `draw` returned; None if it ends there."""
        if index is None:
            index = node.siblings.index(token) if token in node.siblings else None
        return None if index is None else node.children[index]

    def rule_at(self, tree, place):  # noqa: ARG002 - faults differ by place
        """The rule that decides at a node."""
        return self.rule

    def node_at(self, tree, place, target_probs, draft_probs):
        """A node with what the rule says there."""
        children = tree.topology.children[place]
        siblings = tree.tokens[list(children)]
        law = self.rule_at(tree, place).law(
            target_probs[place], draft_probs[place], siblings, tree.draws
        )
        return Node(tree, place, children, siblings.tolist(), law, target_probs, draft_probs)

    def verify(self, tree, target_probs, draft_probs, generator):
        place, path, tokens = 0, [], []
        while place is not None and tree.topology.children[place]:
            node = self.node_at(tree, place, target_probs, draft_probs)
            index, token = self.draw(node, generator)
            tokens.append(token)
            place = self.child(node, index, token)
            path += [] if place is None else [place]
        if place is not None:
            tokens.append(draw_one(self.bonus_law(tree, place, target_probs[place]), generator))
        return Verdict(tuple(path), tuple(tokens))

    def true_outcomes(self, tree, target_probs, draft_probs):
        """The law that `verify` has; `outcomes` says what it should be."""
        final, reach = target_probs.clone(), torch.zeros_like(target_probs[:, 0])
        stop, reach[0] = torch.zeros_like(reach), 1.0
        for place, children in enumerate(tree.topology.children):
            stop[place] = reach[place]
            if not children:
                final[place] = self.bonus_law(tree, place, final[place])
                continue
            node = self.node_at(tree, place, target_probs, draft_probs)
            law = self.drawn(node)
            # A residual token that was not drafted ends the walk.
            ends = (1 - law.select.sum()).clamp_min(0) * law.residual
            drafted = sorted(set(node.siblings))
            drawn = [(index, token, law.select[index]) for index, token in enumerate(node.siblings)]
            drawn += [
                (None, token, mass) for token, mass in zip(drafted, ends[drafted], strict=True)
            ]
            ends[drafted] = 0
            for index, token, mass in drawn:
                child = self.child(node, index, token)
                if child is None:
                    ends[token] += mass
                else:
                    reach[child] += reach[place] * mass
            stop[place] *= ends.sum()
            final[place] = normalise(ends, final[place])
        return Outcomes(stop, final)


# A right verifier with wrong laws, and one that remembers


@dataclass(frozen=True)
class WrongInputs(TopDown):
    """`verify` uses the laws `wrong(tree, p, q)` for p and q; `outcomes` says what is right."""

    rule: SiblingRule = field(default_factory=Standard)
    wrong: Callable[[Tree, Tensor, Tensor], tuple[Tensor, Tensor]] = lambda _, p, q: (p, q)

    def verify(self, tree, target_probs, draft_probs, generator):
        return super().verify(tree, *self.wrong(tree, target_probs, draft_probs), generator)

    def true_outcomes(self, tree, target_probs, draft_probs):
        return super().outcomes(tree, *self.wrong(tree, target_probs, draft_probs))


@dataclass(frozen=True)
class Remembering(TopDown):
    """`verify` is `step(memory, verify, tree, p, q, generator)`, given the right `verify`."""

    rule: SiblingRule = field(default_factory=Standard)
    step: Callable[..., Verdict] = lambda _, verify, *given: verify(*given)
    memory: dict[Any, Any] = field(default_factory=dict)

    def verify(self, *given):
        return self.step(self.memory, super().verify, *given)


def remembering(name, total_variation, step):
    """A fault of what is kept from one step to the next."""
    options = {"vocab": 3, "topology": chain(1)}
    return Fault(name, lambda: Remembering(step=step), Where.LOOP, total_variation, **options)


# Mistakes in laws


def tempered(law, temperature):
    return normalise(law ** (1 / temperature), law)


def top(law, count):
    """The `count` largest masses of a law (..., V)."""
    largest = law.topk(min(count, law.shape[-1]), -1)
    return law.new_zeros(law.shape).scatter(-1, largest.indices, largest.values)


def only_top(law, count):
    return normalise(top(law, count), law)


def argmax(law):
    """The point mass (..., V) on the likeliest token."""
    return only_top(law, 1)
