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
    from resispec.models.scoring import Scorer


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


def scorers(target: str, draft: str | None, device: str, dtype: str) -> list[Scorer]:
    """The target and the draft, where there is one, for rescoring; names and errors: as `load`."""
    from resispec.models.scoring import load_scorers, pair_scorers

    if is_pair(target):
        return pair_scorers(load(target, draft, device, dtype))
    return load_scorers([target] if draft is None else [target, draft], device, dtype)


def tokenizer(target: str, device: str, dtype: str) -> Tokenizer:
    """The tokenizer of a target, without its weights where that can be."""
    if is_pair(target):
        return _configured(target, device, dtype).tokenizer
    from resispec.models import TransformersTokenizer
    from resispec.models.checkpoint import read_tokenizer

    return TransformersTokenizer(read_tokenizer(target))


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
