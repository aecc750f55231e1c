"""Write a pair in a larger shape: `python -m recipes.inflate shape=NAME output=FOLDER`.

Both models of the pair, which must be Llamas, are enlarged to the sizes of `shape` and keep their
laws, see `resispec.models.inflate`. The folders `target` and `draft` can be opened by everything
that reads models of transformers, so that other engines can be timed at their real cost and real
acceptance, too. Each model says in its config.json and its README.md that it is inflated, and how
far its laws are from the small one's. See `--help`.
"""

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from experiments.cell import build
from experiments.cli import Point, run_single
from experiments.schema import RunConfig, check_values
from resispec.embedded.shapes import find_shape
from resispec.errors import InvalidInput

COMPARED_TOKENS = 32
CARD = """---
library_name: transformers
tags: [inflated, synthetic, timing]
---
# An inflated {role}: {millions} million parameters, the text of a model of {small_millions} million

This is no language model of its size. It computes the law of a Llama with hidden size
{small_hidden}, the {role} of the pair `{pair}`, at the cost of the {role} of the shape `{shape}`:
what was added costs time and changes no logit. Times, accepted lengths and audits of decoding are
true for it; what it writes is what the small model writes, and its positions end at {context},
where those of the small model end.

Over {tokens} random tokens its laws in {dtype} are within a total variation of {gap:.1e} of the
small model's in float32. Tokens from {known} to {last_token} pad the vocabulary: their mass is 0,
and they are read as token id mod {known}.

Made by: `python -m recipes.inflate pair={pair} shape={shape} dtype={dtype}`.
"""
SENTENCE = (
    "{role} of {millions} million parameters with the laws of one of {small_millions} million, "
    "within a total variation of {gap:.1e}"
)


@dataclass
class InflateConfig(RunConfig):
    """The configuration of an inflated pair: see conf/inflate.yaml."""

    shape: str = MISSING
    output: str = MISSING


ConfigStore.instance().store(name="inflate_schema", node=InflateConfig)


def run_inflating(point: Point) -> None:
    """Check the configuration, write both models, and say where they are. Raises InvalidInput."""
    config = point.values
    check_values(config)
    shapes = asdict(find_shape(config["shape"]))
    output = Path(config["output"])
    if output.exists():
        raise InvalidInput(f"output is {config['output']!r}, which exists; allowed: a new folder")
    # These import torch, which takes seconds; wrong input was refused before.
    from resispec.models import check_device
    from resispec.progress import progress_bar

    check_device(config["device"])
    # In float32, so that every number is rounded once, to the precision that is written.
    small = build(config["pair"] | {"device": "cpu", "dtype": "float32"})
    models = {"target": small.target, "draft": small.draft_model()}
    output.parent.mkdir(parents=True, exist_ok=True)
    sentences = []
    with (
        TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as partial,
        progress_bar(
            total=len(models), unit="model", desc=f"inflating to {config['shape']}"
        ) as bar,
    ):
        folder = Path(partial) / "pair"
        for seed, (role, model) in enumerate(models.items()):
            sentences.append(write_inflated(model, role, shapes[role], seed, point, folder / role))
            small.tokenizer.inner.save_pretrained(folder / role)
            bar.update()
        folder.rename(output)
    sys.stdout.write(f"written: {config['output']}, inflated: {'; '.join(sentences)}\n")


def write_inflated(
    small: Any,
    role: str,
    sizes: Mapping[str, int],
    seed: int,
    point: Point,
    folder: Path,
) -> str:
    """Write a model in other sizes, and its card; returns a sentence about it."""
    import torch

    from resispec.models.checkpoint import find_dtype
    from resispec.models.inflate import distance, inflate

    config = point.values
    large = inflate(
        small.module, sizes, torch.device(config["device"]), find_dtype(config["dtype"]), seed
    )
    large.save_pretrained(folder)
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(small.vocab_size, (COMPARED_TOKENS,), generator=generator)
    facts = {
        "role": role,
        "pair": point.choices["pair"],
        "shape": config["shape"],
        "dtype": config["dtype"],
        "gap": distance(small.module, large, tokens),
        "tokens": COMPARED_TOKENS,
        "millions": _millions(large),
        "small_millions": _millions(small.module),
        "small_hidden": small.module.config.hidden_size,
        "known": small.module.config.vocab_size,
        "last_token": large.config.vocab_size - 1,
        "context": large.config.max_position_embeddings,
    }
    (folder / "README.md").write_text(CARD.format(**facts), encoding="utf-8")
    return SENTENCE.format(**facts)


def _millions(model: Any) -> str:
    """Parameters in millions, in three digits or more."""
    count = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    return f"{count:.0f}" if count >= 100 else f"{count:.3g}"


if __name__ == "__main__":
    sys.exit(run_single(run_inflating, "inflate", ()))
