"""Exact audits at a small vocabulary: the emitted law, summed over all that can be drafted.

A rule is exact iff  sum_X Pr(X | q) Pr(emit y | X) = p(y)  for every p and q. In float64 the two
sides of an exact rule agree to about 1e-15; no sampling is involved, so one pair of laws where they
differ is a proof of bias.
"""

from functools import lru_cache
from itertools import permutations, product

import torch
from torch import Tensor

from resispec.audit.as_sibling_rule import kept_outcomes
from resispec.audit.ceiling import check_siblings
from resispec.audit.row_checks import check_like, check_pair, check_rows, check_stops, emitted
from resispec.core import Tree
from resispec.trees import Topology
from resispec.verifiers.base import DrawsKind, SiblingRule, Verifier

MAX_ELEMENTS = 1 << 22


def emitted_law(
    rule: SiblingRule,
    target_probs: Tensor,
    draft_probs: Tensor,
    num_siblings: int,
    draws: DrawsKind,
    drafted: Tensor | None = None,
) -> Tensor:
    """The emitted token's law at one node, exact up to rounding: a sum over all tuples of siblings.

    target_probs, draft_probs: (V,), float64 for an error of about 1e-15. drafted: see
    `drafted_tuples`. Returns (V,) in the same precision.
    Raises InvalidInput when p or q is no law (V,), or when more distinct siblings are asked for
    than there are tokens.
    """
    check_pair(target_probs, draft_probs)
    check_siblings(num_siblings, len(target_probs), draws)
    siblings, weights = drafted_tuples(draft_probs, num_siblings, draws, drafted)
    total = torch.zeros_like(target_probs)
    chunk_size = max(1, MAX_ELEMENTS // len(target_probs))
    for tokens, weight in zip(siblings.split(chunk_size), weights.split(chunk_size), strict=True):
        p, q = (probs.expand(len(tokens), -1) for probs in (target_probs, draft_probs))
        total += weight @ emitted(rule.law(p, q, tokens, draws), tokens)
    return total


def drafted_tuples(
    draft_probs: Tensor, num_siblings: int, draws: DrawsKind, drafted: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Tuples of siblings (K, B) int64 that can be drawn, and their probabilities (K,).

    draft_probs: (V,). drafted: the only tokens (T,) int64 to consider; None for all tokens.
    """
    tokens = torch.arange(len(draft_probs)) if drafted is None else drafted
    siblings = tokens[_tuples(len(tokens), num_siblings, draws.are_distinct)].to(draft_probs.device)
    weights = draws.weights(draft_probs.expand(len(siblings), -1), siblings)
    return siblings[weights > 0], weights[weights > 0]


def drafted_trees(
    topology: Topology, draft_rows: Tensor, draws: DrawsKind
) -> tuple[Tensor, Tensor]:
    """All trees that can be drafted: their tokens (K, N), the root's, 0, first, and chances (K,).

    draft_rows: (V, V), see `tree_law`. K is 0 where the siblings of such draws find too few tokens.
    """
    tuples = _tuples(len(draft_rows), topology.num_nodes - 1, False)
    tokens = torch.cat((tuples.new_zeros(len(tuples), 1), tuples), 1)
    weights = draft_rows.new_ones(len(tokens))
    for parents, children in topology.families:
        weights = weights * draws.weights(draft_rows[tokens[:, parents]], tokens[:, children]).prod(
            -1
        )
    return tokens[weights > 0], weights[weights > 0]


def tree_law(
    verifier: Verifier,
    topology: Topology,
    target_rows: Tensor,
    draft_rows: Tensor,
    draws: DrawsKind,
) -> Tensor:
    """The law of the first D emitted tokens, summed over all V^(N-1) drafted trees.

    target_rows, draft_rows: (V, V), the next token's law after every token (bigram models); the
    root's token is 0. If a step emits fewer than D tokens, the rest are fresh draws from the
    target, as in later steps. Returns (V, ..., V), D times. An exact verifier gives
    `chain_law(target_rows, D)`.
    Raises InvalidInput for rows that are no laws (V, V), FloatingPointError if the chances to stop
    in a drafted tree, however unlikely, are no law: the emitted law would hardly show that.
    """
    vocab = len(target_rows)
    for name, rows in (("target rows", target_rows), ("draft rows", draft_rows)):
        check_like(name, rows, (vocab, vocab))
        check_rows(name, rows)
    tokens, weights = drafted_trees(topology, draft_rows, draws)
    cases = [
        kept_outcomes(verifier, Tree(topology, row, draws), target_rows[row], draft_rows[row])
        for row in tokens
    ]
    stop = torch.stack([case.stop for case in cases])
    final = torch.stack([case.final for case in cases])
    check_stops(stop)
    laws = [target_rows.new_zeros([vocab] * (level + 1)) for level in range(topology.num_levels)]
    for node, masses in enumerate((weights[:, None] * stop).T):
        path = tokens[:, list(topology.path_to(node))]
        places = (path * vocab ** torch.arange(path.shape[1]).flip(0)).sum(-1)
        # In the rows' precision, whatever the verifier returns.
        emitted_here = (masses[:, None] * final[:, node]).to(target_rows.dtype)
        laws[path.shape[1]].view(-1, vocab).index_add_(0, places, emitted_here)
    law = laws[0]
    for level_law in laws[1:]:
        law = law[..., None] * target_rows + level_law
    return law


def chain_law(target_rows: Tensor, num_tokens: int) -> Tensor:
    """The target's law of `num_tokens` tokens after token 0: p(a | 0) p(b | a) ..., (V, ..., V)."""
    law = target_rows[0]
    for _ in range(num_tokens - 1):
        law = law[..., None] * target_rows
    return law


def total_variation(law: Tensor, target_probs: Tensor) -> float:
    """Half the L1 distance of two laws of the same shape; NaN where one of them holds NaN.

    Raises InvalidInput for two shapes.
    """
    check_like("laws", law, target_probs.shape)
    return float((law - target_probs).abs().sum()) / 2


@lru_cache(maxsize=64)
def _tuples(vocab: int, length: int, are_distinct: bool) -> Tensor:
    """All tuples of tokens (K, length) int64, without repeated tokens if `are_distinct`."""
    tuples = [
        *(
            permutations(range(vocab), length)
            if are_distinct
            else product(range(vocab), repeat=length)
        )
    ]
    return torch.tensor(tuples, dtype=torch.int64).view(len(tuples), length)
