"""The standard recursive rejection rule: SpecInfer (arXiv 2305.09781) for i.i.d. draws, Sequoia (2402.12374) without replacement.

After x ~ q was refused the target is continued from norm(max(p - q, 0)): Equation 2 of the paper.
"""

from __future__ import annotations

from torch import Tensor

from resispec.verifiers.recursive import Recursive


def shape(target: Tensor, draft: Tensor, rejected: Tensor) -> Tensor:
    """What the target has left above the draft, (..., V), whatever token was refused."""
    return (target - draft).clamp_min(0)


def rule() -> Recursive:
    """The rule of SpecInfer, Sequoia and plain speculative sampling (one sibling)."""
    return Recursive(shape, is_bounded=True)
