"""Publish what was measured here: a maintainer's command, and the only writer of results/published/.

Usage: python -m analysis.publish --profile embedded [ARTEFACT...]

It copies the files of each artefact, by default of all that results/PROFILE holds and the report of them,
and the trees that were searched for where its plan names some, to results/published/PROFILE. It renews what
README.md and docs quote between `<!-- ARTEFACT -->` and `<!-- /ARTEFACT -->`: the tables, and the paragraphs
that begin like one of the page. Other prose stays. A block of another profile than embedded is called
PROFILE/ARTEFACT.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from analysis import categories, script
from analysis.load import ROOT
from analysis.published import OPENING
from resispec.errors import InvalidInput, first_line
from resispec.files import read_json, replacing, write_atomically

SUFFIXES = ("csv", "md", "tex", "png", "pdf")
WITH = {
    "frontier": ("frontier_shapes", "frontier_summary"),
    "figure2": ("figure2_context",),
    "table6": ("table6_drafts",),
    "bench": (
        *("bench_rules", "bench_counts", "bench_memory", "bench_compiled", "bench_draft_vocabulary"),
        "joint",
    ),
    "speed": ("speed_costs",),
    "faults": ("false_alarms",),
}
"""Further tables that an artefact writes."""


def publish(artefact: str, profile: str, results: Path, root: Path = ROOT) -> list[Path]:
    """Publish one artefact; return what was written.

    root: of the repository that is written to.
    Raises InvalidInput when there is no page to publish.
    """
    source, folder = results / profile, root / "results" / "published" / profile
    if not (source / f"{artefact}.md").is_file():
        raise InvalidInput(f"{source / artefact}.md is missing; `make {artefact}` makes it")
    stems = (artefact, *WITH.get(artefact, ()), categories.stem(artefact))
    files = [source / f"{stem}.{suffix}" for stem in stems for suffix in SUFFIXES]
    copied = [_copy(file, folder / file.name) for file in files if file.is_file()]
    if _names_trees(artefact, source):
        trees = sorted(file for file in (source / "growmap").iterdir() if file.suffix in (".json", ".csv"))
        copied += [_copy(file, folder / "growmap" / file.name) for file in trees]
    pages = {stem: folder / f"{stem}.md" for stem in stems if (folder / f"{stem}.md").is_file()}
    for stem, page in pages.items():
        block = stem if profile == "embedded" else f"{profile}/{stem}"
        text = page.read_text(encoding="utf-8")
        copied += [path for path in _quoting(block, root) if renew(path, block, text)]
    return copied


def _made(source: Path) -> list[str]:
    """The artefacts that a profile's folder holds. Raises InvalidInput when there are none."""
    others = {stem for stems in WITH.values() for stem in stems}
    pages = [page.stem for page in sorted(source.glob("*.md"))]
    others |= {categories.stem(name) for name in pages}
    found = [name for name in pages if name not in others]
    if not found:
        raise InvalidInput(f"{source} holds no artefact; `make reproduce-table1` makes one")
    return found


def _copy(file: Path, target: Path) -> Path:
    """Copy a file; a page leaves out how it compares with what was published before."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix in (".md", ".tex"):
        text = file.read_text(encoding="utf-8")
        end = r"\n\n?" if file.suffix == ".md" else r"\n"
        write_atomically(target, re.sub(rf"^{OPENING}.*{end}", "", text, flags=re.M).rstrip("\n") + "\n")
    else:
        with replacing(target) as partial:
            shutil.copyfile(file, partial)
    return target


def _names_trees(artefact: str, source: Path) -> bool:
    """Whether a plan of the artefact names the file of a tree, and there are such files."""
    plans = [source / "plans" / f"{artefact}.json", *(source / "plans" / artefact).glob("*.json")]
    cells = [cell for plan in plans if plan.is_file() for cell in read_json(plan).get("cells", [])]
    return (source / "growmap").is_dir() and any(cell.get("tree_file") for cell in cells)


def _quoting(block: str, root: Path) -> list[Path]:
    pages = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    return [page for page in pages if page.is_file() and f"<!-- {block} -->" in page.read_text("utf-8")]


def renew(path: Path, block: str, page: str) -> bool:
    """Renew what a document quotes of a page in blocks of a name; return whether it changed."""
    text = path.read_text(encoding="utf-8")
    blocks = re.compile(rf"(<!-- {block} -->\n)(.*?)(\n<!-- /{block} -->)", re.S)
    renewed = blocks.sub(lambda found: found[1] + quoted(found[2], page) + found[3], text)
    if renewed != text:
        write_atomically(path, renewed)
    return renewed != text


def quoted(block: str, page: str) -> str:
    """A block with the tables of a page, in order, and its paragraphs that begin like one of the block."""
    tables = iter([part for part in page.split("\n\n") if part.lstrip().startswith("|")])
    openings = {_opening(part): part.strip("\n") for part in page.split("\n\n")}
    parts = []
    for part in block.split("\n\n"):
        renewed = next(tables, part) if part.startswith("|") else openings.get(_opening(part), part)
        parts.append(renewed.strip("\n"))
    return "\n\n".join(parts)


def _opening(paragraph: str) -> tuple[str, ...]:
    """What tells paragraphs apart: "Profile:", or the first two words."""
    words = paragraph.split()
    return tuple(words[: 1 if words and words[0].endswith(":") else 2])


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = script.parser("analysis.publish", __doc__.splitlines()[0])
    said = "such as table1, frontier or audit; by default all that were made"
    parser.add_argument("artefacts", nargs="*", metavar="ARTEFACT", help=said)
    chosen = parser.parse_args(arguments)
    try:
        source = chosen.results / chosen.profile
        for artefact in chosen.artefacts or _made(source):
            for path in publish(artefact, chosen.profile, chosen.results):
                sys.stdout.write(f"wrote {path}\n")
        page = source / script.REPORT
        if not chosen.artefacts and page.is_file():
            copy = _copy(page, ROOT / "results" / "published" / chosen.profile / page.name)
            sys.stdout.write(f"wrote {copy}\n")
    except (InvalidInput, OSError) as error:
        sys.stderr.write(f"publish: {first_line(error)}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
