"""What a verifier does in a small world, summed over all trees that can be drafted there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from resispec.audit.enumerate import _tuples
from resispec.audit.joint.worlds import World, check_fits, sequence
from resispec.core import Tree
from resispec.trees import Topology
from resispec.verifiers.base import Draws, Outcomes, Verifier


@dataclass(frozen=True)
class Account:
    """An enumerated verifier.

    accepted: the expected number of accepted tokens. excess: (K, V) float64, by how much more often than
    under p the output begins with the tokens that lead to a place and a token after it, where fresh draws
    from p follow what a step emits. 0 within rounding for an exact verifier.
    """

    accepted: float
    excess: Tensor

    def worst(self) -> str:
        """The sequence that is emitted too often by the most, in words."""
        place, token = divmod(int(self.excess.argmax()), self.excess.shape[1])
        tokens = (*sequence(place, self.excess.shape[1]), token)
        return f"tokens {tokens} are emitted too often: by {float(self.excess[place, token]):.3g}"


def account(verifier: Verifier, topology: Topology, world: World, draws: Draws) -> Account:
    """Enumerate a verifier. Raises InvalidInput for draws it is not defined for, and for too many trees."""
    stops, finals = torch.zeros(len(world.target), dtype=torch.float64), torch.zeros_like(world.target)
    accepted = 0.0
    for places, chance, outcomes in verified_trees(verifier, topology, world, draws):
        stop = chance * outcomes.stop
        accepted += float(stop @ topology.depths.double())
        stops.index_add_(0, places, stop)
        finals.index_add_(0, places, stop[:, None] * outcomes.final)
    # Probability that the accepted path passes a place, that the emitted tokens begin with it, and under p.
    passes, emitted, wanted = stops.clone(), torch.zeros_like(finals), torch.zeros_like(finals)
    starts = world.level_starts
    for level in reversed(range(1, world.num_levels)):
        above = slice(starts[level - 1], starts[level])
        passes[above] += passes[starts[level] : starts[level + 1]].view(-1, world.vocab).sum(1)
    begins, right = stops.new_ones(1), stops.new_ones(1)
    for level in range(world.num_levels):
        here = slice(starts[level], starts[level + 1])
        emitted[here] = finals[here] + (begins - passes[here])[:, None] * world.target[here]
        if level + 1 < world.num_levels:
            emitted[here] += passes[starts[level + 1] : starts[level + 2]].view(-1, world.vocab)
        wanted[here] = right[:, None] * world.target[here]
        begins, right = emitted[here].flatten(), wanted[here].flatten()
    return Account(accepted, emitted - wanted)


def verified_trees(
    verifier: Verifier, topology: Topology, world: World, draws: Draws
) -> Iterator[tuple[Tensor, float, Outcomes]]:
    """Of every tree that can be drafted its nodes' places (N,), its probability, and the verifier's law."""
    check_fits(topology, world)
    drafted = _tuples(world.vocab, topology.num_nodes - 1, False)
    tokens = torch.cat((drafted.new_zeros(len(drafted), 1), drafted), 1)
    places = torch.zeros_like(tokens)
    for node, parent in enumerate(topology.parents[1:], start=1):
        places[:, node] = world.vocab * places[:, parent] + 1 + tokens[:, node]
    chances = world.target.new_ones(len(tokens))
    for parents, children in topology.families:
        rows = world.draft[places[:, parents]]
        chances = chances * draws.weights(rows, tokens[:, children]).prod(-1)
    for index in chances.nonzero()[:, 0].tolist():
        here = places[index]
        tree = Tree(topology, tokens[index], draws)
        yield here, float(chances[index]), verifier.outcomes(tree, world.target[here], world.draft[here])
