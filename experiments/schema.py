"""The configuration's schema and allowed values: wrong values fail before any cell runs."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf

from analysis.cli import DIALECTS
from experiments.cell import is_ours, sampling_of
from resispec.data import CHAT
from resispec.errors import InvalidInput

CONF = Path(__file__).resolve().parents[1] / "conf"
GROUPS = ("pair", "dataset", "decoder", "tree", "verifier")


@dataclass
class SamplingConfig:
    """Limits and filters of one generation; see `resispec.sampling.Sampling`."""

    max_new_tokens: int = MISSING
    max_length: int = MISSING
    ignore_eos: bool = False
    top_p: float = 1.0  # 1 is off
    top_k: int = 0  # 0 is off
    min_p: float = 0.0  # 0 is off


@dataclass
class WandbConfig:
    """Dashboards on W&B, see docs/dashboards.md. entity: a user or team, W&B's default if null."""

    mode: str = (
        "auto"  # online, offline, disabled; auto is online where W&B knows a key, else disabled
    )
    project: str = "${oc.env:WANDB_PROJECT,resispec}"
    entity: str | None = "${oc.env:WANDB_ENTITY,null}"


@dataclass
class RunConfig:
    """One cell, and where its results go.

    pair, dataset, decoder, tree, verifier, task: nodes with a `_target_`, chosen by name. A decoder
    refers to the tree and the verifier if it needs them. search: the search that makes the tree's
    file if needed.
    """

    profile: str = MISSING
    pair: dict[str, Any] = field(default_factory=dict)
    dataset: dict[str, Any] = field(default_factory=dict)
    decoder: dict[str, Any] = field(default_factory=dict)
    tree: dict[str, Any] = field(default_factory=dict)
    search: dict[str, Any] | None = None
    verifier: dict[str, Any] = field(default_factory=dict)
    task: dict[str, Any] = field(default_factory=dict)
    audit: bool = False  # record what the audits need of a decoding run, in a cell of its own
    temperature: float = 1.0  # 0 is greedy
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    prompt_tokens: int = MISSING  # a prompt is this many first tokens of its document
    first_prompt: int = 0  # number of documents that are skipped before the measured ones
    # The text around a prompt for a chat target, with {text} where the prompt stands; or CHAT.
    prompt_template: str | None = None
    num_prompts: int = MISSING  # measured prompts
    # Documents from this place on serve to choose trees; our artefacts do not measure them.
    first_tuning_prompt: int = MISSING
    # The most documents of every data set for a tree; the search's own number when null.
    max_tuning_prompts: int | None = None
    warmup_prompts: int = MISSING  # decoded first and not recorded
    seed: int = 0  # prompt i uses seed + i for every random stream
    device: str = MISSING
    # Indexes of the GPUs of device=cuda, on each of which cells run; torch's first one when empty.
    devices: list[int] = field(default_factory=list)
    dtype: str = MISSING
    num_threads: int | None = None  # threads of a CPU forward; PyTorch's choice when null
    jobs: int = 1  # cells that run at a time, or on each of `devices`; at most one is timed
    cells_per_job: int = 16  # the most cells that a job of hydra/launcher=... measures
    cell_timeout_s: float | None = None  # after so many seconds a cell fails; no limit when null
    timed: bool = True  # whether the cell's times count; those of an audit never do
    reuse: bool = False  # keep a complete cell whose code has changed since it was measured
    results: str = "results"
    name: str | None = (
        None  # of the sweep and its files; the artefact's or its cells' digest when null
    )
    wandb: WandbConfig = field(default_factory=WandbConfig)
    # The pairs and data sets that the profile's sweeps go over: a name or a list of them.
    axes: dict[str, Any] = field(default_factory=dict)
    # Numbers of prompts of the frontier's cells, and of its longer audits.
    prompt_counts: dict[str, int] = field(default_factory=dict)
    # The profile's own values in artefacts' sweeps: ARTEFACT or ARTEFACT/PART -> key -> its value
    # or a list. Null leaves an artefact out of `experiment=glob(...)`, and a part out of its
    # artefact.
    artefacts: dict[str, Any] = field(default_factory=dict)
    # An artefact's sweep: key -> its value or a list of values. Each of its parts adds keys of its
    # own.
    sweep: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)
    part: str | None = None  # the part that is wanted; all parts when null


ConfigStore.instance().store(name="schema", node=RunConfig)


_RANGES: dict[str, tuple[float, float]] = {
    "sampling.max_new_tokens": (1, math.inf),
    "sampling.max_length": (2, math.inf),
    "prompt_tokens": (1, math.inf),
    "first_prompt": (0, math.inf),
    "num_prompts": (1, math.inf),
    "first_tuning_prompt": (0, math.inf),
    "max_tuning_prompts": (1, math.inf),
    "warmup_prompts": (0, math.inf),
    "jobs": (1, 64),
    "cells_per_job": (1, math.inf),
    "seed": (0, 2**62),
    "num_threads": (1, 1024),
    "cell_timeout_s": (1, math.inf),
}
"""The least and the greatest value that a key may have."""
_DTYPE = "float32|bfloat16|float16|int8|int4"
_PATTERNS = {
    "device": r"cpu|cuda(:\d+)?",
    "dtype": f"({_DTYPE})(/({_DTYPE}))?",
    "wandb.mode": "auto|online|offline|disabled",
    "wandb.project": r"[^/\\#?%:]{1,128}",  # W&B allows no others, which stand in addresses
    "name": r"\w[\w.@-]{0,63}",
}


