"""Our published numbers, results/published/PROFILE/: cells, and whether a table here agrees.

Each published artefact has an archive, a results folder {PROFILE,raw}/... with its plans and cells,
so that publishing one does not touch the others. A cell that several artefacts ask for is in the
archive of each. Published rows are shorter than measured ones: see `analysis.publish.compact`.

Two accepted lengths agree when their 95 % bootstrap intervals overlap. Rows of fewer than
MIN_PROMPTS prompts have no interval and are not compared. Times are not compared, since they belong
to a machine. Two verdicts agree when they are the same; an undecided verdict is not compared.
"""

import lzma
import tarfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import IO, Any, cast

import pandas as pd

from analysis import SWEEP, audits, labels
from analysis.load import FILTERS_OFF, LABELS, UNPACKED, Plan, plan_files, read_plan
from analysis.stats import MIN_PROMPTS
from analysis.table import Number, Table
from resispec.errors import InvalidInput, first_line
from resispec.files import read_bytes

FOLDER = Path(__file__).resolve().parent.parent / "results" / "published"
CELLS = "cells"
"""The folder of archives in a profile's folder; `analysis.publish` writes them."""
SUFFIX = ".tar.xz"
LARGEST = 1 << 29
"""The most bytes of an unpacked archive; our largest has 45 million."""
MEMORY = 1 << 28
"""The most bytes of memory to unpack an archive, beside what it unpacks to."""
UNPACKING_ERRORS = (tarfile.TarError, lzma.LZMAError, EOFError, OSError, ValueError, RecursionError)


@dataclass(frozen=True)
class Compared:
    """The rows to compare.

    name: their printed plural. keys: columns that identify a row with the labels.
    """

    quantity: str
    name: str
    keys: tuple[str, ...] = ()
    spec: str = ".2f"


ACCEPTED_LENGTHS = Compared("accepted_length", "accepted lengths")


@dataclass(frozen=True)
class Agreement:
    """The agreement with the published numbers.

    notes: empty without a comparison. summary: one line.
    """

    notes: tuple[str, ...]
    summary: str


def archive_of(artefact: str, folder: Path) -> Path:
    """The path of the archive with an artefact's cells in a profile's published folder."""
    return folder / CELLS / f"{artefact}{SUFFIX}"


def plan_of(archive: Path) -> Plan:
    """The plan of an archive that `archive_of` names. Raises InvalidInput as `unpacked` does."""
    name, profile = archive.name.removesuffix(SUFFIX), archive.parents[1].name
    return read_plan(name, profile, unpacked(archive))


def source(artefact: str, profile: str, results: Path) -> Path:
    """The results folder to make an artefact from: published if the usual one has no plan of it.

    A folder that the user names is always used.
    """
    archive = archive_of(artefact, FOLDER / profile)
    if (
        results != Path("results")
        or plan_files(artefact, profile, results)
        or not archive.is_file()
    ):
        return results
    return unpacked(archive)


def unpacked(archive: Path) -> Path:
    """The folder of an archive's files, which exists until the process ends.

    Raises InvalidInput, one line that names the archive, when it is damaged, holds anything but
    plain files inside of its folder, or unpacks to more than LARGEST bytes.
    """
    try:
        return Path(_unpacked(read_bytes(archive)).name)
    except UNPACKING_ERRORS as error:
        remedy = "git has it"
        raise InvalidInput(
            f"{archive} cannot be unpacked ({first_line(error)}); {remedy}"
        ) from error


@cache
def _unpacked(content: bytes) -> TemporaryDirectory[str]:
    data = _decompressed(content)
    folder = TemporaryDirectory(prefix=UNPACKED)
    try:
        with tarfile.open(fileobj=BytesIO(data), mode="r:") as file:
            members = _checked_members(file)
            if data[file.offset :].strip(b"\0"):  # tarfile takes a damaged header for the end
                raise InvalidInput("a header in it is damaged")
            # tarfile itself does this safely from Python 3.11.4 on; Debian 12 has 3.11.2.
            for member in members:
                path = Path(folder.name, member.name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(cast("IO[bytes]", file.extractfile(member)).read())
    except BaseException:
        folder.cleanup()
        raise
    return folder


def _decompressed(content: bytes) -> bytes:
    """The tar archive in an archive. Raises InvalidInput when it is too large or not all there."""
    decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MEMORY)
    data = decompressor.decompress(content, max_length=LARGEST + 1)
    if len(data) > LARGEST:
        raise InvalidInput(f"it unpacks to more than the {LARGEST} bytes that are allowed")
    if not decompressor.eof or decompressor.unused_data:
        raise InvalidInput(
            "it is cut off" if decompressor.needs_input else "something comes after its end"
        )
    return data


def _checked_members(file: tarfile.TarFile) -> list[tarfile.TarInfo]:
    """The plain files in an archive.

    Raises InvalidInput for the first member that is no plain file or folder, is there twice, or
    would be written outside of the archive's folder.
    """
    names, files = set[str](), list[tarfile.TarInfo]()
    while member := file.next():
        if member.size < 0:  # its reader would go back to where it was, again and again
            raise InvalidInput(f"{member.name!r} has a size below 0")
        if not (member.isreg() or member.isdir()) or member.issparse():
            raise InvalidInput(f"{member.name!r} is no plain file")
        if member.name in names:
            raise InvalidInput(f"it holds {member.name!r} twice")
        place = PurePosixPath(member.name)
        if place.is_absolute() or ".." in place.parts:
            raise InvalidInput(f"{member.name!r} is outside of its folder")
        names.add(member.name)
        if member.isreg():
            files.append(member)
    return files


