"""What can be chosen when a sampler is tested, and the stages that follow from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Generator, Tensor

from resispec.audit.battery import KINDS
from resispec.audit.laws import check_rows
from resispec.draws import Draws
from resispec.errors import InvalidInput
from resispec.testing.session import SESSION
from resispec.testing.stage import FULL, WIDE, Stage, laws_for

DTYPES = {"float32": torch.float32, "float64": torch.float64}
SEEDS = 1_000_003
"""A seed and a vocabulary make one seed: a prime above every vocabulary."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Of `assert_exact_sampler`; every field has a default.

    samples: rows that are verified; with vocabularies above 64 tokens a quarter of it. seed: of everything
    that is drawn. bias: the total variation at every position of a sampler that the test must find, or as
    much of it as accepting every drafted token gives; 0 for no such negative control, and then a test with
    too few samples always holds.
    length: drafted tokens of a chain, one at each position. siblings: if it is not 0, so many tokens are
    drafted for one position instead. draws: how, a kind or its name, see `resispec.draws`. draft: the
    engine's own way of drafting. batch: rows of a call; with 0 there is no dimension for them.
    vocabularies: sizes of the laws that are made. dtype: of these laws, "float32" or "float64". device: where
    the sampler gets tensors. numpy: whether it gets arrays instead. Of p and q that are given, length,
    vocabularies, dtype, device and numpy follow.
    Raises InvalidInput for values that are not allowed.
    """

    samples: int = field(default_factory=lambda: SESSION.samples)
    seed: int = field(default_factory=lambda: SESSION.seed)
    bias: float = 0.05
    length: int = 3
    siblings: int = 0
    draws: Draws = Draws.IID
    draft: Callable[..., Any] | None = None
    batch: int = 0
    vocabularies: tuple[int, ...] = (6, 16, 32_000)
    dtype: str = "float32"
    device: str | torch.device = "cpu"
    numpy: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "draws", Draws(self.draws))
        for name, least in {"samples": 1, "seed": 0, "length": 1, "siblings": 0, "batch": 0}.items():
            self._require(name, getattr(self, name) >= least, f"at least {least}")
        self._require("bias", 0 <= self.bias <= 1, "0 to 1")
        self._require("dtype", self.dtype in DTYPES, " or ".join(DTYPES))
        least = max(2, self.siblings)
        self._require(
            "vocabularies",
            bool(self.vocabularies) and min(self.vocabularies) >= least,
            f"one size or more, each at least {least}",
        )

    def _require(self, name: str, holds: bool, allowed: str) -> None:
        if not holds:
            raise InvalidInput(f"{name} is {getattr(self, name)!r}; allowed: {allowed}")

    def calls(self, vocab: int) -> int:
        """Rows that are verified with a vocabulary of this size: whole batches."""
        calls, batch = self.samples if vocab <= WIDE else max(1, self.samples // 4), self.batch or 1
        return -(-calls // batch) * batch


def chosen(given: Mapping[str, Any]) -> Options:
    """The options of an assertion. Raises InvalidInput for an unknown name, with the known ones."""
    known = [option.name for option in fields(Options)]
    for name in given:
        if name not in known:
            raise InvalidInput(f"unknown option {name!r}; known: {', '.join(known)}")
    return Options(**given)


def stages_of(options: Options, target_probs: Any, draft_probs: Any) -> tuple[Options, list[Stage]]:
    """A stage of the laws that are given, with the options that follow from them, or one per vocabulary.

    Raises InvalidInput for laws that are none, or of other shapes than a chain or siblings have.
    """
    if target_probs is None and draft_probs is None:
        return options, [_made(options, vocab) for vocab in options.vocabularies]
    p, q = _checked("target_probs", target_probs), _checked("draft_probs", draft_probs)
    options = replace(options, numpy=not isinstance(target_probs, Tensor), device=p.device)
    p, q = p.cpu(), q.cpu()
    generator = _seeded(options, p.shape[-1])
    if p.ndim == 1 and p.shape == q.shape:
        of_siblings = 0, options.siblings or 1, options.draws, generator, True
        return options, [Stage(p[None], q[None], *of_siblings)]
    if p.ndim == 2 and len(p) > 1 and q.shape == (len(p) - 1, p.shape[1]) and not options.siblings:
        padded = torch.cat((q, p[-1:]))  # nothing is drafted at the last position
        return options, [Stage(p, padded, len(q), 0, options.draws, generator, True)]
    raise InvalidInput(
        f"target_probs {tuple(p.shape)} and draft_probs {tuple(q.shape)} with siblings={options.siblings}; "
        "allowed: (L + 1, V) and (L, V) for a chain, (V,) and (V,) for siblings"
    )


def _made(options: Options, vocab: int) -> Stage:
    generator, dtype = _seeded(options, vocab), DTYPES[options.dtype]
    # What is drawn without replacement after the draft's last token is no question for a kernel.
    kinds = FULL if options.siblings > 1 and options.draws.are_distinct else KINDS
    target, draft = (laws.to(dtype) for laws in laws_for(vocab, kinds, generator))
    length = 0 if options.siblings else options.length
    return Stage(target, draft, length, options.siblings, options.draws, generator)


def _seeded(options: Options, vocab: int) -> Generator:
    return Generator().manual_seed(SEEDS * options.seed + vocab)


def _checked(name: str, law: Any) -> Tensor:
    """A law that was given, as a tensor."""
    if not hasattr(law, "__array__"):
        raise InvalidInput(f"{name} is {type(law).__name__}; allowed: a tensor or an array, for both p and q")
    found = torch.as_tensor(law)
    if found.dtype not in DTYPES.values():
        raise InvalidInput(f"{name} is {found.dtype}; allowed: {', '.join(DTYPES)}")
    check_rows(name, found)
    return found
