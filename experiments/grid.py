"""The cells that a command line asks for: sweeps are expanded, composed by Hydra,
labelled and checked.

Nothing here imports torch, so that planning is quick and wrong input is refused before anything
starts.
"""

import hashlib
import itertools
import json
import pickle
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from hydra import compose
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, Override, Sweep
from omegaconf import DictConfig, OmegaConf, flag_override

from analysis import AD_HOC, SLICE
from analysis.labels import Label, options
from analysis.load import composed_of, filters_of
from experiments.cell import Cell, file_name, filter_suffix
from experiments.cli import explained, hydra_here, option_folders, plain, unknown
from experiments.schema import CONF, GROUPS, RunConfig, check_values, leaves, unlabelled
from resispec.errors import InvalidInput

EXPERIMENT, PART = "experiment", "part"
NEUTRAL = ("profile=", "results=", "name=", "jobs=", "wandb.", "hydra/launcher", "hydra.launcher.")
"""Beginnings of overrides that leave an artefact its profile's cells;
with others the cells are compared.
"""
# keys of the profile that experiments refer to
_OF_PROFILE = ("axes.", "prompt_counts.", "artefacts.")
LEFT_OUT = "place to them"
"""`Part.lacks` of artefacts and parts that the profile's `artefacts` leave out."""
SYNTAX = "a,b, choice(a,b), range(start,stop,step) and, for options of a group, glob(pattern)"


@dataclass
class Part:
    """One sweep: the cells that `experiment=NAME` and the rest of a command line ask for.

    name: "table1", or "frontier/d5b3" if the artefact has parts. sources: the configuration files
    that the cells were composed from. lacks: the thing that the profile does not give, if the sweep
    has no cells for that reason. digest: the digest of a slice's cells; "" if the cells are the
    artefact's own.
    """

    name: str
    cells: list[Cell] = field(default_factory=list)
    sources: set[str] = field(default_factory=set)
    lacks: str = ""
    digest: str = ""

    @property
    def artefact(self) -> str:
        """The name of the artefact that the sweep is a part of."""
        return self.name.partition("/")[0]

    @property
    def plan(self) -> str:
        """The name of the sweep's plan: the artefact's name, or "table1@1a2b3c4d" for a slice."""
        return f"{self.artefact}{SLICE}{self.digest}" if self.digest else self.artefact

    @property
    def is_named(self) -> bool:
        """Whether the sweep is an artefact's, and not one that was typed key by key."""
        return self.name != AD_HOC

    @property
    def plan_part(self) -> str:
        """The part's name in the plan.

        A typed sweep has the name that it was given, or its cells' digest.
        """
        if self.is_named:
            return self.name.partition("/")[2]
        return str(self.cells[0].config["name"] or digest(self.cells))


def left_out(parts: Iterable[Part]) -> list[str]:
    """A line for each thing that the profile lacks, with the names of the parts
    that have no cells for it.
    """
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
    """The sweeps that a command line asks for: the parts of the experiments that it names,
    or a typed sweep.

    A typed sweep has the defaults of conf/run.yaml where it names nothing else; `cli.of_profile`
    gives more. With `experiment=glob(...)` small experiments come first, and a part for which the
    profile lacks something gets no cells. An experiment that is named itself is refused in that
    case.
    Raises InvalidInput as `cells_of`, and when no part has cells.
    """
    with hydra_here(), explained():
        parsed = _parse(plain(overrides))
        by_key = {override.get_key_element(): override for override in parsed}
        for key in RunConfig.__dataclass_fields__:
            if f"~{key}" in by_key:
                raise InvalidInput(f"~{key} takes away what every cell has; allowed: {key}=VALUE")
        no_cells = re.compile(rf"({EXPERIMENT}|{PART})$|[+~]*hydra\b")  # keys that change no cell
        rest = [override for override in parsed if not no_cells.match(override.get_key_element())]
        names = values(by_key[EXPERIMENT]) if EXPERIMENT in by_key else []
        suffixes = values(by_key[PART]) if PART in by_key else []
        if suffixes and (not names or any("/" in name for name in names)):
            line = by_key[PART].input_line
            raise InvalidInput(
                f"{line} goes with an artefact's name; allowed: experiment=NAME {line}"
            )
        if not names:
            return [_fill(Part(AD_HOC), (), {}, rest)]
        is_glob = isinstance(by_key[EXPERIMENT].value(), Glob)
        parts = {
            part.name: part
            for name in names
            for part in _expand(name, suffixes, rest, skips=is_glob)
        }
        _name_slices(list(parts.values()), overrides)
        if not any(part.cells for part in parts.values()):
            raise InvalidInput("; ".join(left_out(parts.values())))
    if not is_glob:
        return list(parts.values())
    num_prompts: Counter[str] = Counter()
    for part in parts.values():
        num_prompts[part.artefact] += sum(cell.config["num_prompts"] for cell in part.cells)
    return sorted(parts.values(), key=lambda part: (num_prompts[part.artefact], part.name))


