"""Control variates: quantities whose mean is known to be zero, whatever rule is audited.

The mean of a quantity over sibling tuples is noisy because the siblings are random. A part of that
noise is known: the standard rule is exact, so its emitted law minus p averages to 0 over the same
tuples, and so does a sibling's indicator minus the law that the sibling was drawn from. Subtracting
multiples of these changes no mean. For rules close to the standard rule almost no noise is left.
"""

import torch
from torch import Tensor

from resispec.audit.row_checks import emitted
from resispec.verifiers.base import DrawsKind
from resispec.verifiers.standard import Standard

RARE_EVENTS = 4.0
"""Minimum expected event count for an empirical variance to be trusted."""


def controls(
    target_probs: Tensor, draft_probs: Tensor, siblings: Tensor, draws: DrawsKind
) -> Tensor:
    """The controls of every tuple, each a signed measure over the vocabulary whose mean is 0.

    target_probs, draft_probs: (C, V); siblings: (C, B) int64. Returns (C, 1 + B, V): the standard
    rule's emitted law minus p, then for every sibling its indicator minus its law given the earlier
    ones.
    """
    standard = emitted(Standard().law(target_probs, draft_probs, siblings, draws), siblings)
    pairs = zip(draws.laws(draft_probs, siblings), siblings.split(1, -1), strict=True)
    deviations = [
        (-law).scatter_add(-1, token, torch.ones_like(law[..., :1])) for law, token in pairs
    ]
    return torch.stack([standard - target_probs, *deviations], -2)


def multiples(covariance: Tensor, cross: Tensor, num_tuples: int) -> Tensor:
    """The multiple of each of K controls to subtract, by ridge regression on `num_tuples` tuples.

    covariance: (K, K), of the controls; cross: (K,), of the controls with the averaged quantity.
    Returns (K,) float64. The ridge is the variance that an event of probability
    RARE_EVENTS / num_tuples has: controls that vary less may owe all variance to an event or two,
    and a multiple fitted to these would be arbitrary.
    """
    ridge = torch.eye(len(cross), dtype=covariance.dtype, device=covariance.device)
    return torch.linalg.solve(covariance + RARE_EVENTS / num_tuples * ridge, cross)


def reduced(values: Tensor, known: Tensor) -> Tensor:
    """Take noise out of `values` (n,) by subtracting multiples of the controls `known` (n, K).

    The multiples for each half of the n tuples are fitted on the other half, so that the mean stays
    unbiased. A single tuple, of a point mass, stays as it is.
    """
    middle = len(values) // 2
    if middle == 0:
        return values
    halves, parts = (slice(middle), slice(middle, None)), []
    for here, there in (halves, halves[::-1]):
        centred, count = known[there] - known[there].mean(0), len(values[there])
        cross = centred.T @ (values[there] - values[there].mean()) / count
        parts.append(
            values[here] - known[here] @ multiples(centred.T @ centred / count, cross, count)
        )
    return torch.cat(parts)
