"""Is a function that verifies drafted tokens exact? From the tokens that it emits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from resispec.testing.options import SamplerOptions, made
from resispec.testing.report import Outcome, Report
from resispec.testing.session import SESSION
from resispec.testing.statistics import smallest_bias
from resispec.testing.trial import Trial, trials_of


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
    options: see `SamplerOptions`. draft: the engine's own drafting, called as `draft(q, generator)` for one
    position after the other, with q (V,), or (C, V) in a batch; it returns a token, or `siblings` of them,
    for every row. Many rows are drafted before the first is verified, so what one hands to the other is
    handed over: if `draft` returns a tuple (tokens, noise), the sampler gets the noise as a fifth argument,
    for a chain a list of the noise of every position.

    Returns what could have been seen. Raises AssertionError for a bias, naming the worst cell, and for a test
    that would not have noticed one (see `Options`), and InvalidInput for what is no sampler, law or option.
    """
    __tracebackhide__ = True
    chosen = made(SamplerOptions, options)
    name, trials = name_of(sampler), trials_of(chosen, target_probs, draft_probs)
    outcomes, is_wrongly_drafted = [], False
    for trial in trials:
        try:
            outcome, drafted_wrongly = trial.judge(sampler)
        except AssertionError as error:
            raise AssertionError(f"{name} is not exact: {trial.name}, seed {chosen.seed}: {error}") from None
        outcomes.append(outcome)
        is_wrongly_drafted |= drafted_wrongly
    _require_exact(name, outcomes, chosen, is_wrongly_drafted)
    if chosen.negative_control:
        _require_power(name, trials, outcomes, chosen)
    return _reported(name, outcomes, chosen)


def name_of(function: Any) -> str:
    """How messages call a function, also one that is wrapped in `functools.partial`."""
    found = getattr(function, "func", function)
    return getattr(found, "__qualname__", type(found).__name__)


def _require_exact(
    name: str, outcomes: Sequence[Outcome], options: SamplerOptions, is_wrongly_drafted: bool
) -> None:
    __tracebackhide__ = True
    number = _num_statistics(outcomes)
    failed = [outcome for outcome in outcomes if outcome.p_value(number) <= options.false_alarm]
    if not failed:
        return
    held = [outcome.line(number, options.false_alarm) for outcome in outcomes if outcome not in failed]
    lines = [f"{name} is not exact; p is allowed down to {options.false_alarm:g}"]
    lines += [f"  {line}" for line in (*(outcome.failure(number) for outcome in failed), *held)]
    if is_wrongly_drafted:
        lines.append("  The tokens that draft= gives do not follow q: look at it first.")
    lines.append(f"  again: seed={options.seed}, samples={options.samples}")
    raise AssertionError("\n".join(lines))


def _require_power(
    name: str, trials: Sequence[Trial], outcomes: Sequence[Outcome], options: SamplerOptions
) -> None:
    __tracebackhide__ = True
    number = _num_statistics(outcomes)
    for trial, outcome in zip(trials, outcomes, strict=True):
        p_value = trial.control().p_value(number)
        if p_value > options.false_alarm:
            least = smallest_bias(outcome.tokens, options.false_alarm / number)
            needed = math.ceil(options.samples * max(2.0, (least / options.bias) ** 2))
            raise AssertionError(
                f"{name} was not tested: a sampler with a bias of {options.bias:g} passes as well, "
                f"with p = {p_value:.2g}\n  {outcome.line(number, options.false_alarm)}\n"
                f"  try samples={needed}, or a larger bias="
            )


def _reported(name: str, outcomes: Sequence[Outcome], options: SamplerOptions) -> Report:
    number, alarm = _num_statistics(outcomes), options.false_alarm
    report = Report(
        name,
        sum(outcome.calls for outcome in outcomes),
        min(outcome.p_value(number) for outcome in outcomes),
        max(smallest_bias(outcome.tokens, alarm / number) for outcome in outcomes),
        (*(outcome.line(number, alarm) for outcome in outcomes), f"seed {options.seed}"),
    )
    SESSION.note(str(report))
    return report


def _num_statistics(outcomes: Sequence[Outcome]) -> int:
    """How many statistics can raise a false alarm."""
    return sum(len(outcome.findings) for outcome in outcomes)
