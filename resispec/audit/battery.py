"""A seeded battery of hard pairs of laws, and the errors of a rule or a tree verifier on it.

`shown_bias` needs no battery: it is for users who sample without an audit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Generator, Tensor

from resispec.audit.as_sibling_rule import rule_of
from resispec.audit.enumerate import (
    chain_law,
    drafted_trees,
    drafted_tuples,
    emitted_law,
    total_variation,
    tree_law,
)
from resispec.audit.row_checks import check_own_outcomes, emitted
from resispec.audit.verdict import TOLERANCE
from resispec.errors import NotDefined
from resispec.trees import Topology, chain, complete, from_child_counts, parallel_chains, root_only
from resispec.verifiers.base import Draws, DrawsKind, SiblingRule, Verifier
from resispec.verifiers.rehearsal import is_defined_on
from resispec.verifiers.top_down import applied_rule

KINDS = (
    "random", "sparse", "peaked", "one-hot", "p = q", "disjoint", "nearly equal", "ties",
    "denormal",
)  # fmt: skip
WIDE = 32_000
"""The vocabulary of the wide laws that nearly agree."""
NUM_DRAFTED = 10
"""Number of tokens that wide drafts can draw: few enough to add up all pairs of siblings."""
RESIDUAL_MASSES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
"""Mass by which a wide target exceeds its draft."""
MOST_SIBLINGS = 8
ShownLaws: TypeAlias = tuple[tuple[float, ...], tuple[float, ...]]
SHOWN_LAWS: ShownLaws = (0.5, 0.3, 0.2), (0.2, 0.4, 0.4)
"""The laws p and q of docs/exactness.md."""
GREEDY_LAWS: ShownLaws = (1.0, 0.0, 0.0), SHOWN_LAWS[1]
"""These laws with a target at temperature 0."""
TREES: tuple[tuple[Topology, int], ...] = (
    (root_only(), 4),
    (complete(3, 2), 2),
    (chain(3), 3),
    (from_child_counts([[2], [0, 2]]), 3),
    (complete(2, 4), 4),
    (complete(2, MOST_SIBLINGS), 2),
    (chain(5), 2),
    (from_child_counts([[2], [1, 1], [1, 1], [1, 1]]), 2),
    (from_child_counts([[2], [1, 2], [0, 1, 0], [1]]), 2),
    (from_child_counts([[2], [0, 1], [2], [0, 1], [1]]), 2),
    (parallel_chains(2, 3), 2),
)
"""Topologies and their vocabularies: up to 256 drafted trees per pair of laws, up to six levels.

