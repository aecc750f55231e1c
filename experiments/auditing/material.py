"""Material of an audit: laws of real size, laws and prompts of a pair."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import torch
from torch import Generator, Tensor

from analysis import labels
from analysis.load import FILTERS_OFF
from experiments.cell import build, sampling_of
from resispec.audit.battery import MOST_SIBLINGS
from resispec.audit.ceiling import ceiling
from resispec.audit.estimate import Tuples, estimate, pool
from resispec.audit.simulation_cases import wide_laws
from resispec.audit.verdict import Statistics, remeasured
from resispec.data import Prompt
from resispec.decode import Sampling
from resispec.errors import NotDefined
from resispec.models import Model, Pair, features_of
from resispec.sampling import FILTERS, Warp
from resispec.verifiers import DrawsKind, SiblingRule

POSITION = 40  # in a prompt, after which laws are recorded; the last one of a shorter prompt
SETTINGS: tuple[Mapping[str, Any], ...] = (
    {"temperature": 0.6},
    {"temperature": 0.6, "top_p": 0.9},
    {"top_k": 20},
    {"min_p": 0.1},
)
"""Sampling settings under which a pair's laws are walked, beside the audit's own."""


@dataclass(frozen=True)
class Nodes:
    """Nodes at which a rule's emitted law is estimated.

    laws: p, q (V,) of every node, on the CPU. siblings: the number of siblings of every node.
    num_tuples: tuples of siblings that are drawn at every node.
    """

    laws: Sequence[tuple[Tensor, Tensor]]
    siblings: Sequence[int]
    num_tuples: int

    def estimates(
        self, rule: SiblingRule, draws: DrawsKind, max_siblings: int, generator: Generator
    ) -> tuple[Statistics, float]:
        """Means over nodes: total variation, acceptance above its ceiling ("excess"), the ceiling.

        The ceiling of draws that do not know theirs is 1: nothing is accepted more often than
        always.
        """
        widths = [min(width, max_siblings) for width in self.siblings]
        nodes = [(p, q, width) for (p, q), width in zip(self.laws, widths, strict=True)]
        try:
            bounds = [float(ceiling(*node, draws)) for node in nodes]
        except NotDefined:
            bounds = [1.0] * len(nodes)

        def measure(times: int) -> Statistics:
            size = times * self.num_tuples
            laws = [
                estimate(rule, p, q, Tuples(width, draws, size), generator) for p, q, width in nodes
            ]
            excesses = [law.excess(bound) for law, bound in zip(laws, bounds, strict=True)]
            return {
                "total variation": pool([law.total_variation for law in laws]),
                "excess": pool(excesses),
            }

        return remeasured(measure), mean(bounds)


@dataclass(frozen=True)
class Material:
    """The material of an audit: nodes by name, and a pair with its prompts.

    nodes: those named "recorded" are from the pair. walked_laws: laws p, q (R, V) of the pair after
    R prompts, float32 on the CPU, by the sampling settings that made them. seed: the seed of all
    random numbers.
    """

    pair: Pair
    sampling: Sampling
    prompts: list[list[int]]
    nodes: dict[str, Nodes]
    walked_laws: Mapping[str, tuple[Tensor, Tensor]]
    seed: int = 0


@torch.inference_mode()
def gather(config: Mapping[str, Any], documents: Sequence[Prompt]) -> Material:
    """Wide laws, and laws and prompts of a configuration's pair.

    Raises InvalidInput when the pair has no draft model.
    """
    pair: Pair = build(config["pair"])
    sampling = sampling_of(config)
    length, template = config["prompt_tokens"], config["prompt_template"]
    prompts = [pair.tokenizer.encode_prompt(document, length, template) for document in documents]
    logits = [logits_of(model, prompts) for model in (pair.target, pair.draft_model())]
    warps = [sampling.warp, *(Warp(**setting) for setting in SETTINGS)]
    laws = {warp: (warp.law(logits[0]), warp.law(logits[1])) for warp in warps}
    recorded = [*zip(*laws[sampling.warp], strict=True)]
    nodes = {
        "V = 32,000": Nodes([wide_laws(32_000)], [2], 4000),
        "8 siblings": Nodes([wide_laws(1_000)], [MOST_SIBLINGS], 4000),
        "recorded": Nodes(
            recorded, [1 + place % MOST_SIBLINGS for place in range(len(recorded))], 400
        ),
    }
    walked_laws = {setting_of(warp): pair_of_laws for warp, pair_of_laws in laws.items()}
    return Material(pair, sampling, prompts, nodes, walked_laws, config["seed"])


def logits_of(model: Model, prompts: Sequence[Sequence[int]]) -> Tensor:
    """A model's logits (R, V) after the first POSITION + 1 tokens of every prompt, on the CPU."""
    starts = [prompt[: POSITION + 1] for prompt in prompts]
    return torch.cat([model.head(features_of(model, start)[-1:]).cpu() for start in starts])


def setting_of(warp: Warp) -> str:
    """A temperature and filters, for people: "T = 0.6, top-p = 0.9"."""
    filters = {f"sampling.{name}": getattr(warp, name) for name in FILTERS}
    changed = {key: value for key, value in filters.items() if value != FILTERS_OFF[key]}
    return labels.setting({"temperature": f"{warp.temperature:g}", **changed})
