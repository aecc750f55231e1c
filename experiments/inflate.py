"""Write a pair in a larger shape: `python -m experiments.inflate shape=NAME output=FOLDER`; see `--help`.

    python -m experiments.inflate pair=embedded shape=llama2_7b__jf68m dtype=bfloat16 output=inflated

Both models of the pair, which must be Llamas, are made to the sizes of `shape` with the laws that they have:
see `resispec.models.inflate`. The folders `target` and `draft` can be opened by everything that reads models
of transformers, so that other engines can be timed at their real cost and real acceptance, too. Each says in
its config.json and its README.md that it is inflated, and how far its laws are from the small model's.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf

from experiments.configuration.schema import RunConfig, check_values
from experiments.configuration.single import run_single
from resispec.embedded.shapes import find_shape
from resispec.errors import InvalidInput

if TYPE_CHECKING:
    from resispec.models import Pair

COMPARED_TOKENS = 32
ROLES = ("target", "draft")
CARD = """---
library_name: transformers
tags: [inflated, synthetic, timing]
---
# An inflated {role}: {millions} million parameters, the text of a model of {small_millions} million

This is no language model of its size. It computes the law of a Llama with hidden size {small_hidden}, the
{role} of the pair `{pair}`, at the cost of the {role} of the shape `{shape}`: what was added costs time and
changes no logit. Times, accepted lengths and audits of decoding are true for it; what it writes is what the
small model writes, and its positions end at {context}, where those of the small model end.

Over {tokens} random tokens its laws in {dtype} are within a total variation of {gap:.1e} of the small
model's in float32. Tokens from {known} to {vocabulary} pad the vocabulary: their mass is 0, and they are read
as token id mod {known}.

Made by: `python -m experiments.inflate pair={pair} shape={shape} dtype={dtype}`.
"""


@dataclass
class InflateConfig(RunConfig):
    """What is inflated to what: see conf/inflate.yaml."""

    shape: str = MISSING
    output: str = MISSING


ConfigStore.instance().store(name="inflate_schema", node=InflateConfig)


def run_inflating(composed: DictConfig) -> None:
    """Check the configuration, write both models, and say where they are. Raises InvalidInput."""
    config: Any = OmegaConf.to_container(composed, resolve=True)
    for name in ("shape", "output"):
        if config[name] == "???":
            raise InvalidInput(f"{name} must be given, like {name}={name.upper()}")
    find_shape(config["shape"])
    check_values(config)
    output = Path(config["output"])
    if output.exists():
        raise InvalidInput(f"output is {config['output']!r}, which exists; allowed: a new folder")
    # What follows imports torch, which takes seconds; wrong input was refused before.
    from experiments.configuration.build import build
    from resispec.models import check_device

    check_device(config["device"])
    # In float32, so that every number is rounded once, to the precision that is written.
    small: Pair = build(config["pair"] | {"device": "cpu", "dtype": "float32"})
    with _new_folder(output) as folder:
        written = _write(small, config, folder)
    sys.stdout.write(f"written: {config['output']}, inflated: {'; '.join(written)}\n")


def _write(small: Pair, config: Mapping[str, Any], folder: Path) -> list[str]:
    """Make, compare and write one model after the other; say of each what it is. Shows one progress bar."""
    import torch
    from tqdm import tqdm

    from resispec.files import write_atomically
    from resispec.models.causal import find_dtype
    from resispec.models.inflate import distance, inflate

    models: tuple[Any, Any] = (small.target, small.draft_model())
    tokenizer: Any = small.tokenizer
    shapes, said = asdict(find_shape(config["shape"])), []
    with tqdm(total=3 * len(ROLES), unit="stage", dynamic_ncols=True) as bar:

        def stage(text: str) -> None:
            bar.set_description(f"inflating to {config['shape']}: {text}")

        for seed, (role, model) in enumerate(zip(ROLES, models, strict=True)):
            stage(f"{role}, making")
            device, dtype = torch.device(config["device"]), find_dtype(config["dtype"])
            large = inflate(model.module, shapes[role], device, dtype, seed)
            bar.update()
            stage(f"{role}, comparing")
            generator = torch.Generator().manual_seed(seed)
            tokens = torch.randint(model.vocab_size, (COMPARED_TOKENS,), generator=generator)
            gap = distance(model.module, large, tokens)
            bar.update()
            stage(f"{role}, writing")
            large.save_pretrained(folder / role)
            tokenizer.inner.save_pretrained(folder / role)
            write_atomically(folder / role / "README.md", _card(role, model.module, large, config, gap))
            bar.update()
            said.append(
                f"{role} of {_millions(large)} million parameters with the laws of one of "
                f"{_millions(model.module)} million, within a total variation of {gap:.1e}"
            )
    return said


def _card(role: str, small: Any, large: Any, config: Mapping[str, Any], gap: float) -> str:
    """The README.md of a model's folder. gap: what `distance` found."""
    return CARD.format(
        role=role,
        pair=config["names"]["pair"],
        shape=config["shape"],
        dtype=config["dtype"],
        gap=gap,
        tokens=COMPARED_TOKENS,
        millions=_millions(large),
        small_millions=_millions(small),
        small_hidden=small.config.hidden_size,
        known=small.config.vocab_size,
        vocabulary=large.config.vocab_size - 1,
        context=large.config.max_position_embeddings,
    )


def _millions(model: Any) -> str:
    """Parameters in millions, in three digits or more."""
    count = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    return f"{count:.0f}" if count >= 100 else f"{count:.3g}"


@contextmanager
def _new_folder(path: Path) -> Iterator[Path]:
    """Give a folder to fill, which becomes `path` when the block ends well and goes away otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield partial
        partial.chmod(0o755)  # mkdtemp's folders are private
        partial.rename(path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


if __name__ == "__main__":
    sys.exit(run_single(run_inflating, "inflate", {}))
