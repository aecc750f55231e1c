"""Publish what was measured here: a maintainer's command, and the only writer of results/published/.

Usage: python -m analysis.publish --profile embedded [ARTEFACT...]

It copies the files of each artefact, by default of all that results/PROFILE holds with where they are from,
and the trees that were searched for where its plan names some, to results/published/PROFILE, and renews what
README and docs quote of them (`analysis.quotes`).
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from analysis import quotes
from analysis.cli import profile_parser
from analysis.load import ROOT, plan_files, read_plan
from analysis.page import provenance
from resispec.errors import InvalidInput, first_line
from resispec.files import replacing, write_json

SUFFIXES = (".csv", ".md", ".tex", ".png", ".pdf")


def publish(artefact: str, profile: str, results: Path, root: Path = ROOT) -> list[Path]:
    """Publish one artefact: its files, further tables `ARTEFACT_*`, trees; return what was written.

    root: of the repository that is written to.
    Raises InvalidInput when there is no page to publish.
    """
    source, folder = results / profile, root / "results" / "published" / profile
    if not (source / f"{artefact}.md").is_file():
        raise InvalidInput(f"{source / artefact}.md is missing; `make {artefact}` makes it")
    files = [*source.glob(f"{artefact}.*"), *source.glob(f"{artefact}_*.*")]
    copied = [_copy(file, folder / file.name) for file in sorted(files) if file.suffix in SUFFIXES]
    plans = [read_plan(artefact, profile, results)] if plan_files(artefact, profile, results) else []
    if any(request.tree_file for plan in plans for request in plan.requests):
        trees = sorted(file for file in source.glob("growmap/*") if file.suffix in (".json", ".csv"))
        copied += [_copy(file, folder / "growmap" / file.name) for file in trees]
    return copied + quotes.renew(root)


def _copy(file: Path, target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as partial:
        shutil.copyfile(file, partial)
    return target


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = profile_parser("analysis.publish", __doc__.splitlines()[0])
    described = "such as table1, frontier or audit; by default all that were made"
    parser.add_argument("artefacts", nargs="*", metavar="ARTEFACT", help=described)
    chosen = parser.parse_args(arguments)
    profile, results = chosen.profile, chosen.results
    try:
        stems = [page.stem for page in sorted((results / profile).glob("*.md"))]
        names = chosen.artefacts or [
            stem for stem in stems if not any(stem.startswith(f"{other}_") for other in stems)
        ]
        if not names:
            raise InvalidInput(f"{results / profile} holds no artefact; `make reproduce-table1` makes one")
        for artefact in names:
            for path in publish(artefact, profile, results):
                sys.stdout.write(f"wrote {path}\n")
        plans = [read_plan(name, profile, results) for name in names if plan_files(name, profile, results)]
        if plans and not chosen.artefacts:
            path = ROOT / "results" / "published" / profile / provenance.FILE
            write_json(path, provenance.facts(plans, results / "raw" / profile))
            sys.stdout.write(f"wrote {path}\n")
    except (InvalidInput, OSError) as error:
        sys.stderr.write(f"publish: {first_line(error)}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
