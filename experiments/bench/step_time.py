"""Time one step at real shapes with random weights: `python -m experiments.bench.step_time
[--device cuda]`.

Shapes of Llama-2-7B and Llama-68M in bfloat16, d5b3, batch size 1, beside the time in which the
device reads the target's weights once. Random weights give true timings and meaningless text:
accepted lengths are not reported, only milliseconds, in results/timing/step_time_DEVICE.{csv,md}.
"""

import statistics
from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import pairwise

import pandas as pd
import torch
from torch import Generator

from analysis.table import plain
from experiments.bench.frame import Measured, origin, run_bench, take_turns
from resispec.decode import Decoder, Generation, Sampling, Step
from resispec.drafters import Drafter, DraftModel, NoDraft
from resispec.embedded.shapes import LLAMA_2_7B, LLAMA_68M, Shape
from resispec.models import Pair, TransformersModel, build_llama
from resispec.timing import Stopwatch, measuring, now
from resispec.trees import complete
from resispec.verifiers import get_verifier

COLUMNS = {
    "step_ms": "step, ms",
    "ratio": "steps' ratio to one read of the weights",
    "draft_ms": "draft, ms",
    "target_ms": "target forward, ms",
    "verify_ms": "verify, ms",
    "commit_ms": "commit, ms",
}
VERIFIERS = ("standard", "resispec", "optimal", "traversal", "traversal_optimal", "level_optimal")
PROMPT_TOKENS = 128
SAMPLING = Sampling(temperature=1.0, max_new_tokens=128, max_length=512, ignore_eos=True)


def random_model(shape: Shape, device: torch.device) -> TransformersModel:
    """A model of the given shape, initialised on the device in bfloat16."""
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    with device:
        model = TransformersModel(build_llama(**asdict(shape)))
    torch.set_default_dtype(dtype)
    return model


def copy_rate(device: torch.device) -> float:
    """Bytes per second, read and written, of a copy within the device's memory."""
    num_bytes = 2**31 if device.type == "cuda" else 2**27
    source = torch.empty(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    times = take_turns("copy", {"copy": [lambda _: target.copy_(source)]}, 8, device)
    return 2e3 * num_bytes / times["copy"]


def time_steps(pair: Pair, drafter: Drafter, verifier: str) -> dict[str, float]:
    """Median milliseconds of a step, and of its parts in another run, which waits after each."""
    device = pair.target.device
    decoder = Decoder(drafter, get_verifier(verifier))
    tokens = torch.randint(32000, (PROMPT_TOKENS,), generator=Generator().manual_seed(0))
    marks, watch = list[float](), Stopwatch(device, looks_inside=False)

    def decode(on_step: Callable[[Step], None] | None = None) -> Generation:
        generator = Generator(device).manual_seed(1)
        return decoder.generate(pair, tokens.tolist(), SAMPLING, generator, on_step)

    decode()  # warms up
    decode(lambda _: marks.append(now(device)))
    with measuring(watch):
        num_steps = len(decode().num_emitted)
    steps = [1e3 * (after - before) for before, after in pairwise(marks)]
    split = {f"{name}_ms": 1e3 * seconds / num_steps for name, seconds in watch.seconds.items()}
    return {"step_ms": statistics.median(steps), "num_steps": len(steps), **split}


def measure(options: Namespace) -> Measured:
    """A row for every decoder."""
    device = options.device
    target = random_model(replace(LLAMA_2_7B, num_hidden_layers=options.layers), device)
    pair = Pair(target, random_model(LLAMA_68M, device), None)
    # A step reads every parameter but the embedding table, of which it gathers few rows.
    named = target.module.named_parameters()
    num_bytes = sum(value.nbytes for name, value in named if "embed_tokens" not in name)
    rate = copy_rate(device)
    read_ms = 1e3 * num_bytes / rate
    rows = {"autoregressive": time_steps(pair, NoDraft(), "standard")}
    for name in VERIFIERS:
        rows[f"specinfer d5b3, {name}"] = time_steps(pair, DraftModel(complete(5, 3)), name)
    frame = pd.DataFrame.from_dict(rows, orient="index").rename_axis("decoder").reset_index()
    frame["ratio"] = frame.step_ms / read_ms
    shown = frame[["decoder", *COLUMNS]].rename(columns=COLUMNS)
    table = plain("step_time", shown, "Timing only: a step at Llama-2-7B + Llama-68M sizes.")
    reads = (
        f"To read the target's {num_bytes / 1e9:.2f} GB of weights once takes **{read_ms:.2f} ms** "
        f"at the measured copy rate of {rate / 1e12:.2f} TB/s (bytes read plus bytes written)."
    )
    source = (
        f"{origin('step_time', device)}: random bfloat16 weights ({options.layers} target layers), "
        f"batch size 1, {PROMPT_TOKENS} prompt tokens."
    )
    meaning = (
        "The text is noise, so accepted lengths mean nothing here. The step is timed whole; the "
        "split comes from a second run that synchronises the device after every part."
    )
    return [table], [reads, source, meaning], frame


if __name__ == "__main__":
    layers = (32, "layers of the target; fewer for a quick look")
    run_bench("step_time", __doc__, measure, device="cuda", folder="timing", layers=layers)
