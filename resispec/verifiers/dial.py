"""A dial from an exact verifier to a lossy one: refused tokens are emitted with a chance.

Biased, by an amount that is known beforehand. The argument, at one node: let an exact rule refuse
the siblings x with probability R(x), given them, and let A = 1 - E[R] be its acceptance. The dial
takes the share k of every refusal from the residual r_x and gives it to the first sibling x_1. So
its acceptance is A + k (1 - A), and it emits

    p + k E[R(x) delta(x_1)] - k E[R(x) r_x],

which is p plus and minus two measures of mass k (1 - A): the total variation from p is at most
k (1 - A). It is equal if no token has both, one as the first sibling of a tuple that can be refused
and one in a residual. That is so for

- `standard` with independent draws: a refused x_i has p_i(x_i) < q(x_i), so the residual is 0 at it
  from then on, and the last residual is the same for all tuples;
- `optimal`, if every token is its own group (`bins=0`, or few tokens): with the best set H of the
  ceiling, the tokens that can be refused have p < m and lie in H, and they only win among siblings
  that all lie in H, where p <= m; the residual has p > m.

For `naive` it can be less, since the refused siblings of one tuple are in the residual of another.
A here counts what the rule selects: a residual token that happens to be a sibling is not refused
either, so acceptance as an audit counts it, of all emitted siblings, is at least that.

Nothing is better. A law that is off by e agrees with p but for a chance of e, so it emits siblings
at most e more often than an exact rule can: no rule of bias e exceeds the ceiling by more than e.
The dial on `optimal` attains that.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from resispec.core import Tree, Verdict
from resispec.distributions import normalise, quotient
from resispec.errors import InvalidInput
from resispec.trees import Topology, kept_with_topology
from resispec.verifiers.base import (
    DrawsKind,
    Law,
    Outcomes,
    SiblingRule,
    Verifier,
    law_of,
    outcomes_of,
    reads_numbers,
)
from resispec.verifiers.options import check_number
from resispec.verifiers.registry import get_verifier, register
from resispec.verifiers.top_down import applied_rule, as_verifier

CHANCE = 0.5
"""The chance to go on after a refusal, where neither a chance nor a bias is given."""


@register("dial")
def dial(
    rule: str | SiblingRule | Verifier = "optimal",
    chance: float | None = None,
    bias: float | None = None,
) -> SiblingRule | Verifier:
    """The dial over a sibling rule or a verifier of whole trees; with chance 0 or bias 0, itself.

    rule: a name that `get_verifier` knows, or an object. chance: k, from 0 to 1, `CHANCE` if
    neither is given. bias: in place of a chance the total variation that is allowed, from 0 to 1,
    see `Strength`. Raises InvalidInput for both, or for other numbers.
    """
    strength = Strength(CHANCE if chance is None and bias is None else chance, bias)
    verifier = get_verifier(rule) if isinstance(rule, str) else as_verifier(rule)
    sibling_rule = applied_rule(verifier)
    if not strength.is_on:
        return sibling_rule or verifier
    return Dial(sibling_rule, strength) if sibling_rule else TreeDial(verifier, strength)


@dataclass(frozen=True)
class Strength:
    """Strength of a dial: a chance, or a bias that is not exceeded; one of the two.

    bias: with the chance R to refuse, given the drafted tokens, the share of R that is taken is
    k = min(1, bias / R). So at most `bias` is moved for any drafted tokens, and on average.
    Raises InvalidInput for both, for neither, and for numbers outside 0 to 1.
    """

    chance: float | None = None
    bias: float | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if value is not None}
        if len(given) != 1:
            found = " and ".join(f"{name}={value}" for name, value in given.items()) or "neither"
            raise InvalidInput(f"dial: {found}; allowed: a chance or a bias, one of the two")
        for name, value in given.items():
            check_number(f"dial: {name}", value, lambda one: 0 <= one <= 1, "a number from 0 to 1")

    @property
    def is_on(self) -> bool:
        """Whether anything is moved at all."""
        return bool(self.chance or self.bias)

    def moved(self, refused: Tensor) -> Tensor:
        """The part of the chances to refuse (...) that is moved to a sibling."""
        if self.bias is not None:
            return refused.clamp_max(self.bias)
        return refused * (self.chance or 0.0)


@dataclass(frozen=True)
class Dial:
    """The dial over a sibling rule: of every refusal a share goes to the first sibling.

    The module's docstring proves what it accepts and how far it is off.
    """

    rule: SiblingRule
    strength: Strength

    @property
    def reads_numbers(self) -> bool:
        """See `reads_numbers` in resispec/verifiers/base.py."""
        return reads_numbers(self.rule)

    def law(
        self, target_probs: Tensor, draft_probs: Tensor, siblings: Tensor, draws: DrawsKind
    ) -> Law:
        """See `SiblingRule.law`; defined for the draws that the rule is defined for."""
        law = law_of(self.rule, target_probs, draft_probs, siblings, draws)
        refused = (1 - law.select.sum(-1, keepdim=True)).clamp_min(0)
        first = law.select[..., :1] + self.strength.moved(refused)
        return Law(torch.cat((first, law.select[..., 1:]), -1), law.residual)


@dataclass(frozen=True)
class TreeDial:
    """The dial over a verifier of whole trees: where that stops above a leaf, it may begin again.

    It goes on at the first child of the node where the verifier stopped, and verifies what is below
    that child anew, as a tree of which the child is the root; and so on. With a chance k each
    stop above a leaf is followed by that with probability k. With a bias, k is min(1, bias / R), R
    being the probability, given the drafted tokens, that the verifier stops above a leaf of the
    tree that it is given.

    Until it first goes on, all is as with the exact verifier. So the law of a step's tokens,
    continued by the target, is off by at most k times the chance that the verifier stops above a
    leaf, and by at most `bias`. Below the child it is biased even if it never goes on again: the
    verifier has seen those tokens already, and has refused them.
    """

    verifier: Verifier
    strength: Strength

    @property
    def reads_numbers(self) -> bool:
        """See `reads_numbers` in resispec/verifiers/base.py."""
        return reads_numbers(self.verifier)

    def verify(
        self, tree: Tree, target_probs: Tensor, draft_probs: Tensor, generator: Generator
    ) -> Verdict:
        """Draw a verdict; with a bias, a stop above a leaf asks for the verifier's `outcomes`."""
        path, start = list[int](), 0
        while True:
            part = _subtrees(tree.topology, tree.tokens.device).at(start)
            given = part.of(tree, target_probs, draft_probs)
            verdict = self.verifier.verify(*given, generator)
            path += [part.nodes[node] for node in verdict.path]
            children = tree.topology.children[path[-1] if path else 0]
            if not children or not self._goes_on(part, given, generator):
                tokens = tree.tokens[path].tolist()
                return Verdict(tuple(path), (*tokens, verdict.tokens[-1]))
            start = children[0]
            path.append(start)

    def _goes_on(
        self, part: _Part, given: tuple[Tree, Tensor, Tensor], generator: Generator
    ) -> bool:
        """Whether a stop above a leaf is followed by another beginning."""
        refused = torch.ones((), dtype=torch.float64)
        if self.strength.bias is not None:
            refused = outcomes_of(self.verifier, *given).stop[part.inner].sum()
        chance = quotient(self.strength.moved(refused), refused).item()
        coin = torch.rand(1, generator=generator, device=generator.device, dtype=torch.float64)
        return coin.item() < chance

    def outcomes(self, tree: Tree, target_probs: Tensor, draft_probs: Tensor) -> Outcomes:
        """The law that `verify` draws from, in the target's precision.

        The verifier's outcomes are asked for at the root and at every first child.
        """
        subtrees = _subtrees(tree.topology, target_probs.device)
        starts = torch.zeros_like(target_probs[:, 0])
        starts[0].fill_(1)
        stop, final = torch.zeros_like(starts), torch.zeros_like(target_probs)
        for start in subtrees.starts:
            part = subtrees.at(start)
            outcomes = outcomes_of(self.verifier, *part.of(tree, target_probs, draft_probs))
            refused = outcomes.stop.index_select(0, part.inner)
            total = refused.sum()
            moved = refused * quotient(self.strength.moved(total), total)
            stays = outcomes.stop.index_add(0, part.inner, -moved).clamp_min(0) * starts[start]
            starts.index_add_(0, part.first, moved * starts[start])
            stop.index_add_(0, part.index, stays)
            final.index_add_(0, part.index, stays[:, None] * outcomes.final)
        return Outcomes(stop, normalise(final, target_probs))


