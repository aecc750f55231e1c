"""Command lines that Hydra composes: an error gives one line and an exit code,
a signal a clean stop.
"""

import difflib
import json
import os
import re
import signal
import sys
import traceback
from argparse import Namespace
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import hydra
from hydra import compose, initialize_config_dir
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path, get_args_parser
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import (
    ChoiceSweep,
    Glob,
    OverrideType,
    QuotedString,
    RangeSweep,
    Sweep,
)
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    OmegaConfBaseException,
    ValidationError,
)

from analysis.cli import chosen_profile
from experiments.schema import CONF, RunConfig, leaves, unlabelled
from resispec.errors import InvalidInput, in_one_line

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
"""Groups that a profile chooses where a command line does not: group -> axis,
whose first option it is.
"""
_NOISE = (
    "full_key:", "object_type=", "reference_type=", "To append to your",
    "Set the environment variable",
    "3. To sweep over it",
)  # fmt: skip


@in_one_line("stopped; what is finished stays, and the same command goes on from there")
def run_command(work: Callable[[], int | None]) -> int:
    """Do a command's work on this process's command line; return its exit code,
    0 if `work` returns none.

    Besides Hydra's own flags, a command line may have `--version`, and `--verbose`, which shows the
    traceback of an error.
    """
    if "--version" in sys.argv[1:]:
        sys.stdout.write(f"resispec {version('resispec')}\n")
        return 0
    is_verbose = "--verbose" in sys.argv
    sys.argv[1:] = [argument for argument in sys.argv[1:] if argument != "--verbose"]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises instead of printing a report
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # raises KeyboardInterrupt
    try:
        with explained():
            return work() or 0
    except (InvalidInput, OSError):
        if is_verbose:
            traceback.print_exc()
        raise
    except KeyboardInterrupt:
        for number in (signal.SIGINT, signal.SIGTERM):  # a second signal would interrupt the exit
            signal.signal(number, signal.SIG_IGN)
        raise


class _Added:
    """The folder of --config-dir, whose options are added to ours in this process;
    None for none.
    """

    folder: str | None = None


def arguments(config_name: str = "run") -> Namespace:
    """This process's command line as Hydra parses it: the flags, wherever they stand,
    and the overrides.

    config_name: the command's configuration, the only one that --config-name may name.
    The overrides are complete, see `completed`. Raises InvalidInput for a word that is no override,
    for a flag that is not taken, for flags that contradict each other, and for a sweep that is to
    be shown.
    """
    parsed = get_args_parser().parse_intermixed_args()
    if parsed.config_name == config_name:
        parsed.config_name = None
    _check_flags(parsed)
    _Added.folder = parsed.config_dir
    for file in sorted(Path(parsed.config_dir).rglob("*.yaml")) if parsed.config_dir else ():
        name = file.relative_to(parsed.config_dir)
        if (CONF / name).is_file():
            sys.stderr.write(
                f"note: {file} is not read, since conf/{name} comes first; give it another name\n"
            )
    given = {flag: value for flag, value in vars(parsed).items() if value and flag != "overrides"}
    flags = [
        _flag(name) if value is True else f"{_flag(name)}={value}" for name, value in given.items()
    ]
    parsed.overrides = [_readable(word) for word in parsed.overrides]
    if composes(parsed):
        parsed.overrides = completed(plain(parsed.overrides))
        if any(getattr(parsed, flag) for flag in SHOWN):
            _check_single(parsed.overrides, allowed="one, since one configuration is shown")
    sys.argv[1:] = [*flags, *parsed.overrides]  # Hydra itself accepts overrides only side by side
    return parsed


def composes(parsed: Namespace) -> bool:
    """Whether a parsed command line is composed; some flags show what Hydra knows without that."""
    return not (parsed.shell_completion or parsed.hydra_help)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _check_flags(parsed: Namespace) -> None:
    """Raise InvalidInput for flags that a command does not take, or that contradict each other."""
    for name, remedy in _NOT_TAKEN.items():
        if getattr(parsed, name):
            raise InvalidInput(f"{_flag(name)} is not taken; {remedy}")
    shown = [name for name in SHOWN if getattr(parsed, name)]
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


def added_flags() -> list[str]:
    """The flags that a command line needs, beside its overrides, to compose the same again."""
    return [f"--config-dir={_Added.folder}"] if _Added.folder else []


