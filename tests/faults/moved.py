"""Errors of `verify` alone that move MOVED of the mass to or from tokens at one place of a walk."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from resispec.audit.simulate import MOVED
from resispec.distributions import draw_one, normalise
from resispec.trees import chain
from resispec.verifiers import Law, Standard
from tests.faults.parts import Fault, Walk, Where


def even(law):
    return torch.arange(law.shape[-1]) % 2 == 0


def first_quarter(law):
    """A quarter of the tokens, by index."""
    return torch.arange(law.shape[-1]) < -(-law.shape[-1] // 4)


def unlikely(law):
    """All but the two likeliest tokens."""
    return torch.ones_like(law, dtype=torch.bool).scatter(-1, law.topk(2).indices, False)


def mixed(law, event, away, size=MOVED):
    """A law (V,) with so much of its mass moved to the tokens of an event, or away from it.

    What is moved is divided as the law divides it. Returns the law, the chance that a token is
    drawn from the second law in place of the first, and the second law; the chance is 0 if the
    event has all the mass.
    """
    wanted = ~event(law) if away else event(law)
    inside = torch.where(wanted, law, 0)
    outside = float(law.sum() - inside.sum())
    chance = min(1.0, size / outside) if outside > 1e-6 and float(inside.sum()) > 0 else 0.0
    other = normalise(inside, law)
    return (1 - chance) * law + chance * other, chance, other


def everywhere(tree, place, law):  # noqa: ARG001 - the contract's
    return True


def at_depth(depth):
    """At the nodes of one depth, so that tokens behind `depth` accepted ones are drawn wrongly."""
    return lambda tree, place, law: int(tree.topology.depths[place]) == depth  # noqa: ARG005


def where_peaked(tree, place, law):  # noqa: ARG001
    return float(law.max()) > 0.6


@dataclass(frozen=True)
class Moved(Walk):
    """At some nodes the token is at times drawn from the target's law within an event instead."""

    event: Callable = even
    where: Callable = everywhere
    away: bool = False
    size: float = MOVED
    inner: bool = True
    leaves: bool = True

    def moved(self, tree, place, law):
        """See `mixed`; the chance is 0 at all other nodes."""
        is_leaf = not tree.topology.children[place]
        is_here = (self.leaves if is_leaf else self.inner) and self.where(tree, place, law)
        return mixed(law, self.event, self.away, self.size) if is_here else (law, 0.0, law)

    def draw(self, node, generator):
        _, chance, other = self.moved(node.tree, node.place, node.target_probs[node.place])
        if float(torch.rand((), generator=generator)) < chance:
            return None, draw_one(other, generator)
        return super().draw(node, generator)

    def drawn(self, node):
        _, chance, other = self.moved(node.tree, node.place, node.target_probs[node.place])
        select = (1 - chance) * node.law.select
        left = (1 - chance) * (1 - node.law.select.sum()) * node.law.residual + chance * other
        return Law(select, normalise(left, node.law.residual))

    def bonus_law(self, tree, place, law):
        return self.moved(tree, place, law)[0]


@dataclass(frozen=True)
class MovedAndTold(Moved):
    """`outcomes` says so, too, so that only tokens show it."""

    outcomes = Walk.true_outcomes


@dataclass(frozen=True)
class ResidualMoved(Walk):
    """The token after a rejection follows the residual with mass moved to or from an event."""

    event: Callable = even

    def draw(self, node, generator):
        return super().draw(node._replace(law=self.drawn(node)), generator)

    def drawn(self, node):
        return Law(node.law.select, mixed(node.law.residual, self.event, False)[0])


@dataclass(frozen=True)
class EvenError(Walk):
    """The bonus token follows a law whose masses are up or down by a random share, token by token.

    size: the total variation of that law to the right one.
    """

    size: float = 0.1
    outcomes = Walk.true_outcomes

    def bonus_law(self, tree, place, law):  # noqa: ARG002 - the contract's
        generator = torch.Generator().manual_seed(0)
        change = law * (2 * torch.rand(law.shape, generator=generator) - 1)
        change -= law * change.sum()
        return (law + change * (2 * self.size / change.abs().sum())).clamp_min(0)


@dataclass(frozen=True)
class LawMoved:
    """The standard rule with `size` of its mass moved to the even tokens; `law` says so."""

    size: float = 0.02

    def law(self, target_probs, draft_probs, siblings, draws):
        right = Standard().law(target_probs, draft_probs, siblings, draws)
        inside = torch.where(even(target_probs), target_probs, 0)
        other = normalise(inside, target_probs)
        chance = self.size / (1 - inside.sum(-1, keepdim=True))
        rest = (1 - right.select.sum(-1, keepdim=True)).clamp_min(0)
        left = (1 - chance) * rest * right.residual + chance * other
        return Law((1 - chance) * right.select, normalise(left, right.residual))


def moved(name, total_variation, make=Moved, place=None, **options):
    """A fault that moves mass. place: the vocabulary and the tree of its true bias."""
    place = place or {"topology": chain(1)}
    return Fault(
        f"mass moved {name}", lambda: make(**options), Where.VERIFY, total_variation, **place
    )


BONUS = {"inner": False}
LONG = {"vocab": 3, "topology": chain(6)}
FEW = {"vocab": 2, "topology": chain(1)}
FAULTS = [
    moved("to even tokens, bonus", 0.0186, **BONUS),
    moved("from even tokens, bonus", 0.0186, away=True, **BONUS),
    moved("to the first quarter, bonus", 0.0186, event=first_quarter, **BONUS),
    moved("to unlikely tokens, bonus", 0.0186, event=unlikely, **BONUS),
    moved("from unlikely tokens, bonus", 0.0186, event=unlikely, away=True, **BONUS),
    moved("to even tokens, bonus behind six accepted", 0.0088, place=LONG, **BONUS),
    moved("to even tokens, at the root", 0.03, where=at_depth(0)),
    moved(
        "from even tokens, behind two accepted", 0.0209, place=LONG, where=at_depth(2), away=True
    ),
    moved(
        "to unlikely tokens, behind five accepted",
        0.0109,
        place=LONG,
        where=at_depth(5),
        event=unlikely,
    ),
    moved("to even tokens, where p is peaked", 0.03, place=FEW, where=where_peaked),
    moved("to even tokens, residual", 0.0114, ResidualMoved),
    moved("to the first quarter, residual", 0.0114, ResidualMoved, event=first_quarter),
]