class _Part:
    """The subtree of a node as a tree of its own.

    nodes: its nodes' places in the whole tree, breadth first; index: the same, (M,) int64. inner:
    (I,) int64, the nodes of this tree that have children; first: (I,) int64, their first children,
    as places in the whole tree.
    """

    def __init__(self, whole: Topology, start: int, device: torch.device) -> None:
        self.nodes = [start]
        for node in self.nodes:  # which grows meanwhile
            self.nodes += whole.children[node]
        place = {node: index for index, node in enumerate(self.nodes)}
        self._topology = Topology((-1, *(place[whole.parents[node]] for node in self.nodes[1:])))
        inner = [node for node in self.nodes if whole.children[node]]
        self.index, self.inner, self.first = (
            torch.tensor(numbers, dtype=torch.int64, device=device)
            for numbers in (
                self.nodes,
                [place[node] for node in inner],
                [whole.children[node][0] for node in inner],
            )
        )
        self._is_whole = start == 0
        if self._is_whole:
            self._topology = whole

    def of(
        self, tree: Tree, target_probs: Tensor, draft_probs: Tensor
    ) -> tuple[Tree, Tensor, Tensor]:
        """This part of a tree and of its laws (N, V)."""
        if self._is_whole:
            return tree, target_probs, draft_probs
        tokens, target, draft = (
            rows.index_select(0, self.index) for rows in (tree.tokens, target_probs, draft_probs)
        )
        return Tree(self._topology, tokens, tree.draws), target, draft


class _Subtrees:
    """The subtrees that a dial can begin at, made when they are first asked for.

    starts: the root, and every node that is a first child; parents come before children.
    """

    def __init__(self, topology: Topology, device: torch.device) -> None:
        self._topology, self._device, self._parts = topology, device, dict[int, _Part]()
        self.starts = [0, *sorted(family[0] for family in topology.children if family)]

    def at(self, start: int) -> _Part:
        """The subtree of a node."""
        if start not in self._parts:
            self._parts[start] = _Part(self._topology, start, self._device)
        return self._parts[start]


@kept_with_topology
def _subtrees(topology: Topology, device: torch.device) -> _Subtrees:
    return _Subtrees(topology, device)
