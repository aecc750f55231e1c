"""Command lines with Hydra's syntax: read once, composed, and run.

An error gives one line and an exit code, a signal a clean stop.
"""

import signal
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from experiments import launcher
from experiments.composition import composed_by_hydra, hydra_here, parse
from experiments.explain import explained
from experiments.overrides import check_single, completed, fixed, plain, readable
from experiments.schema import CONF, unlabelled
from resispec.errors import InvalidInput, in_one_line, show_tracebacks

SHOWN = ("help", "hydra_help", "cfg", "info", "shell_completion")
"""Flags that ask Hydra to show something instead of doing the command's work."""
_WITH = {"resolve": ("cfg", "help"), "package": ("cfg",)}
"""Flags that change what others show: flag -> those that it goes with."""
_NOT_TAKEN = {
    "config_path": "allowed: --config-dir FOLDER, which adds the options in FOLDER to ours",
    "config_name": "a command has one configuration; allowed: KEY=VALUE",
    "experimental_rerun": "allowed: the same command again, which goes on from what is finished",
    "run": "leave it out: a command runs without it",
}
"""Flags of Hydra's that no command obeys: flag -> what to do instead."""
AXES = {"pair": "pairs", "dataset": "main_dataset"}
"""Group -> axis whose first option the profile chooses where a command line names none."""
SHORT = {"audit": "verifier"}
"""Commands for which a word without a key chooses an option of a group: command -> group."""


@dataclass(frozen=True)
class CommandLine:
    """A command line, read once.

    flags: Hydra's flags. overrides: complete, see `completed`, with the profile's choices; as they
    were typed for a flag that shows what Hydra knows without composing them.
    """

    flags: Namespace
    overrides: tuple[str, ...]

    @property
    def is_shown(self) -> bool:
        """Whether a flag asks Hydra to show something, and the command's work is not wanted."""
        return bool(_shown(self.flags))

    @property
    def again(self) -> list[str]:
        """The words that ask for the same again."""
        folder = self.flags.config_dir
        return [*([f"--config-dir={folder}"] if folder else []), *self.overrides]


@dataclass(frozen=True)
class Point:
    """One composed configuration: resolved values, the option of every group, and its overrides."""

    values: dict[str, Any]
    choices: Mapping[str, str]
    overrides: tuple[str, ...]


@in_one_line("stopped; what is finished stays, and the same command goes on from there")
def run_command(
    work: Callable[[CommandLine], int | None],
    config_name: str,
    implied: Iterable[str] = AXES,
    arguments: Sequence[str] | None = None,
) -> int:
    """Do a command's work on a command line; return its exit code, 0 if `work` returns none.

    Besides Hydra's own flags, a command line may have `--version`, and `--verbose`, which shows the
    traceback of an error. config_name: a file of conf/. implied: groups that the profile chooses,
    see `of_profile`. arguments: the words, by default this process's own.
    """
    words = sys.argv[1:] if arguments is None else arguments
    if "--version" in words:
        sys.stdout.write(f"resispec {version('resispec')}\n")
        return 0
    if "--verbose" in words:
        show_tracebacks()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # raises KeyboardInterrupt
    try:
        with explained():
            line = read_command_line(
                [word for word in words if word != "--verbose"], config_name, implied
            )
            if line.is_shown:
                launcher.show(config_name, line.flags, line.overrides)
                return 0
            with hydra_here(line.flags.config_dir):
                return work(line) or 0
    except KeyboardInterrupt:
        for number in (signal.SIGINT, signal.SIGTERM):  # a second signal would interrupt the exit
            signal.signal(number, signal.SIG_IGN)
        raise


def read_command_line(
    words: Sequence[str], config_name: str = "run", implied: Iterable[str] = AXES
) -> CommandLine:
    """Read the words of a command line; flags may stand anywhere.

    config_name, implied: see `run_command`. Raises InvalidInput for a word that is no override, for
    a flag that is not taken, for flags that contradict each other, and for a sweep that is to be
    shown.
    """
    flags = launcher.parser().parse_intermixed_args(list(words))
    if flags.config_name == config_name:
        flags.config_name = None
    _check_flags(flags)
    _tell_of_hidden_options(flags.config_dir)
    overrides = [readable(word) for word in _keyed(flags, config_name)]
    if flags.shell_completion or flags.hydra_help:  # shown without being composed
        return CommandLine(flags, tuple(overrides))
    with hydra_here(flags.config_dir):
        overrides = completed(plain(overrides))
        if _shown(flags):
            check_single(overrides, allowed="one, since one configuration is shown")
        if not any(word.startswith("experiment=") for word in overrides):
            overrides += of_profile(overrides, config_name, implied)
    return CommandLine(flags, tuple(overrides))


