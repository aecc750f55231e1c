"""What a check found, in one line: is it well, is it good to know, or does it keep runs from working."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

GIB = 2**30


class State(StrEnum):
    """How a finding counts: a profile with a problem cannot run as it is; a note stops nothing."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """One line. name: what was looked at. found: what is there. todo: what to do, where anything is."""

    name: str
    state: State
    found: str
    todo: str = ""

    def __str__(self) -> str:
        advice = f"; to do: {self.todo}" if self.todo else ""
        return f"{self.state:<7}  {self.name}: {self.found}{advice}"


def ok(name: str, found: str) -> Finding:
    """What needs nothing."""
    return Finding(name, State.OK, found)


def note(name: str, found: str, todo: str = "") -> Finding:
    """What stops nothing, and is good to know."""
    return Finding(name, State.NOTE, found, todo)


def problem(name: str, found: str, todo: str) -> Finding:
    """What keeps something of the profile from running."""
    return Finding(name, State.PROBLEM, found, todo)


def problems(findings: Iterable[Finding]) -> list[Finding]:
    """Those that are problems."""
    return [one for one in findings if one.state == State.PROBLEM]


def gib(num_bytes: float) -> str:
    """As "12.6 GiB"."""
    return f"{num_bytes / GIB:.1f} GiB"
