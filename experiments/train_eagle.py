"""Train an EAGLE drafter for a Llama target: `python -m experiments.train_eagle --output FOLDER [OPTIONS] OVERRIDES...`.

    python -m experiments.train_eagle --output drafter pair=llama2_7b__jf68m profile=paper dataset=jsonl dataset.path=text.jsonl

OVERRIDES are those of experiments.run: the pair (of which only the target is used), the data set, the device. Documents are
encoded as prompts are, template included, and cut to --context tokens. The drafter is saved in the published layout: give the
folder as pair.draft of a pair with an EAGLE drafter. A stopped training goes on from its last checkpoint with the same command.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from experiments.cells import plan
from experiments.worker import build, encode
from resispec.training.recipe import EagleRecipe
from resispec.training.eagle import EagleTraining, Sequences, new_drafter
from resispec.errors import InvalidInput
from resispec.models import Pair, save_eagle
from resispec.record import replacing

CHECKPOINT = "checkpoint.pt"


def prepare(config: dict[str, Any], num_documents: int, context: int) -> tuple[Pair, Sequences]:
    """The target and the training text of a cell's configuration. Raises InvalidInput when there is too little of it."""
    node = config["pair"] | ({"draft": None} if "draft" in config["pair"] else {})
    documents = build(config["dataset"]).prompts(num_documents)
    pair: Pair = build(node)
    if context > pair.target.context:
        raise InvalidInput(f"a context of {context} tokens; the target has {pair.target.context} positions")
    encoded = (
        encode(pair.tokenizer, document.text, context, config["prompt_template"]) for document in documents
    )
    return pair, Sequences([tokens for tokens in encoded if len(tokens) > 2])


def train(training: EagleTraining, steps: int, folder: Path, save_every: int) -> None:
    """Go on from the folder's checkpoint, if there is one, to the last step; write the drafter beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = folder / CHECKPOINT
    if checkpoint.exists():
        training.restore(torch.load(checkpoint, map_location="cpu", weights_only=True))
    bar = tqdm(range(steps), desc="EAGLE drafter", unit="step", initial=training.done, dynamic_ncols=True)
    while training.done < steps:
        feature, law = training.step()
        if training.done % save_every == 0 or training.done == steps:
            with replacing(checkpoint) as partial:
                torch.save(training.state(), partial)
        bar.set_postfix(feature=f"{feature:.3f}", law=f"{law:.2f}", refresh=False)
        bar.update()
    bar.close()
    save_eagle(training.module, folder)


def main(arguments: list[str]) -> int:
    """Train, and say where the drafter is; 1 when the input is invalid."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, help="folder of the drafter and its checkpoint")
    parser.add_argument("--documents", type=int, default=1000, help="documents of the data set")
    parser.add_argument("--context", type=int, default=2048, help="tokens of a document")
    parser.add_argument("--save-every", type=int, default=500, help="steps between checkpoints")
    for field in dataclasses.fields(EagleRecipe):
        parser.add_argument(
            f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default
        )
    parser.add_argument("overrides", nargs="*", help="as for experiments.run")
    chosen = parser.parse_args(arguments)
    try:
        recipe = EagleRecipe(
            **{field.name: getattr(chosen, field.name) for field in dataclasses.fields(EagleRecipe)}
        )
        config = plan(chosen.overrides)[0].config
        if config["num_threads"] is not None:
            torch.set_num_threads(config["num_threads"])
        pair, sequences = prepare(config, chosen.documents, chosen.context)
        target: Any = pair.target
        training = EagleTraining(target.module, new_drafter(target.module, recipe.seed), sequences, recipe)
        train(training, recipe.steps, chosen.output, chosen.save_every)
    except InvalidInput as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write(f"written: {chosen.output}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