def _keyed(flags: Namespace, config_name: str) -> Iterator[str]:
    """The overrides of a command line, with the key that a command's short form leaves out.

    audit NAME is audit verifier=NAME where there is such an option, else the option `custom` with
    this name: that of a package, or path/to/file.py:Class. Raises InvalidInput for several such
    words.
    """
    group = SHORT.get(config_name)
    short = [word for word in flags.overrides if "=" not in word and not word.startswith("~")]
    if group and len(short) > 1:
        raise InvalidInput(f"{', '.join(short)} were given; allowed: one {group}")
    folders = [CONF, *([Path(flags.config_dir)] if flags.config_dir else [])]
    for word in flags.overrides:
        if group is None or word not in short:
            yield word
        elif any((folder / group / f"{word}.yaml").is_file() for folder in folders):
            yield f"{group}={word}"
        else:
            yield from (f"{group}=custom", f"{group}.name={word}")


def _tell_of_hidden_options(folder: str | None) -> None:
    """Notes about options of the folder of --config-dir that ours hide."""
    for file in sorted(Path(folder).rglob("*.yaml")) if folder else ():
        name = file.relative_to(folder)
        if (CONF / name).is_file():
            sys.stderr.write(
                f"note: {file} is not read, since conf/{name} comes first; give it another name\n"
            )


def _shown(flags: Namespace) -> list[str]:
    """The names of those of SHOWN that are given."""
    return [name for name in SHOWN if getattr(flags, name)]


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _check_flags(parsed: Namespace) -> None:
    """Raise InvalidInput for flags that a command does not take, or that contradict each other."""
    for name, remedy in _NOT_TAKEN.items():
        if getattr(parsed, name):
            raise InvalidInput(f"{_flag(name)} is not taken; {remedy}")
    shown = _shown(parsed)
    if len(shown) > 1:
        raise InvalidInput(f"{' and '.join(map(_flag, shown))} were given; allowed: one of them")
    if shown and parsed.multirun:
        remedy = "leave --multirun out, and give each key one value"
        raise InvalidInput(f"{_flag(shown[0])} shows one configuration: {remedy}")
    for name, others in _WITH.items():
        if getattr(parsed, name) and not set(others) & set(shown):
            raise InvalidInput(f"{_flag(name)} goes with {' or '.join(map(_flag, others))}")
    if parsed.config_dir and not Path(parsed.config_dir).is_dir():
        raise InvalidInput(
            f"--config-dir={parsed.config_dir} is no folder; allowed: a folder of options"
        )


def run_single(
    job: Callable[[Point], int | None],
    config_name: str,
    implied: Iterable[str] = AXES,
    arguments: Sequence[str] | None = None,
) -> int:
    """Run `job` on the configuration that a command line composes; return its exit code.

    A key with several values is refused, with --multirun, too. config_name, implied, arguments: see
    `run_command`.
    """

    def work(line: CommandLine) -> int:
        check_single(line.overrides, allowed="one")
        return job(_point(config_name, line.overrides)) or 0

    return run_command(work, config_name, implied, arguments)


def _point(config_name: str, lines: tuple[str, ...]) -> Point:
    config, choices = composed_by_hydra(config_name, lines)
    unlabelled(config)
    resolved: Any = OmegaConf.to_container(config, resolve=True)
    return Point(resolved, choices, lines)


def of_profile(
    overrides: Sequence[str], config_name: str, groups: Iterable[str] = AXES
) -> list[str]:
    """Overrides for the groups that a command line leaves to its profile, but not for defaults.

    Axes of the profile may be given anew. config_name: a file of conf/. groups: some of AXES.
    Raises InvalidInput for several profiles.
    """
    keys = {line.partition("=")[0].lstrip("+"): line for line in overrides}
    profile = [keys[key] for key in keys if key.strip("~") == "profile"]
    axes = [keys[key] for key in keys if key.partition(".")[0] == "axes"]
    with hydra_here(), explained():
        for override in parse(profile):
            if override.is_sweep_override():
                raise InvalidInput(
                    f"{override.input_line} is a sweep; allowed: one profile for a command"
                )
        config, defaults = composed_by_hydra(config_name, [*profile, *fixed(parse(axes))])
    choices = {group: axis_of(config, AXES[group])[:1] for group in groups if group not in keys}
    return [
        f"{group}={name}"
        for group in choices
        for name in choices[group]
        if name != defaults.get(group)
    ]


def axis_of(config: DictConfig, axis: str) -> list[str]:
    """The options of an axis of the profile's sweeps; empty if the profile has no such axis."""
    options = config.axes.get(axis, [])
    return [options] if isinstance(options, str) else list(options)
