"""Tasks that measure laws where `Decode` measures outcomes: the artefacts about exactness and acceptance.

Nothing is accepted or rejected by a coin, so what is random is which siblings, trees and rollouts are drawn. Contexts are
prefixes of the prompts, in even steps up to the whole prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from experiments.tasks.prefixes import identity, prefix_lengths
from experiments.tasks.drafted import Root, expected_emitted, finite, part
from experiments.tasks import Context
from resispec.audit.ceiling import ceiling
from resispec.audit.estimate import Plan, estimate
from resispec.audit.first_token import rule_of
from resispec.audit.paper_kl import draft_proxy, kl_bound, paper_kl, random_proxy, resispec_proxy
from resispec.audit.path_bound import tree_log_ratios
from resispec.core import Draws
from resispec.distributions import draw, probabilities
from resispec.law_rows import DecayRow, KlRow, ScalingRow
from resispec.models import Model, extend
from resispec.trees import Topology, complete, parallel_chains

PROXIES = {
    "paper_kl_resispec": resispec_proxy,
    "paper_kl_standard": draft_proxy,
    "paper_kl_random": random_proxy,
}

# What "N candidates at depth D" may mean: (levels, candidates) -> shape. With one candidate both are a chain.
READINGS: Mapping[str, Callable[[int, int], Topology]] = {
    "complete": complete,
    "chains": lambda num_levels, num_candidates: parallel_chains(num_candidates, num_levels - 1),
}


@dataclass(frozen=True)
class Kl:
    """Table 4: the paper's KL and the audited law at one node with `num_siblings` i.i.d. siblings.

    contexts: prefixes of a prompt. num_tuples: sampled tuples of siblings a context.
    """

    contexts: int
    num_siblings: int
    num_tuples: int

    @torch.inference_mode()
    def __call__(self, context: Context, index: int) -> KlRow:
        """See `Task`."""
        shared, target, draft = _prompt_laws(context, index, self.contexts)
        target, draft = target.float(), draft.float()  # the paper's figure is the rounding of this precision
        generator = context.generator(index)
        published = {
            name: paper_kl(target, draft, proxy, self.num_siblings, generator).tolist()
            for name, proxy in PROXIES.items()
        }
        rule, plan = rule_of(context.decoder.verifier), Plan(self.num_siblings, Draws.IID, self.num_tuples)
        found = [estimate(rule, *laws, plan, generator) for laws in zip(target, draft, strict=True)]
        return KlRow(
            **shared,
            **published,
            num_tuples=self.num_tuples,
            total_variation=[one.total_variation for one in found],
            total_variation_error=[one.total_variation_error for one in found],
            kl_at_least=[kl_bound(one, num_errors=2) for one in found],
            kl_plug_in=[kl_bound(one) for one in found],
        )

    def progress(self, rows: Sequence[dict[str, Any]]) -> dict[str, str]:
        """The audited total variation over all contexts."""
        return {"total_variation": f"{_mean(rows, 'total_variation'):.4f}"}


@dataclass(frozen=True)
class Decay:
    """Figure 1: how often the i-th of `num_siblings` i.i.d. siblings is accepted once those before it were rejected.

    contexts: prefixes of a prompt. num_tuples: sampled tuples of siblings a context.
    """

    contexts: int
    num_siblings: int
    num_tuples: int

    @torch.inference_mode()
    def __call__(self, context: Context, index: int) -> DecayRow:
        """See `Task`."""
        shared, target, draft = _prompt_laws(context, index, self.contexts)
        generator, rule = context.generator(index), rule_of(context.decoder.verifier)
        selected = tested = torch.zeros(self.num_siblings, dtype=torch.float64, device=target.device)
        for p, q in zip(target, draft, strict=True):
            siblings = draw(q, self.num_tuples * self.num_siblings, generator).view(self.num_tuples, -1)
            shape = (self.num_tuples, len(p))
            select = rule.law(p.expand(shape), q.expand(shape), siblings, Draws.IID).select.double()
            selected = selected + select.sum(0)
            tested = tested + (1 - select.cumsum(-1) + select).clamp_min(0).sum(0)
        highest = torch.stack(
            [ceiling(target, draft, count, Draws.IID) for count in range(1, self.num_siblings + 1)]
        )
        before = torch.cat((torch.zeros_like(highest[:1]), highest[:-1]))
        return DecayRow(
            **shared,
            num_tuples=self.num_tuples,
            selected=selected.tolist(),
            tested=tested.tolist(),
            ceiling_selected=(highest - before).sum(-1).tolist(),
            ceiling_tested=(1 - before).sum(-1).tolist(),
        )

    def progress(self, rows: Sequence[dict[str, Any]]) -> dict[str, str]:
        """The acceptance rates of the first and the last sibling."""
        ends = (0, self.num_siblings - 1)
        rates = (
            sum(row["selected"][i] for row in rows) / sum(row["tested"][i] for row in rows) for i in ends
        )
        return {"acceptance": " to ".join(f"{rate:.2f}" for rate in rates)}


@dataclass(frozen=True)
class Scaling:
    """Table 5: expected accepted length of `num_candidates` i.i.d. candidates in trees of `num_levels` levels, in all READINGS.

    All shapes are parts of one drafted tree (the first siblings of i.i.d. ones are i.i.d.), so their differences are paired.
    contexts: prefixes of a prompt, with one tree each. rollouts: of the target, a context.
    """

    contexts: int
    num_candidates: Sequence[int]
    num_levels: int
    rollouts: int

    @torch.inference_mode()
    def __call__(self, context: Context, index: int) -> ScalingRow:
        """See `Task`. The trees do not depend on the verifier, so all verifiers of a seed see the same ones."""
        generator, (_, tokens) = context.generator(index), context.prompts[index]
        largest, rollouts = (
            complete(self.num_levels, max(self.num_candidates)),
            parallel_chains(self.rollouts, self.num_levels - 1),
        )
        shapes = [(reading, int(count)) for reading in READINGS for count in self.num_candidates]
        parts = [READINGS[reading](self.num_levels, count) for reading, count in shapes]
        emitted, ratios, paths = [0.0] * len(parts), [[] for _ in parts], []
        lengths = prefix_lengths(len(tokens), self.contexts)
        for length in lengths:
            capacity = len(tokens) + max(largest.num_nodes, rollouts.num_nodes)
            root = Root(context.pair, tokens[:length], context.sampling.temperature, capacity)
            whole = root.draft(largest, generator)
            laws = root.read(context.pair.target).laws(whole.tree)
            for place, shape in enumerate(parts):
                draft, target_probs = part(whole, laws, shape)
                emitted[place] += expected_emitted(context.decoder.verifier, draft, target_probs)
                ratios[place].append(finite(tree_log_ratios(draft.tree, target_probs, draft.probs)))
            paths += [finite(path) for path in root.target_path_ratios(rollouts, generator)]
        return ScalingRow(
            **identity(context, index, len(lengths)),
            reading=[reading for reading, _ in shapes],
            num_candidates=[count for _, count in shapes],
            num_nodes=[shape.num_nodes for shape in parts],
            emitted=emitted,
            tree_log_ratios=ratios,
            rollout_log_ratios=paths,
        )

    def progress(self, rows: Sequence[dict[str, Any]]) -> dict[str, str]:
        """The expected accepted length of the widest complete tree."""
        widest = len(self.num_candidates) - 1
        contexts = sum(row["num_contexts"] for row in rows)
        return {"accepted_length": f"{sum(row['emitted'][widest] for row in rows) / contexts:.2f}"}


def _prompt_laws(context: Context, index: int, count: int) -> tuple[dict[str, Any], Tensor, Tensor]:
    """The identity of a prompt, and the target's and the draft's laws (C, V) after each of its contexts."""
    tokens = context.prompts[index][1]
    lengths = prefix_lengths(len(tokens), count)
    laws = [
        _laws(model, tokens, lengths, context) for model in (context.pair.target, context.pair.draft_model())
    ]
    return identity(context, index, len(lengths)), laws[0], laws[1]


def _laws(model: Model, tokens: list[int], lengths: list[int], context: Context) -> Tensor:
    features = extend(model.session(len(tokens)), tokens, model.device)
    return probabilities(
        model.head(features[[length - 1 for length in lengths]]), context.sampling.temperature
    )


def _mean(rows: Sequence[dict[str, Any]], name: str) -> float:
    values = [value for row in rows for value in row[name]]
    return sum(values) / len(values)
