"""Agreement of a second run with the published numbers.

Usage: python -m analysis.second_run --profile embedded --results FOLDER

Found (docs/studies/second_run.md, of which it writes the profile's section): all numbers agree but
where the trees that were searched for are others. FOLDER holds what was measured again; published
is results/published. Two accepted lengths agree when their intervals overlap.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from analysis import published
from analysis.cli import profile_parser
from analysis.load import ROOT, plan_files
from analysis.page import provenance, sections
from resispec.errors import InvalidInput, in_one_line

PAGE = ROOT / "docs" / "studies" / "second_run.md"
FACTS = ("Commit", "Device", "Measured", "Cells measured")


def paragraphs(profile: str, results: Path) -> Iterator[str]:
    """The origin of a results folder's numbers, and a paragraph for every complete artefact."""
    measured = [name for name in sections.artefacts() if plan_files(name, profile, results)]
    read = [sections.read(name, profile, results) for name in measured]
    complete = [one for one in read if one.made and set(one.states) == {"done"}]
    if not complete:
        raise InvalidInput(f"{results} has no complete artefact of the profile {profile}")
    facts = provenance.facts([one.plan for one in complete])
    yield "\n".join(f"- {name}: {facts[name]}" for name in FACTS)
    for one in complete:
        if notes := published.agreement(one.plan, one.made.tables[0], one.made.compared).notes:
            yield f"**{sections.titled(one.name)}.** {' '.join(notes)}"
    for one in read:
        if one not in complete:
            states = ", ".join(f"{count} {state}" for state, count in one.states.items())
            yield f"**{sections.titled(one.name)}.** Not compared: {one.problem or states}."


@in_one_line()
def main(arguments: Sequence[str]) -> None:
    """Write the profile's section; see the module's docstring."""
    parser = profile_parser("analysis.second_run", __doc__.splitlines()[0])
    options = parser.parse_args(arguments)
    heading = f"\n## `{options.profile}`\n\n<!-- from: analysis/second_run.py -->\n\n"
    before, _, after = PAGE.read_text(encoding="utf-8").partition(heading)
    _, next_heading, others = after.partition("\n## ")
    section = "\n\n".join(paragraphs(options.profile, options.results))
    PAGE.write_text(f"{before}{heading}{section}\n{next_heading}{others}", encoding="utf-8")
    sys.stdout.write(f"wrote {PAGE}\n")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
