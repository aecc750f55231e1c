"""The command `resispec`: one name for what the modules of the repository do.

A command imports its module when it is called, so that naming the commands takes neither torch nor
Hydra. The words behind a command's name are the module's own, and reach it as they were typed:
`resispec run` has Hydra's syntax. docs/running.md has the exit codes.
"""

import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from resispec import commands
from resispec.commands import COMMANDS, TABLES, ConsoleCommand
from resispec.errors import InvalidInput, fail, first_line, in_one_line

OTHER_TABLES = {"cells": "every cell that was asked for as one row of a CSV, for plots of your own"}
"""Modules of TABLES that are no artefacts, and a line about each."""
ABOUT = """The referee of multi-candidate speculative sampling. Start with
`resispec list verifiers`, `resispec run verifier=standard,resispec`."""


class Listing(StrEnum):
    """Things that `resispec list` lists."""

    VERIFIERS = "verifiers"
    PAIRS = "pairs"
    DATASETS = "datasets"
    TREES = "trees"
    DECODERS = "decoders"
    ARTEFACTS = "artefacts"
    TASKS = "tasks"
    PROFILES = "profiles"

    @property
    def group(self) -> str:
        """The folder of conf/ with a file for each of them."""
        return "experiment" if self is Listing.ARTEFACTS else self.value.removesuffix("s")


class _PassedOn(TyperCommand):
    """A command whose words are another parser's: none of them is read here, not even `--`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.args = list(args)
        return ctx.args


class _Tables(TyperGroup):
    """The command `table`, which names what is allowed where a name is not known."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            ctx.fail(f"unknown table {args[0]!r}; allowed: {', '.join(self.commands)}")
        return super().resolve_command(ctx, args)


def _application() -> Any:
    """The commands; those of `table` are the artefacts of the clone, if this is one."""
    app = typer.Typer(
        no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False, help=ABOUT
    )
    app.callback()(_options)
    for name, command in COMMANDS.items():
        if name == "table" and commands.has_clone():
            app.add_typer(_tables(command), name=name, short_help=command.about)
        else:
            _add(app, name, command)
    app.command("list", short_help="names of verifiers, pairs, datasets, trees, ...")(_list)
    group: Any = typer.main.get_command(app)
    group.commands = {name: group.commands[name] for name in (*COMMANDS, "list")}
    for option in group.params:  # the help is to fit a screen
        option.hidden = option.name == "show_completion"
    return group


def _tables(command: ConsoleCommand) -> typer.Typer:
    """The command `table` with a command for each artefact that a module of TABLES writes."""
    about = f"Write {command.about}."
    app = typer.Typer(cls=_Tables, no_args_is_help=True, rich_markup_mode=None, help=about)
    for name, line in _described(Listing.ARTEFACTS.group).items():
        if (commands.ROOT / TABLES / f"{name}.py").is_file():
            _add(app, name, command._replace(about=line), [name])
    for name, line in OTHER_TABLES.items():
        _add(app, name, ConsoleCommand(f"{TABLES}.{name}", line))
    return app


def _add(app: typer.Typer, name: str, command: ConsoleCommand, leading: Sequence[str] = ()) -> None:
    """Add a command that passes its words on to a module. leading: words before them."""

    def pass_on(context: typer.Context) -> None:
        raise typer.Exit(call(name, command, [*leading, *context.args]))

    app.command(name, cls=_PassedOn, help=command.about, add_help_option=False)(pass_on)


def call(name: str, command: ConsoleCommand, words: Sequence[str]) -> int:
    """Call a command's module with the words behind the command's name; return its exit code.

    Without the clone or a package that the module needs, a line says so, and the exit code is 1.
    """
    try:
        module = _imported(f"`resispec {name}`", command.module)
    except InvalidInput as error:
        return fail(first_line(error))
    code: int = module.main(list(words))
    return code


def _imported(what: str, name: str) -> Any:
    """A module by its name; its package guards what it imports, see `guard_imports`.

    what: the subject of the line of an error. Raises InvalidInput if it needs the clone, or a
    package that is not installed.
    """
    if commands.needs_clone(name) and not commands.has_clone():
        raise InvalidInput(
            f"{what} is of the harness, which the installed package does not have; clone the "
            "repository, and type `make install` there"
        )
    here = str(Path.cwd())
    if here not in sys.path:
        # As with `python -m`, `_target_: mine.Rule` finds mine.py here; last, it hides nothing.
        sys.path.append(here)
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] in (*commands.HARNESS, "referee", "resispec"):
            raise
        raise InvalidInput(
            f"{what} needs the package {error.name}, which is not installed; `make install` in the "
            "clone, or pip install '.[harness]'"
        ) from error


