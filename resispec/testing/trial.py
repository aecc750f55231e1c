"""One stage on which a sampler is tested: made from options or from laws that are given, played, counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor

from resispec.audit.battery import KINDS
from resispec.audit.laws import check_rows
from resispec.errors import InvalidInput
from resispec.testing.control import Biased, share_of
from resispec.testing.kernel import Arrays, Kernel
from resispec.testing.laws import FULL, Given, laws_for
from resispec.testing.options import DTYPES, SamplerOptions
from resispec.testing.report import Outcome
from resispec.testing.stage import Player, Stage, Tokens, play
from resispec.testing.statistics import by_token, findings

SEEDS = 1_000_003
"""A seed and a vocabulary make one seed: a prime above every vocabulary."""


@dataclass(frozen=True)
class Trial:
    """A stage, and how the sampler is called on it. ours: of all random numbers but the sampler's own."""

    stage: Stage
    options: SamplerOptions
    arrays: Arrays
    ours: Generator

    @property
    def name(self) -> str:
        """How messages call it."""
        return f"V = {self.stage.laws.vocab_size}"

    def judge(self, sampler: Callable[..., Any]) -> tuple[Outcome, bool]:
        """The statistics of a sampler, and whether the engine's own drafting does not follow q.

        Raises AssertionError for tokens that no verifier emits.
        """
        seed = int(torch.randint(1 << 62, (), generator=self.ours))
        generator, draft, batch = self.arrays.generator(seed), self.options.draft, self.options.batch
        kernel = Kernel(self.stage, sampler, draft, batch > 0, self.arrays, generator, self.ours)
        emitted, drafted = self._play(kernel, batch)
        return self._outcome(emitted), draft is not None and self._is_wrongly_drafted(drafted)

    def control(self) -> Outcome:
        """The statistics of a sampler that is known to be biased."""
        share = share_of(self.stage, self.options.bias, self.ours)
        emitted, _ = self._play(Biased(self.stage, share, self.ours), 0)
        return self._outcome(emitted)

    def _play(self, player: Player, batch: int) -> tuple[Tokens, Tokens]:
        """Rows in full batches, or if `batch` is 0 as many at a time as fit into memory."""
        at_a_time = batch or self.stage.rows_at_a_time
        whole, rest = divmod(self.options.calls(self.stage.laws.vocab_size), at_a_time)
        sizes = [at_a_time] * whole + ([batch or rest] if rest else [])
        return play(self.stage, player, sizes, self.ours)

    def _outcome(self, emitted: Tokens) -> Outcome:
        calls = int((emitted.position == 0).sum())
        return Outcome(self.name, calls, len(emitted.row), findings(self.stage.laws, emitted, self.ours))

    def _is_wrongly_drafted(self, drafted: Tokens) -> bool:
        laws = self.stage.laws
        swapped = replace(laws, target=laws.draft, draft=laws.target)
        return by_token(swapped, drafted).chi_square.p_value <= self.options.false_alarm


def trials_of(options: SamplerOptions, target_probs: Any, draft_probs: Any) -> list[Trial]:
    """A trial of the laws that are given, or one for each of the vocabularies.

    Raises InvalidInput for laws that are none, or of other shapes than a chain or siblings have.
    """
    if target_probs is None and draft_probs is None:
        arrays = Arrays(options.numpy, torch.device(options.device))
        return [_made(options, vocab, arrays) for vocab in options.vocabularies]
    p, q = _checked("target_probs", target_probs), _checked("draft_probs", draft_probs)
    arrays = Arrays(not isinstance(target_probs, Tensor), p.device)
    p, q = p.cpu(), q.cpu()
    ours = Generator().manual_seed(SEEDS * options.seed + p.shape[-1])
    if p.ndim == 1 and p.shape == q.shape:
        stage = Stage(Given(p[None], q[None]), 0, options.siblings or 1, options.draws)
    elif p.ndim == 2 and len(p) > 1 and q.shape == (len(p) - 1, p.shape[1]) and not options.siblings:
        stage = Stage(Given(p, torch.cat((q, p[-1:]))), len(q), 0, options.draws)
    else:
        shapes = f"target_probs {tuple(p.shape)} and draft_probs {tuple(q.shape)}"
        raise InvalidInput(
            f"{shapes} with siblings={options.siblings}; "
            "allowed: (L + 1, V) and (L, V) for a chain, (V,) and (V,) for siblings"
        )
    return [Trial(stage, options, arrays, ours)]


def _made(options: SamplerOptions, vocab: int, arrays: Arrays) -> Trial:
    ours, dtype = Generator().manual_seed(SEEDS * options.seed + vocab), DTYPES[options.dtype]
    # What is drawn without replacement after the draft's last token is no question for a kernel.
    kinds = FULL if options.siblings > 1 and options.draws.are_distinct else KINDS
    length = 0 if options.siblings else options.length
    return Trial(
        Stage(laws_for(vocab, kinds, dtype, ours), length, options.siblings, options.draws),
        options,
        arrays,
        ours,
    )


def _checked(name: str, law: Any) -> Tensor:
    """A law that was given, as a tensor."""
    if not hasattr(law, "__array__"):
        raise InvalidInput(f"{name} is {type(law).__name__}; allowed: a tensor or an array, for both p and q")
    found = torch.as_tensor(law)
    if found.dtype not in DTYPES.values():
        raise InvalidInput(f"{name} is {found.dtype}; allowed: {', '.join(DTYPES)}")
    check_rows(name, found)
    return found
