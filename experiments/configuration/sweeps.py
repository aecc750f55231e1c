"""What an override stands for: the values of a sweep in Hydra's own syntax, the parts of an artefact."""

from __future__ import annotations

from collections.abc import Sequence

from hydra.core.override_parser.types import ChoiceSweep, Glob, Override, Sweep

from experiments.configuration.schema import CONF
from resispec.errors import InvalidInput

EXPERIMENT = "experiment"
SYNTAX = "a,b, choice(a,b), range(start,stop,step) and, for options of a group, glob(pattern)"


def values(override: Override) -> list[str]:
    """The values of an override, as text for an override of each: those that a sweep goes over, or the one.

    Raises InvalidInput for a sweep that has no values, or no list of them.
    """
    if not override.is_sweep_override():
        return [override.get_value_element_as_str()]
    line = override.input_line
    if override.is_interval_sweep():
        raise InvalidInput(f"{line}: an interval has no list of values; allowed: {SYNTAX}")
    if is_glob(override):
        return _matching(override)
    swept = override.value()
    if isinstance(swept, ChoiceSweep) and any(isinstance(one, Sweep | Glob) for one in swept.list):
        raise InvalidInput(f"{line}: a sweep among values; allowed: {SYNTAX}, like glob([d*,chain])")
    found = list(override.sweep_string_iterator())
    if not found:
        raise InvalidInput(f"{line} has no values; allowed: {SYNTAX}")
    return [_rounded(value) for value in found] if override.is_range_sweep() else found


def is_glob(override: Override) -> bool:
    """Whether an override takes whatever options a pattern matches."""
    return override.is_sweep_override() and isinstance(override.value(), Glob)


def part_names(artefact: str) -> list[str]:
    """The experiments that an artefact's name stands for: the parts of one that is a folder, or itself."""
    folder = CONF / EXPERIMENT / artefact
    if not artefact or not folder.is_dir():
        return [artefact]
    return [f"{artefact}/{path.stem}" for path in sorted(folder.glob("*.yaml"))]


def with_parts(overrides: Sequence[str]) -> list[str]:
    """Overrides as Hydra can compose them: an artefact that is a folder is a sweep over its parts."""
    found = []
    for line in overrides:
        key, _, name = line.partition("=")
        found.append(f"{key}={','.join(part_names(name))}" if key == EXPERIMENT else line)
    return found


def _matching(override: Override) -> list[str]:
    """The options that a glob matches; Hydra's own matching, with artefacts that have parts among them."""
    folder = CONF / str(override.key_or_group)
    if not folder.is_dir():
        groups = ", ".join(sorted(path.name for path in CONF.iterdir() if path.is_dir()))
        raise InvalidInput(f"{override.input_line}: glob() is for options of a group; allowed: {groups}")
    options = sorted({path.stem for path in folder.iterdir() if path.suffix == ".yaml" or path.is_dir()})
    glob = override.value()
    assert isinstance(glob, Glob)
    found = [str(name) for name in glob.filter(options)]
    if not found:
        raise InvalidInput(f"{override.input_line} matches nothing; allowed: {', '.join(options)}")
    return found


def _rounded(value: str) -> str:
    """A number of a range as one would type it: 0.6 for the 0.6000000000000001 that sums of steps make."""
    return value if value.lstrip("-").isdigit() else format(float(value), ".12g")
