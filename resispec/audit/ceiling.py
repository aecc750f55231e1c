"""Ceilings of acceptance for exact rules at one node and for exact verifiers on a whole tree.

At one node the ceiling is the highest probability that a drafted sibling is emitted. For siblings X
drawn from the draft's law this is an optimal transport problem whose dual is a minimum over sets of
tokens,

    alpha* = 1 + min_H [P(H) - Pr(all siblings in H)],

and a minimiser is a prefix of the tokens in increasing order of p / q (Hu et al., arXiv
2502.18779). A rule above alpha* is not exact. How the minimum is computed depends on the kind of
draws: see the method `ceiling` in the kind's file.

For whole trees the ceiling is a bound: see `path_bound`, for which `tree_log_ratios` reads drafted
trees.
"""

import math

import torch
from torch import Tensor

from resispec.audit.row_checks import check_rows
from resispec.core import Tree
from resispec.errors import InvalidInput
from resispec.verifiers.base import DrawsKind


def ceiling(
    target_probs: Tensor, draft_probs: Tensor, num_siblings: int, draws: DrawsKind
) -> Tensor:
    """The ceiling alpha* (...), float64, for `num_siblings` siblings drawn from q as `draws` says.

    target_probs, draft_probs: (..., V), laws whose sums are 1 within float32's precision.
    Raises InvalidInput when p or q is no law or more distinct siblings are asked for than there are
    tokens.
    """
    check_rows("target probabilities", target_probs, 1e-4)
    check_rows("draft probabilities", draft_probs, 1e-4)
    check_siblings(num_siblings, target_probs.shape[-1], draws)
    p = target_probs.double()
    return draws.ceiling(p / p.sum(-1, keepdim=True), draft_probs.double(), num_siblings)


def check_siblings(num_siblings: int, vocab: int, draws: DrawsKind) -> None:
    """Raise InvalidInput unless this many siblings can be drawn from a vocabulary of this size."""
    if num_siblings < 1:
        raise InvalidInput(f"{num_siblings} siblings; allowed: at least 1")
    if draws.are_distinct and num_siblings > vocab:
        raise InvalidInput(
            f"{num_siblings} distinct siblings of {vocab} tokens; allowed: at most {vocab}"
        )


def tree_log_ratios(tree: Tree, target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """The largest log path ratio, sum log p / q, of every level of one tree, (D-1,) float64.

    target_probs, draft_probs: (N, V), the laws at every node (as in `decode.Step`). p = 0 gives
    -inf, and so does a level below which nothing was drafted; q = 0 (a draw without replacement
    after the draft's mass was exhausted) gives +inf unless p = 0.
    """
    topology, tokens = tree.topology, tree.tokens
    parents = torch.tensor(topology.parents[1:], device=tokens.device)
    p, q = (rows[parents, tokens[1:]].double().log() for rows in (target_probs, draft_probs))
    steps = torch.cat((p.new_zeros(1), torch.where(p == -math.inf, -math.inf, p - q)))
    levels = []
    for level in topology.levels[1:]:
        nodes = slice(level.start, level.stop)
        steps[nodes] += steps[list(topology.parents[nodes])]
        levels.append(
            steps[nodes].nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf).max()
        )
    return torch.stack(levels) if levels else p.new_zeros(0)
