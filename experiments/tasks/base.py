"""Contract of a task: its workload, its call, and the fields that every row has.

A task turns one prompt into one row, so that every kind of measurement is resumed, bootstrapped and
compared alike.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import torch

from resispec.decode import Decoder, Sampling
from resispec.errors import InvalidInput
from resispec.models import Pair
from resispec.verifiers.rehearsal import rehearse


@dataclass(frozen=True)
class Row:
    """One measured prompt.

    Rows hold counts, sums and times; means and rates are derived in analysis.

    prompt_index: its place among the cell's prompts. seed: the cell's base seed plus that place.
    category: the prompt's; rows of data sets without categories are written without it. timed_by:
    id of the process that measured the prompt for several cells in turn, the same for all of them;
    turn: the cell's place in that order, from 0. Both are None if no other cell took a turn.
    prompt_sha256: the first 16 digits of the checksum of the prompt's token ids; rows of earlier
    versions have none.
    """

    prompt_index: int
    prompt_id: str
    seed: int
    num_prompt_tokens: int
    category: str | None = field(default=None, kw_only=True)
    timed_by: str | None = field(default=None, kw_only=True)
    turn: int | None = field(default=None, kw_only=True)
    prompt_sha256: str | None = field(default=None, kw_only=True)

    def is_of(self, workload: "Workload") -> bool:
        """Whether the row is of a workload's prompt, as far as it says."""
        if self.prompt_index >= len(workload.prompts):
            return False
        known = identity(workload, self.prompt_index)
        if self.prompt_sha256 is None:
            del known["prompt_sha256"]
        return all(getattr(self, name) == value for name, value in known.items())


@dataclass(frozen=True)
class Workload:
    """Models, decoder and prompts of a cell.

    prompts: (id, token ids) in order. seed: prompt i uses seed + i for every random stream.
    categories: prompt id -> category, for the prompts that have one.
    """

    pair: Pair
    decoder: Decoder
    sampling: Sampling
    prompts: Sequence[tuple[str, list[int]]]
    seed: int
    categories: Mapping[str, str] = field(default_factory=dict)

    def generator(self, index: int) -> torch.Generator:
        """The only source of randomness of a prompt."""
        return torch.Generator(self.pair.target.device).manual_seed(self.seed + index)


@dataclass(frozen=True)
class Task:
    """A task measures one prompt. row: the dataclass of its rows.

    Integer fields are counts. Raises InvalidInput for a count below 1 or no whole number, and for a
    bool that is neither true nor false, such as the text "no".
    """

    row: ClassVar[type[Row]]

    def __post_init__(self) -> None:
        for setting in fields(self):
            value = getattr(self, setting.name)
            is_count = type(value) is int or setting.type in (int, "int")
            if is_count and (type(value) is not int or value < 1):
                raise InvalidInput(
                    f"task.{setting.name} is {value!r}; allowed: whole numbers from 1"
                )
            if setting.type in (bool, "bool") and type(value) is not bool:
                raise InvalidInput(f"task.{setting.name} is {value!r}; allowed: true, false")

    def check(self, decoder: Decoder) -> None:
        """Raise InvalidInput, before the first cell, for a decoder that cannot be measured."""
        rehearse(decoder.verifier, decoder.drafter.draws, decoder.drafter.topology)

    def __call__(self, workload: Workload, index: int) -> Row:
        """Measure prompt `index`."""
        raise NotImplementedError

    def progress(self, rows: Sequence[Any]) -> dict[str, str]:
        """Names and texts for the progress line. rows: all rows so far, at least one."""
        raise NotImplementedError


def hash_tokens(tokens: Sequence[int]) -> str:
    """The first 16 hex digits of the SHA-256 of token ids as comma-separated decimals."""
    return hashlib.sha256(",".join(map(str, tokens)).encode()).hexdigest()[:16]


def identity(workload: Workload, index: int) -> dict[str, Any]:
    """The fields of `Row` for one prompt."""
    prompt_id, tokens = workload.prompts[index]
    return {
        "prompt_index": index,
        "prompt_id": prompt_id,
        "seed": workload.seed + index,
        "num_prompt_tokens": len(tokens),
        "category": workload.categories.get(prompt_id),
        "prompt_sha256": hash_tokens(tokens),
    }


def share(part: float, whole: float, spec: str) -> str:
    """A ratio for the progress line; "none" if `whole` is 0."""
    return format(part / whole, spec) if whole else "none"
