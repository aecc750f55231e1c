"""Values of a command line, and the models, prompts and numbers that they name."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from referee.transcripts import Transcript
from resispec.data import JsonlDataset, Prompt, json_lines
from resispec.embedded.pairs import NAMES, EmbeddedDataset
from resispec.errors import InvalidInput
from resispec.sampling import SETTINGS, Warp

if TYPE_CHECKING:  # these import torch
    from referee.rescoring import Scorer
    from resispec.models import Pair, TransformersTokenizer

CONF = Path(__file__).resolve().parent.parent / "conf"
EMBEDDED = "embedded"
"""The pair of conf/pair that is used if no target is named."""
IDS = "prompt_token_ids"


def count(text: str, least: int = 1) -> int:
    """A number from `least`, of 18 digits at most.

    Raises argparse.ArgumentTypeError for any other text.
    """
    if not text.isdecimal() or len(text) > 18 or int(text) < least:
        raise argparse.ArgumentTypeError(
            f"{text!r}; allowed: a number from {least}, of 18 digits at most"
        )
    return int(text)


def counts(text: str, least: int = 1) -> tuple[int, ...]:
    """Numbers from `least`, separated by commas; repeated ones count once. Raises like `count`."""
    return tuple(dict.fromkeys(count(part, least) for part in text.split(",")))


def settings(text: str) -> dict[str, Any]:
    """Settings of a law from text like "temperature=0.7,top_k=50".

    Raises argparse.ArgumentTypeError for any other text, and for values that are not allowed.
    """
    values: dict[str, Any] = {}
    for part in text.split(","):
        name, is_given, value = part.partition("=")
        if name not in SETTINGS or not is_given or name in values:
            raise argparse.ArgumentTypeError(
                f"{part!r}; allowed: NAME=VALUE,... each once, of {', '.join(SETTINGS)}"
            )
        try:
            values[name] = type(getattr(Warp, name))(value)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{part!r} is no number") from None
    try:
        Warp(**values)
    except InvalidInput as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return values


def add_model_options(group: Any) -> None:
    """Add --device and --dtype to a parser."""
    group.add_argument(
        "--device", default="auto", help="auto (CUDA if there is a device), cpu, cuda, ..."
    )
    group.add_argument(
        "--dtype",
        default="float32",
        help="float32 (the default), bfloat16, float16, int8 or int4; or the target's and the "
        "draft's, like float32/int8",
    )


def is_pair(name: str) -> bool:
    """Whether this is the name of a pair of conf/pair, or EMBEDDED, which the package brings."""
    is_path = Path(name).name != name  # "./smollm2" is a folder, whatever pairs there are
    return name == EMBEDDED or (not is_path and (CONF / "pair" / f"{name}.yaml").is_file())


def model_folders(*names: str | None) -> list[Path]:
    """The folders of these models, without pairs of conf/pair and hub names."""
    return [Path(name) for name in names if name and not is_pair(name) and Path(name).is_dir()]


def pair_of(target: str, draft: str | None, device: str, dtype: str) -> Pair:
    """A target with a draft, or without one if none is named.

    target: a hub name, a folder, or a pair of conf/pair, which brings its own draft. device: a
    torch device or "auto". Raises InvalidInput if a model cannot be loaded, or if a pair is given
    another draft.
    """
    from resispec.models import load_pair
    from resispec.models.checkpoint import found_device

    device = found_device(device)
    if not is_pair(target):
        return load_pair(target, draft, device, dtype)
    if draft not in (None, target):
        raise InvalidInput(
            f"{target} is a pair of conf/pair, which has its own draft; found draft {draft}"
        )
    return _pair(target, device, dtype)


@cache
def _pair(name: str, device: str, dtype: str) -> Pair:
    if name != EMBEDDED:
        return _configured("pair", name, device, dtype)  # type: ignore[no-any-return]
    from resispec.embedded import load_pair

    return load_pair(device=device, dtype=dtype)  # without conf, which an installed package lacks


def scorers(target: str, draft: str | None, device: str, dtype: str) -> list[Scorer]:
    """Scorers of the target and of any draft; names and errors are those of `pair_of`."""
    from referee.rescoring import load_scorers, pair_scorers

    if is_pair(target):
        return pair_scorers(pair_of(target, draft, device, dtype))
    return load_scorers([target] if draft is None else [target, draft], device, dtype)


@cache
def tokenizer_of(target: str, device: str, dtype: str) -> tuple[TransformersTokenizer, str | None]:
    """The tokenizer of a target, and the prompt template of its pair, see `encode_prompt`.

    target, device, dtype: see `pair_of`. Of a target that is no pair only the tokenizer is read.
    """
    from resispec.models import TransformersTokenizer
    from resispec.models.checkpoint import read_tokenizer

    if not is_pair(target):
        return TransformersTokenizer(read_tokenizer(target)), None
    tokenizer = pair_of(target, None, device, dtype).tokenizer
    config = {} if target == EMBEDDED else _read("pair", target)
    return tokenizer, config.get("prompt_template")


def _read(group: str, name: str) -> dict[str, Any]:
    from omegaconf import OmegaConf

    config: Any = OmegaConf.to_container(OmegaConf.load(CONF / group / f"{name}.yaml"))
    return config


def _configured(group: str, name: str, device: str, dtype: str) -> Any:
    """The object that a file of conf/pair or conf/dataset describes."""
    from hydra.utils import get_method
    from omegaconf import OmegaConf

    config = _read(group, name)
    config = config.get(group, config)  # a file for the whole configuration has its group as a key
    # Left out: any pair that this installation makes will do (fingerprint), no table is printed
    # (label).
    node = {key: value for key, value in config.items() if key not in ("fingerprint", "label")}
    root: Any = OmegaConf.create({group: node, "device": device, "dtype": dtype})
    values = OmegaConf.to_container(root, resolve=True)[group]
    return get_method(values.pop("_target_"))(**values)


def with_tokens(ids: Sequence[int], place: str) -> tuple[int, ...]:
    """Ids of a prompt, at least one.

    Raises InvalidInput, which begins with `place`, for none, and for what is no id.
    """
    return Transcript(tuple(ids), (0,), place=place).prompt_token_ids


def documents(source: str, number: int) -> list[tuple[str, Prompt | tuple[int, ...]]]:
    """The first `number` documents of a source with their places: texts, or ids.

    source: a data set of conf/dataset or of the package, or a .jsonl file, whose rows have a `text`
    or `prompt_token_ids`; so a file of transcripts gives its prompts to another engine. Raises
    InvalidInput for another source, another row (naming file and line), ids that are none, or too
    few documents.
    """
    path, files = Path(source), {file.stem for file in (CONF / "dataset").glob("*.yaml")}
    is_file = source not in files and path.is_file()
    if is_file and isinstance(row := next(json_lines(path), [None])[-1], dict) and IDS in row:
        entries: list[tuple[str, Prompt | tuple[int, ...]]] = []
        for where, _, row in islice(json_lines(path), number):
            if not isinstance(row, dict) or not isinstance(row.get(IDS), list):
                raise InvalidInput(f"{path}, {where} has no {IDS}; all rows have them, or none")
            place = f"{path}, {where}"
            entries.append((place, with_tokens(row[IDS], place)))
    else:
        if source in files:
            dataset = _configured("dataset", source, "cpu", "float32")
        elif source in NAMES:
            dataset = EmbeddedDataset(source)
        elif source.endswith(".jsonl"):
            dataset = JsonlDataset(source)
        else:
            names = ", ".join(sorted(files.union(NAMES)))
            raise InvalidInput(f"unknown prompts {source!r}; allowed: {names}, or a .jsonl file")
        entries = [(f"document {prompt.id}", prompt) for prompt in dataset.prompts(number)]
    if len(entries) < number:
        raise InvalidInput(f"{number} prompts were asked for and {path} has {len(entries)}")
    return entries
