"""Publish what was measured here: for maintainers, the only writer of results/published/.

Usage: python -m analysis.publish --profile embedded [ARTEFACT...]

It puts plans and cells of an artefact into an archive in results/published/PROFILE and draws its
tables and figures there from that archive, as a fresh clone does. What has no plan, such as an
audit, is copied as it was made; transcripts and evidence in a folder of its name go to an archive
beside it. Searched trees that a plan names are copied, too. By default it publishes all artefacts
of results/PROFILE. It renews the file about the origin of all that the profile has published, and
the quotes in README and docs (`analysis.quotes`).
"""

import hashlib
import io
import json
import re
import shutil
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from analysis import artefact as artefacts
from analysis import published, quotes, table
from analysis.audits import TERMS
from analysis.cli import profile_parser
from analysis.load import ROOT, Plan, plan_files, read_plan
from analysis.page import provenance
from analysis.page.sections import maker
from resispec.errors import InvalidInput, in_one_line
from resispec.files import read_sealed, replacing, sealed, write_json

PUBLISHED = (".csv", ".md", ".png")
"""Of the files of an artefact; its command draws .json, .tex and .pdf from published cells."""
TREES = (".json", ".csv")
"""Of the files of a searched tree."""
ACCEPTANCE = "acceptance"
"""End of the name of the file of the laws that the trees of a setting were searched for with."""
CELL, STATUS, ROWS = "cell.json", "status.json", "rows.jsonl"


def publish(artefact: str, profile: str, results: Path, root: Path) -> list[Path]:
    """Publish an artefact's cells, tables, figures, trees and kept files; return the written paths.

    root: the folder of the repository to write to. Raises InvalidInput when the artefact has
    neither a plan nor a page.
    """
    source, folder = results / profile, root / "results" / "published" / profile
    place = (artefact, profile, published.source(artefact, profile, results))
    if plan_files(*place):
        paths = _publish_planned(read_plan(*place), folder)
    elif (source / f"{artefact}.md").is_file():
        paths = _copied([*source.glob(f"{artefact}.*"), *source.glob(f"{artefact}_*.*")], folder)
    else:
        raise InvalidInput(f"{source / artefact}.md is missing; `make {artefact}` makes it")
    kept = [file for file in (source / artefact).glob("*") if file.suffix in (".json", ".jsonl")]
    if kept:
        paths.append(folder / f"{artefact}.tar.xz")
        pack({file.name: file.read_bytes() for file in kept}, paths[-1])
    return paths


def _publish_planned(plan: Plan, folder: Path) -> list[Path]:
    """Archive a plan's cells unless published, draw the artefact of them, return written paths."""
    cells, paths = published.archive_of(plan.artefact, folder), []
    sys.stderr.write("".join(f"{plan.artefact}: {line}\n" for line in plan.outdated))
    if not plan.is_published:
        archive(plan, cells)
        paths.append(cells)
    made = drawn(cells)
    with TemporaryDirectory() as name:
        temporary = Path(name)
        for one_table in made.tables:
            table.write(one_table, temporary, made.suffixes)
        if made.figures:  # a table takes no matplotlib
            from analysis.figures import save_figure

            for stem, drawing in made.figures.items():
                save_figure(drawing(), temporary / stem, ["png"])
        paths += _copied(temporary.iterdir(), folder)
    for left in sorted({*folder.glob(f"{plan.artefact}_*")}.difference(paths)):
        if left.suffix in PUBLISHED:  # of a part that the plan no longer has
            left.unlink()
    stems = {request.tree_file.stem for request in plan.requests if request.tree_file}
    stems |= {f"{stem.rpartition('.')[0]}.{ACCEPTANCE}" for stem in stems}
    trees = (plan.results / plan.profile / "growmap").glob("*")
    paths += _copied((path for path in trees if path.stem in stems), folder / "growmap", TREES)
    return paths


def drawn(cells: Path) -> artefacts.Artefact:
    """An artefact of its published cells, as of the day when they were measured.

    Notes about what has changed since then are for whoever draws it. cells: the archive.
    """
    plan = published.plan_of(cells)
    made = artefacts.complete(maker(plan.artefact), plan)
    tables = (
        replace(one_table, notes=replace(one_table.notes, stale=())) for one_table in made.tables
    )
    return replace(made, tables=tuple(tables))


def _copied(files: Iterable[Path], folder: Path, suffixes: Sequence[str] = PUBLISHED) -> list[Path]:
    """Copy those of the files with a suffix to a folder; return the written paths."""
    paths = []
    for file in sorted(file for file in files if file.suffix in suffixes):
        paths.append(folder / file.name)
        with replacing(paths[-1]) as partial:
            shutil.copyfile(file, partial)
    return paths


def archive(plan: Plan, path: Path) -> None:
    """Put an artefact's plans and cells into an archive; the same cells give the same bytes.

    Raises InvalidInput for a damaged cell.
    """
    pack(dict(_contents(plan)), path)


def pack(contents: Mapping[str, bytes], path: Path) -> None:
    """Write an archive of files by their names, the same bytes for the same files."""
    with replacing(path) as partial, tarfile.open(partial, "w:xz", preset=9) as file:
        for name, content in sorted(contents.items()):
            member = tarfile.TarInfo(name)  # without owner and time
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))


