"""A seeded battery of hard pairs of laws, and the worst error that a rule or a tree verifier makes on it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from resispec.audit.enumerate import chain_law, emitted_law, total_variation, tree_law
from resispec.errors import InvalidInput
from resispec.trees import Topology, chain, complete, from_child_counts, root_only
from resispec.verifiers.base import Draws, SiblingRule, Verifier
from resispec.verifiers.top_down import TopDown

KINDS = ("random", "sparse", "peaked", "one-hot", "p = q", "disjoint")
MOST_SIBLINGS = 8
TREES: tuple[tuple[Topology, int], ...] = (
    (root_only(), 4),
    (complete(3, 2), 2),
    (chain(3), 3),
    (from_child_counts([[2], [0, 2]]), 3),
    (complete(2, 4), 4),
    (complete(2, MOST_SIBLINGS), 2),
)
"""Topologies, each with its vocabulary: at most 256 drafted trees a pair."""
CHAINS: tuple[tuple[Topology, int], ...] = ((root_only(), 4), (chain(2), 4), (chain(3), 3))
"""The same for verifiers of chains."""


@dataclass(frozen=True)
class Worst:
    """The largest total variation between the emitted law and the target's, and where it was found.

    error: |law - p|_1 / 2, infinity when a law was NaN. kind: one of KINDS. target_probs, draft_probs: (V,)
    for a rule, (V, V) for a tree verifier. case: "3 siblings" or "tree of 7 nodes".
    """

    error: float
    kind: str
    case: str
    target_probs: Tensor
    draft_probs: Tensor


def worst_error(rule: SiblingRule, draws: Draws, seed: int = 0, repeats: int = 3) -> Worst:
    """The worst enumerated error over `repeats` rounds of the battery: all KINDS, 1 to 8 siblings, V in 2..8.

    It takes a few seconds. Raises what the rule raises, such as InvalidInput for draws that it is not defined
    for.
    """
    found = []
    for kind, generator in _rounds(seed, repeats):
        for num_siblings in range(1, MOST_SIBLINGS + 1):
            for vocab in _vocabularies(num_siblings, draws):
                p, q = pair_of_laws(kind, vocab, generator)
                error = total_variation(emitted_law(rule, p, q, num_siblings, draws), p)
                found.append(Worst(_number(error), kind, f"{num_siblings} siblings", p, q))
    return max(found, key=lambda worst: worst.error)


def _vocabularies(num_siblings: int, draws: Draws) -> range:
    """Sizes of vocabularies that leave few enough tuples of siblings to add up: at most 8! of them."""
    if num_siblings <= 3:
        return range(max(2, num_siblings) if draws.are_distinct else 2, 6)
    vocab = max(num_siblings, 5) if draws.are_distinct else max(2, 7 - num_siblings)
    return range(vocab, vocab + 1)


def worst_tree_error(
    verifier: Verifier,
    draws: Draws,
    seed: int = 0,
    repeats: int = 1,
    trees: Sequence[tuple[Topology, int]] = TREES,
) -> Worst:
    """The same over whole trees: the law of the first D tokens for bigram pairs on `trees`; a few seconds."""
    found = []
    for kind, generator in _rounds(seed, repeats):
        for topology, vocab in trees:
            if draws.are_distinct and max(map(len, topology.children)) > vocab:
                continue
            rows = [pair_of_laws(kind, vocab, generator) for _ in range(vocab)]
            target, draft = (torch.stack(laws) for laws in zip(*rows, strict=True))
            law = tree_law(verifier, topology, target, draft, draws)
            error = total_variation(law, chain_law(target, topology.num_levels))
            found.append(Worst(_number(error), kind, f"tree of {topology.num_nodes} nodes", target, draft))
    return max(found, key=lambda worst: worst.error)


def worst_of(rule: SiblingRule, verifier: Verifier, draws: Draws, is_chain: bool, seed: int = 0) -> Worst:
    """The worst error of a verifier: of its rule at one node if it has one, otherwise on whole trees.

    rule: that of the verifier, see `rule_of`. is_chain: nothing is defined for two siblings, so that chains
    are all there is.
    """
    is_rule = isinstance(verifier, TopDown)
    if is_rule and not is_chain:
        return worst_error(rule, draws, seed)
    checked = TopDown(rule) if is_rule else verifier
    return worst_tree_error(checked, draws, seed, trees=CHAINS if is_chain else TREES)


def supported_draws(rule: SiblingRule, num_siblings: int = 2) -> tuple[Draws, ...]:
    """The draws that a rule is defined for: `law` of so many siblings raises no InvalidInput for them."""
    uniform = torch.full((3,), 1 / 3, dtype=torch.float64)
    supported = []
    for draws in Draws:
        try:
            rule.law(uniform, uniform, torch.arange(num_siblings), draws)
        except InvalidInput:
            continue
        supported.append(draws)
    return tuple(supported)


def pair_of_laws(kind: str, vocab: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """A pair p, q of (V,) float64 laws of one of KINDS."""
    if kind == "disjoint":
        split = int(torch.randint(1, vocab, (), generator=generator))
        order = torch.randperm(vocab, generator=generator)
        return _law(vocab, generator, zero=order[:split]), _law(vocab, generator, zero=order[split:])
    if kind == "one-hot":
        p, q = _law(vocab, generator), torch.zeros(vocab, dtype=torch.float64)
        q[int(torch.randint(vocab, (), generator=generator))] = 1.0
        return (p, q) if bool(torch.rand((), generator=generator) < 0.5) else (q, p)
    power = 12.0 if kind == "peaked" else 1.0
    count = vocab // 2 if kind == "sparse" else 0
    p, q = (
        _law(vocab, generator, torch.randperm(vocab, generator=generator)[:count], power) for _ in range(2)
    )
    return (p, p) if kind == "p = q" else (p, q)


def _law(vocab: int, generator: Generator, zero: Tensor | None = None, power: float = 1.0) -> Tensor:
    """A uniform draw from the simplex, with zeros and raised to a power."""
    weights = -torch.rand(vocab, generator=generator, dtype=torch.float64).clamp_min(1e-12).log()
    if zero is not None:
        weights[zero] = 0.0
    weights = (weights / weights.max()) ** power
    return weights / weights.sum()


def _rounds(seed: int, repeats: int) -> Iterator[tuple[str, Generator]]:
    for repeat in range(repeats):
        for index, kind in enumerate(KINDS):
            yield kind, torch.Generator().manual_seed(1000 * seed + 10 * repeat + index)


def _number(error: float) -> float:
    return math.inf if math.isnan(error) else error
