"""Hydra's flags, what they show, and what they say of a launcher."""

import os
import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from functools import partial
from typing import Any

from hydra import compose
from hydra._internal.utils import _run_hydra, get_args_parser
from omegaconf import OmegaConf

from experiments.cluster import CLUSTERS, run_on_cluster
from experiments.scheduler import Launch, run_cells
from experiments.schema import CONF
from resispec.errors import InvalidInput

OF_JOBS = ("hydra/launcher", "hydra.launcher.", "hydra.sweep.dir", "hydra.job.name")
"""Beginnings of Hydra's keys that the jobs of a launcher obey."""


def parser() -> ArgumentParser:
    """The parser of Hydra's own flags and of overrides."""
    return get_args_parser()


def show(config_name: str, flags: Namespace, overrides: Sequence[str]) -> None:
    """Let Hydra show what a flag asks for; --help ends the process.

    flags: as `parser` reads them. overrides: those of the configuration that is shown.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises instead of printing a report
    words = [_whole_artefact(word) for word in overrides]
    shown = Namespace(**vars(flags) | {"overrides": [part for word in words for part in word]})
    _run_hydra(shown, parser(), lambda _: None, str(CONF), config_name)


def _whole_artefact(word: str) -> list[str]:
    """An override in which experiment=ARTEFACT/PART is two, since Hydra knows only the first."""
    if word.startswith("experiment="):
        return word.replace("/", " part=").split()
    return [word]


def launch_of(overrides: Sequence[str]) -> Launch:
    """The function that runs cells: `run_cells`, or one for the launcher that overrides name.

    Notes on stderr name Hydra's keys that change nothing. Raises Hydra's errors for a launcher that
    does not exist, or does not know a value that it is given, and InvalidInput for one that is none
    of CLUSTERS.
    """
    lines = [line for line in overrides if re.match(r"[+~]*hydra\b", line)]
    if not lines:
        return run_cells
    results = [line for line in overrides if line.startswith("results=")]
    config = compose("run", [*lines, *results], return_hydra_config=True)
    is_basic = config.hydra.runtime.choices["hydra/launcher"] == "basic"
    for key in [line.lstrip("+~").partition("=")[0] for line in lines]:
        if key != "hydra/launcher" and is_basic:
            sys.stderr.write(
                f"note: {key}=... changes nothing without a launcher: hydra/launcher=NAME\n"
            )
        elif not key.startswith(OF_JOBS):
            sys.stderr.write(f"note: {key}=... changes nothing for the jobs of a launcher\n")
    if is_basic:
        return run_cells

    name = config.hydra.runtime.choices["hydra/launcher"]
    if name not in CLUSTERS:
        allowed = ", ".join(["basic", *CLUSTERS])
        raise InvalidInput(f"hydra/launcher={name} runs no cells; allowed: {allowed}")
    options: Any = OmegaConf.to_container(config.hydra.launcher, resolve=True)
    return partial(run_on_cluster, name, options)
