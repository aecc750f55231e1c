"""Overrides, KEY=VALUE: made readable and complete, and the values of those that are sweeps.

The way of target=my dir, verifier=[a,b] and the profile smollm2, word by word: `readable` quotes
what Hydra's grammar refuses, target='my dir'; `plain` makes a list of options a sweep,
verifier=a,b; `completed` adds pair. to the target and the profile; `cli.of_profile` adds
pair=smollm2. Then `grid` takes the `values` of sweeps, and the `fixed` rest, to the points that
`composition` composes.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import (
    ChoiceSweep,
    Glob,
    Override,
    OverrideType,
    QuotedString,
    RangeSweep,
    Sweep,
)
from hydra.errors import HydraException
from omegaconf import OmegaConf

from analysis.cli import chosen_profile
from experiments.composition import content, hydra_here, parsed
from experiments.explain import explained, unknown
from experiments.schema import RunConfig, leaves
from resispec.errors import InvalidInput

SYNTAX = "a,b, choice(a,b), range(start,stop,step) and, for options of a group, glob(pattern)"


def plain(words: Iterable[str]) -> list[str]:
    """Overrides in which a list for a key of one value is a sweep: verifier=[a,b] is verifier=a,b.

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
        # Of a sweep within a sweep `values` says what is wrong.
        for choice in value.list:
            if not isinstance(choice, str | QuotedString | Sweep | Glob):
                raise unknown(key, json.dumps(choice), options)
    elif value == "" or not isinstance(value, str | Glob):
        raise unknown(key, word.partition("=")[2], options)
    return word


@cache
def _scalars() -> frozenset[str]:
    """Keys of every cell that have one value, and no list."""
    defaults = leaves(OmegaConf.to_container(OmegaConf.structured(RunConfig)))
    return frozenset(key for key, value in defaults.items() if not isinstance(value, list))


def readable(word: str) -> str:
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
    """Overrides with `pair.` before `target` and `draft`, and a profile, see `chosen_profile`."""
    lines = [re.sub("^(target|draft)=", r"pair.\1=", line) for line in overrides]
    has_profile = any(re.match(r"[+~]*profile\b", line) for line in lines)
    return lines if has_profile else [*lines, f"profile={chosen_profile()}"]


def check_single(overrides: Sequence[str], allowed: str) -> None:
    """Raise InvalidInput for an override with several values. allowed: what to give instead."""
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        if override.is_sweep_override():
            raise InvalidInput(f"{override.input_line} has several values; allowed: {allowed}")


def values(override: Override) -> list[str]:
    """The values of an override, each as text for one of its own: a sweep's, or the only one.

    Raises InvalidInput for a sweep that has no values, or whose values cannot be listed.
    """
    if not override.is_sweep_override():
        return [override.get_value_element_as_str()]
    line, sweep = override.input_line, override.value()
    if isinstance(sweep, ChoiceSweep) and any(
        isinstance(value, Sweep | Glob) for value in sweep.list
    ):
        raise InvalidInput(
            f"{line}: a sweep among values; allowed: {SYNTAX}, like glob([d*,chain])"
        )
    texts = [] if override.is_interval_sweep() else list(override.sweep_string_iterator())
    if not texts:
        raise InvalidInput(f"{line} has no values; allowed: {SYNTAX}")
    if not override.is_range_sweep():
        return texts
    # 0.6 instead of 0.6000000000000001, which sums of steps give
    return [text if text.lstrip("-").isdigit() else format(float(text), ".12g") for text in texts]


def name_of(override: Override) -> str:
    """The key of an override, without its + or ~."""
    return str(override.get_key_element()).lstrip("+~")


def fixed(overrides: Iterable[Override]) -> tuple[str, ...]:
    """The lines of those overrides that are no sweeps."""
    return tuple(
        str(override.input_line) for override in overrides if not override.is_sweep_override()
    )


def unread(overrides: Sequence[str]) -> Iterator[str]:
    """The keys that overrides add, and to which none of them refers."""
    known = {"hydra", *RunConfig.__dataclass_fields__}
    for line in overrides:
        key = line.partition("=")[0].lstrip("+~")
        is_used = any(f"${{{key}" in other for other in overrides)
        if line.startswith("+") and key.partition(".")[0] not in known and not is_used:
            yield key


def listed_values(key: str, value: Any) -> list[str]:
    """Values of a key of a file's sweep: of a list, of Hydra's sweep syntax, or the only one."""
    value = content(value)
    if isinstance(value, list):
        return [text(item) for item in value]
    return values(parsed(f"{key}={value if isinstance(value, str) else text(value)}"))


def text(value: Any) -> str:
    """A value as the text of an override; Hydra can read JSON."""
    is_plain = isinstance(value, str) and re.fullmatch(r"[\w.\-/]+", value)
    return str(value) if is_plain else json.dumps(value)
