"""The commands of `resispec`: their names, the modules that they are, and a line about each.

Nothing but names is imported here, so that every module can ask how it was called.
"""

import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
"""The folder that has this package: a clone of the repository, or where wheels are installed."""
HARNESS = ("experiments", "analysis")
"""Packages that are in a clone alone."""
TABLES = "analysis"
"""The package whose modules are the tables and figures of `resispec table`."""


class ConsoleCommand(NamedTuple):
    """A command that is a module's `main`, which takes the words behind the command's name."""

    module: str
    about: str


COMMANDS = {
    "run": ConsoleCommand("experiments.run", "measure cells: experiment=table1, or KEY=VALUE ..."),
    "audit": ConsoleCommand("experiments.audit", "is a verifier exact? NAME, FILE.py:CLASS or all"),
    "show": ConsoleCommand("experiments.show", "what a cell wrote; without a cell, the newest"),
    "table": ConsoleCommand("analysis.artefact", "a table or figure, from the cells that exist"),
    "report": ConsoleCommand("analysis.page.__main__", "all tables and figures as one page"),
    "status": ConsoleCommand("experiments.status", "what is done, and how long the rest takes"),
    "verify": ConsoleCommand("experiments.verify", "is every file as it was written?"),
    "doctor": ConsoleCommand("experiments.doctor.__main__", "can a profile run on this machine?"),
    "replay": ConsoleCommand("experiments.replay", "verifiers compared on logged laws"),
    "transcripts": ConsoleCommand("referee.transcribe", "let an engine or a server write tokens"),
    "serve": ConsoleCommand("referee.serve", "llama.cpp at an address, with a draft or without"),
    "judge": ConsoleCommand("referee.audit.__main__", "is an engine exact? by what it wrote"),
}
"""Command -> its module, in the order of --help; `list` is of `console` itself."""


def needs_clone(module: str) -> bool:
    """Whether a wheel alone lacks a module."""
    return module.partition(".")[0] in HARNESS


def has_clone() -> bool:
    """Whether this package lies in a clone, with the harness and its configurations."""
    return all((ROOT / name).is_dir() for name in ("conf/experiment", *HARNESS))


def as_typed(module: str) -> str:
    """The words that start a module as this process was started.

    They are like "resispec show" or "python -m experiments.show". module: as `python -m` takes it.
    """
    if sys.argv and Path(sys.argv[0]).stem == "resispec":
        for name, command in COMMANDS.items():
            if command.module.removesuffix(".__main__") == module:
                return f"resispec {name}"
        package, _, name = module.rpartition(".")
        if package == TABLES:
            return f"resispec table {name}"
    return f"python -m {module}"
