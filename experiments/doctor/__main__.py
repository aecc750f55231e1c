"""Check whether a profile can run on this machine: `make doctor`.

The command prints one line for each thing that a run needs: versions of packages, the device and
its memory, models and data sets of a hub, room on the disk. Nothing but small descriptions is
downloaded. The exit code is 0 only when nothing keeps the profile from running.
"""

import platform
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from huggingface_hub import constants
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from analysis.cli import check_profile, profile_parser
from analysis.load import elsewhere
from experiments.doctor.needs import GIB, NOTE, OK, PROBLEM, Line, Needs, gib
from experiments.grid import parts_of
from experiments.schema import CONF
from resispec.errors import fail, in_one_line
from resispec.hub import Weights

RESULTS_BYTES = GIB
"""The most bytes of a profile's rows, trees and pages."""


def versions(root: Path = CONF.parent) -> Line:
    """Whether pyproject.toml allows packages' versions and constraints.txt has them as tested."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pins = re.findall(
        r"^([\w.-]+)==(\S+)", (root / "constraints.txt").read_text(encoding="utf-8"), re.M
    )
    tested = {canonicalize_name(name): pin for name, pin in pins}
    python, allowed = platform.python_version(), project["requires-python"]
    problems, notes = list[str](), list[str]()
    if python not in SpecifierSet(allowed):
        problems.append(f"Python {python} (allowed: {allowed})")
    lines = [*project["dependencies"], *project["optional-dependencies"]["harness"]]
    for requirement in map(Requirement, lines):
        try:
            installed = version(requirement.name).partition("+")[0]
        except PackageNotFoundError:
            problems.append(f"{requirement.name} is missing")
            continue
        pin = tested.get(canonicalize_name(requirement.name), installed)
        if not requirement.specifier.contains(installed, prereleases=True):
            problems.append(f"{requirement.name} {installed} (allowed: {requirement.specifier})")
        elif installed != pin:
            notes.append(f"{requirement.name} {installed} (tested: {pin})")
    if problems:
        return Line(PROBLEM, "versions", f"{', '.join(problems)}; `make install`")
    if notes:
        found = f"not those that were tested: {', '.join(notes)}; `make install`"
        return Line(NOTE, "versions", found)
    found = f"Python {python}, and {len(lines)} packages as they were tested"
    return Line(OK, "versions", found)


def disk(needs: Needs, results: Path) -> Iterator[Line]:
    """Whether the disks have room for models to download and for results."""
    weights = [found for found in needs.found.values() if isinstance(found, Weights)]
    models = sum(found.num_bytes for found in weights if found.folder is None)
    if models:
        yield _room("models", Path(constants.HF_HUB_CACHE), models, "HF_HOME names another folder")
    yield _room("results", results, RESULTS_BYTES, "RESULTS=FOLDER names another one")


def _room(what: str, folder: Path, needed: int, remedy: str) -> Line:
    place = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free
    found = f"{gib(free)} free in {folder}, {what} need {gib(needed)}"
    if free < needed:
        return Line(PROBLEM, "disk", f"{found}; {remedy}")
    return Line(OK, "disk", found)


def report(profile: str, results: Path) -> Iterator[Line]:
    """The lines about a profile."""
    yield versions()
    parts = parts_of(["experiment=glob(*)", f"profile={profile}", f"results={results}"])
    cells = [cell for part in parts for cell in part.cells]
    needs = Needs(cells)
    if not needs.found:
        yield Line(OK, "hub", "nothing is read from one")
    yield from dict.fromkeys(line for cell in cells for line in needs.lines(cell))
    yield from disk(needs, results)


@in_one_line("stopped; nothing was changed")
def main(arguments: Sequence[str] | None = None) -> int:
    """The command: prints the lines of the report."""
    options = profile_parser("experiments.doctor", __doc__.splitlines()[0]).parse_args(arguments)
    profile = options.profile
    check_profile(profile)
    problems = list[str]()
    for line in report(profile, options.results):
        if line.state == PROBLEM:
            problems.append(line.name)
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    if problems:
        names = ", ".join(problems)
        return fail(f"profile {profile} cannot run as it is; {len(problems)} problems: {names}")
    command = f"make reproduce PROFILE={profile}{elsewhere(options.results)}"
    sys.stdout.write(f"profile {profile} can run: {command}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
