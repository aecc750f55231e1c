"""Write what was measured as a submission, and the page that compares all: `make submission`.

    python -m analysis.submissions --profile paper --name "RTX 4090, my group"
    python -m analysis.submissions --compare          # the page alone, results/submissions/comparison.html

It writes results/PROFILE/submission.json, and beside it submissions.html with the submissions that the
repository has. Nothing is measured. What is not complete is refused in one line. See docs/submissions.md.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from analysis import script
from analysis.load import ROOT
from analysis.submissions import gather, page
from analysis.submissions.schema import Submission, read
from resispec.errors import InvalidInput, first_line
from resispec.files import write_atomically

SUBMITTED = ROOT / "results" / "submissions"
SCHEMA, OURS, COMPARISON = "schema.json", "resispec.json", "comparison.html"


def submitted(folder: Path = SUBMITTED) -> list[Submission]:
    """All submissions of the repository, ours first. Raises InvalidInput for the first that is none."""
    files = sorted(folder.glob("*.json"), key=lambda path: (path.name != OURS, path.name))
    return [read(path) for path in files if path.name != SCHEMA]


def write(submission: Submission, path: Path) -> Path:
    """Write a submission's file; the folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, submission.model_dump_json(indent=1) + "\n")
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 with one line for what cannot be submitted."""
    parser = script.parser("analysis.submissions", __doc__.splitlines()[0])
    parser.add_argument("--name", default="", help="of the submission; by default the device's")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--compare", action="store_true", help="write the page of the repository's submissions")
    only.add_argument("--published", action="store_true", help="for maintainers: submit results/published")
    chosen = parser.parse_args(arguments)
    try:
        for path in _written(chosen.profile, chosen.results, chosen.name, chosen.compare, chosen.published):
            sys.stdout.write(f"wrote {path}\n")
    except (InvalidInput, OSError) as error:
        sys.stderr.write(f"submission: {first_line(error)}\n")
        return 1
    return 0


def _written(profile: str, results: Path, name: str, compare: bool, is_published: bool) -> list[Path]:
    wrote = []
    if is_published:
        wrote = [write(gather.published(profile, results, name or "resispec"), SUBMITTED / OURS)]
    if compare or is_published:
        write_atomically(SUBMITTED / COMPARISON, page.render(submitted()))
        return [*wrote, SUBMITTED / COMPARISON]
    own = gather.measured(profile, results, name)
    wrote = [write(own, results / profile / "submission.json")]
    write_atomically(results / profile / "submissions.html", page.render([*submitted(), own]))
    return [*wrote, results / profile / "submissions.html"]


if __name__ == "__main__":
    sys.exit(main())
