"""Write the page of a profile, `results/PROFILE/report.html`, from the cells that exist.

Usage: resispec report [--profile NAME] [--sweep NAME]

Cells that are not measured are shown as missing; a folder without any plan shows the published
cells. With --sweep the page has one sweep of your own, `results/PROFILE/sweeps/NAME.html`. Open the
file in any browser; it needs no other file. provenance.json beside the report has the origin of its
numbers.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from analysis import published
from analysis.cli import check_profile, profile_parser
from analysis.load import elsewhere, plan_files
from analysis.page import provenance, sections
from analysis.page.render import render
from resispec.errors import InvalidInput, in_one_line
from resispec.files import write_atomically, write_json


def write(profile: str, results: Path) -> tuple[Path, list[str]]:
    """Write a profile's page, return its path and the names of the artefacts that cannot be read.

    An older page stays until the new one is complete, which says why they cannot.

    results: the folder of raw/ and PROFILE/. Raises InvalidInput for an unknown profile and if
    nothing was measured, OSError when the page cannot be written.
    """
    check_profile(profile, results)
    names = sections.artefacts()
    is_own = any(plan_files(name, profile, results) for name in names)
    read = []
    for place, name in enumerate(names, start=1):
        sys.stderr.write(f"report: {name} ({place} of {len(names)})\n")
        source = results if is_own else published.source(name, profile, results)
        read.append(sections.read(name, profile, source))
    if not any(section.plan or section.problem for section in read):
        raise InvalidInput(
            f"nothing of profile {profile} is measured in {results}; `make reproduce` does it"
        )
    plans = [section.plan for section in read if section.plan]
    facts = provenance.facts(plans)
    if any(plan.is_published for plan in plans):
        facts["Drawn from"] = f"results/published/{profile}/{published.CELLS}"
        sys.stderr.write(f"report: nothing is measured here: drawn from {facts['Drawn from']}\n")
    path = results / profile / "report.html"
    command = f"make report PROFILE={profile}{elsewhere(results)}"
    write_atomically(path, render(read, f"{profile} profile", command, facts))
    write_json(path.with_name(provenance.FILE), facts)
    return path, [section.name for section in read if section.problem]


def write_sweep(name: str, profile: str, results: Path) -> Path:
    """Write the page of one sweep, return its path.

    name: the sweep's name, or its beginning. Raises InvalidInput when there is no such sweep, or it
    cannot be read.
    """
    check_profile(profile, results)
    section = sections.read_sweep(name, profile, results)
    path = results / profile / "sweeps" / f"{section.name}.html"
    command = f"make report SWEEP={section.name} PROFILE={profile}{elsewhere(results)}"
    title = f"sweep {section.name}, {profile} profile"
    facts = provenance.facts([section.plan])
    write_atomically(path, render([section], title, command, facts, is_report=False))
    return path


@in_one_line()
def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = profile_parser("analysis.page", __doc__.splitlines()[0])
    help_text = "the page of a sweep of one's own instead, by its name or the beginning of it"
    parser.add_argument("--sweep", metavar="NAME", help=help_text)
    options = parser.parse_args(arguments)
    unread: list[str] = []
    if options.sweep is None:
        path, unread = write(options.profile, options.results)
    else:
        path = write_sweep(options.sweep, options.profile, options.results)
    sys.stdout.write(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)\n")
    if unread:
        raise InvalidInput(f"the page lacks {', '.join(unread)}, which cannot be read; it says why")


if __name__ == "__main__":
    sys.exit(main())
