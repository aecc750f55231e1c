"""Is a rule or a verifier exact? By its law, and where it draws by itself, by the tokens that it draws."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from resispec.audit.battery import CHAINS, TREES, supported_draws, worst_error, worst_tree_error
from resispec.audit.checked import CheckedRule
from resispec.audit.estimate import Tuples, estimate
from resispec.audit.first_token import rule_of
from resispec.audit.verdict import POWER, TOLERANCE
from resispec.core import Tree, Verdict
from resispec.draws import Draws
from resispec.errors import InvalidInput
from resispec.testing.control import distance, share_for
from resispec.testing.laws import zipf_pair
from resispec.testing.options import DTYPES, RuleOptions, made
from resispec.testing.report import Report
from resispec.testing.samplers import assert_exact_sampler, name_of
from resispec.testing.session import SESSION
from resispec.testing.statistics import limit_of
from resispec.trees import Topology, chain, complete
from resispec.verifiers import (
    Law,
    Outcomes,
    SiblingRule,
    Standard,
    TopDown,
    Verifier,
    as_verifier,
    get_verifier,
)

VOCABULARIES = (6, 16)
"""At which a verifier draws."""


def assert_exact(subject: Any, **options: Any) -> Report:
    """Fail unless a rule or a verifier is exact.

    subject: a `SiblingRule`, a `Verifier`, a class of either, a function with the contract of
    `SiblingRule.law`, or a name that `resispec.verifiers.get_verifier` knows, such as "my_rule.py:MyRule".
    Its law is summed over everything that can be drafted at narrow vocabularies, where an error above 1e-5,
    more than float32 rounds, is a proof; at a wide one it is averaged over drafted siblings. A verifier of
    trees also draws, on a chain and on siblings, see `assert_exact_sampler`.
    options: see `RuleOptions`.

    Returns what could have been seen. Raises AssertionError for a bias, and for a test that would not have
    noticed one, and InvalidInput for what is no rule, law or option, such as a rule that returns masses which
    are negative or do not sum to 1.
    """
    __tracebackhide__ = True
    chosen = made(RuleOptions, options)
    name, verifier = _resolved(subject)
    bare = _InPrecision(rule_of(verifier), DTYPES[chosen.dtype])
    kinds = chosen.draws or supported_draws(bare) or supported_draws(bare, num_siblings=1)
    if not kinds:
        raise InvalidInput(f"{name} is defined for no draws; allowed: at least one of {', '.join(Draws)}")
    level = chosen.false_alarm / (3 * len(kinds))
    trials = [_Trial(name, verifier, kind, chosen, level) for kind in kinds]
    details, z_scores, biases = [], [], []
    for trial in trials:
        error = trial.enumerate()
        z, least = trial.estimate()
        seen = f"z = {z:.1f}, a bias of {least:.2g} would have shown"
        details.append(f"{trial.draws}: enumerated error {error:.2g}, {seen}")
        z_scores.append(z)
        biases.append(least)
        if not isinstance(verifier, TopDown):
            trial.sample()
    p_value = min(1.0, len(kinds) * math.erfc(max(0.0, *z_scores) / math.sqrt(2)) / 2)
    report = Report(name, chosen.tuples * len(kinds), p_value, max(biases), (*details, f"seed {chosen.seed}"))
    SESSION.note(str(report))
    return report


@dataclass(frozen=True)
class _Trial:
    """One kind of draws. level: the probability of a false alarm of each of three tests."""

    name: str
    verifier: Verifier
    draws: Draws
    options: RuleOptions
    level: float

    @property
    def rule(self) -> SiblingRule:
        """What happens at one node, checked."""
        return self.precise(CheckedRule(rule_of(self.verifier), self.name))

    def precise(self, inner: Any) -> _InPrecision:
        """A rule or a verifier in the precision that was asked for."""
        return _InPrecision(inner, DTYPES[self.options.dtype])

    @property
    def takes_siblings(self) -> bool:
        """Whether more than one sibling is tested, or chains only."""
        return self.options.siblings > 1 and self.draws in supported_draws(self.rule)

    def enumerate(self) -> float:
        """The worst error of the enumerated law. Raises AssertionError when it is more than rounding."""
        __tracebackhide__ = True
        seed = self.options.seed
        is_rule, trees = isinstance(self.verifier, TopDown), TREES if self.takes_siblings else CHAINS
        if is_rule and self.takes_siblings:
            worst = worst_error(self.rule, self.draws, seed)
        else:
            verifier = TopDown(self.rule) if is_rule else self.precise(self.verifier)
            worst = worst_tree_error(verifier, self.draws, seed, trees=trees)
        if not worst.error <= TOLERANCE:
            p, q = (torch.round(law, decimals=4).tolist() for law in (worst.target_probs, worst.draft_probs))
            raise AssertionError(
                f"{self.name} is not exact: {self.draws} draws, {worst.case}: "
                f"total variation {worst.error:.3g} (allowed: {TOLERANCE:g})\n"
                f"  p = {p}\n  q = {q}\n  (a {worst.kind} pair; again: seed={seed})"
            )
        return worst.error

    def estimate(self) -> tuple[float, float]:
        """z of the law at the wide vocabulary, and the smallest bias that would have shown.

        Raises AssertionError for a bias, and where the negative control is not found.
        """
        __tracebackhide__ = True
        options, generator = self.options, Generator().manual_seed(1000 * self.options.seed + 20)
        laws = zipf_pair(options.vocabulary, DTYPES[options.dtype], generator)
        pair = laws.target[0], laws.draft[0]
        count = options.siblings if self.takes_siblings else 1
        tuples = Tuples(count, self.draws, options.tuples)
        found = estimate(self.rule, *pair, tuples, generator)
        limit = math.sqrt(limit_of(1, 2 * self.level))
        numbers = f"V = {options.vocabulary}, {self.draws} draws, {found.num_tuples} tuples"
        deviation = found.total_variation
        if not deviation.z <= limit:
            raise AssertionError(
                f"{self.name} is not exact: {numbers}: total variation {deviation.value:.3g}, "
                f"{deviation.z:.1f} standard errors (allowed: {limit:.1f})\n  again: seed={options.seed}"
            )
        if options.negative_control:
            far = distance(*pair, self.draws, count, generator)
            control = estimate(_Blind(share_for(options.bias, far)), *pair, tuples, generator)
            if control.total_variation.z <= limit:
                raise AssertionError(
                    f"{self.name} was not tested: a rule with a bias of {options.bias:g} passes as well; "
                    f"{numbers}: {control.total_variation.z:.1f} standard errors (needed: {limit:.1f})\n"
                    f"  try tuples={4 * options.tuples}, or a larger bias="
                )
        return deviation.z, (limit + POWER) * deviation.error

    def sample(self) -> None:
        """Whether the tokens that the verifier draws follow the target. Raises AssertionError."""
        __tracebackhide__ = True
        for siblings in (0, self.options.siblings) if self.takes_siblings else (0,):
            topology = complete(2, siblings) if siblings else chain(3)
            assert_exact_sampler(
                _verify(self.name, self.verifier, topology, self.draws),
                length=topology.num_levels - 1,
                siblings=siblings,
                draws=self.draws,
                vocabularies=VOCABULARIES,
                samples=max(1, self.options.samples // 4),
                seed=self.options.seed,
                false_alarm=self.level,
                negative_control=self.options.negative_control,
                bias=self.options.bias,
                dtype=self.options.dtype,
            )


def _resolved(subject: Any) -> tuple[str, Verifier]:
    """What is tested, as a verifier, and how messages call it."""
    if isinstance(subject, str):
        return subject, get_verifier(subject)
    made_now = subject() if isinstance(subject, type) else subject
    if callable(made_now) and not hasattr(made_now, "law") and not hasattr(made_now, "verify"):
        return name_of(made_now), TopDown(_Function(made_now))
    return type(made_now).__name__, as_verifier(made_now)


@dataclass(frozen=True)
class _Function:
    """A function with the contract of `SiblingRule.law`, as a rule."""

    law: Callable[..., Law]


@dataclass(frozen=True)
class _InPrecision:
    """A rule or a verifier that computes in `dtype`, whatever it is given."""

    inner: Any
    dtype: torch.dtype

    def law(self, target_probs: Tensor, draft_probs: Tensor, siblings: Tensor, draws: Draws) -> Law:
        """See `SiblingRule.law`."""
        found = self.inner.law(target_probs.to(self.dtype), draft_probs.to(self.dtype), siblings, draws)
        return Law(found.select.to(target_probs.dtype), found.residual.to(target_probs.dtype))

    def verify(self, tree: Tree, target_probs: Tensor, draft_probs: Tensor, generator: Generator) -> Verdict:
        """See `Verifier.verify`."""
        return self.inner.verify(tree, target_probs.to(self.dtype), draft_probs.to(self.dtype), generator)

    def outcomes(self, tree: Tree, target_probs: Tensor, draft_probs: Tensor) -> Outcomes:
        """See `Verifier.outcomes`."""
        found = self.inner.outcomes(tree, target_probs.to(self.dtype), draft_probs.to(self.dtype))
        return Outcomes(found.stop.to(target_probs.dtype), found.final.to(target_probs.dtype))


@dataclass(frozen=True)
class _Blind:
    """The negative control: the standard rule, but a share of the first siblings is accepted blindly."""

    share: float

    def law(self, target_probs: Tensor, draft_probs: Tensor, siblings: Tensor, draws: Draws) -> Law:
        """See `SiblingRule.law`."""
        found = Standard().law(target_probs, draft_probs, siblings, draws)
        select = (1 - self.share) * found.select
        select[..., 0] += self.share
        return Law(select, found.residual)


def _verify(
    name: str, verifier: Verifier, topology: Topology, draws: Draws
) -> Callable[..., tuple[int, ...]]:
    """A verifier as `assert_exact_sampler` calls it: on a chain, or on one level of siblings."""

    def verify(p: Tensor, q: Tensor, drafted: Tensor, generator: Generator) -> tuple[int, ...]:
        tree = Tree(topology, torch.cat((drafted.new_zeros(1), drafted)), draws)
        if p.ndim == 1:
            rows = p.expand(topology.num_nodes, -1), q.expand(topology.num_nodes, -1)
            return verifier.verify(tree, *rows, generator).tokens[:1]
        return verifier.verify(tree, p, torch.cat((q, q[-1:])), generator).tokens

    verify.__qualname__ = f"{name}.verify"
    return verify
