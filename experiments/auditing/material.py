"""Material of an audit: laws of real size, laws and prompts of a pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from experiments.cell import build
from experiments.worker import encode
from resispec.audit.battery import MOST_SIBLINGS
from resispec.audit.ceiling import ceiling
from resispec.audit.simulation_cases import wide_laws
from resispec.decode import Sampling
from resispec.models import Pair, features_of
from resispec.verifiers import Draws

POSITION = 40  # of a prompt whose next token's laws are recorded; the last one of a shorter prompt


@dataclass(frozen=True)
class Nodes:
    """Nodes at which a rule's emitted law is estimated: laws p, q (V,) on the CPU, and how many siblings.

    num_tuples: tuples of siblings that are drawn at every node.
    """

    laws: Sequence[tuple[Tensor, Tensor]]
    siblings: Sequence[int]
    num_tuples: int

    def narrowed(self, max_siblings: int) -> Nodes:
        """These nodes with at most so many siblings."""
        return replace(self, siblings=[min(width, max_siblings) for width in self.siblings])

    def ceilings(self, draws: Draws) -> list[float]:
        """The highest acceptance that an exact rule can have at every node."""
        return [
            float(ceiling(p, q, width, draws)) for (p, q), width in zip(self.laws, self.siblings, strict=True)
        ]


@dataclass(frozen=True)
class Material:
    """The ground of an audit: nodes by name, "recorded" from a pair among them, and prompts of that pair.

    seed: of all random numbers.
    """

    pair: Pair
    sampling: Sampling
    prompts: list[list[int]]
    nodes: dict[str, Nodes]
    seed: int = 0


@torch.inference_mode()
def gather(config: Mapping[str, Any], texts: Sequence[str]) -> Material:
    """Wide laws, and laws and prompts of a configuration's pair.

    Raises InvalidInput when the pair has no draft model.
    """
    pair: Pair = build(config["pair"])
    sampling = Sampling(temperature=config["temperature"], **config["sampling"])
    length, template = config["prompt_tokens"], config["prompt_template"]
    prompts = [encode(pair.tokenizer, text, length, template) for text in texts]
    models = pair.target, pair.draft_model()
    recorded = []
    for prompt in prompts:
        place = min(POSITION, len(prompt) - 1)
        p, q = (sampling.warp.law(model.head(features_of(model, prompt)))[place].cpu() for model in models)
        recorded.append((p, q))
    nodes = {
        "V = 32,000": Nodes([wide_laws(32_000)], [2], 4000),
        "8 siblings": Nodes([wide_laws(1_000)], [MOST_SIBLINGS], 4000),
        "recorded": Nodes(recorded, [1 + place % MOST_SIBLINGS for place in range(len(recorded))], 400),
    }
    return Material(pair, sampling, prompts, nodes, config["seed"])
