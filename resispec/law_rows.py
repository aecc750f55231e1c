"""What cells that measure laws leave behind, one row a prompt. No row holds the outcome of a coin.

A context is a prefix of a prompt, and the law of the token after it is what is measured; rows hold one value a context, or sums
over contexts and drafted siblings. Means, rates and intervals are derived in analysis.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LawRow:
    """One prompt. prompt_index: position in the data set; the seed is the base seed plus it."""

    prompt_index: int
    prompt_id: str
    seed: int
    num_prompt_tokens: int
    num_contexts: int


@dataclass(frozen=True)
class KlRow(LawRow):
    """Table 4; every list has one value a context, divergences are in nats.

    paper_kl_resispec, paper_kl_standard, paper_kl_random: the paper's D_KL(p_hat || p) in float32 when the proxy is ResiSpec's,
    q or a random law; signed, as rounding leaves it.
    total_variation, total_variation_error: of the law that the verifier emits, cross-fitted, and its standard error. The mean is
    0 for an exact rule; otherwise it is at most the true value, which it nears with `num_tuples`.
    kl_plug_in, kl_at_least: D_KL of that law once tokens are merged into two sets, which bounds its D_KL from below; at the
    measured masses, and at masses moved two standard errors toward the target.
    """

    num_tuples: int
    paper_kl_resispec: list[float]
    paper_kl_standard: list[float]
    paper_kl_random: list[float]
    total_variation: list[float]
    total_variation_error: list[float]
    kl_plug_in: list[float]
    kl_at_least: list[float]


@dataclass(frozen=True)
class DecayRow(LawRow):
    """Figure 1; every list has one value a sibling, in the order in which siblings are tested.

    tested[i]: probability that siblings before i were all rejected; selected[i]: that they were and i is accepted; both summed
    over contexts and `num_tuples` drafted tuples a context. ceiling_tested, ceiling_selected: the same for the best exact rule of
    i siblings after the best of i - 1, namely 1 - a(i - 1) and a(i) - a(i - 1), summed over contexts.
    """

    num_tuples: int
    selected: list[float]
    tested: list[float]
    ceiling_selected: list[float]
    ceiling_tested: list[float]


@dataclass(frozen=True)
class ScalingRow(LawRow):
    """Table 5; the first lists have one entry a shape, all of them parts of one drafted tree a context.

    reading: "complete" (that many i.i.d. children at every node) or "chains" (that many i.i.d. paths). num_nodes: verified
    positions. emitted: expected tokens a step given the drafted tree, summed over contexts.
    tree_log_ratios: [shape][context][level], the largest log prod p / q over the tree's paths to that level.
    rollout_log_ratios: [rollout][level], the same along paths of the target. Zero probabilities give plus or minus `INFINITE`.
    """

    reading: list[str]
    num_candidates: list[int]
    num_nodes: list[int]
    emitted: list[float]
    tree_log_ratios: list[list[list[float]]]
    rollout_log_ratios: list[list[float]]


@dataclass(frozen=True)
class ShapesRow(LawRow):
    """Candidate shapes, all of them parts of one drafted tree a context.

    emitted: of every candidate, expected tokens a step given the drafted tree, summed over contexts.
    """

    emitted: list[float]


@dataclass(frozen=True)
class AcceptanceRow(LawRow):
    """Which child a rule accepts, by its place in draw order; a context is a position of text that the target wrote.

    selected[i]: probability that child i is the accepted one, summed over contexts; what lacks to `num_contexts` is none.
    """

    selected: list[float]


@dataclass(frozen=True)
class BoundRow(LawRow):
    """The ceiling of one tree. num_nodes: verified positions. emitted: expected tokens a step, summed over contexts.

    tree_log_ratios: [context][level] and rollout_log_ratios: [rollout][level], as in `ScalingRow`.
    """

    num_nodes: int
    emitted: float
    tree_log_ratios: list[list[float]]
    rollout_log_ratios: list[list[float]]


INFINITE = 1e6
"""Stands for infinity in rows, which JSON does not have; real log ratios are far smaller."""