Uneven trees are among them, one where only the second sibling has children at every level, and two
paths.
"""
CHAINS: tuple[tuple[Topology, int], ...] = (
    (root_only(), 4),
    (chain(2), 4),
    (chain(3), 3),
    (chain(5), 2),
)
"""Topologies for verifiers of chains, each with its vocabulary."""


@dataclass(frozen=True)
class Case:
    """A total variation between an emitted law and the target's, and where it was found.

    error: |law - p|_1 / 2, infinity when a law was NaN. kind: one of KINDS. target_probs,
    draft_probs: (V,) for a rule, (V, V) for a tree verifier. case: such as "3 siblings" or "tree of
    7 nodes, 3 levels".
    """

    error: float
    kind: str
    case: str
    target_probs: Tensor
    draft_probs: Tensor

    @classmethod
    def of(cls, law: Tensor, wanted: Tensor, *case: Any) -> Case:
        """Make a case from an emitted law and the law that it should be. case: the other fields."""
        error = total_variation(law, wanted)
        return cls(math.inf if math.isnan(error) else error, *case)


def worst(cases: Iterable[Case]) -> Case:
    """The case with the largest error."""
    return max(cases, key=lambda case: case.error)


def rule_cases(
    rule: SiblingRule,
    draws: DrawsKind,
    seed: int = 0,
    repeats: int = 3,
    most_siblings: int = MOST_SIBLINGS,
) -> Iterator[Case]:
    """Enumerate a rule in `repeats` rounds of the battery: all KINDS, 1 to 8 siblings, V in 2..8.

    It takes a few seconds. Raises every error of the rule, such as NotDefined for draws that the
    rule is not defined for.
    """
    for kind, generator in _rounds(seed, repeats):
        for num_siblings in range(1, most_siblings + 1):
            for vocab in _vocabularies(num_siblings, draws):
                p, q = pair_of_laws(kind, vocab, generator)
                law = emitted_law(rule, p, q, num_siblings, draws)
                yield Case.of(law, p, kind, f"{num_siblings} siblings", p, q)


def _vocabularies(num_siblings: int, draws: DrawsKind) -> range:
    """Sizes of vocabularies that leave few tuples of siblings to add up: at most 8! of them."""
    if num_siblings <= 3:
        return range(max(2, num_siblings) if draws.are_distinct else 2, 6)
    vocab = max(num_siblings, 5) if draws.are_distinct else max(2, 7 - num_siblings)
    return range(vocab, vocab + 1)


def tree_cases(
    verifier: Verifier,
    draws: DrawsKind,
    seed: int = 0,
    trees: Sequence[tuple[Topology, int]] = TREES,
) -> Iterator[Case]:
    """Enumerate a verifier on whole trees: the law of the first D tokens for bigram pairs.

    trees: topologies with their vocabularies; topologies that the verifier is not defined on are
    skipped.
    """
    for kind, generator in _rounds(seed, 1):
        for topology, vocab in trees:
            is_too_wide = draws.are_distinct and max(map(len, topology.children)) > vocab
            if is_too_wide or not is_defined_on(verifier, draws, topology):
                continue
            rows = [pair_of_laws(kind, vocab, generator) for _ in range(vocab)]
            target, draft = (torch.stack(laws) for laws in zip(*rows, strict=True))
            if not len(drafted_trees(topology, draft, draws)[0]):
                continue  # distinct siblings by draws that do not say so
            law = tree_law(verifier, topology, target, draft, draws)
            name = f"tree of {topology.num_nodes} nodes, {topology.num_levels} levels"
            yield Case.of(law, chain_law(target, topology.num_levels), kind, name, target, draft)


def wide_cases(
    rule: SiblingRule, draws: DrawsKind, num_siblings: int, seed: int = 0
) -> Iterator[Case]:
    """Enumerate a rule at V = 32,000 on laws that nearly agree; it takes a few seconds.

    The target exceeds the draft by each of RESIDUAL_MASSES: by little on the tokens that can be
    drafted, by the rest on all others, so that a residual is wide and has little mass.
    """
    generator = Generator().manual_seed(seed)
    for mass in RESIDUAL_MASSES:
        drafted = torch.randperm(WIDE, generator=generator)[:NUM_DRAFTED]
        q = torch.zeros(WIDE, dtype=torch.float64)
        q[drafted] = _law(NUM_DRAFTED, generator)
        p = (1 - mass) * q + mass * _law(WIDE, generator)
        _, weights = drafted_tuples(q, num_siblings, draws, drafted)
        # else the draws take other tokens, too: too many to add up
        if abs(float(weights.sum()) - 1) < 1e-9:
            law = emitted_law(rule, p, q, num_siblings, draws, drafted)
            yield Case.of(law, p, "nearly equal", f"{num_siblings} siblings of {WIDE:,}", p, q)


def cases_of(
    rule: SiblingRule, verifier: Verifier, draws: DrawsKind, is_chain: bool, seed: int = 0
) -> Iterator[Case]:
    """Enumerate a verifier at one node (if it applies a rule there), on wide laws and whole trees.

    rule: the verifier's rule, see `rule_of`. is_chain: whether the verifier is not defined for two
    siblings, so that only chains are enumerated.
    """
    if applied_rule(verifier) is not None:
        most_siblings = 1 if is_chain else min(MOST_SIBLINGS, draws.most_siblings)
        yield from rule_cases(rule, draws, seed, most_siblings=most_siblings)
    yield from wide_cases(rule, draws, 1 if is_chain else 2, seed)
    yield from tree_cases(verifier, draws, seed, CHAINS if is_chain else TREES)


def shown_bias(
    verifier: Verifier, draws: DrawsKind, is_greedy: bool = False, are_likeliest: bool = False
) -> str | None:
    """A sentence that says how biased a verifier is on three tokens; None if it is not biased.

    is_greedy: take a target at temperature 0, whose law is a point mass. are_likeliest: siblings
    are the draft's likeliest tokens, and the verifier is told these draws all the same.

    One and two siblings are enumerated where the verifier is defined, and chains of two for tree
    verifiers; this takes milliseconds. A verifier without bias here may be biased elsewhere: only
    an audit tells. Nor does one have a bias here that fails on three tokens, as a third party's
    may; decoding shows its error.
    """
    shown = GREEDY_LAWS if is_greedy else SHOWN_LAWS
    with suppress(Exception), torch.device("cpu"):  # whatever default device a program has set
        return _shown_bias(verifier, draws, shown, are_likeliest)
    return None


def _shown_bias(
    verifier: Verifier, draws: DrawsKind, shown: ShownLaws, are_likeliest: bool
) -> str | None:
    check_own_outcomes(verifier)
    rule, is_applied = rule_of(verifier), applied_rule(verifier) is not None
    p, q = (torch.tensor(law, dtype=torch.float64) for law in shown)

    def laws() -> Iterator[tuple[Tensor, Tensor]]:
        """Emitted laws and the target's; one that fails hides no bias of those before it."""
        for count in (1, 2):
            if not is_defined(rule, draws, count):
                continue
            if are_likeliest:
                siblings = q.topk(count).indices
                yield emitted(rule.law(p, q, siblings, draws), siblings), p
            else:
                yield emitted_law(rule, p, q, count, draws), p
        if not is_applied and not are_likeliest and is_defined(rule, draws, 1):
            target, draft = p.expand(3, 3), q.expand(3, 3)
            yield tree_law(verifier, chain(2), target, draft, draws), chain_law(target, 3)

    name = type(rule if is_applied else verifier).__name__
    drawn = f"with draws {draws}"
    if are_likeliest:
        drawn = f"where siblings are the draft's likeliest tokens, told as draws {draws}"
    for law, target_law in laws():
        if not (error := total_variation(law, target_law)) <= TOLERANCE:
            tokens = "three tokens after a chain of two"
            if law.dim() == 1:
                chances = ", ".join(f"{chance:.3f}" for chance in law.tolist())
                tokens = f"the tokens with probabilities ({chances})"
            return (
                f"{name} is biased {drawn}: where the target's law is {shown[0]} "
                f"and the draft's {shown[1]}, it emits {tokens}, a total variation of "
                f"{error:.3f} from the target; see docs/exactness.md"
            )
    return None


