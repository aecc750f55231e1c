"""Typical acceptance of Medusa (arXiv 2401.10774): a token is accepted where p gives it enough.

Biased. Written from medusa/model/utils.py (`evaluate_posterior`, `generate_candidates`) of
github.com/FasterDecoding/Medusa at commit 10a2697, with the thresholds of `medusa_generate` at
11af0aa. In that code the token behind the accepted path is the target's likeliest, whatever the
temperature; here it is drawn from the target's law, so that the acceptance alone is judged. The
code adds 1e-5 to p in the entropy's logarithm.
"""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from resispec.core import Tree, Verdict
from resispec.distributions import draw_one
from resispec.trees import Topology, kept_with_topology
from resispec.verifiers.base import Outcomes, naming
from resispec.verifiers.options import check_number
from resispec.verifiers.registry import register


@register("typical")
@dataclass(frozen=True)
class Typical:
    """Accepts the longest path of typical tokens; of equally long ones the likeliest under p.

    A token x is typical if p(x) > min(threshold, alpha exp(-H)), H being the entropy of p. The
    draft's law plays no part, nor does chance but for the final token. threshold, alpha: from 0 to
    1; the paper's epsilon and delta. Raises InvalidInput for other numbers.
    """

    threshold: float = 0.09
    alpha: float = 0.3

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check_number(f"typical: {name}", value, lambda one: 0 <= one <= 1, "from 0 to 1")

    def verify(
        self, tree: Tree, target_probs: Tensor, draft_probs: Tensor, generator: Generator
    ) -> Verdict:
        """Draw a verdict; defined for every kind of draws and every tree."""
        node = int(self._last(tree, target_probs))
        path = tree.topology.path_to(node)
        with naming("target", node):
            final = draw_one(target_probs[node], generator)
        return Verdict(path, (*tree.tokens[list(path)].tolist(), final))

    def outcomes(self, tree: Tree, target_probs: Tensor, draft_probs: Tensor) -> Outcomes:
        """The law that `verify` draws from."""
        stop = torch.zeros_like(target_probs[:, 0])
        last = self._last(tree, target_probs).view(1)
        return Outcomes(stop.index_fill(0, last, 1), target_probs.clone())

    def _last(self, tree: Tree, target_probs: Tensor) -> Tensor:
        """The node () int64 at which the accepted path ends."""
        topology, probs = tree.topology, target_probs.double()
        if topology.num_nodes == 1:
            return torch.zeros((), dtype=torch.int64, device=probs.device)
        entropy = -torch.special.xlogy(probs, probs).sum(-1)
        least = (self.alpha * (-entropy).exp()).clamp_max(self.threshold)
        parents = _parents(topology, probs.device)
        share = probs[parents, tree.tokens[1:]]
        log_shares = torch.where(share > least[parents], share.log(), -torch.inf)
        # of every node the likelihood of its path, and no likelihood if that is not accepted
        likelihood = [probs.new_zeros(1)]
        for level in topology.levels[1:]:
            edges = slice(level.start - 1, level.stop - 1)
            above = likelihood[-1][parents[edges] - topology.levels[len(likelihood) - 1].start]
            likelihood.append(above + log_shares[edges])
        best = [
            values.argmax() + level.start
            for values, level in zip(likelihood, topology.levels, strict=True)
        ]
        is_reached = torch.stack([values.amax() > -torch.inf for values in likelihood])
        deepest = is_reached.sum().view(1) - 1  # an index of no dimension waits for the host
        return torch.stack(best).gather(0, deepest)[0]


@kept_with_topology
def _parents(topology: Topology, device: torch.device) -> Tensor:
    """The parents (N-1,) int64 of all nodes but the root."""
    return torch.tensor(topology.parents[1:], dtype=torch.int64, device=device)
