"""The schema of conf/run.yaml: a misspelt key or a wrong type fails when the configuration is composed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, OmegaConf


@dataclass
class SamplingConfig:
    """Limits of one generation; see `resispec.decode.Sampling`."""

    max_new_tokens: int = MISSING
    max_length: int = MISSING
    ignore_eos: bool = False


@dataclass
class RunConfig:
    """One cell, and where its results go.

    pair, dataset, decoder, tree, verifier, task: nodes with a `_target_`, chosen by name. A decoder refers to what it needs
    of the tree and the verifier, so a cell is determined by its decoder and its task.
    """

    profile: str = MISSING
    pair: dict[str, Any] = field(default_factory=dict)
    dataset: dict[str, Any] = field(default_factory=dict)
    decoder: dict[str, Any] = field(default_factory=dict)
    tree: dict[str, Any] = field(default_factory=dict)
    verifier: dict[str, Any] = field(default_factory=dict)
    task: dict[str, Any] = field(default_factory=dict)
    audit: bool = False  # record what the audits need of a decoding run, in a cell of its own
    temperature: float = 1.0
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    prompt_tokens: int = MISSING  # a prompt is the first tokens of its document
    first_prompt: int = 0  # documents of the data set that are left out before the measured ones
    prompt_template: str | None = None  # how a chat target is asked, with {text} where those tokens stand
    num_prompts: int = MISSING  # measured prompts
    first_tuning_prompt: int = (
        MISSING  # documents from here on are for choosing trees and are not measured by our artefacts
    )
    warmup_prompts: int = MISSING  # decoded first and not recorded
    seed: int = 0  # prompt i uses seed + i for every random stream
    device: str = MISSING
    dtype: str = MISSING
    num_threads: int | None = None  # threads of a CPU forward; PyTorch's choice when null
    results: str = "results"
    artefact: str | None = None  # the table or figure that a sweep is for
    axes: dict[str, str] = field(
        default_factory=dict
    )  # the pairs and data sets that the profile's sweeps go over
    prompt_counts: dict[str, int] = field(
        default_factory=dict
    )  # of the frontier's cells, and of its longer audits
    names: dict[str, str] = field(default_factory=dict)  # set from the choices: pair, dataset, decoder


ConfigStore.instance().store(name="schema", node=RunConfig)


def _embedded_fingerprint() -> str:
    from resispec.embedded import fingerprint

    return fingerprint()


def _embedded_eagle_fingerprint() -> str:
    from resispec.embedded import eagle_fingerprint

    return eagle_fingerprint()


# A pair that is trained on this machine is identified by what it is trained from.
OmegaConf.register_new_resolver("embedded_fingerprint", _embedded_fingerprint, use_cache=True, replace=True)
OmegaConf.register_new_resolver(
    "embedded_eagle_fingerprint", _embedded_eagle_fingerprint, use_cache=True, replace=True
)
