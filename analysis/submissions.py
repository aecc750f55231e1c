"""Collect what was measured into a folder that can be sent, and check such folders: `make submission`.

    python -m analysis.submissions --profile paper
    python -m analysis.submissions --compare  # check all submissions of the repository

A submission has the files of results/published/PROFILE that tell what was measured: table1.csv, frontier.csv
if the frontier was measured, and provenance.json. Nothing is measured. See docs/submissions.md.
"""

import math
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import audits, published, table
from analysis.cli import check_profile, profile_parser
from analysis.load import LABELS, ROOT, composed_of, plan_files, read_plan
from analysis.page import provenance
from analysis.page.sections import maker
from analysis.published import ACCEPTED_LENGTHS, MIN_PROMPTS
from resispec.audit.verdict import LIMIT, MIN_TOKENS, Finding
from resispec.errors import InvalidInput, first_line, in_one_line
from resispec.files import read_json, write_json

SUBMITTED = ROOT / "results" / "submissions"
ARTEFACTS = ("table1", "frontier")
"""The artefacts of a submission; the first one must be there."""
PLACE = ("pair", "dataset")
"""The first two of LABELS, which belong to a profile; the others, a method's, belong to an artefact."""
TEXTS = ("status", "reason", "verdict")
NUMBERS = ("num_prompts", "value", "lower", "upper")
ROUNDING = 1e-9
"""Relative error by which a value may lie outside its interval, for the case that all resamples equal it."""


def collect(profile: str, results: Path) -> list[str]:
    """Write the submission results/PROFILE/submission; return lines on its files and its agreement with ours.

    Raises InvalidInput for a plan that is missing or older than its configuration, and for a `flaw`.
    """
    names = [name for name in ARTEFACTS if name == ARTEFACTS[0] or plan_files(name, profile, results)]
    plans = [read_plan(name, profile, results) for name in names]
    if stale := [line for plan in plans for line in plan.stale]:
        raise InvalidInput(stale[0])
    tables = {plan.artefact: maker(plan.artefact)(plan).tables[0] for plan in plans}
    for plan in plans:
        if reason := flaw(tables[plan.artefact].frame, plan.artefact, profile):
            raise InvalidInput(f"{reason}; `{plan.command}` measures what is missing")
    folder = results / profile / "submission"
    shutil.rmtree(folder, ignore_errors=True)  # an older one may have had a frontier
    paths = [path for one_table in tables.values() for path in table.write(one_table, folder, ["csv"])]
    write_json(folder / provenance.FILE, {"Profile": profile} | provenance.facts(plans))
    lines = [f"wrote {path}" for path in (*paths, folder / provenance.FILE)]
    return lines + [published.compare(one.frame, name, profile).summary for name, one in tables.items()]


def submitted(folder: Path) -> list[str]:
    """Check a submission and return a line for each artefact that compares it with ours.

    Raises InvalidInput, in one line, for a file that is missing or cannot be read, and for a `flaw`.
    """
    profile = read_json(folder / provenance.FILE).get("Profile", "")
    check_profile(profile)
    files = [folder / f"{name}.csv" for name in ARTEFACTS]
    frames = {path.stem: read(path) for path in files if path == files[0] or path.exists()}
    for artefact, frame in frames.items():
        if reason := flaw(frame, artefact, profile):
            raise InvalidInput(f"{folder}: {reason}")
    return [published.compare(frame, artefact, profile).summary for artefact, frame in frames.items()]


def read(path: Path) -> pd.DataFrame:
    """The rows of an artefact's CSV. Raises InvalidInput if it is no such file."""
    try:
        frame = pd.read_csv(path, dtype=dict.fromkeys(NUMBERS, float))
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path} cannot be read ({first_line(error)})") from error
    columns = (*LABELS, *TEXTS, *NUMBERS, "quantity")
    if missing := [name for name in columns if name not in frame]:
        raise InvalidInput(f"{path} lacks {', '.join(missing)}; found the columns {', '.join(frame)}")
    if frame.duplicated([*LABELS, "quantity"]).any():
        raise InvalidInput(f"{path} has several rows of the same labels and quantity")
    if ACCEPTED_LENGTHS.quantity not in frame.quantity.values:
        raise InvalidInput(f"{path} has no {ACCEPTED_LENGTHS.name}")
    return frame


