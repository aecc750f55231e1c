"""Train an EAGLE drafter for a Llama target: `python -m recipes.train_eagle output=FOLDER`.

recipe=eagle3 trains EAGLE-3 drafters. Of the pair only the target is used. Documents, from
`first_prompt` on, are encoded as prompts are, template included, and cut to `document_tokens`
tokens. The drafter is saved in the published layout: give the folder as pair.draft of a pair with
an EAGLE drafter. A stopped training goes on from its last checkpoint with the same command; another
recipe, target or text is refused, and so is the folder of a model that no training left there. See
`--help`.
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING
from pydantic import TypeAdapter, ValidationError

from experiments.cell import build, prompts_of
from experiments.cli import Point, run_single
from experiments.schema import RunConfig, check_values
from recipes.training.recipe import Eagle3Recipe, EagleRecipe
from resispec.errors import InvalidInput
from resispec.files import check_apart, locked
from resispec.kept import CHECKPOINT

RECIPES = {f"{kind.__module__}.{kind.__name__}": kind for kind in (EagleRecipe, Eagle3Recipe)}
"""Classes of recipes by the name that a configuration gives."""
FEWEST_TOKENS = 3  # a step reads two tokens and learns to predict the third


@dataclass
class TrainEagleConfig(RunConfig):
    """The configuration of a training: see conf/train_eagle.yaml."""

    output: str = MISSING
    documents: int = MISSING
    document_tokens: int = MISSING
    recipe: dict[str, Any] = field(default_factory=dict)


ConfigStore.instance().store(name="train_eagle_schema", node=TrainEagleConfig)


def run_training(point: Point) -> None:
    """Check the configuration, train, and say where the drafter is. Raises InvalidInput."""
    config = point.values
    recipe = checked(config)
    import torch  # takes seconds; wrong input was refused before

    from recipes.training.drafters import Sequences, new_training

    if config["num_threads"] is not None:
        torch.set_num_threads(config["num_threads"])
    first, length = config["first_prompt"], config["document_tokens"]
    prompts = prompts_of(config | {"num_prompts": config["documents"]})
    pair = build(config["pair"])
    if length > pair.target.context:
        raise InvalidInput(
            f"document_tokens is {length}; the target has {pair.target.context} positions"
        )
    if first < config["num_prompts"]:
        sys.stderr.write(
            f"note: sweeps of this profile measure documents up to {config['num_prompts']} of a "
            "data set; what is measured on texts of the training says little, so leave them out "
            f"with first_prompt={config['num_prompts']}, or measure on another data set\n"
        )
    encoded = (
        pair.tokenizer.encode_prompt(prompt, length, config["prompt_template"])
        for prompt in prompts
    )
    tokens = [sequence for sequence in encoded if len(sequence) >= FEWEST_TOKENS]
    if len(tokens) < len(prompts):
        sys.stderr.write(
            f"note: {len(prompts) - len(tokens)} of {len(prompts)} documents have fewer than "
            f"{FEWEST_TOKENS} tokens and are left out\n"
        )
    sequences = Sequences(tokens, torch.ones(len(tokens)))
    train(new_training(pair.target.module, sequences, recipe), Path(config["output"]))
    sys.stdout.write(f"written: {config['output']}\n")


def checked(config: dict[str, Any]) -> EagleRecipe | Eagle3Recipe:
    """The recipe of a configuration whose values are all in range.

    The draft is taken out of the pair, since it is not used. Raises InvalidInput for the first
    value that is missing or wrong.
    """
    # Without its draft it is no longer the pair that its fingerprint names.
    config["pair"] |= {name: None for name in ("draft", "fingerprint") if name in config["pair"]}
    check_values(config)
    check_apart(Path(config["output"]), [Path(str(config["pair"].get("target")))])
    _check_output(Path(config["output"]))
    for name, least in {"documents": 1, "document_tokens": FEWEST_TOKENS}.items():
        if config[name] < least:
            raise InvalidInput(f"{name} is {config[name]}; allowed: from {least}")
    values = dict(config["recipe"] or {})
    name = values.pop("_target_", None)
    if name not in RECIPES:
        raise InvalidInput(
            f"recipe is a {name}; allowed: {', '.join(RECIPES)} (recipe=eagle, eagle3)"
        )
    try:
        return TypeAdapter(RECIPES[name]).validate_python(values)
    except ValidationError as error:
        [first, *_] = error.errors()
        if cause := first.get("ctx", {}).get("error"):  # an error of the recipe itself
            raise InvalidInput(f"recipe: {cause}") from error
        key = ".".join(["recipe", *map(str, first["loc"])])
        raise InvalidInput(f"{key}: {first['msg']}; found {first['input']!r}") from error


def _check_output(output: Path) -> None:
    """Raise InvalidInput for a folder with a model that no training of this command left there."""
    patterns = ("config.json", "*.safetensors", "*.bin")
    models = [path.name for pattern in patterns for path in sorted(output.glob(pattern))]
    if models and not (output / CHECKPOINT).is_file():
        raise InvalidInput(
            f"output={output} holds {models[0]}, and no {CHECKPOINT} of a training that goes on; "
            "allowed: a folder without a model"
        )


def train(training: Any, folder: Path) -> None:
    """Train from the folder's checkpoint, if any, to the last step; write the drafter beside it.

    Raises InvalidInput when another process trains there, and as `Training.run`.
    """
    from resispec.models import save_eagle

    folder.mkdir(parents=True, exist_ok=True)
    try:
        with locked(folder / ".lock"):
            training.run(str(folder), folder / CHECKPOINT)
            save_eagle(training.module, folder)
    except TimeoutError as error:
        raise InvalidInput(f"output={folder}: another process is training there") from error


if __name__ == "__main__":
    sys.exit(run_single(run_training, "train_eagle"))