def unlabelled(config: DictConfig) -> None:
    """Remove the groups' `label`, which is the text that tables print and no part of a cell."""
    for group in GROUPS:
        if config.get(group):
            OmegaConf.set_struct(config[group], False)
            config[group].pop("label", None)


def leaves(node: Any, prefix: str = "") -> dict[str, Any]:
    """Values of a nested configuration by their keys, like sampling.max_length."""
    if not isinstance(node, Mapping):
        return {prefix.removesuffix("."): node}
    return {
        name: value for key in node for name, value in leaves(node[key], f"{prefix}{key}.").items()
    }


def check_values(config: dict[str, Any]) -> None:
    """Raise InvalidInput for the first missing or wrong value, and for a path that is not there."""
    if not config["pair"]:
        raise InvalidInput("pair must be given, like pair=embedded")
    values = leaves(config)
    for name, value in values.items():
        if value == "???":
            raise InvalidInput(
                f"{name} must be given, like {name}={name.rpartition('.')[2].upper()}"
            )
    for key, (least, most) in _RANGES.items():
        value = values.get(key)
        if value is not None and not least <= value <= most:
            allowed = f"from {least}" if most == math.inf else f"{least} to {most}"
            raise InvalidInput(f"{key} is {value}; allowed: {allowed}")
    check_patterns(values)
    _check_devices(config["devices"], config["device"])
    if config.get("results") == "":
        raise InvalidInput("results is ''; allowed: a folder, like results=results")
    for name in config["sampling"].keys() - SamplingConfig.__dataclass_fields__.keys():
        allowed = ", ".join(f"sampling.{option}" for option in SamplingConfig.__dataclass_fields__)
        raise InvalidInput(f"unknown key 'sampling.{name}'; allowed: {allowed}")
    sampling_of(config)
    template = config["prompt_template"]
    if template not in (None, CHAT) and "{text}" not in template:
        hint = f"found {template!r}; {CHAT} is the tokenizer's own"
        raise InvalidInput(f"prompt_template needs {{text}} where the document stands; {hint}")
    _check_paths(config, values)


def _check_devices(devices: Sequence[int], device: str) -> None:
    """Raise InvalidInput for GPUs that are none or are given twice.

    Whether they are there is asked later.
    """
    if devices and device != "cuda":
        raise InvalidInput(f"devices={devices} goes with device=cuda; found device={device}")
    if any(index < 0 for index in devices) or len({*devices}) < len(devices):
        allowed = "indexes from 0, each once, like devices=[0,1]"
        raise InvalidInput(f"devices is {devices}; allowed: {allowed}")


def _check_paths(config: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Raise InvalidInput for the first path of a model or data that is absent or something else.

    So nothing is read to find out what a cell is unless it is a model or a data file. values: see
    `leaves`.
    """
    is_made = "fingerprint" in config["pair"]  # its models are named by their sizes
    # A pair or data set of others may read other folders and files, or find its path on a hub.
    ours = {group: is_ours(config[group].get("_target_")) for group in ("pair", "dataset")}
    for key in ("pair.target", "pair.draft"):
        path, is_model = values.get(key), ours["pair"] and not is_made
        if not isinstance(path, str) or not (is_model or _begins_as_path(path)):
            continue
        folder = Path(path).expanduser()
        if not folder.exists():
            if _begins_as_path(path) or path.count("/") != 1:
                more = ", or a name on the hub like owner/model" * is_model
                raise InvalidInput(
                    f"{key} is {path!r}, which does not exist; allowed: an existing path{more}"
                )
        elif ours["pair"] and not (folder / "config.json").is_file():
            hint = "found none in it" if folder.is_dir() else "found no folder"
            raise InvalidInput(
                f"{key} is {path!r}; allowed: a model's folder, with config.json; {hint}"
            )
    for key in ("dataset.path", "dataset.answers_path"):
        path = values.get(key)
        if not isinstance(path, str) or not (ours["dataset"] or _begins_as_path(path)):
            continue
        file = Path(path).expanduser()
        if not file.exists():
            raise InvalidInput(
                f"{key} is {path!r}, which does not exist; allowed: an existing path"
            )
        if ours["dataset"] and not file.is_file():
            kind = "a folder" if file.is_dir() else "a device, a FIFO or a socket"
            raise InvalidInput(f"{key} is {path!r}, which is {kind}; allowed: a regular file")


def _begins_as_path(text: str) -> bool:
    """Whether a text begins as only a path does, and no name on a hub."""
    return text.startswith((".", "/", "~"))


def check_patterns(values: Mapping[str, Any]) -> None:
    """Raise InvalidInput for the first text that does not match its pattern.

    values: see `leaves`.
    """
    for key, pattern in _PATTERNS.items():
        if (value := values.get(key)) is not None and not re.fullmatch(pattern, value):
            raise InvalidInput(f"{key} is {value!r}; allowed: {pattern}")


def _made(function: str, *options: Any) -> str:
    """The identity of models or texts by the function that knows it, "module.function"."""
    return str(resolve_name(function)(*options))


OmegaConf.register_new_resolver("made", _made, use_cache=True, replace=True)
OmegaConf.register_new_resolver("dialects", lambda: DIALECTS, replace=True)