def _expand(
    name: str, suffixes: Sequence[str], overrides: Sequence[Override], skips: bool
) -> Iterable[Part]:
    """The parts of an experiment.

    skips: leave a part without cells if the profile lacks something for it.

    The values of a part may refer to the profile. The profile's `artefacts` replace values of the
    part, and overrides replace both. A part that `artefacts` leave out gets cells only if the
    command line names it.
    """
    artefact, _, suffix = name.partition("/")
    chosen = f"{EXPERIMENT}={artefact}"
    profile = [
        o for o in overrides if _is_composed(o) or str(o.key_or_group).startswith(_OF_PROFILE)
    ]
    config, choices = _composed((chosen, *_fixed(profile)))
    keys = {override.get_key_element() for override in overrides}
    sweep, parts, of_profile = (_content(config[key]) for key in ("sweep", "parts", "artefacts"))
    named = [suffix] if suffix else suffixes
    for part_name in named or parts or [""]:
        if part_name and not parts:
            raise InvalidInput(f"{artefact} has no parts; found {part_name!r}")
        if part_name and part_name not in parts:
            raise unknown(f"part of {artefact}", part_name, parts)
        part = Part(f"{artefact}/{part_name}" if part_name else artefact)
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


def _fill(
    part: Part, chosen: Sequence[str], swept: Mapping[str, Any], overrides: Sequence[Override]
) -> Part:
    """Fill a part with its cells: all combinations of the values of its experiment
    and the overrides.

    chosen: the overrides that name the experiment. swept: key -> its value or values.
    """
    axes = {key: _options(key, value) for key, value in swept.items()}
    axes |= {o.get_key_element(): values(o) for o in overrides if o.is_sweep_override()}
    varied = [key for key, choices in axes.items() if len(choices) > 1]
    for key in {"profile", "results", "name", "num_prompts", "device"}.intersection(varied):
        raise InvalidInput(
            f"{key} has several values, {', '.join(axes[key])}; allowed: one for a command"
        )
    cells: dict[str, Cell] = {}
    for point in itertools.product(*axes.values()):
        options = (f"{key}={value}" for key, value in zip(axes, point, strict=True))
        lines = (*chosen, *_fixed(overrides), *options)
        config, choices = _composed(lines)
        cell = cell_of(config, choices, varied, lines)
        twin = cells.setdefault(str(sorted(cell.labels.items())), cell)
        if twin.determining != cell.determining:
            remedy = "sweep over values that names show"
            raise InvalidInput(f"two cells of this sweep are both called {cell}; {remedy}")
        folders = option_folders()
        names = ["run", *(f"{group}/{option}" for group, option in choices.items())]
        part.sources |= {file for name in names for file in _composed_of(name, folders)}
    part.cells = list(cells.values())  # a value that the decoder does not use makes no new cell
    return part


_composed_of = lru_cache(maxsize=256)(composed_of)  # while a process plans, its configuration stays


