"""The cells a command line asks for: sweeps are expanded, composed by Hydra, labelled and checked.

Nothing here imports torch, so that planning is quick and wrong input is refused before anything
starts.
"""

import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Glob, Override
from omegaconf import DictConfig, OmegaConf, flag_override

from analysis.labels import Label, options, owner_of_tree
from analysis.load import RUNS, checksum_of, composed_of, filters_of, part_names
from experiments.cell import TIMES_ALONE, Cell, file_name, filter_suffix, is_drafting
from experiments.cli import AXES as IMPLIED
from experiments.cli import axis_of
from experiments.composition import (
    composed,
    content,
    hydra_here,
    is_composed,
    option_folders,
    parse,
)
from experiments.explain import explained, unknown
from experiments.overrides import fixed, listed_values, name_of, plain, values
from experiments.schema import CONF, GROUPS, RunConfig, check_values, leaves, unlabelled
from resispec.code_digest import is_ours
from resispec.errors import InvalidInput

EXPERIMENT, PART = "experiment", "part"
NEUTRAL = (
    "profile=", "results=", "name=", "jobs=", "devices=", "cells_per_job=", "cell_timeout_s=",
    "reuse=", "wandb.",
    "hydra/launcher", "hydra.launcher.",
)  # fmt: skip
"""Beginnings of overrides that leave an artefact its profile's cells."""
OF_ARTEFACTS = (f"{EXPERIMENT}=", f"{PART}=")
"""Beginnings of overrides that say which artefacts."""
# keys of the profile that experiments refer to
AXES = "axes"
_OF_PROFILE = (AXES, "prompt_counts", "artefacts")
_REFERRED = (*_OF_PROFILE, "sampling")
"""Keys to which values of a part refer, as to `${sampling.max_length}`."""
_OF_FILES = ("sweep", "parts")  # keys of an artefact's file, which are read before any override
ALL = "all"
"""The value of `part` with which further runs are parts, too."""
OF_NAME = ("name", "fingerprint", "label")
"""Keys of a data set that a file in its place makes meaningless."""
LEFT_OUT = "place to them"
"""`Part.lacks` of artefacts and parts that the profile's `artefacts` leave out."""


@dataclass
class Part:
    """The cells of an artefact's sweep, or of a part of it, or those that were typed key by key.

    name: "table1", "frontier/d5b3" if the artefact has parts, "" for typed cells. sources: the
    configuration files that the cells were composed from, with their checksums then. lacks: the
    thing that the profile does not give, if there are no cells for that reason. is_named: whether
    the command line names the part, and not the whole artefact.
    """

    name: str
    cells: list[Cell] = field(default_factory=list)
    sources: dict[str, str | None] = field(default_factory=dict)
    lacks: str = ""
    is_named: bool = False

    @property
    def artefact(self) -> str:
        """The name of the artefact, "" for typed cells."""
        return self.name.partition("/")[0]


@dataclass(frozen=True)
class Sweep:
    """All that a command line asks for.

    parts: those with cells, at least one. is_artefacts: whether the cells are those that the
    profile gives the artefacts; then the artefacts' plans ask for them. Any other sweep has a plan
    of its own, so that an artefact's plan is never replaced. notes: lines about what the profile
    lacks.
    """

    parts: tuple[Part, ...]
    is_artefacts: bool
    notes: tuple[str, ...] = ()

    @property
    def cells(self) -> list[Cell]:
        """The cells of all parts."""
        return [cell for part in self.parts for cell in part.cells]

    @property
    def artefacts(self) -> list[str]:
        """The names of the artefacts; none for typed cells."""
        return [name for name in dict.fromkeys(part.artefact for part in self.parts) if name]

    @property
    def name(self) -> str:
        """The name of its files: as given, or `own_name`."""
        return str(self.cells[0].config["name"] or self.own_name)

    @property
    def own_name(self) -> str:
        """The name without a given one: its artefact's or part's, or a digest of the cells."""
        if self.is_artefacts and len(self.parts) == 1:
            return self.parts[0].name.replace("/", "-")
        if self.is_artefacts and len(self.artefacts) == 1:
            return self.artefacts[0]
        return digest(self.cells)


