"""Cells: the points of a grid, named by a hash of what determines their result.

An artefact asks for the cells of its sweeps; two artefacts that need the same cell share one run. This module knows Hydra and no
torch, so that planning is quick and analysis can list what should exist.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

import experiments.config  # noqa: F401 - registers the schema and the resolvers
from resispec.errors import InvalidInput

CONF = Path(__file__).resolve().parent.parent / "conf"

# Part of every cell's identity: raise it when a change to the code changes what a cell measures.
RESULTS_VERSION = 1

# What a cell's result depends on. The tree and the verifier come in through the decoder, which refers to those it uses.
DETERMINING = (
    "task", "pair", "dataset", "decoder", "temperature", "sampling", "prompt_tokens", "num_prompts", "warmup_prompts", "seed",
    "device", "dtype", "num_threads", "first_prompt", "prompt_template",
)  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One point of a grid.

    labels: the names chosen for pair, dataset, decoder, tree and verifier (the last two only where the decoder uses them), the
    temperature, and `audit` on audit cells. config: the resolved configuration.
    """

    cell_id: str
    labels: dict[str, Any]
    folder: Path
    config: dict[str, Any]

    def __str__(self) -> str:
        printed = {"temperature": "T={}", "audit": "audit"}
        return " ".join(printed.get(name, "{}").format(value) for name, value in self.labels.items())


def cell_of(config: DictConfig, choices: dict[str, str]) -> Cell:
    """The cell of a composed configuration. Raises InvalidInput when a value is missing or cannot be resolved."""
    refers_to = OmegaConf.to_yaml(config.decoder)
    names = [name for name in ("tree", "verifier") if f"${{{name}}}" in refers_to]
    config.audit = (
        config.audit and "verifier" in names
    )  # without a choice of verifier there is nothing to audit
    config.names = {name: choices[name] for name in ("pair", "dataset", "decoder")}
    try:
        resolved = OmegaConf.to_container(config, resolve=True, throw_on_missing=False)
    except OmegaConfBaseException as error:
        raise InvalidInput(one_line(error)) from error
    assert isinstance(resolved, dict)
    determining = {key: resolved[key] for key in DETERMINING}
    if missing := _missing({name: resolved[name] for name in (*names, *DETERMINING)}):
        raise InvalidInput(f"{missing[0]} must be given, like {missing[0]}=VALUE")
    key = json.dumps([RESULTS_VERSION, _identity(determining)], sort_keys=True)
    cell_id = hashlib.sha256(key.encode()).hexdigest()[:16]
    labels: dict[str, Any] = {name: choices[name] for name in ("pair", "dataset", "decoder", *names)}
    labels |= {"temperature": config.temperature} | ({"audit": True} if config.audit else {})
    folder = Path(config.results) / "raw" / config.profile / cell_id
    return Cell(cell_id, labels, folder, {str(key): value for key, value in resolved.items()})


def plan(overrides: Sequence[str]) -> list[Cell]:
    """The cells that a command line asks for, each once, in sweep order.

    Raises InvalidInput, in one line, for whatever does not compose: an unknown name, a misspelt key, a wrong type.
    """
    with initialize_config_dir(str(CONF), version_base="1.3"):
        try:
            return _plan(overrides)
        except MissingConfigException as error:
            raise InvalidInput(_unknown_option(error)) from error
        except (HydraException, OmegaConfBaseException) as error:
            raise InvalidInput(one_line(error)) from error


def expected_cells(artefact: str, profile: str, overrides: Sequence[str] = ()) -> list[Cell]:
    """The cells that an artefact asks for under a profile, each once, in sweep order."""
    planned = [plan([f"experiment={sweep}", f"profile={profile}", *overrides]) for sweep in sweeps(artefact)]
    return list({cell.cell_id: cell for cells in planned for cell in cells}.values())


def sweeps(artefact: str) -> list[str]:
    """The experiments of an artefact: conf/experiment/ARTEFACT.yaml, or ARTEFACT_PART.yaml where its parts need other pairs."""
    folder = CONF / "experiment"
    return sorted(
        path.stem for path in (*folder.glob(f"{artefact}.yaml"), *folder.glob(f"{artefact}_*.yaml"))
    )


def _plan(overrides: Sequence[str]) -> list[Cell]:
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    axes = {override.get_key_element(): override for override in parsed if override.is_sweep_override()}
    fixed = [override for override in parsed if not override.is_sweep_override()]
    base = compose("run", [str(override.input_line) for override in fixed], return_hydra_config=True)
    given = {override.get_key_element() for override in parsed}
    sweep = (
        OmegaConf.to_container(base.hydra.sweeper.params, resolve=True) if base.hydra.sweeper.params else {}
    )
    assert isinstance(sweep, dict)
    lines = [f"{key}={values}" for key, values in sweep.items() if key not in given]
    lists = [
        [f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()]
        if override.is_sweep_override()
        else [str(override.input_line)]
        for override in (*OverridesParser.create().parse_overrides(lines), *axes.values())
    ]
    cells: dict[str, Cell] = {}
    for point in itertools.product(*lists):
        config = compose(
            "run", [*(str(override.input_line) for override in fixed), *point], return_hydra_config=True
        )
        choices = dict(config.hydra.runtime.choices)
        cell = cell_of(without_hydra(config), choices)
        cells.setdefault(cell.cell_id, cell)
    return list(cells.values())


def without_hydra(config: DictConfig) -> DictConfig:
    """The job's own part of a configuration that was composed with Hydra's."""
    return OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])


def one_line(error: Exception) -> str:
    """Hydra's and OmegaConf's messages span lines and hide the reason in the cause."""
    parts = [str(error), str(error.__cause__ or "")]
    lines = [line.strip() for part in parts for line in part.splitlines() if line.strip()]
    noise = ("full_key:", "object_type=", "reference_type=")
    return "; ".join(line for line in dict.fromkeys(lines) if not line.startswith(noise))


def _unknown_option(error: MissingConfigException) -> str:
    group, _, name = (error.missing_cfg_file or "").partition("/")
    return f"unknown {group} {name!r}; allowed: {', '.join(error.options or [])}"


def _missing(node: Any, prefix: str = "") -> list[str]:
    if isinstance(node, dict):
        return [name for key, value in node.items() for name in _missing(value, f"{prefix}{key}.")]
    return [prefix.rstrip(".")] if node == "???" else []


def _identity(node: Any) -> Any:
    """A configuration in which local files and folders stand for what they hold: a changed file is another cell."""
    if isinstance(node, dict):
        return {key: _identity(value) for key, value in node.items()}
    is_path = (
        isinstance(node, str)
        and "\n" not in node
        and ("/" in node or Path(node).suffix in (".jsonl", ".json", ".pt"))
    )
    path = Path(node).expanduser() if is_path else None
    if path is None or not path.exists():
        return node
    if path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    stats = [(file.name, file.stat()) for file in sorted(path.iterdir()) if file.is_file()]
    return [f"{name} {stat.st_size} {stat.st_mtime_ns}" for name, stat in stats]
