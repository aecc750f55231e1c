"""Hierarchical Speculative Decoding (arXiv 2601.05724) for one draft, as in its authors' code.

Biased.

The code is `transformers/generation/utils.py` of
github.com/ZhouYuxuanYX/Hierarchical-Speculative-Decoding at commit f3adf7f; see docs/exactness.md
for what is wrong with it.
"""

from dataclasses import dataclass

from torch import Tensor

from resispec.core import Tree
from resispec.verifiers.block import Block, chain_ratios
from resispec.verifiers.registry import register


@register("hsd")
@dataclass(frozen=True)
class Hsd(Block):
    """HSD decides every prefix as `Block` does, but the whole chain by its uncapped ratio.

    The chain x is accepted with probability min(1, p(x) / q(x)), not w. So earlier tokens that p
    likes more make up for later ones that p likes less, although residuals already give the earlier
    ones what they lack.
    """

    def prefixes(
        self, tree: Tree, target_probs: Tensor, draft_probs: Tensor
    ) -> tuple[Tensor, Tensor]:
        """See `Block.prefixes`."""
        accept, final = super().prefixes(tree, target_probs, draft_probs)
        ratios, _ = chain_ratios(tree, target_probs, draft_probs)
        accept[-1] = ratios.log().sum().exp().clamp_max(1)
        return accept, final