def sweep_of(overrides: Sequence[str]) -> Sweep:
    """The sweep that a command line asks for.

    Raises InvalidInput as `parts_of`, and for the name of an artefact or a part whose cells others
    are.
    """
    parts = parts_of(overrides)
    is_usual = all(line.startswith((*NEUTRAL, *OF_ARTEFACTS)) for line in overrides)
    filled = tuple(part for part in parts if part.cells)
    sweep = Sweep(filled, is_usual and bool(parts[0].name), tuple(left_out(parts)))
    is_its_name = sweep.is_artefacts and sweep.name in (*sweep.artefacts, sweep.own_name)
    if sweep.cells[0].config["name"] and not is_its_name:  # its files are those of a sweep
        if kind := _names_of_artefacts().get(sweep.name):
            reason = f"the name of {kind}, whose files it would take"
            raise InvalidInput(f"name is {sweep.name!r}, {reason}; allowed: another name")
        sweep = replace(sweep, is_artefacts=False)
    return sweep


def _names_of_artefacts() -> dict[str, str]:
    """The names of the files of artefacts, and of their parts, each with words for what has it.

    Artefacts of the folder of --config-dir are among them.
    """
    with hydra_here():
        folders = option_folders()
    names: dict[str, str] = {}
    for folder in folders:
        for path in sorted((CONF.parent / folder / EXPERIMENT).glob("*.yaml")):
            parts = {f"{path.stem}-{part}": f"a part of {path.stem}" for part in part_names(path)}
            names |= parts | {path.stem: "an artefact"}
    return names


def left_out(parts: Iterable[Part]) -> list[str]:
    """A line for each thing that the profile lacks, with the names of the parts left out for it."""
    names: dict[str, list[str]] = {}
    for part in parts:
        if part.lacks:
            names.setdefault(part.lacks, []).append(part.name)
    return [f"the profile gives no {lack}: left out {', '.join(names[lack])}" for lack in names]


def cells_of(overrides: Sequence[str]) -> list[Cell]:
    """The cells that a command line asks for, in order, each once.

    Raises InvalidInput, in one line, for whatever does not compose: an unknown name, a misspelt
    key, a wrong type or value.
    """
    return [cell for part in parts_of(overrides) for cell in part.cells]


def parts_of(overrides: Sequence[str]) -> list[Part]:
    """The sweeps that a command line asks for: parts of the experiments it names, or a typed one.

    A typed sweep has the defaults of conf/run.yaml where it names nothing else; `cli.of_profile`
    gives more. Of a key that is given twice the last value counts, as for Hydra, whether or not it
    is a sweep; dictionaries are merged. With `experiment=glob(...)` small experiments come first,
    and a part for which the profile lacks something gets no cells. An experiment that is named
    itself is refused in that case.

    Raises InvalidInput as `cells_of`, and when no part has cells.
    """
    with hydra_here(), explained():
        given: list[Override] = []
        for override in parse(plain(overrides)):
            _check_key(override)
            if not isinstance(override.value(), dict):  # settings of a dictionary are merged
                given = [other for other in given if name_of(other) != name_of(override)]
            given.append(override)
        by_key = {name_of(override): override for override in given}
        no_cells = re.compile(rf"({EXPERIMENT}|{PART})$|hydra\b")  # keys that change no cell
        rest = [override for override in given if not no_cells.match(name_of(override))]
        names = values(by_key[EXPERIMENT]) if EXPERIMENT in by_key else []
        suffixes = values(by_key[PART]) if PART in by_key else []
        if suffixes and (not names or any("/" in name for name in names)):
            line = by_key[PART].input_line
            raise InvalidInput(
                f"{line} goes with an artefact's name; allowed: experiment=NAME {line}"
            )
        if not names:
            return [_fill(Part(""), (), {}, rest)]
        is_glob = isinstance(by_key[EXPERIMENT].value(), Glob)
        parts = {
            part.name: part
            for name in names
            for part in _expand(name, suffixes, rest, skips=is_glob)
        }
        if not any(part.cells for part in parts.values()):
            raise InvalidInput("; ".join(left_out(parts.values())))
    if not is_glob:
        return list(parts.values())
    num_prompts: Counter[str] = Counter()
    for part in parts.values():
        num_prompts[part.artefact] += sum(cell.config["num_prompts"] for cell in part.cells)
    return sorted(parts.values(), key=lambda part: (num_prompts[part.artefact], part.name))


