"""Agreement of a second run with the published numbers.

Usage: python -m analysis.second_run --profile embedded --results FOLDER

Found (docs/studies/second_run.md, of which it writes the profile's section): all numbers agree but
where the trees that were searched for are others. FOLDER holds what was measured again; published
is results/published. Two accepted lengths agree when their intervals overlap.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from analysis import published
from analysis.cli import profile_parser
from analysis.load import ROOT, plan_files
from analysis.page import provenance, sections

PAGE = ROOT / "docs" / "studies" / "second_run.md"
FACTS = ("Commit", "Device", "Measured", "Cells measured")


def paragraphs(profile: str, results: Path) -> Iterator[str]:
    """The origin of a results folder's numbers, and a paragraph for every complete artefact."""
    measured = [name for name in sections.artefacts() if plan_files(name, profile, results)]
    read = [sections.read(name, profile, results) for name in measured]
    complete = [one for one in read if one.made and set(one.states) == {"done"}]
    facts = provenance.facts([one.plan for one in complete])
    yield "\n".join(f"- {name}: {facts[name]}" for name in FACTS)
    for one in complete:
        if notes := published.agreement(one.plan, one.made.tables[0], one.made.compared).notes:
            yield f"**{sections.titled(one.name)}.** {' '.join(notes)}"


if __name__ == "__main__":
    options = profile_parser("analysis.second_run", __doc__.splitlines()[0]).parse_args()
    heading = f"\n## `{options.profile}`\n\n<!-- from: analysis/second_run.py -->\n\n"
    before, _, after = PAGE.read_text(encoding="utf-8").partition(heading)
    _, next_heading, others = after.partition("\n## ")
    section = "\n\n".join(paragraphs(options.profile, options.results))
    PAGE.write_text(f"{before}{heading}{section}\n{next_heading}{others}", encoding="utf-8")
    sys.stdout.write(f"wrote {PAGE}\n")
