"""What a submission holds. The models here are the schema: results/submissions/schema.json is made from them.

    python -m analysis.submissions.schema > results/submissions/schema.json

Beyond types they check what a submission claims: Table 1 is there, every cell is done and has its numbers,
whatever a verifier decided is audited, and rows are those that the plan asked for.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from resispec.errors import InvalidInput
from resispec.files import read_json

FORMAT = "resispec submission 1"
REQUIRED = "table1"
Label = Annotated[str, StringConstraints(max_length=200)]
Hash = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)


class Number(_Strict):
    """A measurement and its 95 % bootstrap interval over prompts; no interval where there is no spread."""

    value: float
    lower: float | None
    upper: float | None


class Audit(_Strict):
    """What the audit cell of a row's labels says. z scores are null where they cannot be computed."""

    cell_id: Label
    verdict: Literal["exact", "biased", "undecided"]
    z_surprisal: float | None
    z_overdraft: float | None
    audited_tokens: Annotated[int, Field(ge=0)]


class Row(_Strict):
    """A cell that is done. labels: as in the artefact's CSV; an empty verifier is no choice of verifier."""

    cell_id: Label
    labels: dict[Label, Label | float]
    num_prompts: Annotated[int, Field(ge=1)]
    numbers: dict[Label, Number]
    audit: Audit | None

    @model_validator(mode="after")
    def _complete(self) -> Row:
        if self.labels.get("verifier") and self.audit is None:
            raise ValueError(f"{named(self.labels)}: an exactness audit is absent")
        if "accepted_length" not in self.numbers:
            raise ValueError(f"{named(self.labels)}: it has no accepted_length")
        return self


class Entry(_Strict):
    """One artefact. plan_sha256: see `plan_hash`. command: what measured it."""

    artefact: Literal["table1", "frontier"]
    command: str
    plan_sha256: Hash
    rows: Annotated[tuple[Row, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _as_planned(self) -> Entry:
        cells = [(row.cell_id, row.labels, False) for row in self.rows]
        cells += [(row.audit.cell_id, row.labels, True) for row in self.rows if row.audit]
        if (found := plan_hash(cells)) != self.plan_sha256:
            said = f"its rows are those of a plan {found[:8]}, and its plan is {self.plan_sha256[:8]}"
            raise ValueError(f"{self.artefact}: the plan's hash does not match its rows ({said})")
        return self


class Provenance(_Strict):
    """Where the cells were measured; several values, as in cells of two commits, are joined by commas."""

    commit: str
    device: str
    threads: str
    platform: str
    python: str
    versions: str
    measured: str


class Submission(_Strict):
    """The whole file."""

    format: Literal["resispec submission 1"]
    name: Annotated[str, StringConstraints(pattern=r"^[\w .,()+@-]{1,80}$")]
    profile: Label
    provenance: Provenance
    artefacts: tuple[Entry, ...]

    @model_validator(mode="after")
    def _has_table(self) -> Submission:
        names = [entry.artefact for entry in self.artefacts]
        if REQUIRED not in names or len(set(names)) < len(names):
            found = ", ".join(names) or "none"
            raise ValueError(f"its artefacts are {found}; allowed: {REQUIRED} and others, each once")
        return self


def plan_hash(cells: Iterable[tuple[str, Mapping[str, Any], bool]]) -> str:
    """The SHA-256 of the cells that a plan asks for, in any order: ids, labels and whether they audit."""
    lines = {json.dumps([cell_id, dict(labels), audits], sort_keys=True) for cell_id, labels, audits in cells}
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def named(labels: Mapping[str, Any]) -> str:
    """Labels for a line, without the empty ones."""
    return " ".join(str(value) for value in labels.values() if value != "")


def checked(content: Mapping[str, Any], source: str) -> Submission:
    """A submission from what a file holds. Raises InvalidInput, one line with what is wrong first."""
    try:
        return Submission.model_validate_json(json.dumps(content, allow_nan=True))
    except ValidationError as error:
        [first, *_] = error.errors()
        where = ".".join(map(str, first["loc"]))
        said = first["msg"].removeprefix("Value error, ")
        raise InvalidInput(f"{source}: {f'{where}: ' if where else ''}{said}") from error


def read(path: Path) -> Submission:
    """Read a submission. Raises InvalidInput as `checked`, and for a file that is no JSON."""
    return checked(read_json(path), str(path))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(Submission.model_json_schema(), indent=2) + "\n")