def _name_slices(parts: Sequence[Part], overrides: Sequence[str]) -> None:
    """Give a digest to all parts of every artefact whose cells differ from those
    that its profile gives it.

    One part that differs makes all parts a slice, since a plan of the parts that happened to change
    would be of no use.
    """
    lines = [line for line in overrides if line.startswith(NEUTRAL)]
    if all(line.startswith((*NEUTRAL, f"{EXPERIMENT}=", f"{PART}=")) for line in overrides):
        return
    for artefact in dict.fromkeys(part.artefact for part in parts):
        group = [part for part in parts if part.artefact == artefact]
        cells = [cell for part in group for cell in part.cells]
        profile_cells: list[Cell] = []  # empty if the experiment needs further overrides
        with suppress(InvalidInput):
            names = [part.name for part in group if not part.lacks]
            profile_cells = [
                cell for name in names for cell in cells_of([f"{EXPERIMENT}={name}", *lines])
            ]
        for part in group:
            part.digest = digest(cells) if _asked(cells) != _asked(profile_cells) else ""


def digest(cells: Sequence[Cell]) -> str:
    """8 hexadecimal digits that name a sweep by the cells that it asks for."""
    return hashlib.sha256("\n".join(_asked(cells)).encode()).hexdigest()[:8]


def _asked(cells: Sequence[Cell]) -> list[str]:
    """For each cell a text of its labels and its determining values; the texts are sorted."""
    keys = ([cell.labels, cell.determining] for cell in cells)
    return sorted(json.dumps(key, sort_keys=True, default=str) for key in keys)


# --- overrides


def values(override: Override) -> list[str]:
    """The values of an override, each as text for an override of its own:
    a sweep's values, or the only one.

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


def _fixed(overrides: Iterable[Override]) -> tuple[str, ...]:
    return tuple(
        str(override.input_line) for override in overrides if not override.is_sweep_override()
    )


def _options(key: str, value: Any) -> list[str]:
    """The values of a key of a file's sweep: those of a list or of Hydra's sweep syntax,
    or the only one.
    """
    value = _content(value)
    if isinstance(value, list):
        return [_text(item) for item in value]
    return values(_parsed(f"{key}={value if isinstance(value, str) else _text(value)}"))


def _text(value: Any) -> str:
    """A value as the text of an override; Hydra can read JSON."""
    is_plain = isinstance(value, str) and re.fullmatch(r"[\w.\-/]+", value)
    return str(value) if is_plain else json.dumps(value)


def _parse(lines: Sequence[str]) -> list[Override]:
    loader = GlobalHydra.instance().config_loader()  # lists the options that a glob() chooses from
    return OverridesParser.create(loader).parse_overrides(list(lines))


@lru_cache(maxsize=1024)
def _parsed(line: str) -> Override:
    [override] = _parse([line])
    return override


# --- one point


def _composed(lines: Sequence[str]) -> tuple[DictConfig, dict[str, str]]:
    """The configuration of one point, and the option of every group.

    lines: overrides, none of them a sweep.

    Most points differ only in options that set nothing but their group's own node. That node is
    exchanged, which takes a hundredth of the time of another composition. Single values are set
    last, as by Hydra.
    """
    overrides = [_parsed(line) for line in lines]
    chosen = [override for override in overrides if _is_composed(override)]
    exchanged = {
        str(override.key_or_group): str(override.value())
        for override in chosen
        if _is_plain(override)
    }
    pickled, choices = _compose(
        _distinct(override for override in chosen if not _is_plain(override))
    )
    config = pickle.loads(pickled)  # a deep copy in a sixth of the time that `copy` takes
    if any(_option(group, choices[group]) != _content(config[group]) for group in exchanged):
        # Something else sets values in the node.
        (pickled, choices), exchanged = _compose(_distinct(chosen)), {}
        config = pickle.loads(pickled)
    for group, option in exchanged.items():
        config[group] = _option(group, option)
    for override in overrides:
        if not _is_composed(override):
            OmegaConf.update(config, str(override.key_or_group), override.value(), merge=True)
    return config, choices | exchanged


def _distinct(overrides: Iterable[Override]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(override.input_line) for override in overrides))


@lru_cache(maxsize=1024)
def _compose(lines: tuple[str, ...]) -> tuple[bytes, dict[str, str]]:
    """Hydra's own composition, pickled for copying, and the option of every group."""
    config = compose("run", list(lines), return_hydra_config=True)
    choices = {group: option for group, option in config.hydra.runtime.choices.items() if option}
    with flag_override(config, ["struct", "readonly"], False):
        del config["hydra"]  # the rest keeps the schema, which gives values set later their types
    return pickle.dumps(config), choices


