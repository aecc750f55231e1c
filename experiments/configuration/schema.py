"""The schema of the configuration, and what its values may be: wrong ones fail before any cell runs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, OmegaConf
from pydantic import BaseModel, Field, ValidationError

from resispec.errors import InvalidInput

CONF = Path(__file__).resolve().parents[2] / "conf"
CHAT = "chat"
"""The prompt_template that stands for the tokenizer's own chat template."""


@dataclass
class SamplingConfig:
    """Limits of one generation; see `resispec.decode.Sampling`."""

    max_new_tokens: int = MISSING
    max_length: int = MISSING
    ignore_eos: bool = False


@dataclass
class WandbConfig:
    """Dashboards on W&B, see docs/dashboards.md. entity: a user or team; W&B's default one when null."""

    mode: str = "auto"  # online, offline, disabled; auto is online where W&B knows a key, else disabled
    project: str = "resispec"
    entity: str | None = None


@dataclass
class RunConfig:
    """One cell, and where its results go.

    pair, dataset, decoder, tree, verifier, task: nodes with a `_target_`, chosen by name. A decoder refers to
    what it needs of the tree and the verifier. search: how the tree's file is made when it is missing.
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
    temperature: float = 1.0
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    prompt_tokens: int = MISSING  # a prompt is the first tokens of its document
    first_prompt: int = 0  # documents of the data set that are left out before the measured ones
    # How a chat target is asked, with {text} where those tokens stand; or CHAT.
    prompt_template: str | None = None
    num_prompts: int = MISSING  # measured prompts
    # Documents from here on are for choosing trees; our artefacts do not measure them.
    first_tuning_prompt: int = MISSING
    warmup_prompts: int = MISSING  # decoded first and not recorded
    seed: int = 0  # prompt i uses seed + i for every random stream
    device: str = MISSING
    dtype: str = MISSING
    num_threads: int | None = None  # threads of a CPU forward; PyTorch's choice when null
    compiled: bool = (
        False  # on a CPU: forwards of a step by torch.compile, where that is measured to be faster
    )
    jobs: int = 1  # cells that run at a time; at most one of them is timed
    timed: bool = True  # whether the cell's times count; those of an audit never do
    results: str = "results"
    wandb: WandbConfig = field(default_factory=WandbConfig)
    # The pairs and data sets that the profile's sweeps go over.
    axes: dict[str, str] = field(default_factory=dict)
    # Of the frontier's cells, and of its longer audits.
    prompt_counts: dict[str, int] = field(default_factory=dict)
    # Of pair, data set and decoder, as file names use them.
    names: dict[str, str] = field(default_factory=dict)


ConfigStore.instance().store(name="schema", node=RunConfig)


class _Sampling(BaseModel):
    max_new_tokens: Annotated[int, Field(ge=1)]
    max_length: Annotated[int, Field(ge=2)]


class _Wandb(BaseModel):
    mode: Literal["auto", "online", "offline", "disabled"]
    # What W&B takes: its other names end up in addresses.
    project: Annotated[str, Field(pattern=r"^[^/\\#?%:]{1,128}$")]


class _Published(BaseModel):
    wandb: _Wandb


class _Values(_Published):
    """What values may be, beyond their types."""

    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    sampling: _Sampling
    prompt_tokens: Annotated[int, Field(ge=1)]
    first_prompt: Annotated[int, Field(ge=0)]
    num_prompts: Annotated[int, Field(ge=1)]
    first_tuning_prompt: Annotated[int, Field(ge=0)]
    warmup_prompts: Annotated[int, Field(ge=0)]
    jobs: Annotated[int, Field(ge=1, le=64)]
    seed: Annotated[int, Field(ge=0, lt=2**62)]
    num_threads: Annotated[int, Field(ge=1, le=1024)] | None
    device: Annotated[str, Field(pattern=r"^(cpu|cuda(:\d+)?|mps)$")]
    dtype: Annotated[str, Field(pattern=r"^(float32|bfloat16|float16)$")]


def check_values(config: dict[str, Any]) -> None:
    """Raise InvalidInput for the first value outside of its range, and for a path that is not there.

    Only what can be known without a model is checked.
    """
    _check(_Values, config)
    if config["compiled"] and config["device"] != "cpu":
        raise InvalidInput(
            f"compiled=true is for device=cpu; found device={config['device']}, "
            "where steps are captured as graphs"
        )
    template = config["prompt_template"]
    if template not in (None, CHAT) and "{text}" not in template:
        raise InvalidInput(
            f"prompt_template needs {{text}} where the document stands; found {template!r}; "
            f"{CHAT} is the tokenizer's own"
        )
    for key in ("pair.target", "pair.draft", "dataset.path"):
        group, name = key.split(".")
        path = config[group].get(name)
        if isinstance(path, str) and re.match(r"[./~]", path) and not Path(path).expanduser().exists():
            raise InvalidInput(f"{key} is {path!r}, which does not exist; allowed: an existing path")


def check_wandb(config: dict[str, Any]) -> None:
    """Raise InvalidInput for the first value of `config["wandb"]` that W&B does not take."""
    _check(_Published, config)


def _check(allowed_values: type[BaseModel], config: dict[str, Any]) -> None:
    try:
        allowed_values.model_validate(config)
    except ValidationError as error:
        [first, *_] = error.errors()
        key = ".".join(
            str(part) for part in first["loc"] if not str(part).startswith(("constrained", "function"))
        )
        allowed = re.sub(r"^(Input|String) should (be |match pattern )?", "", first["msg"])
        raise InvalidInput(f"{key} is {first['input']!r}; allowed: {allowed}") from error


def _embedded_text() -> str:
    from resispec.embedded import text_fingerprint

    return text_fingerprint()


def _embedded_pair(target: str, draft: str) -> str:
    from resispec.embedded import pair_fingerprint

    return pair_fingerprint(target, draft)


def _embedded_eagle(target: str, num_draftable: int | None = None) -> str:
    from resispec.embedded import eagle_fingerprint, eagle_recipe, target_recipe

    return eagle_fingerprint(target_recipe(target), eagle_recipe(num_draftable))


def _inflated_pair(shape: str, target: str, draft: str) -> str:
    from resispec.embedded import inflated_fingerprint

    return inflated_fingerprint(shape, target, draft)


# What is made on this machine is identified by what it is made from.
for _name, _resolver in (
    ("embedded_text", _embedded_text),
    ("embedded_pair", _embedded_pair),
    ("embedded_eagle", _embedded_eagle),
    ("inflated_pair", _inflated_pair),
):
    OmegaConf.register_new_resolver(_name, _resolver, use_cache=True, replace=True)
