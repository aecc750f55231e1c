"""Run one cell, in a process of its own; the runner has written FOLDER/cell.json.

Writes rows.jsonl (one line a prompt, in order), provenance.json and status.json. A cell that was stopped goes on after the
prompts that it has.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from pathlib import Path
from typing import Any

import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from tqdm import tqdm

from experiments.provenance import provenance
from experiments.tasks import Context, Task
from resispec.decode import Decoder, Sampling
from resispec.errors import InvalidInput, first_line
from resispec.models import Pair, Tokenizer
from resispec.record import RowLog, write_json, write_status


def main(folder: Path) -> int:
    """Run the cell of a folder; the exit code is 0 only when it is complete."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    started = time.perf_counter()
    try:
        run(folder)
    except Exception as error:  # noqa: BLE001 - whatever happened is recorded as the cell's reason, and the sweep goes on
        reason = (
            first_line(error)
            if isinstance(error, InvalidInput)
            else f"{type(error).__name__}: {first_line(error)}"
        )
        (folder / "log.txt").write_text(traceback.format_exc(), encoding="utf-8")
        write_status(folder, "failed", reason, time.perf_counter() - started)
        return 1
    write_status(folder, "done", "", time.perf_counter() - started)
    return 0


def build(node: Any) -> Any:
    """Instantiate a node of the configuration. What is wrong with the user's input is raised as such, not as Hydra wraps it."""
    try:
        return instantiate(node)
    except InstantiationException as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, InvalidInput):
            cause = cause.__cause__
        raise cause or error from error


def encode(tokenizer: Tokenizer, text: str, num_tokens: int, template: str | None) -> list[int]:
    """A document's first tokens; with a template, the template around those, special tokens not counted and never cut off.

    template: a text with {text} where the document stands; the tokenizer adds the special tokens that the model expects.
    Raises InvalidInput for a template without {text}.
    """
    if template is None:
        return tokenizer.encode(text)[:num_tokens]
    if "{text}" not in template:
        raise InvalidInput(f"prompt_template needs {{text}} where the document stands; found {template!r}")
    return tokenizer.encode(template.replace("{text}", tokenizer.beginning(text, num_tokens)))


def run(folder: Path) -> None:
    """Measure and record every prompt of the cell."""
    cell = json.loads((folder / "cell.json").read_text(encoding="utf-8"))
    config = cell["config"]
    if config["num_threads"] is not None:
        torch.set_num_threads(config["num_threads"])
    sampling = Sampling(temperature=config["temperature"], **config["sampling"])
    decoder: Decoder = build(config["decoder"])
    first = config["first_prompt"]
    prompts = build(config["dataset"]).prompts(first + config["num_prompts"])[first:]
    pair: Pair = build(config["pair"])
    length, template = config["prompt_tokens"], config["prompt_template"]
    encoded = [(prompt.id, encode(pair.tokenizer, prompt.text, length, template)) for prompt in prompts]
    for _, tokens in encoded:
        decoder.check(pair, len(tokens), sampling)
    write_json(folder / "provenance.json", provenance(pair.target.device))

    task: Task = build(config["task"])
    context = Context(pair, decoder, sampling, encoded, config["seed"])
    log = RowLog(folder / "rows.jsonl")
    if len(log.rows) < len(encoded):
        for index in range(config["warmup_prompts"]):
            task(context, index % len(encoded))
    bar = tqdm(
        range(len(encoded)), desc=cell["title"], unit="prompt", initial=len(log.rows), dynamic_ncols=True
    )
    for index in range(len(log.rows), len(encoded)):
        log.append(task(context, index))
        bar.set_postfix(task.progress(log.rows), refresh=False)
        bar.update()
    bar.close()
    log.finish(len(encoded))
