"""The comparison of shapes on toy pairs."""

from experiments.tasks.base import Workload
from experiments.tasks.shapes import Shapes
from resispec.decode import Decoder, Sampling
from resispec.drafters import DraftModel
from resispec.trees import (
    from_widths,
    root_only,
)
from resispec.verifiers import get_verifier


def workload(
    pair, verifier="traversal_optimal", prompts=1, length=1, draws="iid", new_tokens=8, **drafter
):
    named = [(f"p{index}", [index % 3] * length) for index in range(prompts)]
    decoder = Decoder(DraftModel(root_only(), draws, **drafter), get_verifier(verifier))
    return Workload(pair, decoder, Sampling(1.0, new_tokens, 64), named, seed=0)


def comparing(candidates, num_prefixes=1):
    """The task for candidates that are given by their widths."""
    return Shapes(num_prefixes, [list(from_widths(widths).parents) for widths in candidates])
