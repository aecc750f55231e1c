"""What a run needs of the machine beside its device: packages, disk, a compiler, dashboards."""

from __future__ import annotations

import platform
import re
import shutil
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from experiments.configuration.schema import CONF
from experiments.dashboards.mode import decided
from experiments.doctor.finding import GIB, Finding, gib, note, ok, problem
from resispec.machine import cpp_compiler

ROOT = CONF.parent
RESULTS_BYTES = GIB
"""Rows, trees and pages of a whole profile take less."""
INSTALL = "make install"


def versions(root: Path = ROOT) -> Finding:
    """Packages against pyproject.toml, which says what can work, and constraints.txt, which was tested."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    tested = dict(_pinned(root / "constraints.txt"))
    own = platform.python_version()
    if own not in SpecifierSet(project["requires-python"]):
        return problem("versions", f"Python {own}; allowed: {project['requires-python']}", "another Python")
    wrong, other, count = [], [], 0
    for line in (*project["dependencies"], *project["optional-dependencies"]["harness"]):
        needed, count = Requirement(line), count + 1
        try:
            found = version(needed.name).partition("+")[0]
        except PackageNotFoundError:
            wrong.append(f"{needed.name} is missing")
            continue
        if not needed.specifier.contains(found, prereleases=True):
            wrong.append(f"{needed.name} {found} (allowed: {needed.specifier})")
        elif found != (pin := tested.get(_normal(needed.name), found)):
            other.append(f"{needed.name} {found} (tested: {pin})")
    if wrong:
        return problem("versions", ", ".join(wrong), INSTALL)
    if other:
        return note("versions", f"not those that were tested: {', '.join(other)}", INSTALL)
    return ok("versions", f"Python {own}, and {count} packages as they were tested")


def _pinned(path: Path) -> Iterator[tuple[str, str]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        name, separator, pin = line.partition("==")
        if separator:
            yield _normal(name), pin.strip()


def _normal(name: str) -> str:
    return re.sub("[-_.]+", "-", name.strip()).lower()


def compiler() -> Finding:
    """A C++ compiler, which only compiled forwards on a processor need."""
    if found := cpp_compiler():
        return ok("compiler", found)
    return note("compiler", "none was found (CXX, g++, clang++); only compiled=true needs one")


def dashboards() -> Finding:
    """Whether runs go to W&B."""
    mode, said = decided("auto")
    if said:
        _, _, why = said.partition("W&B: ")
        return ok("W&B", why)
    return ok("W&B", f"runs go there: mode {mode}")


def disk(name: str, folder: Path, needed: float, todo: str) -> Finding:
    """Whether a folder's file system has so many bytes free. name: what is written there."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    said = f"{gib(free)} free in {folder}, {name} need {gib(needed)}"
    return ok("disk", said) if free >= needed else problem("disk", said, todo)