def supported_draws(rule: SiblingRule, num_siblings: int = 2) -> tuple[DrawsKind, ...]:
    """The draws that a rule is defined for, see `is_defined`."""
    return tuple(draws for draws in Draws if is_defined(rule, draws, num_siblings))


def is_defined(rule: SiblingRule, draws: DrawsKind, num_siblings: int) -> bool:
    """Whether the rule's `law` raises no NotDefined for this many siblings and these draws.

    Any other error of the rule, such as an illegal law of a checked one, is raised.
    """
    uniform = torch.full((3,), 1 / 3, dtype=torch.float64)
    try:
        rule.law(uniform, uniform, torch.arange(num_siblings), draws)
    except NotDefined:
        return False
    return True


def pair_of_laws(kind: str, vocab: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """A pair p, q of (V,) float64 laws of one of KINDS."""
    if kind == "disjoint":
        split = int(torch.randint(1, vocab, (), generator=generator))
        order = torch.randperm(vocab, generator=generator)
        return _law(vocab, generator, zero=order[:split]), _law(
            vocab, generator, zero=order[split:]
        )
    if kind == "one-hot":
        p, q = _law(vocab, generator), torch.zeros(vocab, dtype=torch.float64)
        q[int(torch.randint(vocab, (), generator=generator))] = 1.0
        return (p, q) if bool(torch.rand((), generator=generator) < 0.5) else (q, p)
    if kind == "nearly equal":
        p = _law(vocab, generator)
        # The laws differ by 10^-1 to 10^-6 of their masses.
        size = 10 ** -(1 + 5 * float(torch.rand((), generator=generator)))
        q = p * (1 + size * (2 * torch.rand(vocab, generator=generator, dtype=torch.float64) - 1))
        return p, q / q.sum()
    if kind == "ties":  # masses in proportions of 1 to 3, so that masses and ratios are often equal
        p, q = (torch.randint(1, 4, (vocab,), generator=generator).double() for _ in range(2))
        return p / p.sum(), q / q.sum()
    if kind == "denormal":
        p, q = _law(vocab, generator), _law(vocab, generator)
        # a mass below the normal numbers, where products and quotients lose their digits
        for law in (p, q):
            law[int(torch.randint(vocab, (), generator=generator))] = 1e-322
        return p / p.sum(), q / q.sum()
    power = 12.0 if kind == "peaked" else 1.0
    count = vocab // 2 if kind == "sparse" else 0
    p, q = (
        _law(vocab, generator, torch.randperm(vocab, generator=generator)[:count], power)
        for _ in range(2)
    )
    return (p, p) if kind == "p = q" else (p, q)


def _law(
    vocab: int, generator: Generator, zero: Tensor | None = None, power: float = 1.0
) -> Tensor:
    """A uniform draw from the simplex, with mass 0 at the tokens `zero`, raised to a power."""
    weights = -torch.rand(vocab, generator=generator, dtype=torch.float64).clamp_min(1e-12).log()
    if zero is not None:
        weights[zero] = 0.0
    weights = (weights / weights.max()) ** power
    return weights / weights.sum()


def _rounds(seed: int, repeats: int) -> Iterator[tuple[str, Generator]]:
    for repeat in range(repeats):
        for index, kind in enumerate(KINDS):
            yield kind, torch.Generator().manual_seed(1000 * seed + 10 * repeat + index)
