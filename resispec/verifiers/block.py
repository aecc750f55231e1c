"""Block Verification (arXiv 2403.10444, Algorithm 2): a prefix of a chain is accepted whole or not.

No exact verifier of a chain accepts more tokens in expectation. `Traversal` with standard weights
has the same law on chains.
"""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from resispec.core import Tree, Verdict
from resispec.distributions import draw_one, normalise, quotient
from resispec.errors import NotDefined
from resispec.verifiers.base import Outcomes
from resispec.verifiers.registry import register


@register("block")
@dataclass(frozen=True)
class Block:
    """Block Verification tosses a coin for every prefix of the chain
    and accepts the longest that passes.

    A prefix of l tokens has w_l = min(1, w_{l-1} p(x_l) / q(x_l)), w_0 = 1, and is accepted with
    probability h_l = s_l / (s_l + 1 - w_l), s_l = sum (w_l p - q)_+; the whole chain with w_l. The
    final token has the law (w_l p - q)_+, normalised, or p after the whole chain.
    """

    def verify(
        self, tree: Tree, target_probs: Tensor, draft_probs: Tensor, generator: Generator
    ) -> Verdict:
        """Draw a verdict; all prefixes are decided at once, with one host synchronisation.

        Raises InvalidInput for a tree that is no chain, FloatingPointError for a law that is NaN or
        empty.
        """
        accept, final = self.prefixes(tree, target_probs, draft_probs)
        coins = torch.rand(
            accept.shape, generator=generator, device=accept.device, dtype=torch.float64
        )
        chances, shares, tokens = torch.stack((accept, coins, tree.tokens.double())).tolist()
        if not all(0 <= chance <= 1 for chance in chances):
            raise FloatingPointError(f"cannot decide with chances {chances}; allowed: 0 to 1")
        last = max(node for node, chance in enumerate(chances) if shares[node] < chance)
        path = range(1, last + 1)
        return Verdict(
            tuple(path), (*(int(tokens[node]) for node in path), draw_one(final[last], generator))
        )

    def outcomes(self, tree: Tree, target_probs: Tensor, draft_probs: Tensor) -> Outcomes:
        """The law that `verify` draws from, in the target's precision.

        Raises InvalidInput as `verify`.
        """
        accept, final = self.prefixes(tree, target_probs, draft_probs)
        longer_fail = torch.cat((1 - accept[1:], accept.new_ones(1))).flip(0).cumprod(0).flip(0)
        return Outcomes((accept * longer_fail).to(final.dtype), normalise(final, target_probs))

    def prefixes(
        self, tree: Tree, target_probs: Tensor, draft_probs: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Chances h (N,) float64 of prefixes, and the final token's unnormalised laws (N, V)."""
        ratios, draft = chain_ratios(tree, target_probs, draft_probs)
        weights = [ratios.new_ones(1)]
        for ratio in ratios:
            weights.append((weights[-1] * ratio).clamp_max(1))
        weight = torch.cat(weights)
        final = target_probs.clone()
        final[:-1] = (weight[:-1, None].to(final.dtype) * target_probs[:-1] - draft).clamp_min(0)
        masses = final.sum(-1).double()
        # With w = 1 a prefix is surely accepted, even where p = q makes s = 0 and the quotient 0 /
        # 0.
        accept = torch.where(weight == 1, 1.0, masses / (masses + 1 - weight))
        accept[-1] = weight[-1]
        # Rounding alone can lead to a prefix that leaves no residual.
        return accept, torch.where(masses[:, None] > 0, final, target_probs)


def chain_ratios(tree: Tree, target_probs: Tensor, draft_probs: Tensor) -> tuple[Tensor, Tensor]:
    """The ratio p(x) / q(x) of each drafted token, (N-1, 1) float64, and the draft's laws (N-1, V).

    Raises InvalidInput for a tree that is no chain.
    """
    width = max(map(len, tree.topology.children))
    if width > 1:
        raise NotDefined(
            f"block verification: a node of {width} children; "
            "allowed: chains, whose nodes have at most one child"
        )
    token = tree.tokens[1:, None]
    # A root alone has no rows, and its draft may have no columns either: its laws are never read.
    draft = next(tree.draws.laws(draft_probs[:-1], token)) if len(token) else target_probs[:-1]
    return quotient(target_probs[:-1].gather(-1, token), draft.gather(-1, token)).double(), draft