def option_folders() -> tuple[str, ...]:
    """The folders of options, the first of which counts:
    conf/ and that of --config-dir, if there is one.
    """
    return ("conf", *([str(Path(_Added.folder).resolve())] if _Added.folder else []))


def plain(words: Iterable[str]) -> list[str]:
    """Overrides in which a list for a key that has one value is a sweep:
    verifier=[a,b] is verifier=a,b.

    Raises InvalidInput for a word without a key, for a group's value that is no option's name, and
    for a range that cannot be counted.
    """
    with hydra_here(), explained():
        return [_plain(word) for word in words]


def _plain(word: str) -> str:
    loader = GlobalHydra.instance().config_loader()
    override = OverridesParser.create(loader).parse_override(word)
    key, value = str(override.key_or_group), override.value()
    if not key or word.lstrip("+~").startswith("@"):
        raise InvalidInput(f"{word!r} has no key; allowed: KEY=VALUE")
    if key == "hydra.searchpath":
        raise InvalidInput(f"{key} is not taken; allowed: --config-dir FOLDER")
    if isinstance(value, RangeSweep) and value.step == 0:
        raise InvalidInput(
            f"{word}: the step of a range is 0; allowed: range(start,stop,step), step not 0"
        )
    options = loader.get_group_options(key)
    if override.type == OverrideType.DEL or not (options or key in _scalars()):
        return word
    if isinstance(value, list):
        if not value:
            raise InvalidInput(f"{word} has no values; allowed: {key}=a,b or {key}=[a,b]")
        return _plain(f"{override.get_key_element()}={override.get_value_element_as_str()[1:-1]}")
    if not options:
        return word
    if isinstance(value, ChoiceSweep):
        # Of a sweep within a sweep `grid.values` says what is wrong.
        for choice in value.list:
            if not isinstance(choice, str | QuotedString | Sweep | Glob):
                raise unknown(key, json.dumps(choice), options)
    elif value == "" or not isinstance(value, str | Glob):
        raise unknown(key, word.partition("=")[2], options)
    return word


@cache
def _scalars() -> frozenset[str]:
    """Keys of every cell that have one value, and no list."""
    return frozenset(leaves(OmegaConf.to_container(OmegaConf.structured(RunConfig))))


def _readable(word: str) -> str:
    """An override that Hydra's grammar can read: a text with characters that it refuses is quoted.

    A value or an item that begins with ~/ is a path in the home folder; shells leave it as it is
    there. Raises InvalidInput for a word that is no KEY=VALUE, and for an unreadable list or sweep.
    """
    word = re.sub(r"""(?<=[=,(\['"])~(?=/)""", lambda _: str(Path.home()), word)
    key, separator, value = word.partition("=")
    if not separator and not word.startswith("~"):
        raise InvalidInput(
            f"{word!r} is no KEY=VALUE; to run an artefact's sweep: experiment={word}"
        )
    try:
        OverridesParser.create().parse_override(word)
    except HydraException as error:
        quoted = f"{key}='{value}'"
        if set(value) & set("'\"\\,()[]{}"):  # it may be meant as a list or a sweep
            raise InvalidInput(f'{word!r} cannot be read; a text is quoted: "{quoted}"') from error
        return quoted
    return word


def completed(overrides: Sequence[str]) -> list[str]:
    """Overrides with `pair.` put before `target` and `draft`, and with a profile,
    see `chosen_profile`.
    """
    lines = [re.sub("^(target|draft)=", r"pair.\1=", line) for line in overrides]
    has_profile = any(re.match(r"[+~]*profile\b", line) for line in lines)
    return lines if has_profile else [*lines, f"profile={chosen_profile()}"]


def compose_and(job: Callable[[Any], int | None], config_name: str) -> int:
    """Let Hydra compose conf/CONFIG_NAME.yaml by this process's command line,
    and call a job with its values.

    Returns the job's exit code, 0 if it returns none. If the command line asks Hydra to show
    something, that is shown instead.
    """
    codes: list[int | None] = []
    errors: list[InvalidInput | OSError] = []

    def guarded(config: DictConfig) -> None:
        try:
            with explained():
                unlabelled(config)
                codes.append(job(OmegaConf.to_container(config, resolve=True)))
        except (InvalidInput, OSError) as error:  # Hydra would print the overrides before the error
            errors.append(error)

    hydra.main(version_base="1.3", config_path=str(CONF), config_name=config_name)(guarded)()
    if errors:
        raise errors[0]
    return max((code or 0 for code in codes), default=0)


