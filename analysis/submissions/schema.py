"""Contents of a submission; results/submissions/schema.json is made from the models here.

    python -m analysis.submissions.schema > results/submissions/schema.json

Beyond types, the models check the claims of a submission: Table 1 is there, each cell is done and has its
numbers within their bounds, each cell with a verifier is audited, and the rows are the whole planned grid.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import quote

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from analysis.load import SETTING
from analysis.published import MIN_PROMPTS
from resispec.audit.verdict import LIMIT, MIN_TOKENS, Finding
from resispec.errors import InvalidInput, first_line
from resispec.files import read_json
from resispec.packages import downloaded

FORMAT = "resispec submission 1"
REQUIRED = "table1"
Label = Annotated[str, StringConstraints(max_length=200)]
Name = Annotated[str, StringConstraints(pattern=r"^[\w .,()+@-]{1,80}$")]
Hash = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
Positive = Annotated[float, Field(gt=0)]
MOST_BYTES = 10_000_000
"""The largest size of a file that is fetched."""
ROUNDING = 1e-9
"""Relative error by which a value may lie outside its interval, for the case that all resamples equal it."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)


Entry = TypeVar("Entry", bound=_Strict)


class Measurement(_Strict):
    """A measurement and its 95 % bootstrap interval over prompts, which holds it."""

    value: Positive
    lower: Positive
    upper: Positive

    @model_validator(mode="after")
    def _ordered(self) -> Measurement:
        if not self.lower * (1 - ROUNDING) <= self.value <= self.upper * (1 + ROUNDING):
            raise ValueError(f"{self.value:g} is not in its interval [{self.lower:g}, {self.upper:g}]")
        return self


class AuditResult(_Strict):
    """Result of the audit cell of a row's labels. z scores are null where they cannot be computed."""

    cell_id: Label
    verdict: Finding
    z_surprisal: float | None
    z_overdraft: float | None
    audited_tokens: Annotated[int, Field(ge=0)]

    @model_validator(mode="after")
    def _follows(self) -> AuditResult:
        scores = [score for score in (self.z_surprisal, self.z_overdraft) if score is not None]
        is_far = any(abs(score) > LIMIT for score in scores)
        if self.verdict == Finding.NO_BIAS_SEEN and (is_far or self.audited_tokens < MIN_TOKENS):
            evidence = f"z {', '.join(f'{score:.1f}' for score in scores)} and {self.audited_tokens} tokens"
            allowed = f"|z| up to {LIMIT:g}, at least {MIN_TOKENS} tokens"
            raise ValueError(f"{self.verdict} does not follow from {evidence}; allowed: {allowed}")
        if self.verdict == Finding.BIASED and not self.audited_tokens:
            raise ValueError(f"{self.verdict} does not follow from 0 tokens")
        return self


class SubmittedRow(_Strict):
    """A cell that is done. labels: as in the artefact's CSV; an empty verifier is no choice of verifier."""

    cell_id: Label
    labels: dict[Label, Label | float]
    num_prompts: Annotated[int, Field(ge=MIN_PROMPTS)]
    numbers: dict[Label, Measurement]
    audit: AuditResult | None

    @model_validator(mode="after")
    def _complete(self) -> SubmittedRow:
        if self.labels.get("verifier") and self.audit is None:
            raise ValueError(f"{named(self.labels)}: an exactness audit is absent")
        if "accepted_length" not in self.numbers:
            raise ValueError(f"{named(self.labels)}: it has no accepted_length")
        length, limit = self.numbers["accepted_length"], _most_accepted(str(self.labels.get("tree", "")))
        if length.lower < 1 or length.upper > limit:
            interval = f"accepted_length {length.value:g} [{length.lower:g}, {length.upper:g}]"
            raise ValueError(f"{named(self.labels)}: {interval}; allowed: 1 to {limit:g}")
        return self