def _check_key(override: Override) -> None:
    """Raise InvalidInput for an override that removes what every cell has or changes no cell."""
    line, name = override.input_line, name_of(override)
    if override.is_delete() and name in RunConfig.__dataclass_fields__:
        raise InvalidInput(f"~{name} takes away what every cell has; allowed: {name}=VALUE")
    if name in (EXPERIMENT, PART) and override.get_key_element() != name:
        raise InvalidInput(f"{override.get_key_element()} is not taken; allowed: {name}=VALUE")
    root = name.partition(".")[0]
    if root in _OF_FILES:
        raise InvalidInput(f"{line} is for files; allowed: KEY=VALUE, which every part takes")
    if root in _OF_PROFILE and override.is_sweep_override():
        as_list = f"a list, {name}=[{','.join(values(override))}]" if root == AXES else "one value"
        raise InvalidInput(f"{line} is a sweep; allowed: {as_list}")


def _expand(
    name: str, suffixes: Sequence[str], overrides: Sequence[Override], skips: bool
) -> Iterable[Part]:
    """The parts of an experiment.

    skips: leave a part without cells if the profile lacks something for it.

    A part without a pair or a data set has the profile's, as typed cells have. The values of a part
    may refer to the profile. The profile's `artefacts` replace values of the part, and overrides
    replace both. A part that `artefacts` leave out gets cells only if the command line names it;
    further runs, see `RUNS`, also if it names ALL.
    """
    artefact, _, suffix = name.partition("/")
    chosen = f"{EXPERIMENT}={artefact}"
    profile = [
        override
        for override in overrides
        if is_composed(override) or name_of(override).partition(".")[0] in _REFERRED
    ]
    config, choices = composed((chosen, *fixed(profile)))
    keys = set(map(name_of, overrides))
    sweep, parts, of_profile = (content(config[key]) for key in ("sweep", "parts", "artefacts"))
    _check_artefacts(of_profile, artefact, parts)
    _, usual = composed(fixed(profile))
    implied = {}
    for group, axis in IMPLIED.items():
        names = axis_of(config, axis)
        if names and choices[group] == usual[group]:  # the artefact's file chooses none
            implied[group] = names[0]
    named = [suffix] if suffix else suffixes
    has_runs, named = ALL in named, [part for part in named if part != ALL]
    for part_name in named or parts or [""]:
        if part_name and not parts:
            raise InvalidInput(f"{artefact} has no parts; found {part_name!r}")
        if part_name and part_name not in parts:
            raise unknown(f"part of {artefact}", part_name, parts)
        if part_name.startswith(RUNS) and not (named or has_runs):
            continue
        part = Part(f"{artefact}/{part_name}" if part_name else artefact, is_named=bool(named))
        skippable = [artefact] if skips else []
        if part_name:
            skippable.append(part.name)
        if not named and any(name in of_profile and of_profile[name] is None for name in skippable):
            part.lacks = LEFT_OUT
            yield part
            continue
        lines = (chosen, f"{PART}={part_name}") if part_name else (chosen,)
        swept = sweep | (parts[part_name] if part_name else {})
        for key in (artefact, part.name):
            swept |= of_profile.get(key) or {}
        for group, option in implied.items():
            swept.setdefault(group, option)
        swept = {key: value for key, value in swept.items() if key not in keys}
        for key, value in swept.items():
            if isinstance(value, str) and value.startswith("${"):
                swept[key] = OmegaConf.select(config, value[2:-1])
                if swept[key] is None and not part.lacks:
                    part.lacks = value[2:-1]
        if part.lacks and not skips:
            needs = f"{part.lacks}, which conf/profile/{choices['profile']}.yaml does not give"
            allowed = f"allowed: a profile that gives it, or {part.lacks}=VALUE"
            raise InvalidInput(f"{EXPERIMENT} {part.name!r} needs {needs}; {allowed}")
        yield part if part.lacks else _fill(part, lines, swept, overrides)


def _check_artefacts(named: Iterable[str], artefact: str, parts: Iterable[str]) -> None:
    """Raise InvalidInput for a key of a profile's `artefacts` that is none, or no part of this one.

    artefact, parts: the one that is expanded, and its parts.
    """
    folders = (CONF.parent / folder / EXPERIMENT for folder in option_folders())
    known = {path.stem for folder in folders for path in folder.glob("*.yaml")}
    known |= {f"{artefact}/{part}" for part in parts}
    for key in named:
        owner, _, _ = key.partition("/")
        name = key if owner == artefact else owner  # the parts of others are not known here
        if name not in known:
            raise unknown("artefact in the profile's `artefacts`", key, known)