@contextmanager
def hydra_here() -> Iterator[None]:
    """A context in which Hydra is set up: by the command line before,
    or else for our own folder conf/.

    Options of the folder of --config-dir are added to ours. A launcher takes this state along to
    its jobs.
    """
    if GlobalHydra.instance().is_initialized():
        yield
        return
    with initialize_config_dir(str(CONF), version_base="1.3"):  # restores the state in the end
        if _Added.folder:
            search_path = create_config_search_path(str(CONF))
            place, query = Path(_Added.folder).resolve(), SearchPathQuery(provider="schema")
            search_path.prepend("command-line", f"file://{place}", query)  # as Hydra does
            GlobalHydra.instance().clear()
            Hydra.create_main_hydra2("resispec", search_path)
        yield


def run_single(
    job: Callable[[Any], int | None], config_name: str, implied: Iterable[str] = AXES
) -> int:
    """Run `job` on the configuration that this process's command line composes;
    return the exit code.

    config_name: a file of conf/. implied: groups that the profile chooses, see `of_profile`.
    """

    def work() -> int:
        parsed = arguments(config_name)
        if composes(parsed):
            if not parsed.multirun:
                _check_single(parsed.overrides, allowed="one, or --multirun")
            sys.argv += of_profile(parsed.overrides, config_name, implied)
        return compose_and(job, config_name)

    return run_command(work)


def _check_single(overrides: Sequence[str], allowed: str) -> None:
    """Raise InvalidInput for an override with several values. allowed: what to give instead."""
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        if override.is_sweep_override():
            raise InvalidInput(f"{override.input_line} has several values; allowed: {allowed}")


def of_profile(
    overrides: Sequence[str], config_name: str, groups: Iterable[str] = AXES
) -> list[str]:
    """Overrides for the groups that a command line leaves to its profile,
    but for those that are defaults.

    config_name: a file of conf/. groups: some of AXES. Raises InvalidInput for several profiles.
    """
    keys = {line.partition("=")[0]: line for line in overrides}
    profile = [keys[key] for key in keys if key.strip("+~") == "profile"]
    with hydra_here(), explained():
        for override in OverridesParser.create().parse_overrides(profile):
            if override.is_sweep_override():
                raise InvalidInput(
                    f"{override.input_line} is a sweep; allowed: one profile for a command"
                )
        config = compose(config_name, profile, return_hydra_config=True)
    defaults = config.hydra.runtime.choices
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


@contextmanager
def explained() -> Iterator[None]:
    """Turn Hydra's errors into InvalidInput of one line: what is wrong,
    what is allowed, the nearest name.
    """
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise _explanation(error) from error


def _explanation(error: BaseException) -> InvalidInput:
    """InvalidInput for an error of Hydra, from the first of its causes
    that says more than Hydra does.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, InvalidInput):  # raised by one of our resolvers
            return cause
        if isinstance(cause, MissingConfigException) and cause.options:
            group, _, name = (cause.missing_cfg_file or "").rpartition("/")
            return unknown(group, name, cause.options)
        if isinstance(cause, ConfigAttributeError | ConfigKeyError):
            key, parent = str(cause.full_key), cause.parent_node
            group = key.rpartition(".")[0]
            hidden = ("_target_", "hydra", "label")  # no help where a key of a cell is misspelt
            names = (
                [name for name in parent if name not in hidden]
                if isinstance(parent, DictConfig)
                else []
            )
            return unknown("key", key, [f"{group}.{name}".lstrip(".") for name in names])
        cause = cause.__cause__ or cause.__context__
    # Hydra's and OmegaConf's messages span lines and hide the reason in the cause.
    lines = [
        line.strip() for line in f"{error}\n{error.__cause__ or ''}".splitlines() if line.strip()
    ]
    text = "; ".join(line for line in dict.fromkeys(lines) if not line.startswith(_NOISE))
    key = error.full_key if isinstance(error, ValidationError) else None
    return InvalidInput(f"{key}: {text}" if key else text)


def unknown(kind: str, name: str, allowed: Collection[str]) -> InvalidInput:
    """The error for a name that does not exist; the nearest one is proposed.

    kind: "verifier", "key".
    """
    matches = difflib.get_close_matches(name, sorted(allowed), n=1)
    hint = f"did you mean {matches[0]}? " if matches else ""
    none = f"none in {name.rpartition('.')[0]}"
    return InvalidInput(
        f"unknown {kind} {name!r}; {hint}allowed: {', '.join(sorted(allowed)) or none}"
    )
