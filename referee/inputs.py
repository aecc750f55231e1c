"""Names of a command line, and their meaning: models, prompts, numbers."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from referee.transcripts import Transcript
from resispec.data import json_lines, read_jsonl
from resispec.embedded import NAMES, EmbeddedDataset
from resispec.errors import InvalidInput

if TYPE_CHECKING:  # they take torch
    from referee.rescoring import Scorer
    from resispec.models import Pair, TransformersTokenizer

CONF = Path(__file__).resolve().parent.parent / "conf"
EMBEDDED = "embedded"
"""The pair of conf/pair that serves where no target is named."""
IDS = "prompt_token_ids"


def count(text: str, least: int = 1) -> int:
    """A number from `least` that has 18 digits at most. Raises argparse.ArgumentTypeError for another."""
    if not text.isdecimal() or len(text) > 18 or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: a number from {least}, of 18 digits at most")
    return int(text)


def add_model_options(group: Any) -> None:
    """Add --device and --dtype to a parser."""
    group.add_argument("--device", default="auto", help="auto (CUDA if there is a device), cpu, cuda, ...")
    group.add_argument("--dtype", default="float32", help="float32, bfloat16 or float16")


def is_pair(name: str) -> bool:
    """Whether a name is that of a pair of conf/pair."""
    return (CONF / "pair" / f"{name}.yaml").is_file()


def pair_of(target: str, draft: str | None, device: str, dtype: str) -> Pair:
    """A target with a draft, or without one if none is named.

    target: a hub name, a folder, or a pair of conf/pair, which brings its own draft. device: a torch device
    or "auto". Raises InvalidInput when a model cannot be loaded, and when a pair is to have another draft.
    """
    from resispec.models import load_pair
    from resispec.models.checkpoint import found_device

    if is_pair(target) and draft not in (None, target):
        raise InvalidInput(f"{target} is a pair of conf/pair, which has its own draft; found draft {draft}")
    device = found_device(device)
    return _configured(target, device, dtype) if is_pair(target) else load_pair(target, draft, device, dtype)


def scorers(target: str, draft: str | None, device: str, dtype: str) -> list[Scorer]:
    """The target and the draft, where there is one, for rescoring; names and errors: as `pair_of`."""
    from referee.rescoring import load_scorers, pair_scorers

    if is_pair(target):
        return pair_scorers(pair_of(target, draft, device, dtype))
    return load_scorers([target] if draft is None else [target, draft], device, dtype)


@cache
def tokenizer_of(target: str, device: str, dtype: str) -> TransformersTokenizer:
    """The tokenizer of a target, without its weights where that can be."""
    from resispec.models import TransformersTokenizer
    from resispec.models.checkpoint import read_tokenizer

    if is_pair(target):
        return pair_of(target, None, device, dtype).tokenizer
    return TransformersTokenizer(read_tokenizer(target))


@cache
def _configured(name: str, device: str, dtype: str) -> Pair:
    from hydra.errors import InstantiationException
    from hydra.utils import instantiate
    from omegaconf import OmegaConf

    node: Any = OmegaConf.to_container(OmegaConf.load(CONF / "pair" / f"{name}.yaml"))
    for key in ("fingerprint", "label"):  # whichever pair this installation makes; how tables print it
        node.pop(key, None)
    config = OmegaConf.create({"pair": node, "device": device, "dtype": dtype})
    try:
        pair: Pair = instantiate(OmegaConf.to_container(config, resolve=True)["pair"])  # type: ignore[index, call-overload]
    except InstantiationException as error:
        raise (error.__cause__ if isinstance(error.__cause__, InvalidInput) else error) from error
    return pair


def token_prompts(
    source: str, number: int, length: int, encode: Callable[[str], list[int]]
) -> list[tuple[int, ...]]:
    """The first prompts of a source, so many.

    source: an embedded data set or a .jsonl file, whose rows have a `text` or `prompt_token_ids`; so a file
    of transcripts gives its prompts to another engine. length: texts are cut to their first tokens, ids are
    taken as they are. encode: a text's ids, for sources with texts.
    Raises InvalidInput, naming the file and the line, for what is none of these.
    """
    path, is_file = Path(source), source not in NAMES and Path(source).is_file()
    if is_file and isinstance(row := next(json_lines(path), [None])[-1], dict) and IDS in row:
        given = []
        for where, _, row in islice(json_lines(path), number):
            if not isinstance(row, dict) or not isinstance(row.get(IDS), list):
                raise InvalidInput(f"{path}, {where} has no {IDS}; all rows have them, or none")
            given.append((f"{path}, {where}", row[IDS]))
    elif source in NAMES or source.endswith(".jsonl"):
        documents = EmbeddedDataset(source).prompts(number) if source in NAMES else read_jsonl(path, number)
        given = [(f"document {document.id}", encode(document.text)[:length]) for document in documents]
    else:
        raise InvalidInput(f"unknown prompts {source!r}; allowed: {', '.join(NAMES)}, or a .jsonl file")
    prompts = [Transcript(tuple(ids), (0,), place=place).prompt_token_ids for place, ids in given]
    if len(prompts) < number:
        raise InvalidInput(f"{number} prompts were asked for and {path} has {len(prompts)}")
    return prompts
