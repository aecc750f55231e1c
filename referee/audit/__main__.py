"""Does an engine emit the target's law? Judge it by what it wrote, see docs/transcripts.md.

    resispec judge rows.jsonl --target meta-llama/Llama-3.1-8B
    resispec judge spec.jsonl --control plain.jsonl --target ./model --draft ./small
    resispec judge rows.jsonl --target embedded
    resispec judge spec.jsonl --control plain.jsonl
    resispec judge rollouts.jsonl --target ./policy --settings temperature=1

A model is a hub name or a folder. A target can also be a pair of conf/pair, which brings its draft.
Without a target, the rows are compared with those of the control alone: samples of the same
prompts, by their token ids and the log-probabilities that the engine served, if rows have them.
Files can also have the keys that RL trainers write, see "Rollout files" in docs/transcripts.md.
Rows of several loads, starts, turns or contexts are arms: each is judged, they are compared with
each other, and a table has a line for each.
The exit code is 0 when no bias was seen in the transcripts (with a control: when no difference
between the two was found), 3 when they are biased, 4 when there is too little to tell, and 1 or 2
when something is wrong with what was given. It is 5, with one line and no verdict, when rescoring
cannot be trusted: when logits are NaN or infinite, or when tokens that the target draws itself do
not pass the audit, which is tried before an engine is called biased. Another --dtype or --device
may help.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from referee import inputs
from referee.audit import audit_transcripts, read_transcripts, report_lines
from referee.audit.evidence import evidence, files_of, markdown
from referee.control import judge_control
from referee.control import report_lines as control_lines
from referee.control.report import report_json as control_json
from referee.transcripts import Transcript
from resispec.commands import as_typed
from resispec.errors import CommandParser, InvalidInput, NoVerdict, in_one_line
from resispec.files import check_output, sealed, write_json

EXIT_CODES = {"no bias seen": 0, "biased": 3, "undecided": 4, "no verdict": 5}


@in_one_line("stopped; nothing was judged")
def main(arguments: Sequence[str] | None = None) -> int:
    """The command: audit, print the report, write the evidence if asked; returns the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    options = parser().parse_args(words)
    _check_models(options)
    files = {"transcripts": options.transcripts, "control": options.control}
    given = {name: file for name, file in files.items() if file is not None}
    if options.evidence is not None:
        folders = inputs.model_folders(options.target, options.draft)
        check_output(options.evidence, given.values(), folders)
    arms = {name: (file, read_transcripts(file, options.settings)) for name, file in given.items()}
    if "control" in arms and options.control.samefile(options.transcripts):
        raise InvalidInput(
            f"the control is the file of the transcripts, {options.control}; give another run's"
        )
    if options.target is None:
        return _without_target(options, arms, words)
    _, control = arms.get("control", (None, None))
    scorers = inputs.scorers(options.target, options.draft, options.device, options.dtype)
    try:
        report = audit_transcripts(arms["transcripts"][1], *scorers, control=control)
    except NoVerdict as error:
        sys.stderr.write(f"no verdict: {error}\n")
        return EXIT_CODES["no verdict"]
    record: dict[str, Any] = {}
    if options.evidence or options.markdown:
        names = {"target": options.target, "draft": options.draft or options.target}
        models = {role: (names[role], scorer) for role, scorer in zip(names, scorers, strict=False)}
        record = evidence(report, arms, models, words)
    lines = markdown(record) if options.markdown else report_lines(report)
    sys.stdout.writelines(f"{line}\n" for line in lines)
    if options.evidence:
        write_json(options.evidence, sealed(record))
        sys.stderr.write(f"written: {options.evidence}\n")
    return EXIT_CODES[report.finding]


def _check_models(options: argparse.Namespace) -> None:
    """Raise InvalidInput if nothing is given to compare with, or options that need a target."""
    if options.target is not None:
        return
    if options.control is None:
        raise InvalidInput(
            "there is nothing to judge the transcripts by; give --target, the model whose law the "
            "engine should emit, or --control, what the same engine wrote without speculation"
        )
    for name in ("draft", "markdown"):
        if getattr(options, name):
            raise InvalidInput(f"--{name} needs a --target; without one, leave it out")


def _without_target(
    options: argparse.Namespace,
    arms: Mapping[str, tuple[Path, Sequence[Transcript]]],
    words: Sequence[str],
) -> int:
    """Compare transcripts with their control, without a target; returns the exit code."""
    report = judge_control(arms["transcripts"][1], arms["control"][1])
    sys.stdout.writelines(f"{line}\n" for line in control_lines(report))
    if options.evidence:
        record = control_json(report) | files_of(arms, words)
        write_json(options.evidence, sealed(record))
        sys.stderr.write(f"written: {options.evidence}\n")
    return EXIT_CODES[report.finding]


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = CommandParser(
        prog=as_typed("referee.audit"),
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "transcripts", type=Path, help="the .jsonl file that holds what the engine wrote"
    )
    parser.add_argument(
        "--target",
        help="the model whose law the engine should emit; without it, a --control is compared with",
    )
    parser.add_argument(
        "--control", type=Path, help="what the same engine wrote without speculation"
    )
    parser.add_argument(
        "--draft", help="the engine's draft model: a bias toward it shows in fewer tokens"
    )
    parser.add_argument(
        "--settings",
        type=inputs.settings,
        default={},
        metavar="NAME=VALUE,...",
        help="settings that rows do not say, like temperature=0.7,top_p=0.9; needed for files of "
        "RL trainers without them",
    )
    inputs.add_model_options(parser)
    parser.add_argument(
        "--evidence", type=Path, metavar="FILE", help="write every number, hashes and versions"
    )
    parser.add_argument(
        "--markdown", action="store_true", help="print a text for an issue, not the report"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