def _fill(
    part: Part, chosen: Sequence[str], swept: Mapping[str, Any], overrides: Sequence[Override]
) -> Part:
    """Fill a part with its cells: all combinations of values of its experiment and the overrides.

    chosen: the overrides that name the experiment. swept: key -> its value or values. The overrides
    come after them in every cell, so that they replace what is swept within them.
    """
    axes = {
        key: [f"{key}={choice}" for choice in listed_values(key, value)]
        for key, value in swept.items()
    }
    for override in overrides:
        line = str(override.input_line)
        if override.is_sweep_override():
            key = override.get_key_element()
            axes[name_of(override)] = [f"{key}={choice}" for choice in values(override)]
        else:
            axes[line] = [line]
    varied = [key for key, lines in axes.items() if len(lines) > 1]
    # options and their parameters are told by the labels of their groups
    told = (*GROUPS, "temperature", "audit")
    labelled = [key for key in varied if key.partition(".")[0] not in told]
    for key in {
        "profile",
        "results",
        "name",
        "num_prompts",
        "device",
        "devices",
        "cells_per_job",
    }.intersection(varied):
        found = ", ".join(line.partition("=")[2] for line in axes[key])
        raise InvalidInput(f"{key} has several values, {found}; allowed: one for a command")
    cells: dict[str, Cell] = {}
    for point in itertools.product(*axes.values()):
        config, choices = composed((*chosen, *point))
        cell = cell_of(config, choices, labelled)
        twin = cells.setdefault(str(sorted(cell.labels.items())), cell)
        if twin.determining != cell.determining:
            remedy = "sweep over values that names show"
            raise InvalidInput(f"two cells of this sweep are both called {cell}; {remedy}")
        folders = option_folders()
        names = ["run", *(f"{group}/{option}" for group, option in choices.items())]
        files = {file for name in names for file in _composed_of(name, folders)}
        part.sources |= {file: checksum_of(file) for file in files - part.sources.keys()}
    part.cells = list(cells.values())  # a value that the decoder does not use makes no new cell
    _check_documents(part.cells)
    _check_values(part.cells, labelled)
    return part


def _check_values(cells: Iterable[Cell], labelled: Sequence[str]) -> None:
    """Raise InvalidInput for a key of whose values none makes another cell.

    Its rows would be the same numbers under several labels. labelled: keys that labels have, beside
    those of every cell.
    """
    by_place: dict[str, Cell] = {}
    for cell in cells:
        labels = {key: value for key, value in cell.labels.items() if key not in labelled}
        # an audit has no times, and stands beside the timed cells and the others
        beside = cell.config["timed"] if cell.config["audit"] else None
        place = json.dumps([labels, cell.determining, beside], sort_keys=True, default=str)
        twin = by_place.setdefault(place, cell)
        for key in labelled:
            if cell.labels[key] != twin.labels[key]:
                found = f"{twin.labels[key]}, {cell.labels[key]}, with which {twin} is the same"
                raise InvalidInput(f"{key} has several values, {found}; allowed: one for a command")


def _check_documents(cells: Iterable[Cell]) -> None:
    """Raise InvalidInput if a file takes the place of several data sets.

    Its documents would count several times in whatever is of all data sets.
    """
    by_source: dict[str, Label] = {}
    for cell in cells:
        label, node = cell.labels["dataset"], cell.config["dataset"]
        source = {key: value for key, value in node.items() if key not in OF_NAME}
        first = by_source.setdefault(json.dumps(source, sort_keys=True), label)
        if source.get("path") and first.option != label.option:
            raise InvalidInput(
                f"dataset.path={source['path']} is given for {first.option} and {label.option}; "
                f"allowed: one of them, like dataset={first.option}"
            )


_composed_of = lru_cache(maxsize=256)(composed_of)  # while a process plans, its configuration stays


def digest(cells: Sequence[Cell]) -> str:
    """8 hexadecimal digits that name a sweep by the cells that it asks for."""
    return hashlib.sha256("\n".join(_asked(cells)).encode()).hexdigest()[:8]


