"""Agreement of a second run with the published numbers: `python docs/studies/second_run.py --results FOLDER`.

It writes second_run.md, which says what agreed and what did not. FOLDER holds what was measured again; the
published numbers are those of results/published. Two accepted lengths agree when their intervals overlap.
"""

import sys
from pathlib import Path

from analysis import published
from analysis.cli import profile_parser
from analysis.load import plan_files
from analysis.page import provenance, sections

PAGE = Path(__file__).with_suffix(".md")
HEADING = "# A second run, on another machine\n\n<!-- from: docs/studies/second_run.py -->\n"
FACTS = ("Commit", "Device", "Measured", "Cells measured")


def page(profile: str, results: Path) -> str:
    """The page about every complete artefact of a results folder."""
    measured = [name for name in sections.artefacts() if plan_files(name, profile, results)]
    read = [sections.read(name, profile, results) for name in measured]
    complete = [one for one in read if one.plan and one.made and set(one.states) == {"done"}]
    facts = provenance.facts([one.plan for one in complete if one.plan])
    lines = [HEADING, *(f"- {name}: {facts[name]}" for name in FACTS), ""]
    for one in complete:
        if one.plan and one.made:
            found = published.agreement(one.plan, one.made.tables[0], one.made.compared)
            lines += [f"**{sections.titled(one.name)}.** {' '.join(found.notes)}", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    options = profile_parser("docs/studies/second_run.py", __doc__.splitlines()[0]).parse_args()
    PAGE.write_text(page(options.profile, options.results), encoding="utf-8")
    sys.stdout.write(f"wrote {PAGE}\n")