def _show_version(is_asked: bool) -> None:
    if is_asked:
        sys.stdout.write(f"resispec {version('resispec')}\n")
        raise typer.Exit


def _options(
    _: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", is_eager=True, callback=_show_version),
    ] = False,
) -> None: ...


def _list(kind: Listing) -> None:
    """List what a command line can name, with a line about each.

    Verifiers that an enumeration on three tokens shows to be biased are marked.
    """
    raise typer.Exit(_print_list(kind))


@in_one_line()
def _print_list(kind: Listing) -> None:
    if kind is not Listing.VERIFIERS and not commands.has_clone():
        raise InvalidInput(
            f"{kind} are of the harness, which the installed package does not have; clone the "
            f"repository; allowed here: {Listing.VERIFIERS}"
        )
    lines = _verifiers() if kind is Listing.VERIFIERS else _described(kind.group)
    indent = max(map(len, lines), default=0) + 2
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 10**6
    for name, line in lines.items():
        text = textwrap.fill(
            f"{name:{indent}}{line}", width, subsequent_indent=" " * indent, break_on_hyphens=False
        )
        sys.stdout.write(f"{text.rstrip()}\n")


def _described(group: str) -> dict[str, str]:
    """The options of a group of conf/, each with its comment's first sentence or its values."""
    paths = sorted((commands.ROOT / "conf" / group).glob("*.yaml"))
    return {path.stem: _about(path.read_text(encoding="utf-8")) for path in paths}


def _about(text: str) -> str:
    """A line about an option, from the text of its YAML."""
    comment, values = list[str](), list[str]()
    for line in text.removeprefix("# @package _global_\n").splitlines():
        if not line.startswith("#"):
            break
        comment.append(line.lstrip("# "))
    if comment:
        return first_sentence(" ".join(comment))
    for line in text.splitlines():
        key, _, value = line.strip("- ").partition(": ")
        if key == "_target_":
            values.append(value.rpartition(".")[2])
        elif value and key not in ("label", "fingerprint") and not line.startswith("#"):
            values.append(f"{key}={value.partition(' #')[0]}")
        elif line.startswith("  - "):
            values.append(key)
    return ", ".join(values)


def first_sentence(text: str) -> str:
    """The first sentence of a text, on one line; it ends where the next begins with a capital."""
    return re.split(r"(?<=\.) (?=[A-Z`])", " ".join(text.split()), maxsplit=1)[0]


def _verifiers() -> dict[str, str]:
    """The verifiers that can be named, each with its bias, if enumeration shows one, and a line.

    Imports torch.
    """
    from resispec.audit.battery import shown_bias
    from resispec.draws import Draws
    from resispec.verifiers import as_verifier, available, get_verifier
    from resispec.verifiers.registry import get_factory

    makers: dict[str, Callable[[], Any]] = {
        name: partial(get_verifier, name) for name in available()
    }
    described: dict[str, str] = {}
    if commands.has_clone():
        described = _described("verifier")
        cell = _imported("the list", "experiments.cell")
        for name in sorted(described.keys() - makers.keys()):
            path = commands.ROOT / "conf" / "verifier" / f"{name}.yaml"
            makers[name] = partial(cell.build_option, path)
    lines = {}
    for name, make in makers.items():
        text, biased = described.get(name, ""), list[str]()
        try:
            verifier = as_verifier(make())
        except InvalidInput as error:
            text = text or f"not made without options: {first_line(error)}"
        else:
            text = text or first_sentence(get_factory(name).__doc__ or "")
            biased = [str(draws) for draws in Draws if shown_bias(verifier, draws)]
        lines[name] = f"BIASED with draws {', '.join(biased)}. {text}" if biased else text
    return lines


@in_one_line()
def main(arguments: Sequence[str] | None = None) -> None:
    """The command. arguments: its words, by default this process's own; ends with SystemExit."""
    try:
        _application()(args=arguments, prog_name="resispec")
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # typer ends with 1 then
            raise ended.__context__ from None
        raise


if __name__ == "__main__":
    sys.exit(main())
