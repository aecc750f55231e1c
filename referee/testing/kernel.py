"""The function under test: its options, its calls, and the tokens that it returns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from referee.testing.plugin import SESSION
from referee.testing.stage import MAX_ELEMENTS, NONE, WIDE, Stage
from resispec.draws import Draws, DrawsKind
from resispec.errors import InvalidInput

DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True, kw_only=True)
class SamplerOptions:
    """Options of `assert_exact_sampler`; every field has a default.

    samples: the number of rows to verify, a quarter of it with vocabularies above 64 tokens. seed:
    that of all random numbers. bias: the total variation, as a mean over positions, of a biased
    sampler that the test must find, or as much of it as accepting every drafted token gives; 0 for
    no such negative control, and then a test passes however few its samples are. length: the number
    of drafted tokens of a chain, one at each position. siblings: if it is not 0, so many tokens are
    drafted for one position instead. draws: the kind of drafting or its name, see `resispec.draws`.
    draft: the engine's own drafting. batch: the rows of a call; 0 for no row dimension.
    vocabularies: the sizes of generated laws. dtype: the precision of these, "float32" or
    "float64". device: where the sampler gets tensors. numpy: whether it gets arrays instead. If p
    and q are given, they set length, vocabularies, dtype, device and numpy.

    Raises InvalidInput for values that are not allowed.
    """

    samples: int = field(default_factory=lambda: SESSION.samples)
    seed: int = field(default_factory=lambda: SESSION.seed)
    bias: float = 0.05
    length: int = 3
    siblings: int = 0
    draws: DrawsKind = Draws.IID
    draft: Callable[..., Any] | None = None
    batch: int = 0
    vocabularies: tuple[int, ...] = (6, 16, 32_000)
    dtype: str = "float32"
    device: str | torch.device = "cpu"
    numpy: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "draws", Draws(self.draws))
        limits = {"samples": 1, "seed": 0, "length": 1, "siblings": 0, "batch": 0}
        checks = {
            name: (getattr(self, name) >= low, f"at least {low}") for name, low in limits.items()
        }
        checks["bias"] = 0 <= self.bias <= 1, "0 to 1"
        checks["dtype"] = self.dtype in DTYPES, " or ".join(DTYPES)
        size = max(2, self.siblings if self.draws.are_distinct else 0)
        fits = min(self.vocabularies, default=0) >= size
        checks["vocabularies"] = fits, f"one size or more, each at least {size}"
        for name, (holds, allowed) in checks.items():
            if not holds:
                raise InvalidInput(f"{name} is {getattr(self, name)!r}; allowed: {allowed}")

    def calls(self, vocab: int) -> int:
        """The number of rows to verify with a vocabulary of this size, in whole batches."""
        calls, batch = self.samples if vocab <= WIDE else max(1, self.samples // 4), self.batch or 1
        return -(-calls // batch) * batch


@dataclass(frozen=True)
class Kernel:
    """The sampler under test, called as `assert_exact_sampler` says.

    generator: the one that it gets.
    """

    sampler: Callable[..., Any]
    options: SamplerOptions
    generator: Any

    def play(self, stage: Stage, root: Tensor) -> tuple[Tensor, Tensor]:
        """Draft and verify after the tokens `root` (C,), which are whole batches.

        Returns (C, L or B) drafted and (C, P) emitted tokens, with NONE after the last one. Raises
        InvalidInput for answers that are not tokens, AssertionError for tokens that no verifier
        emits.
        """
        size = min(256, max(1, MAX_ELEMENTS // (2 * stage.num_positions * stage.vocab_size)))
        drafted, emitted = [], []
        for part in root.split(self.options.batch or size):
            noises: list[list[Any]] = []
            choose = partial(self._choose, stage, noises) if self.options.draft else stage.choose
            drafted.append(stage.drafted(part, choose))
            # copies, in which a kernel may write
            tensors = (*stage.laws(part, drafted[-1]), drafted[-1].clone())
            inputs = [self._given(tensor) for tensor in tensors]
            answers = []
            for index, call in enumerate(
                [inputs] if self.options.batch else zip(*inputs, strict=True)
            ):
                noise = [of_position[index] for of_position in noises]
                extras = noise if stage.siblings or not noises else [noise]
                answers.append(self.sampler(*call, self.generator, *extras))
            rows = [_padded(row, stage.num_positions) for row in self._rows(answers, len(part))]
            emitted.append(torch.tensor(rows))
            stage.check(drafted[-1], emitted[-1])
        return torch.cat(drafted), torch.cat(emitted)

    def _choose(self, stage: Stage, noises: list[list[Any]], rows: Tensor, count: int) -> Tensor:
        """Draft (C, count) tokens as the engine does, and append the calls' noise to `noises`."""
        laws = self._given(stage.draft[rows])
        calls = [laws] if self.options.batch else laws
        answers = [self.options.draft(law, self.generator) for law in calls]  # type: ignore[misc]
        if all(isinstance(drafted, tuple) for drafted in answers):
            noises.append([noise for _, noise in answers])
            answers = [drafted for drafted, _ in answers]
        tokens = [_listed(row) for row in self._rows(answers, len(rows))]
        if any(len(row) != count for row in tokens):
            raise InvalidInput(f"draft returned {tokens[0]}; allowed: {count} tokens for every row")
        return torch.tensor(tokens)

    def _given(self, tensor: Tensor) -> Any:
        return tensor.numpy() if self.options.numpy else tensor.to(self.options.device)

    def _rows(self, answers: list[Any], count: int) -> Sequence[Any]:
        """The answers for `count` rows one by one: of a call for each, or of one call for all."""
        if not self.options.batch:
            return answers
        rows = answers[0].tolist() if hasattr(answers[0], "tolist") else answers[0]
        size = len(rows) if isinstance(rows, list | tuple) else type(rows).__name__
        if size != count:
            raise InvalidInput(
                f"a call with {count} rows returned {size}; allowed: the tokens of every row"
            )
        return rows


def _listed(row: Any) -> list[int]:
    """The list of one row's tokens, given as a number, a sequence or an array."""
    values = row.tolist() if hasattr(row, "tolist") else row
    values = list(values) if isinstance(values, list | tuple) else [values]
    tokens = [token.item() if hasattr(token, "item") else token for token in values]
    if not all(type(token) is int for token in tokens):
        raise InvalidInput(
            f"tokens are {row!r}; allowed: whole numbers, in one dimension for every row"
        )
    return tokens


def _padded(row: Any, width: int) -> list[int]:
    """One row's tokens, then NONE up to `width`; any negative numbers behind them are padding."""
    tokens = _listed(row)
    while tokens and tokens[-1] < 0:
        tokens.pop()
    if len(tokens) > width:
        raise AssertionError(f"emitted {tokens}; at most {width} tokens are possible")
    if any(token < 0 for token in tokens):
        raise AssertionError(
            f"emitted {tokens}; negative numbers may only stand behind the last token"
        )
    return tokens + [NONE] * (width - len(tokens))
