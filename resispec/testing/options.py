"""What can be chosen in an assertion, by name; every field has a default."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import torch

from resispec.draws import Draws
from resispec.errors import InvalidInput
from resispec.testing.laws import WIDE
from resispec.testing.session import SESSION

DTYPES = {"float32": torch.float32, "float64": torch.float64}

Made = TypeVar("Made", bound="Options")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Of both assertions.

    samples: calls of a sampler; vocabularies above 64 tokens get a quarter of it. seed: of everything that is
    drawn. false_alarm: the probability that the assertion fails although what it tests is exact.
    negative_control: whether the same test must also find something that is known to be biased; without that
    a test with too few samples holds always. bias: the total variation that this control has at every
    position, or as much of it as accepting every drafted token gives.
    dtype: "float32" or "float64", of the laws that are made here.
    Raises InvalidInput for values that are not allowed.
    """

    samples: int = field(default_factory=lambda: SESSION.samples)
    seed: int = field(default_factory=lambda: SESSION.seed)
    false_alarm: float = 1e-6
    negative_control: bool = True
    bias: float = 0.05
    dtype: str = "float32"

    def __post_init__(self) -> None:
        self._require("samples", self.samples >= 1, "at least 1")
        self._require("seed", self.seed >= 0, "at least 0")
        self._require("false_alarm", 0 < self.false_alarm < 1, "between 0 and 1")
        self._require("bias", 0 < self.bias <= 1, "above 0, at most 1")
        self._require("dtype", self.dtype in DTYPES, " or ".join(DTYPES))

    def _require(self, name: str, holds: bool, allowed: str) -> None:
        if not holds:
            raise InvalidInput(f"{name} is {getattr(self, name)!r}; allowed: {allowed}")


@dataclass(frozen=True, kw_only=True)
class SamplerOptions(Options):
    """Of `assert_exact_sampler`.

    length: drafted tokens of a chain, one at each position. siblings: if it is not 0, so many tokens are
    drafted for one position instead. draws: how, a kind or its name, see `resispec.draws`. draft: the
    engine's own way of drafting. batch: rows of a call; with 0 there is no dimension for them.
    vocabularies: sizes of the laws that are made. device: where the sampler gets tensors. numpy: whether it
    gets arrays instead. Of p and q that are given, length, vocabularies, dtype, device and numpy follow.
    """

    length: int = 3
    siblings: int = 0
    draws: Draws = Draws.IID
    draft: Callable[..., Any] | None = None
    batch: int = 0
    vocabularies: tuple[int, ...] = (6, 16, 32_000)
    device: str | torch.device = "cpu"
    numpy: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "draws", Draws(self.draws))
        self._require("length", self.length >= 1, "at least 1")
        self._require("siblings", self.siblings >= 0, "at least 0, which means a chain")
        self._require("batch", self.batch >= 0, "at least 0, which means one call for every row")
        least = max(2, self.siblings)
        self._require(
            "vocabularies",
            bool(self.vocabularies) and min(self.vocabularies) >= least,
            f"one size or more, each at least {least}",
        )

    def calls(self, vocab: int) -> int:
        """Rows that are verified with a vocabulary of this size."""
        return self.samples if vocab <= WIDE else max(1, self.samples // 4)


@dataclass(frozen=True, kw_only=True)
class RuleOptions(Options):
    """Of `assert_exact`.

    draws: kinds of draws or their names; all that the rule is defined for when there are none. tuples: of
    siblings that are drawn at the wide vocabulary. vocabulary: its size. siblings: of each tuple; with 1,
    and for verifiers of chains, only chains are enumerated.
    """

    draws: tuple[Draws, ...] = ()
    tuples: int = 1200
    vocabulary: int = 32_000
    siblings: int = 2
    dtype: str = "float64"

    def __post_init__(self) -> None:
        super().__post_init__()
        kinds = (self.draws,) if isinstance(self.draws, str) else self.draws
        object.__setattr__(self, "draws", tuple(Draws(kind) for kind in kinds))
        self._require("tuples", self.tuples >= 4, "at least 4")
        self._require("siblings", self.siblings >= 1, "at least 1")
        self._require("vocabulary", self.vocabulary > self.siblings, f"above {self.siblings} siblings")


def made(kind: type[Made], given: Mapping[str, Any]) -> Made:
    """The options of an assertion. Raises InvalidInput for an unknown name, with the known ones."""
    known = [option.name for option in fields(kind)]
    for name in given:
        if name not in known:
            raise InvalidInput(f"unknown option {name!r}; known: {', '.join(known)}")
    return kind(**given)