def flaw(frame: pd.DataFrame, artefact: str, profile: str) -> str:
    """The first row that cannot be right, or that ours has and the frame lacks, in one line; "" without any.

    Ours are the published rows of the profile, else of the nearest one that it inherits from, or of embedded.
    A method that ours measured on all pairs and data sets must be there on all of the frame's, with an audit
    if ours has one. Of the same profile all rows of ours must be there, with at least as many prompts.
    """
    inherited = [Path(file).stem for file in composed_of(f"profile/{profile}")]
    paths = [published.FOLDER / name / f"{artefact}.csv" for name in (*reversed(inherited), "embedded")]
    path = next((path for path in paths if path.is_file()), paths[-1])
    is_ours = path.parent.name == profile
    rows, ours = _by_labels(frame), _by_labels(read(path))
    places, our_places = ({key[: len(PLACE)] for key in keys} for keys in (rows, ours))
    methods = dict.fromkeys(key[len(PLACE) :] for key in ours)
    usual = [method for method in methods if all((*place, *method) in ours for place in our_places)]
    wanted = [(*place, *method) for place in sorted(places) for method in usual]
    audited = {key[len(PLACE) :] for key, row in ours.items() if row["verdict"]}
    reasons = {key: problem(row) for key, row in rows.items()}
    reasons |= {key: "is missing" for key in (*wanted, *(ours if is_ours else ())) if key not in rows}
    for key, row in rows.items():
        if key[len(PLACE) :] in audited and not row["verdict"]:
            reasons[key] = reasons[key] or "has no audit"
        if is_ours and key in ours and row["num_prompts"] < (least := ours[key]["num_prompts"]):
            reasons[key] = reasons[key] or f"has {row['num_prompts']:g} prompts; {profile} has {least:g}"
    for key, reason in reasons.items():
        if reason:
            return f"{artefact}: {' '.join(str(value) for value in key if value != '')} {reason}"
    return ""


def problem(row: Mapping[str, Any]) -> str:
    """The reason why a row of `_by_labels` cannot be right, in words that follow its name; "" if it can."""
    if row["status"] != "done":
        return f"is {row['status']}" + (f" ({row['reason']})" if row["reason"] else "")
    if not row["num_prompts"] >= MIN_PROMPTS:
        return f"has {row['num_prompts']:g} prompts; allowed: at least {MIN_PROMPTS}"
    value, lower, upper, most = row["value"], row["lower"], row["upper"], _most_accepted(str(row["tree"]))
    if not (1 <= lower <= value * (1 + ROUNDING) and value * (1 - ROUNDING) <= upper <= most):
        return f"has accepted_length {value:g} [{lower:g}, {upper:g}]; allowed: an interval in 1 to {most:g}"
    verdict, num_tokens = row["verdict"], row["audited_tokens"]
    if verdict and verdict not in list(Finding):
        return f"has no audit that is done: {verdict}"
    scores = [row[name] for name in ("z_surprisal", "z_overdraft")]
    is_far = any(abs(score) > LIMIT for score in scores)
    is_unfounded = {
        Finding.NO_BIAS_SEEN: is_far or not num_tokens >= MIN_TOKENS,
        Finding.BIASED: not num_tokens > 0,
    }
    if is_unfounded.get(verdict):
        evidence = f"z {', '.join(f'{score:.1f}' for score in scores)} and {num_tokens:g} tokens"
        return f"is {verdict!r}, which does not follow from {evidence}"
    return ""


def _by_labels(frame: pd.DataFrame) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The rows of accepted lengths by their LABELS, each with its audit's QUANTITIES, NaN without one."""
    unaudited = dict.fromkeys(audits.QUANTITIES, math.nan)
    lengths = published.rows_of(frame, ACCEPTED_LENGTHS.quantity).to_dict("records")
    rows = {published.place(row, LABELS): row | unaudited for row in lengths}
    for name in audits.QUANTITIES:
        for row in published.rows_of(frame, name).to_dict("records"):
            if (place := published.place(row, LABELS)) in rows:
                rows[place][name] = row["value"]
    return rows


def _most_accepted(tree: str) -> float:
    """The most tokens that a step can emit: the levels of a tree, or the positions of a searched tree.

    tree: the label; "" without a tree, where a step emits one token. Infinity if the label says neither.
    """
    if not tree:
        return 1
    size = re.fullmatch(r"d(\d+)b\d+|(?:best|growmap)_(\d+)", tree)
    return int(size[1] or size[2]) if size else math.inf


@in_one_line("stopped; what is measured stays")
def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = profile_parser("analysis.submissions", __doc__.splitlines()[0])
    help_text = "check the repository's submissions, and compare them with ours"
    parser.add_argument("--compare", action="store_true", help=help_text)
    options = parser.parse_args(arguments)
    lines = collect(options.profile, options.results) if not options.compare else []
    for folder in sorted(SUBMITTED.glob("*/")) if options.compare else ():
        lines += [f"{folder.name}: {line}" for line in submitted(folder)]
    sys.stdout.write("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    sys.exit(main())
