"""llama.cpp beside this loop on SmolLM2: `python docs/studies/llama_cpp.py`, with the extra `engines`.

Tokens a second at temperature 1 without filters on HumanEval's problems, which all decode in turn. llama.cpp
has the packaged Q4_1 file, whose weights take a third of those in bfloat16 and whose products it rounds to 8
bits, and the same weights in float32; alone, and with the distilled draft, five tokens a step. This loop has
bfloat16: one token at a time, and what `tree=fastest` found for each pair, where its file is.
"""

import tempfile
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pandas as pd
import torch
from tqdm import tqdm

from analysis.table import plain
from experiments.bench.frame import Measured, run_bench
from experiments.configurations import ONE_TOKEN, Configuration, load
from experiments.grid import cells_of
from experiments.provenance import device_name
from experiments.worker import load_workload
from referee.engines.llama_cpp import LlamaCppEngine
from resispec.decode import Sampling
from resispec.models import Pair
from resispec.packages import fetched
from resispec.smollm2 import load_eagle_pair, load_pair
from resispec.smollm2.recipe import SMOLLM2
from resispec.timing import now

SAMPLING = Sampling(temperature=1.0, max_new_tokens=64)
PROFILE = "smollm2_bfloat16"
PAIRS = {"smollm2": load_pair, "smollm2_eagle3": load_eagle_pair}
CPU = torch.device("cpu")
Decode = Callable[[list[int], int], int]
"""Decodes a prompt, with a seed, and says how many tokens it emitted."""


def ours(pair: Pair, configuration: Configuration) -> Decode:
    """This loop."""
    decoder = configuration.decoder

    def decode(prompt: list[int], seed: int) -> int:
        return len(decoder.generate(pair, prompt, SAMPLING, torch.Generator().manual_seed(seed)).tokens)

    return decode


def theirs(engine: LlamaCppEngine) -> Decode:
    """llama.cpp."""
    return lambda prompt, seed: len(engine.answer(prompt, SAMPLING, seed).tokens)


def ways(pair: Pair, folder: Path, results: Path) -> dict[str, Decode]:
    """All that decode. pair: in bfloat16. folder: for the GGUF files."""
    found = {"this loop, one token at a time": ours(pair, ONE_TOKEN)}
    for name, loaded in PAIRS.items():
        if (path := results / PROFILE / "growmap" / f"{name}.cpu.T1.0.fastest.json").is_file():
            found[f"this loop, tree=fastest of {name}"] = ours(loaded(dtype="bfloat16"), load(path).fastest)
    engine, file = partial(LlamaCppEngine, load_pair(), folder), fetched(SMOLLM2)
    for name, given in {"Q4_1": {"file": file}, "float32": {}}.items():
        found[f"llama.cpp, {name}"] = theirs(engine(**given))
        found[f"llama.cpp, {name}, with the draft"] = theirs(engine(mode="assisted", **given))
    return found


def measure(options: Namespace) -> Measured:
    """A row for every way of decoding."""
    asked = (f"profile={PROFILE}", "dataset=humaneval", "pair=smollm2", "decoder=autoregressive")
    [cell] = cells_of([*asked, f"num_prompts={options.prompts}"])
    workload = load_workload(cell.config)
    with tempfile.TemporaryDirectory() as folder:
        named = ways(workload.pair, Path(folder), options.results)
        spent = {name: [0.0, 0.0] for name in named}  # tokens and seconds
        for turn in tqdm(range(-1, options.prompts), desc="llama.cpp", unit="prompt"):
            _, prompt = workload.prompts[max(turn, 0)]
            for place in torch.randperm(len(named), generator=workload.generator(turn + 1)).tolist():
                name, started = list(named)[place], now(CPU)
                measured = named[name](prompt, turn + 1), now(CPU) - started
                if turn >= 0:  # the first prompt warms up
                    spent[name] = [old + new for old, new in zip(spent[name], measured, strict=True)]
    frame = pd.DataFrame(
        {"decoder": named, "tokens/s": [count / seconds for count, seconds in spent.values()]}
    )
    frame["ratio"] = frame["tokens/s"] / frame["tokens/s"][0]
    source = (
        f"`python docs/studies/llama_cpp.py` on {device_name(CPU)}, {torch.get_num_threads()} threads, "
        f"{options.prompts} prompts of up to {SAMPLING.max_new_tokens} new tokens, their forwards included."
    )
    table = plain("bench_llama_cpp", frame, "Tokens a second on SmolLM2.", specs={"tokens/s": ".0f"})
    return [table], [source], frame


if __name__ == "__main__":
    run_bench("bench_llama_cpp", __doc__, measure, None, "timing", prompts=(12, "number of prompts"))
