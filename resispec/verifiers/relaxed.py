"""Relaxed acceptance of TensorRT-LLM: a token is accepted if it is one of the target's likeliest.

Biased. Written from the text of its authors, "DeepSeek R1 MTP Implementation and Optimization"
(docs/source/blogs/tech_blog/blog2 of github.com/NVIDIA/TensorRT-LLM, at commit 000a01d), with the
numbers of its example. There it is for chains, and for the part of an answer in which a model
thinks; the other tokens are the target's likeliest. Here siblings are looked at in turn, and other
tokens are drawn from the target's law, so that the acceptance alone is judged; probabilities are
those of that law, with its temperature.
"""

from dataclasses import dataclass

from torch import Tensor

from resispec.distributions import normalise, null_mass
from resispec.verifiers.base import DrawsKind, Law
from resispec.verifiers.options import check_number
from resispec.verifiers.registry import register


@register("relaxed")
@dataclass(frozen=True)
class Relaxed:
    """Accepts the first sibling among the `top` likeliest tokens with p >= max p - delta.

    If there is none, the token is drawn from p. The draft's law plays no part. top: at least 1.
    delta: from 0 to 1. Raises InvalidInput for other values.
    """

    top: int = 10
    delta: float = 0.6

    def __post_init__(self) -> None:
        check_number(
            "relaxed: top",
            self.top,
            lambda one: isinstance(one, int) and one >= 1,
            "at least 1, a whole number",
        )
        check_number("relaxed: delta", self.delta, lambda one: 0 <= one <= 1, "from 0 to 1")

    def law(
        self, target_probs: Tensor, draft_probs: Tensor, siblings: Tensor, draws: DrawsKind
    ) -> Law:
        """See `SiblingRule.law`; defined for every kind of draws."""
        largest = target_probs.topk(min(self.top, target_probs.shape[-1]), -1)
        in_top = (siblings[..., None] == largest.indices[..., None, :]).any(-1)
        least = largest.values[..., :1] - self.delta
        accepted = in_top & (target_probs.gather(-1, siblings) >= least)
        is_first = accepted & (accepted.cumsum(-1) == 1)
        null = null_mass(target_probs)
        return Law(is_first.to(target_probs.dtype), normalise(target_probs, target_probs, null))
