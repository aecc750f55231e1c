r"""The highest probability that any exact rule emits one of the drafted siblings.

For siblings X drawn from the draft's law this is an optimal transport problem whose dual is a minimum over
sets of tokens,
    alpha* = 1 + min_H [P(H) - Pr(all siblings in H)],
and a minimiser is a prefix of the tokens in increasing order of p / q (Hu et al., arXiv 2502.18779). A rule
above alpha* is not exact. How the minimum is computed depends on the kind of draws: see `ceiling` in its
file.
"""

from __future__ import annotations

from torch import Tensor

from resispec.audit.laws import check_rows
from resispec.errors import InvalidInput
from resispec.verifiers.base import Draws


def ceiling(target_probs: Tensor, draft_probs: Tensor, num_siblings: int, draws: Draws) -> Tensor:
    """alpha* (...), float64, for `num_siblings` siblings drawn from q as `draws` says.

    target_probs, draft_probs: (..., V), laws whose sums are 1 within float32's precision.
    Raises InvalidInput when p or q is no law or more distinct siblings are asked for than there are tokens.
    """
    check_rows("target probabilities", target_probs, 1e-4)
    check_rows("draft probabilities", draft_probs, 1e-4)
    check_siblings(num_siblings, target_probs.shape[-1], draws)
    p = target_probs.double()
    return draws.ceiling(p / p.sum(-1, keepdim=True), draft_probs.double(), num_siblings)


def check_siblings(num_siblings: int, vocab: int, draws: Draws) -> None:
    """Raise InvalidInput unless so many siblings can be drawn from a vocabulary of this size."""
    if num_siblings < 1:
        raise InvalidInput(f"{num_siblings} siblings; allowed: at least 1")
    if draws.are_distinct and num_siblings > vocab:
        raise InvalidInput(f"{num_siblings} distinct siblings of {vocab} tokens; allowed: at most {vocab}")
