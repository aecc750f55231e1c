"""Is a function that verifies drafted tokens exact? From the tokens that it emits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from resispec.testing.control import emitted_blindly, share_for
from resispec.testing.kernel import Kernel, seeded
from resispec.testing.options import Options, chosen, stages_of
from resispec.testing.session import Report
from resispec.testing.stage import Stage
from resispec.testing.statistics import Finding, by_token, findings, smallest_bias

FALSE_ALARM = 1e-6
"""The probability that an assertion fails although its sampler is exact."""


def assert_exact_sampler(
    sampler: Callable[..., Any], target_probs: Any = None, draft_probs: Any = None, **options: Any
) -> Report:
    """Fail unless the tokens that `sampler` emits follow the target's laws, whatever was drafted.

    sampler: called as `sampler(p, q, drafted, generator)`. For a chain of L drafted tokens p is (L + 1, V),
    q (L, V) and drafted (L,) int64; it returns the 1 to L + 1 tokens that are emitted, the accepted ones and
    then one more, as a sequence or an array, behind which negative numbers may stand. With `siblings=B` p and
    q are (V,) and drafted (B,), candidates for one position, and it returns the emitted token. With `batch=C`
    everything has one more dimension of C rows in front. Tensors are of `dtype` on `device`, the generator is
    a torch.Generator there; with `numpy=True` they are arrays and a numpy.random.Generator.
    target_probs, draft_probs: p and q; (L + 1, V) and (L, V), or (V,) and (V,) for siblings, tensors or
    arrays. When they are not given, laws are made that are hard, at a narrow and at a wide vocabulary, and
    depend on the token before: use these unless the kernel has limits that they do not fit.
    options: the fields of `resispec.testing.options.Options`. draft: the engine's own drafting, called as
    `draft(q, generator)` for one position after the other, with q (V,), or (C, V) in a batch; it returns a
    token, or `siblings` of them, for every row. Many rows are drafted before the first is verified, so what
    one hands to the other is handed over: if `draft` returns a tuple (tokens, noise), the sampler gets the
    noise as a fifth argument, for a chain a list of the noise of every position.

    Returns what could have been seen. Raises AssertionError for a bias, naming the worst cell, and for a test
    that would not have noticed one, and InvalidInput for what is no sampler, law or option.
    """
    __tracebackhide__ = True
    choice, stages = stages_of(chosen(options), target_probs, draft_probs)
    name = name_of(sampler)
    outcomes = []
    for stage in stages:
        seed = int(torch.randint(1 << 62, (), generator=stage.generator))
        generator = seeded(choice.numpy, choice.device, seed)
        kernel = Kernel(sampler, choice.draft, choice.batch, choice.numpy, choice.device, generator)
        try:
            outcomes.append(_played(stage, kernel, choice.calls(stage.vocab_size)))
        except AssertionError as error:  # for some tokens no statistics are needed
            where = f"V = {stage.vocab_size}, seed {choice.seed}"
            raise AssertionError(f"{name} is not exact: {where}: {error}") from None
    level = FALSE_ALARM / sum(len(outcome.findings) for outcome in outcomes)
    _require_exact(name, outcomes, level, choice)
    if choice.bias:
        _require_power(name, outcomes, level, choice)
    details = [outcome.line(level) for outcome in outcomes]
    biases = [outcome.smallest_bias(level) for outcome in outcomes]
    return Report(name, ("no bias found", *details, f"seed {choice.seed}"), max(biases)).noted()


def name_of(function: Any) -> str:
    """How messages call a function, also one that is wrapped in `functools.partial`."""
    found = getattr(function, "func", function)
    return getattr(found, "__qualname__", type(found).__name__)


@dataclass(frozen=True)
class _Outcome:
    """The statistics of one stage. calls: rows verified. tokens: how many were emitted."""

    stage: Stage
    calls: int
    tokens: int
    findings: Sequence[Finding]

    @property
    def furthest(self) -> Finding:
        """The statistic that is the least likely."""
        return min(
            self.findings, key=lambda finding: (finding.chi_square.p_value, -finding.chi_square.statistic)
        )

    def p_value(self, level: float) -> float:
        """How likely one of all statistics lies so far out; they were given `level` each."""
        return min(1.0, FALSE_ALARM / level * self.furthest.chi_square.p_value)

    def smallest_bias(self, level: float) -> float:
        """The total variation that would have shown in 9 of 10 such tests."""
        return smallest_bias(self.tokens, level)

    def line(self, level: float) -> str:
        """What is said of a stage on which nothing was found."""
        return (
            f"V = {self.stage.vocab_size}: {self.calls} calls, {self.tokens} tokens, "
            f"p = {self.p_value(level):.2g}, a bias of {self.smallest_bias(level):.2g} would have shown"
        )

    def failure(self, level: float) -> str:
        """What is said of a stage on which something was found."""
        found = self.furthest
        return (
            f"V = {self.stage.vocab_size}: p = {self.p_value(level):.2g}, {self.calls} calls, "
            f"{self.tokens} tokens\n"
            f"    {found.what}: chi-square {found.chi_square.statistic:.1f}, "
            f"{found.chi_square.degrees} degrees of freedom\n"
            f"    worst cell: {found.worst}"
        )


def _played(stage: Stage, kernel: Kernel, calls: int) -> _Outcome:
    """Let the sampler verify, and count. Raises AssertionError where no statistics of it are needed."""
    root = stage.roots(calls)
    drafted, emitted = kernel.play(stage, root)
    if kernel.draft and stage.draws.are_random and stage.draws.can_be_cut:
        first = stage.placed(root, drafted[:, : stage.length or 1])
        found = by_token(stage, stage.draft, first)
        if found.chi_square.p_value <= FALSE_ALARM:
            raise AssertionError(f"the tokens that draft= gives do not follow q: {found.worst}")
    return _counted(stage, root, emitted)


def _counted(stage: Stage, root: Tensor, emitted: Tensor) -> _Outcome:
    tokens = stage.placed(root, emitted)
    return _Outcome(stage, len(root), len(tokens.token), findings(stage, tokens))


def _require_exact(name: str, outcomes: Sequence[_Outcome], level: float, options: Options) -> None:
    __tracebackhide__ = True
    failed = [outcome for outcome in outcomes if outcome.p_value(level) <= FALSE_ALARM]
    if not failed:
        return
    held = [outcome for outcome in outcomes if outcome.p_value(level) > FALSE_ALARM]
    lines = [f"{name} is not exact; p is allowed down to {FALSE_ALARM:g}"]
    lines += [f"  {outcome.failure(level)}" for outcome in failed]
    lines += [f"  {outcome.line(level)}" for outcome in held]
    lines.append(f"  again: seed={options.seed}, samples={options.samples}")
    raise AssertionError("\n".join(lines))


def _require_power(name: str, outcomes: Sequence[_Outcome], level: float, options: Options) -> None:
    """Raise AssertionError where a sampler with a bias of `options.bias` passes as well."""
    __tracebackhide__ = True
    for outcome in outcomes:
        stage = outcome.stage
        share, root = share_for(stage, options.bias), stage.roots(outcome.calls)
        p_value = _counted(stage, root, emitted_blindly(stage, root, share)).p_value(level)
        if p_value > FALSE_ALARM:
            times = max(2.0, (outcome.smallest_bias(level) / options.bias) ** 2)
            raise AssertionError(
                f"{name} was not tested: a sampler with a bias of {options.bias:g} passes as well, "
                f"with p = {p_value:.2g}\n  {outcome.line(level)}\n"
                f"  try samples={math.ceil(options.samples * times)}, or a larger bias="
            )
