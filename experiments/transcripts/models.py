"""Which models a name means: those of a pair of conf/pair, or what transformers can open."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from experiments.configuration.build import build
from experiments.configuration.schema import CONF
from resispec.errors import InvalidInput

if TYPE_CHECKING:  # they take torch
    from resispec.models import Pair, Tokenizer


def load(target: str, draft: str | None, device: str, dtype: str) -> Pair:
    """A target with a draft, or without one if none is named.

    target: a hub name, a folder, or a pair of conf/pair, which brings its own draft.
    Raises InvalidInput when a model cannot be loaded, and when a pair is to have another draft than its own.
    """
    if is_pair(target):
        if draft not in (None, target):
            raise InvalidInput(
                f"{target} is a pair of conf/pair, which has its own draft; found draft {draft}"
            )
        return _configured(target, device, dtype)
    from resispec.models import load_pair

    return load_pair(target, draft, device, dtype)


def tokenizer(target: str, device: str, dtype: str) -> Tokenizer:
    """The tokenizer of a target, without its weights where that can be."""
    if is_pair(target):
        return _configured(target, device, dtype).tokenizer
    from resispec.models.tokenizer import load_tokenizer

    return load_tokenizer(target)


def is_pair(name: str) -> bool:
    """Whether a name is that of a pair of conf/pair."""
    return (CONF / "pair" / f"{name}.yaml").is_file()


@cache
def _configured(name: str, device: str, dtype: str) -> Pair:
    node: Any = OmegaConf.to_container(OmegaConf.load(CONF / "pair" / f"{name}.yaml"))
    node.pop("fingerprint", None)  # whichever pair this installation makes
    values = OmegaConf.create({"pair": node, "device": device, "dtype": dtype})
    found: Any = OmegaConf.to_container(values, resolve=True)
    return build(found["pair"])  # type: ignore[no-any-return]
