"""Run one cell in a process of its own: `python -m experiments.worker FOLDER`, with FOLDER/cell.json written by the runner.

Writes rows.jsonl (one line a prompt, in order), provenance.json and status.json. A cell that was stopped goes on after the
prompts that it has.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch
from hydra.utils import instantiate
from tqdm import tqdm

from experiments.provenance import provenance
from resispec.decode import Decoder, Sampling
from resispec.errors import InvalidInput, first_line
from resispec.models import Pair
from resispec.record import PromptRow, RowLog, write_json, write_status


def main() -> int:
    """Run the cell of the folder on the command line; the exit code is 0 only when it is complete."""
    folder = Path(sys.argv[1])
    started = time.perf_counter()
    try:
        run(folder)
    except Exception as error:  # noqa: BLE001 - whatever happened is recorded as the cell's reason, and the sweep goes on
        reason = first_line(error) if isinstance(error, InvalidInput) else f"{type(error).__name__}: {first_line(error)}"
        (folder / "log.txt").write_text(traceback.format_exc(), encoding="utf-8")
        write_status(folder, "failed", reason, time.perf_counter() - started)
        return 1
    write_status(folder, "done", "", time.perf_counter() - started)
    return 0


def run(folder: Path) -> None:
    """Decode and record every prompt of the cell."""
    cell = json.loads((folder / "cell.json").read_text(encoding="utf-8"))
    config = cell["config"]
    if config["num_threads"] is not None:
        torch.set_num_threads(config["num_threads"])
    sampling = Sampling(temperature=config["temperature"], **config["sampling"])
    decoder: Decoder = instantiate(config["decoder"])
    prompts = instantiate(config["dataset"]).prompts(config["num_prompts"])
    pair: Pair = instantiate(config["pair"])
    encoded = [(prompt.id, pair.tokenizer.encode(prompt.text)[: config["prompt_tokens"]]) for prompt in prompts]
    for _, tokens in encoded:
        decoder.check(pair, len(tokens), sampling)
    write_json(folder / "provenance.json", provenance(pair.target.device))

    def decode(index: int) -> PromptRow:
        prompt_id, tokens = encoded[index]
        seed = config["seed"] + index
        generator = torch.Generator(pair.target.device).manual_seed(seed)
        generation = decoder.generate(pair, tokens, sampling, generator)
        return PromptRow.of(index, prompt_id, seed, len(tokens), generation)

    log = RowLog(folder / "rows.jsonl")
    if len(log.rows) < len(encoded):
        for index in range(config["warmup_prompts"]):
            decode(index % len(encoded))
    bar = tqdm(range(len(encoded)), desc=cell["title"], unit="prompt", initial=len(log.rows), dynamic_ncols=True)
    for index in range(len(log.rows), len(encoded)):
        log.append(decode(index))
        bar.set_postfix(accepted_length=f"{accepted_length(log.rows):.2f}", refresh=False)
        bar.update()
    bar.close()
    log.finish()


def accepted_length(rows: list[dict[str, Any]]) -> float:
    """Tokens emitted per step over all rows."""
    return float(sum(row["num_emitted"] for row in rows) / sum(row["num_steps"] for row in rows))


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main())