def agreement(plan: Plan, table: Table, compared: Compared) -> Agreement:
    """The agreement of a plan's table with the published one, see `compare`.

    It has no notes if both are one, or for a sweep of one's own.
    """
    if plan.artefact.startswith(f"{SWEEP}/"):
        reason = "a sweep of your own may differ in settings that labels do not name"
        return Agreement((), f"not compared with the published {table.stem}: {reason}")
    if plan.is_published:
        archive = f"{CELLS}/{plan.artefact}{SUFFIX}"
        origin = f"drawn from results/published/{plan.profile}/{archive}, our cells"
        remedy = f"`make reproduce-{plan.artefact} PROFILE={plan.profile}` measures them here"
        return Agreement((), f"Nothing of {plan.artefact} is measured here: {origin}; {remedy}")
    return compare(table.frame, table.stem, plan.profile, compared)


def compare(
    frame: pd.DataFrame, stem: str, profile: str, compared: Compared = ACCEPTED_LENGTHS
) -> Agreement:
    """Compare a table's frame with the published rows of the same labels.

    stem: the name of its file.
    """
    path = FOLDER / profile / f"{stem}.csv"
    if not path.is_file():
        return Agreement((), f"nothing is published for {stem} of profile {profile}")
    rows, others = (
        rows_of(one_frame, compared.quantity) for one_frame in (frame, pd.read_csv(path))
    )
    names = (*LABELS, *FILTERS_OFF, *compared.keys)
    keys = [name for name in names if name in rows and name in others]
    unique = others[~others.duplicated(keys, keep=False)].to_dict("records")
    published = {place(row, keys): row for row in unique if not pd.isna(row["value"])}
    numbers = list[bool]()
    verdicts = list[bool]()
    differences = list[str]()
    omissions = Counter[str]()
    for row in rows.to_dict("records"):
        other = published.get(place(row, keys))
        if pd.isna(row["value"]) or other is None:
            omissions["without a number here" if pd.isna(row["value"]) else "not published"] += 1
            continue
        title = _title(row, compared)
        if min(row["num_prompts"], other["num_prompts"]) < MIN_PROMPTS:
            omissions[f"of fewer than {MIN_PROMPTS} prompts"] += 1
        else:
            numbers.append(_overlap(row, other))
            own, theirs = (Number.of(entry, compared.spec) for entry in (row, other))
            if not numbers[-1]:
                differences.append(f"{title} has {own}, published {theirs}")
        own, theirs = row.get("verdict", ""), other.get("verdict", "")
        if audits.is_decided(own) and audits.is_decided(theirs):
            verdicts.append(audits.is_biased(own) == audits.is_biased(theirs))
            if not verdicts[-1]:
                differences.append(f"{title}: {own}, published as {theirs}")
    shares = list[str]()
    if numbers:
        shares.append(f"{sum(numbers)} of {len(numbers)} {compared.name} agree")
    if verdicts:
        agree = "" if numbers else " agree"
        shares.append(f"{sum(verdicts)} of {len(verdicts)} verdicts{agree}")
    remark = ", ".join(
        f"{count} row{'s' if count > 1 else ''} {reason}" for reason, count in omissions.items()
    )
    opening = f"Compared with results/published/{profile}/{stem}.csv"
    summary = f"{opening}: {', '.join(shares) or 'nothing in it can be compared'}"
    summary += f" (not compared: {remark})" if remark else ""
    note = f"{summary}. Two numbers agree when their intervals overlap, and times are not compared."
    note += f" Differing: {'; '.join(differences)}." if differences else ""
    return Agreement((note,), summary)


def rows_of(frame: pd.DataFrame, quantity: str) -> pd.DataFrame:
    """A quantity's rows, with "" for an absent label, verdict or reason, and absent filters off."""
    rows = frame[frame.quantity == quantity] if "quantity" in frame else frame.iloc[:0]
    names = [name for name in (*LABELS, "verdict", "reason") if name in rows]
    values = {name: rows[name].astype(object).where(rows[name].notna(), "") for name in names}
    filters = {
        key: rows[key].astype(float).fillna(off) if key in rows else float(off)
        for key, off in FILTERS_OFF.items()
    }
    return rows.assign(**values, **filters)


def place(row: Mapping[str, Any], keys: Iterable[str]) -> tuple[Any, ...]:
    """The values of a row's keys as a CSV has them: numbers as floats, labels as texts."""
    return tuple(
        float(row[key]) if isinstance(row[key], int | float) else str(row[key]) for key in keys
    )


def _overlap(row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two intervals have a point in common; a number without an interval is a point."""
    (low, high), (their_low, their_high) = (
        (entry["value"], entry["value"])
        if pd.isna(entry["lower"])
        else (entry["lower"], entry["upper"])
        for entry in (row, other)
    )
    return bool(low <= their_high and their_low <= high)


def _title(row: Mapping[str, Any], compared: Compared) -> str:
    words = {key: row[key] for key in ("dataset", "tree", "temperature") if row.get(key, "") != ""}
    method = (
        labels.method(row["decoder"], row["verifier"]) if "decoder" in row else str(row["verifier"])
    )
    keys = [f"{key.replace('_', ' ')} {row[key]}" for key in compared.keys]
    return ", ".join([labels.setting(words), method, *keys])