def _asked(cells: Sequence[Cell]) -> list[str]:
    """For each cell a text of its labels and its determining values; the texts are sorted."""
    keys = ([cell.labels, cell.determining] for cell in cells)
    return sorted(json.dumps(key, sort_keys=True, default=str) for key in keys)


def cell_of(config: DictConfig, choices: Mapping[str, str], varied: Sequence[str] = ()) -> Cell:
    """The cell of a composed configuration.

    Raises InvalidInput for a value that is missing or wrong.

    choices: group -> option. varied: keys whose values belong in the labels, beside those of every
    cell.
    """
    decoder = OmegaConf.to_yaml(config.decoder)
    groups = [name for name in ("tree", "verifier") if f"${{{name}}}" in decoder]
    config.audit = config.audit and is_drafting(content(config.decoder))
    if config.audit and "${audit}" not in OmegaConf.to_yaml(config.task):
        raise InvalidInput(f"audit is true, and task {choices['task']} has none; allowed: decode")
    labels: dict[str, Any] = {
        key: _label(key, choices[key], config[key]) for key in (*GROUPS[:3], *groups)
    }
    unlabelled(config)
    if isinstance(path := content(config.tree).get("path"), str):
        # A searched tree's file is named by the labels, too, and by the filters that are on.
        parts = {name: file_name(label) for name, label in labels.items()}
        if "verifier" in parts:
            parts["verifier"] = file_name(owner_of_tree(labels["verifier"]))
        parts["filters"] = filter_suffix(config)
        for name, text in parts.items():
            path = path.replace(f"{{{name}}}", text)
        if left := {*re.findall(r"(?<!\$)\{(\w+)\}", path)}.difference(GROUPS):
            allowed = ", ".join(f"{{{name}}}" for name in (*GROUPS, "filters"))
            raise InvalidInput(f"tree.path is {path!r}, with {{{min(left)}}}; allowed: {allowed}")
        config.tree.path = path
    with flag_override(config, ["struct", "readonly"], False):
        for name in ("part", "sweep", "parts"):
            config.pop(name, None)
    resolved = {
        str(key): value for key, value in OmegaConf.to_container(config, resolve=True).items()
    }
    names = [*groups, *(name for name in resolved if name not in ("tree", "verifier"))]
    check_values({name: resolved[name] for name in names})
    labels["temperature"] = resolved["temperature"]
    labels |= filters_of(resolved) | ({"audit": True} if resolved["audit"] else {})
    for key in varied:
        labels[key] = choices[key] if key in choices else OmegaConf.select(config, key)
    cell = Cell(labels, resolved)
    if cell.task_name in TIMES_ALONE and not resolved["timed"]:
        raise InvalidInput(
            f"timed is false, and task {choices['task']} measures times alone; allowed: true"
        )
    return cell


def _label(group: str, choice: str, node: DictConfig) -> Label:
    """An option with the values that differ from those of its file: "chain(num_drafted=7)".

    In `verifier=custom verifier.name=my_rule.py:MyRule,standard` our verifier is labelled with its
    name alone, as in every other sweep, so that it is the baseline here, too. An entry point that
    has the name of a data set or a decoder of ours is another thing, and is labelled as such.
    """
    stored = options(group).get(choice, {})
    if "_target_" not in stored:  # it inherits, or is an option of the folder of --config-dir
        with hydra_here():
            stored = content(composed((f"{group}={choice}",))[0][group])
    defaults = leaves(stored)
    values = leaves(content(node))
    changes = {
        # what an interpolation of the user's means, as of a variable of the environment
        key: OmegaConf.select(node, key) if "${" in str(value) else value
        for key, value in values.items()
        if defaults.get(key) != value
    }
    changes = {key: value for key, value in changes.items() if not OmegaConf.is_config(value)}
    removed = (key for key in defaults if key not in values and not key.startswith("label"))
    changes |= dict.fromkeys(removed, "removed")
    is_known = (CONF / group / f"{changes.get('name')}.yaml").is_file()
    if choice == "custom" and is_known and is_ours(group, str(changes["name"])):
        choice = str(changes.pop("name"))
    return Label(choice, {key: _short(value) for key, value in sorted(changes.items())})


def _short(value: Any) -> Any:
    """A value as a label shows it; a path is cut to its last two parts."""
    return "/".join(Path(value).parts[-2:]) if isinstance(value, str) and "/" in value else value
