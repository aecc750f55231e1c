"""Control variates: what is known to be zero in the mean, whatever rule is audited.

The mean of a quantity over sibling tuples is noisy because the siblings are. A part of that noise is known:
the standard rule is exact, so its emitted law minus p averages to 0 over the same tuples, and so does a
sibling's indicator minus the law that the sibling was drawn from. Subtracting multiples of these changes no
mean. For rules close to the standard one almost nothing of the noise is left.
"""

from __future__ import annotations

import torch
from torch import Tensor

from resispec.audit.laws import emitted
from resispec.verifiers.base import Draws
from resispec.verifiers.standard import Standard

RARE_EVENTS = 4.0
"""So many events of a kind are expected before what was drawn can be trusted to show it."""


def controls(target_probs: Tensor, draft_probs: Tensor, siblings: Tensor, draws: Draws) -> Tensor:
    """The controls of every tuple, each a signed measure over the vocabulary whose mean is 0.

    target_probs, draft_probs: (C, V); siblings: (C, B) int64. Returns (C, 1 + B, V): the standard rule's
    emitted law minus p, then for every sibling its indicator minus its law given the earlier ones.
    """
    standard = emitted(Standard().law(target_probs, draft_probs, siblings, draws), siblings)
    found = [standard - target_probs]
    for law, token in zip(draws.laws(draft_probs, siblings), siblings.split(1, -1), strict=True):
        found.append((-law).scatter_add(-1, token, torch.ones_like(law[..., :1])))
    return torch.stack(found, -2)


def multiples(covariance: Tensor, cross: Tensor, num_tuples: int) -> Tensor:
    """How much of each of K controls to subtract: ridge regression on `num_tuples` tuples.

    covariance: (K, K), of the controls; cross: (K,), with what is averaged. Returns (K,) float64. The ridge
    is the variance that an event of probability RARE_EVENTS / num_tuples has: controls that vary less may owe
    all they vary to an event or two, and a multiple fitted to these would be anything.
    """
    ridge = torch.eye(len(cross), dtype=covariance.dtype, device=covariance.device)
    return torch.linalg.solve(covariance + RARE_EVENTS / num_tuples * ridge, cross)


def reduced(values: Tensor, known: Tensor) -> Tensor:
    """`values` (n,) of n tuples less multiples of their controls `known` (n, K): the same mean, less noise.

    Each half of the tuples is told by the other half how much to subtract, so that the mean stays unbiased. A
    single tuple, of a point mass, stays as it is.
    """
    middle = len(values) // 2
    if middle == 0:
        return values
    halves = (slice(None, middle), slice(middle, None))
    return torch.cat(
        [
            values[here] - known[here] @ _fitted(values[there], known[there])
            for here, there in zip(halves, halves[::-1], strict=True)
        ]
    )


def _fitted(values: Tensor, known: Tensor) -> Tensor:
    count, centred = len(values), known - known.mean(0)
    covariance, cross = centred.T @ centred / count, centred.T @ (values - values.mean()) / count
    return multiples(covariance, cross, count)
