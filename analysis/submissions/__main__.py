"""Write what was measured as a submission: `make submission`.

    python -m analysis.submissions --profile paper --name "RTX 4090, my group"
    python -m analysis.submissions --compare [--fetch]  # check the repository's, with --fetch also pointers'

It writes results/PROFILE/submission.json and says how its accepted lengths agree with ours. Nothing is
measured. Incomplete results are refused in one line. See docs/submissions.md.
"""

import sys
from argparse import Namespace
from collections.abc import Sequence

from analysis.cli import profile_parser
from analysis.load import ROOT
from analysis.submissions.gather import gather
from analysis.submissions.schema import Pointer, Submission, agreement, check_grid, checked, fetched, read
from resispec.errors import InvalidInput, first_line
from resispec.files import read_json, write_atomically

SUBMITTED = ROOT / "results" / "submissions"
SCHEMA, OURS, FILE = "schema.json", "resispec.json", "submission.json"


def submitted(is_fetching: bool = False) -> tuple[Submission, list[Submission | Pointer]]:
    """Our submission and the others of the repository. is_fetching: whether to fetch those behind pointers.

    Raises InvalidInput for the first file that is not a valid submission.
    """
    files = sorted(path for path in SUBMITTED.glob("*.json") if path.name not in (SCHEMA, OURS))
    ours, others = checked(read_json(SUBMITTED / OURS), OURS), [read(path) for path in files]
    if is_fetching:
        others = [fetched(other) if isinstance(other, Pointer) else other for other in others]
    for other in others:
        if isinstance(other, Submission):
            check_grid(other, ours)
    return ours, others


def _agreement(other: Submission | Pointer, ours: Submission) -> str:
    return f"at {other.url}" if isinstance(other, Pointer) else agreement(other, ours)


def _lines(options: Namespace) -> list[str]:
    """Do the work of the command; return the lines to print. options: arguments of the command."""
    profile, results, lines = options.profile, options.results, []
    if options.published:
        submission = gather(profile, results, options.name or "resispec", published=True)
        path = SUBMITTED / OURS
    else:
        ours, others = submitted(options.fetch)
        if options.compare:
            return [f"{ours.name}: ours", *(f"{other.name}: {_agreement(other, ours)}" for other in others)]
        submission, path = gather(profile, results, options.name), results / profile / FILE
        check_grid(submission, ours)
        lines = [f"beside {ours.name}: {agreement(submission, ours)}"]
    write_atomically(path, submission.model_dump_json(indent=1) + "\n")
    return [f"wrote {path}", *lines]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 1, after one line on stderr, if something cannot be submitted, else 0."""
    parser = profile_parser("analysis.submissions", __doc__.splitlines()[0])
    parser.add_argument("--name", default="", help="of the submission; by default the device's")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--compare", action="store_true", help="check the repository's submissions beside ours")
    parser.add_argument("--fetch", action="store_true", help="with --compare: also what pointers name")
    mode.add_argument("--published", action="store_true", help="for maintainers: submit results/published")
    try:
        lines = _lines(parser.parse_args(arguments))
    except (InvalidInput, OSError) as error:
        sys.stderr.write(f"submission: {first_line(error)}\n")
        return 1
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
