"""Draw a verdict from a verifier's `outcomes`, for devices where waiting for a number costs time.

`Verifier.verify` waits for the device at every node that it visits. `Verifier.outcomes` gives the
law of the same verdict for all nodes at once: two draws from this law, of the last node and the
final token, take one program of tensors and one wait.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Generator, Tensor

from resispec.core import Tree, Verdict
from resispec.distributions import invert, sum_tolerance
from resispec.trees import Topology
from resispec.verifiers.base import Verifier, outcomes_of

NUM_FACTS = 6


def draw_outcome(
    verifier: Verifier,
    tree: Tree,
    target_probs: Tensor,
    draft_probs: Tensor,
    generator: Generator | None,
) -> Tensor:
    """Draw the numbers for `read_verdict`, (NUM_FACTS + N,) float64; nothing waits for the device.

    target_probs, draft_probs: (N, V). The first numbers, the facts, are the node at which the walk
    stops, the final token, the sum and the least of the chances to stop, and the sum and the least
    of the final token's law. The tree's tokens follow.
    """
    outcomes = outcomes_of(verifier, tree, target_probs, draft_probs)
    return draw_from(
        outcomes.stop, lambda node: outcomes.final.index_select(0, node)[0], tree, generator
    )


def draw_from(
    stop: Tensor, final_at: Callable[[Tensor], Tensor], tree: Tree, generator: Generator | None
) -> Tensor:
    """The numbers of `draw_outcome`.

    stop: (N,) its chances. final_at: node (1,) int64 -> final law (V,).
    """
    uniform = torch.rand(2, generator=generator, device=stop.device, dtype=torch.float64)
    node = invert(stop, uniform[:1])
    final = final_at(node).double()
    token = invert(final, uniform[1:])
    stop = stop.double()
    facts = (node[0], token[0], stop.sum(), stop.amin(), final.sum(), final.amin())
    return torch.cat((torch.stack([fact.double() for fact in facts]), tree.tokens.double()))


def read_verdict(numbers: Sequence[float], topology: Topology, dtype: torch.dtype) -> Verdict:
    """The verdict that was drawn.

    numbers: the result of `draw_outcome`. dtype: the laws' precision.

    Raises FloatingPointError when one of the laws is invalid: NaN, negative masses, a sum other
    than 1.
    """
    tolerance = sum_tolerance(torch.empty(0, dtype=dtype))
    node, token = numbers[:2]
    checks = {"chances to stop": numbers[2:4], "masses of the final token": numbers[4:NUM_FACTS]}
    for name, (total, least) in checks.items():
        if not (abs(total - 1) <= tolerance and least >= -tolerance):
            raise FloatingPointError(
                f"the {name} in a verified tree sum to {total:.9g}, the least is {least:.6g}; "
                f"allowed: a sum of 1 within {tolerance:g}, entries that are not negative"
            )
    path = topology.path_to(int(node))
    return Verdict(path, (*(int(numbers[NUM_FACTS + place]) for place in path), int(token)))
