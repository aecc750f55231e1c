"""An assertion that a function verifies drafted tokens exactly, by the tokens that it emits."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from referee.testing.counts import CountTest, by_token, count_tests, smallest_bias
from referee.testing.kernel import DTYPES, Kernel, SamplerOptions
from referee.testing.plugin import Report
from referee.testing.stage import FULL, NONE, Stage, laws_for
from resispec.audit.battery import KINDS
from resispec.audit.enumerate import total_variation
from resispec.audit.row_checks import check_rows
from resispec.draws import Draws
from resispec.errors import InvalidInput

FALSE_ALARM = 1e-6
"""The probability that an assertion fails although its sampler is exact."""
SEEDS = 1_000_003
"""The factor that joins a seed and a vocabulary size to one seed: a prime above every such size."""


def assert_exact_sampler(
    sampler: Callable[..., Any], target_probs: Any = None, draft_probs: Any = None, **options: Any
) -> Report:
    """Fail unless the tokens that `sampler` emits follow the target's laws, whatever was drafted.

    sampler: called as `sampler(p, q, drafted, generator)`. For a chain of L drafted tokens p is
    (L + 1, V), q (L, V) and drafted (L,) int64; it returns the 1 to L + 1 emitted tokens, the
    accepted ones and then one more, as a sequence or an array that negative numbers may follow as
    padding. With `siblings=B`, p and q are (V,) and drafted is (B,), candidates for one position,
    and it returns the emitted token. With `batch=C` everything has one more dimension of C rows in
    front. The inputs are tensors of `dtype` on `device` and a torch.Generator there; with
    `numpy=True`, arrays and a numpy.random.Generator.

    target_probs, draft_probs: p and q, tensors or arrays: (L + 1, V) and (L, V), or (V,) and (V,)
    for siblings. Without them hard laws are made, at narrow and wide vocabularies, that depend on
    the token before: use these unless they do not fit the limits of the kernel.

    options: the fields of `SamplerOptions`.

    draft: the engine's own drafting, called as `draft(q, generator)` for one position after the
    other, with q (V,), or (C, V) in a batch; it returns a token, or `siblings` of them, for every
    row. Many rows are drafted before the first is verified, so `draft` must return what the sampler
    needs of it: if it returns a tuple (tokens, noise), the sampler gets the noise as a fifth
    argument, for a chain as a list of the noise of every position.

    Returns a report of the bias that would have shown. Raises AssertionError for a bias, naming the
    worst cell, and for a test that would not have noticed a bias; InvalidInput for invalid tokens
    and laws and an invalid value of an option.
    """
    __tracebackhide__ = True
    if target_probs is not None and draft_probs is not None:
        options["vocabularies"] = (_checked("target_probs", target_probs).shape[-1],)
    choice, stages = _stages_of(SamplerOptions(**options), target_probs, draft_probs)
    name, outcomes = name_of(sampler), []
    for stage in stages:
        seed = int(torch.randint(1 << 62, (), generator=stage.generator))
        rng = (
            np.random.default_rng(seed)
            if choice.numpy
            else Generator(choice.device).manual_seed(seed)
        )
        kernel = Kernel(sampler, choice, rng)
        try:
            outcomes.append(_played(stage, kernel))
        except AssertionError as error:  # some tokens fail without statistics
            where = f"V = {stage.vocab_size}, seed {choice.seed}"
            raise AssertionError(f"{name} is biased: {where}: {error}") from None
    level = FALSE_ALARM / sum(len(outcome.tests) for outcome in outcomes)
    if any(outcome.p_value(level) <= FALSE_ALARM for outcome in outcomes):
        ranking = sorted(outcomes, key=lambda outcome: outcome.p_value(level) > FALSE_ALARM)
        lines = [outcome.lines(level) for outcome in ranking]  # failed stages first
        hint = f"again: seed={choice.seed}, samples={choice.samples}"
        header = f"{name} is biased; p is allowed down to {FALSE_ALARM:g}"
        raise AssertionError("\n  ".join((header, *lines, hint)))
    if choice.bias:
        _require_power(name, outcomes, level, choice)
    details = (
        "no bias seen",
        *(outcome.lines(level) for outcome in outcomes),
        f"seed {choice.seed}",
    )
    return Report(name, details, max(outcome.smallest_bias(level) for outcome in outcomes)).noted()


def name_of(function: Any) -> str:
    """The name of a function in messages, also of one that is wrapped in `functools.partial`."""
    inner = getattr(function, "func", function)
    return getattr(inner, "__qualname__", type(inner).__name__)


@dataclass(frozen=True)
class _Outcome:
    """The statistics of one stage. calls: the number of verified rows."""

    stage: Stage
    calls: int
    tests: Sequence[CountTest]

    @property
    def furthest(self) -> CountTest:
        """The statistic that is the least likely."""
        return min(self.tests, key=lambda test: (test.chi_square.p_value, -test.chi_square.value))

    def p_value(self, level: float) -> float:
        """Bound of the chance that FALSE_ALARM / level statistics have one as far as `furthest`."""
        return min(1.0, FALSE_ALARM / level * self.furthest.chi_square.p_value)

    def smallest_bias(self, level: float) -> float:
        """The total variation that would have shown in 9 of 10 such tests."""
        return smallest_bias(self.tests[0].chi_square.n, level)

    def lines(self, level: float) -> str:
        """One line about a stage without a finding, or three lines about a stage with one."""
        test, p_value = self.furthest, f"p = {self.p_value(level):.2g}"
        size = f"{self.calls} calls, {self.tests[0].chi_square.n} tokens"
        if self.p_value(level) > FALSE_ALARM:
            bias = f"a bias of {self.smallest_bias(level):.2g} would have shown"
            return f"V = {self.stage.vocab_size}: {size}, {p_value}, {bias}"
        return (
            f"V = {self.stage.vocab_size}: {p_value}, {size}\n    {test.what}: chi-square "
            f"{test.chi_square.value:.1f}, {test.chi_square.degrees} degrees of freedom\n"
            f"    worst cell: {test.worst}"
        )


def _played(stage: Stage, kernel: Kernel) -> _Outcome:
    """Let the sampler verify, and count.

    Raises AssertionError like `play`, or if drafts do not follow q.
    """
    root = stage.roots(kernel.options.calls(stage.vocab_size))
    drafted, emitted = kernel.play(stage, root)
    if kernel.options.draft and stage.draws.are_random and stage.draws.can_be_cut:
        tokens = stage.placed(root, drafted[:, : stage.length or 1])
        test = by_token(stage, stage.draft, tokens)
        if test.chi_square.p_value <= FALSE_ALARM:
            raise AssertionError(f"the tokens that draft= gives do not follow q: {test.worst}")
    return _counted(stage, root, emitted)


def _counted(stage: Stage, root: Tensor, emitted: Tensor) -> _Outcome:
    return _Outcome(stage, len(root), count_tests(stage, stage.placed(root, emitted)))


def _require_power(
    name: str, outcomes: Sequence[_Outcome], level: float, options: SamplerOptions
) -> None:
    """Raise AssertionError if a sampler with a bias of `options.bias` passes as well."""
    __tracebackhide__ = True
    for outcome in outcomes:
        stage = outcome.stage
        share, root = _share_for(stage, options.bias), stage.roots(outcome.calls)
        p_value = _counted(stage, root, _emitted_blindly(stage, root, share)).p_value(level)
        if p_value > FALSE_ALARM:
            times = max(2.0, (outcome.smallest_bias(level) / options.bias) ** 2)
            raise AssertionError(
                f"{name} was not tested: a sampler with a bias of {options.bias:g} passes as well, "
                f"with p = {p_value:.2g}\n  {outcome.lines(level)}\n"
                f"  try samples={math.ceil(options.samples * times)}, or a larger bias="
            )


def _stages_of(
    options: SamplerOptions, target_probs: Any, draft_probs: Any
) -> tuple[SamplerOptions, list[Stage]]:
    """Options and stages: one of given laws, which set options, or one for each vocabulary."""
    if target_probs is None and draft_probs is None:
        # Kernels are not tested on exhausted drafts.
        kinds = FULL if options.siblings > 1 and options.draws.are_distinct else KINDS
        shape = (0 if options.siblings else options.length, options.siblings, options.draws)
        stages = []
        for vocab in options.vocabularies:
            generator = _seeded(options, vocab)
            laws = (law.to(DTYPES[options.dtype]) for law in laws_for(vocab, kinds, generator))
            stages.append(Stage(*laws, *shape, generator))
        return options, stages
    p, q = _checked("target_probs", target_probs), _checked("draft_probs", draft_probs)
    options = replace(options, numpy=not isinstance(target_probs, Tensor), device=p.device)
    p, q = p.cpu(), q.cpu()
    drawing = options.draws, _seeded(options, p.shape[-1]), True
    if p.ndim == 1 and p.shape == q.shape:
        return options, [Stage(p[None], q[None], 0, options.siblings or 1, *drawing)]
    if p.ndim == 2 and len(p) > 1 and q.shape == (len(p) - 1, p.shape[1]) and not options.siblings:
        padded = torch.cat((q, p[-1:]))  # nothing is drafted at the last position
        return options, [Stage(p, padded, len(q), 0, *drawing)]
    raise InvalidInput(
        f"target_probs {tuple(p.shape)} and draft_probs {tuple(q.shape)} with "
        f"siblings={options.siblings}; allowed: (L + 1, V) and (L, V) for a chain, (V,) and (V,) "
        "for siblings"
    )


def _seeded(options: SamplerOptions, vocab: int) -> Generator:
    return Generator().manual_seed(SEEDS * options.seed + vocab)


def _checked(name: str, law: Any) -> Tensor:
    """A given law, checked, as a tensor."""
    if not hasattr(law, "__array__"):
        raise InvalidInput(
            f"{name} is {type(law).__name__}; allowed: a tensor or an array, for both p and q"
        )
    tensor = torch.as_tensor(law)
    if tensor.dtype not in DTYPES.values():
        raise InvalidInput(f"{name} is {tensor.dtype}; allowed: {', '.join(DTYPES)}")
    check_rows(name, tensor)
    return tensor


def _emitted_blindly(stage: Stage, root: Tensor, share: float) -> Tensor:
    """The tokens (C, P) that a biased sampler emits, with NONE after the last.

    It draws from the target, and goes on if this token was drafted, which is exact for every kind
    of draws. But with probability `share` it accepts a drafted token (the first of siblings)
    blindly, unless the target rules this token out: a single such token would give the sampler
    away.
    """
    drafted = stage.drafted(root, stage.choose)
    rows = stage.rows(root, drafted)
    columns = [stage.draw(stage.target, row, Draws.IID, 1) for row in rows.unbind(1)]
    emitted, drafted = torch.cat(columns, 1), drafted[:, : stage.length or 1]
    head, count = emitted[:, : drafted.shape[1]], emitted.shape[1] - 1
    is_blind = torch.rand(head.shape, generator=stage.generator) < share
    is_allowed = stage.target[rows[:, : head.shape[1]], drafted] > 0
    head[:] = torch.where(is_blind & is_allowed, drafted, head)
    goes_on = (head == drafted).cumprod(1).bool()
    emitted[:, 1:][~goes_on[:, :count]] = NONE
    return emitted


def _share_for(stage: Stage, bias: float) -> float:
    """The share of blind acceptances, at most 1, for a mean total variation of `bias`.

    It is that of the control, a mean over the positions at which tokens are drafted. Raises
    InvalidInput if accepting everything is no bias at all.
    """
    rows = slice(stage.length or 1) if stage.by_position else slice(None)
    target, draft = stage.target[rows].double(), stage.draft[rows]
    siblings = stage.draws.draw(draft, stage.siblings or 1, stage.generator)
    draft_law = next(stage.draws.laws(draft, siblings)).double()
    lost_mass = (draft_law * (target == 0)).sum(-1, keepdim=True)
    blind_law = torch.where(target > 0, draft_law, 0.0) + lost_mass * target
    distance = total_variation(blind_law, target) / len(target)
    if distance < 1e-6:
        raise InvalidInput(
            "no token that the target allows is drafted too often, so the negative control has no "
            "bias; give other laws, or bias=0 for no control"
        )
    return min(1.0, bias / distance)