def _contents(plan: Plan) -> Iterator[tuple[str, bytes]]:
    """The files of an artefact (plans, trees, cells): path in its results folder, and bytes."""
    for path in plan_files(plan.artefact, plan.profile, plan.results):
        content = read_sealed(path)
        for entry in content["cells"]:
            if entry.get("tree_file"):
                tree = Path(entry["tree_file"])
                entry["tree_file"] = f"{plan.profile}/growmap/{tree.name}"
                if tree.is_file():
                    yield entry["tree_file"], tree.read_bytes()
        yield (
            path.relative_to(plan.results).as_posix(),
            _json(sealed(_relative(content, plan.results))),
        )
    for cell_id in dict.fromkeys(request.cell_id for request in plan.requests):
        folder = plan.results / "raw" / plan.profile / cell_id
        names = [CELL, provenance.FILE, STATUS]
        if plan.status(cell_id).state == "done":
            names.append(ROWS)
        files = {name: (folder / name).read_bytes() for name in names if (folder / name).is_file()}
        places = [plan.results]
        if CELL in files and (measured_in := json.loads(files[CELL])["config"].get("results")):
            places.append(Path(measured_in))
        for name in files.keys() - {ROWS}:
            files[name] = _json(_relative(json.loads(files[name]), *places))
        if ROWS in files:
            rows = [json.loads(line) for line in files[ROWS].decode().splitlines()]
            compact(rows)
            files[ROWS] = b"".join(map(_json, rows))
            status = json.loads(files[STATUS])
            status["files"] = {
                name: hashlib.sha256(files[name]).hexdigest() for name in status["files"]
            }
            files[STATUS] = _json(status)
        for name, content in files.items():
            yield f"raw/{plan.profile}/{cell_id}/{name}", content


def _relative(node: Any, *results: Path) -> Any:
    """A JSON value without this machine's folders: paths begin at results, the clone or the home.

    results: the folders that were called so, which stand in paths and in commands.
    """
    if isinstance(node, dict):
        return {name: _relative(value, *results) for name, value in node.items()}
    if isinstance(node, list):
        return [_relative(value, *results) for value in node]
    if not isinstance(node, str):
        return node
    folders = {str(folder.absolute()): "results" for folder in results}
    for folder, name in (folders | {str(ROOT): ".", str(Path.home()): "~"}).items():
        node = re.sub(rf"(?<![\w.]){re.escape(folder)}(?![\w.-])", name, node)
    return node


def compact(rows: Sequence[dict[str, Any]]) -> None:
    """Shorten a cell's rows in place: no ids of tokens, and simpler terms and times of an audit.

    No printed number changes. For each statistic, the first known term of a cell becomes the sum of
    all terms and the others 0, so that z-scores stay the same to the last bit; terms that are None
    come last in a prompt. Times of audits, which do not count, are rounded to milliseconds.
    """
    is_audit = all(set(TERMS) <= set(row) for row in rows)
    for row in rows:
        if "tokens_sha256" in row:  # other rows call something else tokens
            row.pop("tokens", None)
        row |= {
            name: round(row[name], 3)
            for name in ("prefill_s", "decode_s")
            if is_audit and name in row
        }
    for name in TERMS if is_audit else ():
        by_row = [[term for term in row[name] if term is not None] for row in rows]
        terms = list(chain.from_iterable(by_row))
        sums = iter([float(np.sum(terms)), *[0.0] * len(terms)])
        for row, row_terms in zip(rows, by_row, strict=True):
            row[name] = [next(sums) for _ in row_terms] + [None] * (len(row[name]) - len(row_terms))


def _json(content: Any) -> bytes:
    return json.dumps(content).encode() + b"\n"


def _list(*paths: Path) -> None:
    sys.stdout.writelines(f"wrote {path}\n" for path in paths)


@in_one_line("stopped; the same command publishes all again")
def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = profile_parser("analysis.publish", __doc__.splitlines()[0])
    help_text = "such as table1, frontier or audit; by default all that were made"
    parser.add_argument("artefacts", nargs="*", metavar="ARTEFACT", help=help_text)
    options = parser.parse_args(arguments)
    profile, results = options.profile, options.results
    pages = sorted((results / profile).glob("*.md"))
    stems = [page.stem for page in pages if not page.stem.endswith("_categories")]
    own_pages = [stem for stem in stems if not any(stem.startswith(f"{other}_") for other in stems)]
    names = options.artefacts or own_pages
    if not names:
        raise InvalidInput(
            f"{results / profile} holds no artefact; `make reproduce-table1` makes one"
        )
    folder = ROOT / "results" / "published" / profile
    for artefact in names:
        _list(*publish(artefact, profile, results, ROOT))
    archives = sorted((folder / published.CELLS).glob(f"*{published.SUFFIX}"))
    if archives:
        plans = [published.plan_of(path) for path in archives]
        write_json(folder / provenance.FILE, provenance.facts(plans))
        _list(folder / provenance.FILE)
    _list(*quotes.renew(ROOT))  # a document may quote any of the artefacts


if __name__ == "__main__":
    sys.exit(main())