class SubmittedArtefact(_Strict):
    """One artefact. plan_sha256: see `plan_hash`. command: what measured it."""

    artefact: Literal["table1", "frontier"]
    command: str
    plan_sha256: Hash
    rows: Annotated[tuple[SubmittedRow, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _whole(self) -> SubmittedArtefact:
        cells = [(row.cell_id, row.labels, False) for row in self.rows]
        cells += [(row.audit.cell_id, row.labels, True) for row in self.rows if row.audit]
        if (digest := plan_hash(cells)) != self.plan_sha256:
            hashes = f"its rows are those of a plan {digest[:8]}, and its plan is {self.plan_sha256[:8]}"
            raise ValueError(f"{self.artefact}: the plan's hash does not match its rows ({hashes})")
        settings = [tuple(row.labels.get(name, "") for name in SETTING) for row in self.rows]
        methods = [
            named({key: row.labels[key] for key in sorted(row.labels) if key not in SETTING})
            for row in self.rows
        ]
        points, axes = set(zip(settings, methods, strict=True)), zip(*settings, strict=True)
        for setting, method in product(product(*map(dict.fromkeys, axes)), dict.fromkeys(methods)):
            if (setting, method) not in points:
                name = f"{' '.join(map(str, setting))} {method}"
                raise ValueError(f"{self.artefact}: its rows are no whole grid, {name} is missing")
        sizes: dict[Any, int] = {}
        for row in self.rows:
            dataset = row.labels.get("dataset", "")
            if sizes.setdefault(dataset, row.num_prompts) != row.num_prompts:
                sample = f"{sizes[dataset]} and {row.num_prompts} prompts of {dataset}"
                raise ValueError(f"{self.artefact}: its rows have {sample}; allowed: as many in every row")
        return self


class Origin(_Strict):
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
    name: Name
    profile: Label
    provenance: Origin
    artefacts: tuple[SubmittedArtefact, ...]

    @model_validator(mode="after")
    def _has_table(self) -> Submission:
        names = [entry.artefact for entry in self.artefacts]
        if REQUIRED not in names or len(set(names)) < len(names):
            listing = ", ".join(names) or "none"
            raise ValueError(f"its artefacts are {listing}; allowed: {REQUIRED} and others, each once")
        return self


class Pointer(_Strict):
    """The place of a submission that stays in a repository of its authors. sha256: of that file."""

    format: Literal["resispec pointer 1"]
    name: Name
    repository: Annotated[str, StringConstraints(pattern=r"^https://github\.com/[\w.-]+/[\w.-]+$")]
    commit: Annotated[str, StringConstraints(pattern="^[0-9a-f]{40}$")]
    path: Annotated[str, StringConstraints(pattern=r"^[\w./ +@-]{1,200}\.json$")]
    sha256: Hash

    @property
    def url(self) -> str:
        """Address of the file at that commit."""
        slug = self.repository.removeprefix("https://github.com/")
        return f"https://raw.githubusercontent.com/{slug}/{self.commit}/{quote(self.path)}"


def _most_accepted(tree: str) -> float:
    """The most tokens that a step can emit: the levels of a tree, or the positions of a searched tree.

    tree: the label; "" without a tree, where a step emits one token. Infinity if the label says neither.
    """
    if not tree:
        return 1
    size = re.fullmatch(r"d(\d+)b\d+|(?:best|growmap)_(\d+)", tree)
    return int(size[1] or size[2]) if size else math.inf


def check_grid(submission: Submission, ours: Submission) -> None:
    """Raise InvalidInput, in one line, if a submission lacks something of the grid that ours has.

    Methods and temperatures belong to an artefact. Pairs, data sets and the number of prompts belong to a
    profile and are compared only if the profile is the same.
    """
    is_same = submission.profile == ours.profile
    left_out = () if is_same else ("pair", "dataset")
    theirs = _rows(submission, left_out)
    for (artefact, name), row in _rows(ours, left_out).items():
        subject = f"{submission.name}: {artefact}"
        if artefact not in (entry.artefact for entry in submission.artefacts):
            continue
        if (other := theirs.get((artefact, name))) is None:
            raise InvalidInput(f"{subject} is no whole grid, {name} is missing")
        if is_same and other.num_prompts < row.num_prompts:
            size = f"{other.num_prompts} prompts of {name}"
            raise InvalidInput(f"{subject} has {size}; profile {ours.profile} has {row.num_prompts}")


def agreement(submission: Submission, ours: Submission) -> str:
    """The count, in words, of our rows whose accepted length agrees: the intervals have a point in common."""
    theirs = _rows(submission)
    pairs = [
        (row.numbers["accepted_length"], theirs[name].numbers["accepted_length"])
        for name, row in _rows(ours).items()
        if name in theirs
    ]
    count = sum(one.lower <= other.upper and other.lower <= one.upper for one, other in pairs)
    return f"{count} of {len(pairs)} accepted lengths agree"


def _rows(submission: Submission, left_out: Collection[str] = ()) -> dict[tuple[str, str], SubmittedRow]:
    """The rows of a submission by artefact and labels. left_out: labels that do not tell rows apart."""
    return {
        (entry.artefact, named({key: row.labels[key] for key in row.labels if key not in left_out})): row
        for entry in submission.artefacts
        for row in entry.rows
    }


def json_schema() -> dict[str, Any]:
    """JSON Schema of the files in results/submissions."""
    return TypeAdapter(Submission | Pointer).json_schema()


def plan_hash(cells: Iterable[tuple[str, Mapping[str, Any], bool]]) -> str:
    """The SHA-256 of the cells that a plan asks for, in any order: ids, labels and whether they audit."""
    lines = {json.dumps([cell_id, dict(labels), audits], sort_keys=True) for cell_id, labels, audits in cells}
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def named(labels: Mapping[str, Any]) -> str:
    """The values of labels in one line, without the empty ones."""
    return " ".join(str(value) for value in labels.values() if value != "")


def checked(content: Mapping[str, Any], source: str, kind: type[Entry] = Submission) -> Entry:
    """The checked content of a file, by default a submission. Raises InvalidInput with the first problem."""
    try:
        return kind.model_validate_json(json.dumps(content, allow_nan=True))
    except ValidationError as error:
        [first, *_] = error.errors()
        place = ".".join(map(str, first["loc"]))
        message = first["msg"].removeprefix("Value error, ")
        raise InvalidInput(f"{source}: {f'{place}: ' if place else ''}{message}") from error


def read(path: Path) -> Submission | Pointer:
    """Read a submission, or a pointer to one. Raises InvalidInput like `checked`, and if it is not JSON."""
    content = read_json(path)
    kind = Pointer if str(content.get("format")).startswith("resispec pointer") else Submission
    return checked(content, str(path), kind)


def fetched(pointer: Pointer) -> Submission:
    """The submission that a pointer names.

    Raises InvalidInput like `checked`, and when the file cannot be fetched or its checksum is another one.
    """
    content = downloaded(pointer.url, pointer.sha256, f"{pointer.name}: {pointer.url}", MOST_BYTES)
    try:
        document = json.loads(content)
    except ValueError as error:
        raise InvalidInput(f"{pointer.url} is no JSON ({first_line(error)})") from error
    return checked(document, pointer.url)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(json_schema(), indent=2) + "\n")