def _is_composed(override: Override) -> bool:
    """Whether an override chooses an option, or adds or removes a key; others set a value."""
    is_value = not (override.is_add() or override.is_force_add() or override.is_delete())
    return (
        not is_value or override.package is not None or (CONF / str(override.key_or_group)).is_dir()
    )


def _is_plain(override: Override) -> bool:
    """Whether an override chooses an option of a group that sets the group's own node
    and nothing else.
    """
    group, option = str(override.key_or_group), str(override.value())
    is_choice = override.input_line == f"{group}={option}"
    return is_choice and group in (*GROUPS, "task") and _option(group, option) is not None


@lru_cache(maxsize=256)
def _option(group: str, name: str) -> Any:
    """The node of an option that sets its group's own node and nothing else;
    None for any other option.
    """
    path = CONF / group / f"{name}.yaml"
    if not path.is_file() or "@package _global_" in path.read_text("utf-8"):
        return None
    content = _content(OmegaConf.load(path))
    return None if "defaults" in content else content


def _content(node: Any) -> Any:
    return OmegaConf.to_container(node, resolve=False) if OmegaConf.is_config(node) else node


def cell_of(
    config: DictConfig,
    choices: Mapping[str, str],
    varied: Sequence[str] = (),
    lines: tuple[str, ...] = (),
) -> Cell:
    """The cell of a composed configuration.

    Raises InvalidInput for a value that is missing or wrong.

    choices: group -> option. varied: keys whose values belong in the labels. lines: the cell's
    overrides.
    """
    decoder = OmegaConf.to_yaml(config.decoder)
    groups = [name for name in ("tree", "verifier") if f"${{{name}}}" in decoder]
    # Without a choice of verifier there is nothing to audit.
    config.audit = config.audit and "verifier" in groups
    labels: dict[str, Any] = {
        key: _label(key, choices[key], config[key]) for key in (*GROUPS[:3], *groups)
    }
    unlabelled(config)
    if isinstance(path := _content(config.tree).get("path"), str):
        # A searched tree's file is named by the labels, too, and by the filters that are on.
        parts = {name: file_name(label) for name, label in labels.items()}
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
    values_ = {
        str(key): value for key, value in OmegaConf.to_container(config, resolve=True).items()
    }
    names = [*groups, *(name for name in values_ if name not in ("tree", "verifier"))]
    check_values({name: values_[name] for name in names})
    labels["temperature"] = values_["temperature"]
    labels |= filters_of(values_) | ({"audit": True} if values_["audit"] else {})
    for key in (name.lstrip("+") for name in varied):
        if key.partition(".")[0] not in (*GROUPS, "temperature", "audit"):
            labels[key] = choices[key] if key in choices else OmegaConf.select(config, key)
    return Cell(labels, values_, lines)


def _label(group: str, choice: str, node: DictConfig) -> Label:
    """An option with the values that differ from those of its file: "chain(num_drafted=7)".

    In `verifier=custom verifier.name=my_rule.py:MyRule,standard` the known verifier is labelled
    with its name alone, as in every other sweep, so that it is the baseline here, too.
    """
    stored = options(group).get(choice)
    if stored is None:  # an option of the folder of --config-dir
        with hydra_here():
            stored = _content(_composed((f"{group}={choice}",))[0][group])
    defaults = leaves(stored)
    changes = {
        key: value
        for key, value in leaves(_content(node)).items()
        if not key.endswith("_target_") and defaults.get(key) != value and "${" not in str(value)
    }
    if choice == "custom" and (CONF / group / f"{changes.get('name')}.yaml").is_file():
        choice = str(changes.pop("name"))
    return Label(choice, {key: _short(value) for key, value in sorted(changes.items())})


def _short(value: Any) -> Any:
    """A value as a label shows it; a path is cut to its last two parts."""
    return "/".join(Path(value).parts[-2:]) if isinstance(value, str) and "/" in value else value
