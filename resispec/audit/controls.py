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


def multiples(covariance: Tensor, cross: Tensor) -> Tensor:
    """How much of each of K controls to subtract: least squares, also where controls depend on another.

    covariance: (K, K), of the controls; cross: (K,), with what is averaged. Returns (K,) float64.
    """
    return torch.linalg.pinv(covariance, rtol=1e-6, hermitian=True) @ cross


def reduced(values: Tensor, known: Tensor) -> Tensor:
    """`values` (n,) of n tuples less their controls `known` (n, K): the same mean, less noise.

    Each half of the tuples is told by the other half how much to subtract, so that the mean stays unbiased.
    With less than 4 tuples for each control, as for a point mass, nothing is subtracted.
    """
    middle = len(values) // 2
    if middle < 4 * known.shape[1]:
        return values
    halves = (slice(None, middle), slice(middle, None))
    return torch.cat(
        [
            values[here] - known[here] @ _fitted(values[there], known[there])
            for here, there in zip(halves, halves[::-1], strict=True)
        ]
    )


def _fitted(values: Tensor, known: Tensor) -> Tensor:
    centred = known - known.mean(0)
    return multiples(centred.T @ centred, centred.T @ (values - values.mean()))
