"""Check that the files of runs are as they were written, changing nothing: `make verify`.

Cells, plans and searched trees in the results folder, those in published archives, and the models
that were trained here or come with us, are compared with their checksums. Each damaged one gets a
line that says what to do, and so does what cannot be read. The exit code is 0 only when there is
none, and something was read. If a file has no checksum, as those made by hand or by an earlier
version, only its format is checked.
"""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from analysis.cli import check_results
from analysis.load import ROOT, Request
from analysis.published import CELLS, SUFFIX, unpacked
from experiments import configurations
from experiments.states import States
from resispec import kept
from resispec.commands import as_typed
from resispec.errors import CommandParser, InvalidInput, fail, first_line, in_one_line
from resispec.files import cache_root, read_json, read_sealed
from resispec.progress import progress_bar
from resispec.trees import grow_map


class Kind(NamedTuple):
    """Paths that are checked in one way.

    check: raises InvalidInput, which names the path and says what is wrong. remedy: what to do, if
    the error does not say so.
    """

    name: str
    paths: Sequence[Path]
    check: Callable[[Path], object]
    remedy: str = ""


def kinds(results: Path) -> list[Kind]:
    """Everything that has a checksum. results: the folder of raw/ and PROFILE/."""

    def of(pattern: str) -> list[Path]:
        return sorted(results.glob(pattern))

    cells = [path for path in of("raw/*/*") if not path.is_file()]
    states = {path.parent.name: States(path.parent.name, results) for path in cells}
    return [
        Kind("cells", cells, lambda folder: check_cell(folder, states[folder.parent.name])),
        Kind(
            "plans", of("*/plans/**/*.json"), check_plan, "; running its sweep again writes it anew"
        ),
        Kind("trees", of("*/growmap/*.json"), check_tree, "; without it, it is searched for again"),
        Kind("published archives", of(f"published/*/{CELLS}/*{SUFFIX}"), check_archive),
        Kind("published trees", of("published/*/growmap/*.json"), check_tree, "; git has it"),
        Kind("models", [*kept.folders(), *committed()], check_model),
    ]


def committed() -> list[Path]:
    """The folders of models and texts that come with the repository."""
    places = ("resispec/embedded/files", "recipes/smollm2/files")
    found = (path.parent for place in places for path in (ROOT / place).glob(f"*/{kept.MANIFEST}"))
    return sorted(found)


def check_model(folder: Path) -> None:
    """Raise InvalidInput for a folder of the cache, or of the repository, that has changed."""
    if folder.parent == cache_root():
        kept.check(folder)
    else:
        kept.whole(folder, "the repository")


def check_cell(folder: Path, states: States) -> None:
    """Raise InvalidInput for a cell whose files have changed, with the command to measure it again.

    states: those of its profile.
    """
    if not folder.is_dir():
        raise InvalidInput(f"{folder} is no folder of a cell")
    status = states.status(folder.name)
    if status.state == "damaged":
        command = states.command(folder.name)
        again = f"`{command}`" if command else "the command that asked for it"
        raise InvalidInput(f"{folder}: {status.reason}; {again} measures it anew")


def check_plan(path: Path) -> None:
    """Raise InvalidInput for a file that is no plan, or has changed since it was written."""
    content = read_sealed(path)
    try:
        for entry in content["cells"]:
            Request.read(entry)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInput(
            f"{path} is no plan ({type(error).__name__}: {first_line(error)})"
        ) from error


def check_tree(path: Path) -> None:
    """Raise InvalidInput for a file that holds no tree, or has changed since it was written."""
    is_fastest = read_json(path).get("format") == configurations.FORMAT
    (configurations if is_fastest else grow_map).load(path)


def check_archive(path: Path) -> None:
    """Raise InvalidInput for a published archive that is damaged or holds anything damaged."""
    folder = unpacked(path)
    problems = []
    for kind in kinds(folder)[:3]:
        for member in kind.paths:
            try:
                kind.check(member)
            except (InvalidInput, OSError) as error:
                problems.append(first_line(error).replace(str(folder), str(path)))
    if problems:
        more = f" (and {len(problems) - 1} more in it)" if problems[1:] else ""
        raise InvalidInput(f"{problems[0]}{more}; git has it")


def obstacles(results: Path) -> dict[Path, str]:
    """A line for each unreadable folder and each FIFO, socket or device, which is never opened."""
    lines = {}

    def refuse(error: OSError) -> None:
        lines[Path(error.filename)] = f"{error.filename} cannot be read ({error.strerror})"

    for folder, _, names in os.walk(results, onerror=refuse):
        for path in (Path(folder, name) for name in names):
            if path.exists() and not path.is_file():
                lines[path] = (
                    f"{path} is a FIFO, a socket or a device, and was not opened; delete it"
                )
    return lines


@in_one_line("stopped; nothing was changed")
def main(arguments: Sequence[str] | None = None) -> int:
    """The command: prints damaged files and counts of files."""
    parser = CommandParser(prog=as_typed("experiments.verify"), description=__doc__.splitlines()[0])
    parser.add_argument(
        "--results", type=Path, default=Path("results"), help="folder of raw/ and PROFILE/"
    )
    results = parser.parse_args(arguments).results
    check_results(results)
    groups, lines = kinds(results), obstacles(results)
    sys.stdout.writelines(f"{line}\n" for line in lines.values())
    named = {place for path in lines for place in (path, path.parent)}  # also the cell that has it
    num_damaged = len(lines)
    num_files = sum(len(kind.paths) for kind in groups)
    with progress_bar(total=num_files, desc="verify", unit="file", leave=False) as bar:
        for kind in groups:
            for path in kind.paths:
                try:
                    if path not in named:
                        kind.check(path)
                except (InvalidInput, OSError) as error:
                    num_damaged += 1
                    bar.write(f"{first_line(error)}{kind.remedy}")
                bar.update()
    counts = ", ".join(f"{len(kind.paths)} {kind.name}" for kind in groups)
    if num_damaged:
        return fail(f"{num_damaged} damaged, of {counts}")
    if not any(kind.paths for kind in groups if kind.check is not check_model):
        return fail(
            f"nothing was read: {results} holds {counts}; give another folder: --results FOLDER"
        )
    sys.stdout.write(f"{counts}: all are as they were written\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
