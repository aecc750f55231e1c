"""Evidence of an audit: a file of all that was found and how to repeat it, and an issue's text."""

import platform
import shlex
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from referee.audit.comparisons import POWER
from referee.audit.report import TranscriptsReport, report_json
from referee.audit.table import ArmLine, markdown_table
from referee.rescoring import Scorer
from referee.transcripts import Transcript
from resispec.audit.verdict import Finding
from resispec.files import checksums
from resispec.machine import processor_name


def evidence(
    report: TranscriptsReport,
    arms: Mapping[str, tuple[Path, Sequence[Transcript]]],
    models: Mapping[str, tuple[str, Scorer]],
    arguments: Sequence[str],
) -> dict[str, Any]:
    """All that an audit found, with its files, models and versions, in plain types.

    arms: file and rows of "transcripts" and, if there is one, of "control". models: name and scorer
    of "target" and, if there is one, of "draft". arguments: those of the command.
    """
    return (
        report_json(report)
        | files_of(arms, arguments)
        | {
            "verdict": report.verdict,
            "models": {
                role: {
                    "name": name,
                    "weights": scorer.weights,
                    "dtype": scorer.precision,
                }
                for role, (name, scorer) in models.items()
            },
            "device": f"{models['target'][1].device.type}, {processor_name()}",
            "not_tested": list(not_tested(report, set(arms), set(models))),
        }
    )


def files_of(
    arms: Mapping[str, tuple[Path, Sequence[Transcript]]], arguments: Sequence[str]
) -> dict[str, Any]:
    """Files, engines, settings and versions of an audit, and its command.

    arms, arguments: see `evidence`.
    """
    rows = arms["transcripts"][1]
    return {
        "command": shlex.join(["python", "-m", "referee.audit", *arguments]),
        "engines": sorted(
            {f"{row.engine or 'unnamed'} {row.engine_version or ''}".strip() for row in rows}
        ),
        "settings": sorted({row.setting for row in rows}),
        "files": {
            arm: {
                "name": path.name,
                "sha256": checksums(path.parent, [path.name])[path.name],
                "rows": len(transcripts),
                "tokens": sum(len(row.output_token_ids) for row in transcripts),
            }
            for arm, (path, transcripts) in arms.items()
        },
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in ("resispec", "torch", "transformers")},
    }


def not_tested(report: TranscriptsReport, arms: set[str], models: set[str]) -> Iterator[str]:
    """Lines that name what the audit says nothing about."""
    for judgement in report.judgements:
        if judgement.smallest_bias:
            size, what = max(judgement.smallest_bias.values()), judgement.comparison.what
            yield f"a bias below {size:.2g} of {what} (found {POWER:.0%} of the time)"
    if "control" not in arms:
        yield "whether it is the speculation: there is no control arm without it"
    if "draft" not in models:
        yield "a small bias toward the draft: its model was not given"
    yield (
        "other prompts, settings, loads, starts, turns and contexts than those of the rows; text, "
        "stop strings, log-probabilities"
    )


def markdown(found: Mapping[str, Any]) -> Iterator[str]:
    """The lines of an issue from a record of `evidence`, some 20 for at most three comparisons.

    Of several arms there is a table, and further lines for what is not "no bias seen". Every note
    has a line.
    """
    yield from (
        f"**Audit of what the engine wrote: {found['verdict']}**",
        found["headline"],
        "",
        *found["summary"],
        "",
    )
    if lines := [ArmLine(**line) for line in found["arms"]]:
        yield from (*markdown_table(lines), "")
    for judgement in found["judgements"]:
        if lines and judgement["finding"] == Finding.NO_BIAS_SEEN:
            continue  # the table has its numbers
        comparison = judgement["comparison"]
        size = f"{comparison['tokens']} tokens in {comparison['rows']} rows"
        reasons = "; ".join(judgement["reasons"][:4])
        yield (
            f"- {comparison['what']} ({size}): "
            f"{judgement['finding']}{': ' * bool(reasons)}{reasons}"
        )
    yield f"- engine: {', '.join(found['engines'])}; settings: {'; '.join(found['settings'])}"
    for role, model in found["models"].items():
        yield f"- {role}: {model['name']} in {model['dtype']}, weights {model['weights']}"
    for arm, file in found["files"].items():
        yield f"- {arm}: {file['name']}, SHA-256 {file['sha256']}"
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    yield f"- with {versions} on {found['device']}"
    yield from (f"- note: {note}" for note in found["notes"])
    yield f"- not tested: {'; '.join(found['not_tested'])}"
    yield from ("", f"Repeat it with `{found['command']}`.")
