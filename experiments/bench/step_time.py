"""Time one step at real shapes with random weights: `python -m experiments.bench.step_time [--device cuda]`.

Llama-2-7B and Llama-68M shapes in bfloat16, d5b3, batch size 1, against the time in which the device reads
the target's weights once. Random weights give true timings and meaningless text: accepted lengths are not
reported, only milliseconds.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, replace

import pandas as pd
import torch

from analysis.report import Table, markdown, plain
from experiments.bench.options import Options, count, write_page
from experiments.provenance import device_name, device_stem
from resispec.decode import Decoder, Sampling, Step
from resispec.drafters import Drafter, DraftModel, NoDraft
from resispec.embedded.shapes import LLAMA_2_7B, LLAMA_68M, Shape
from resispec.files import write_json
from resispec.models import Pair, TransformersModel, build_llama
from resispec.timing import OuterStopwatch, now
from resispec.trees import complete
from resispec.verifiers import get_verifier

PARTS = {
    "draft, ms": "draft_ms",
    "target forward, ms": "target_ms",
    "verify, ms": "verify_ms",
    "commit, ms": "commit_ms",
}
VERIFIERS = ("standard", "resispec", "optimal", "traversal", "traversal_optimal", "level_optimal")
PROMPT_TOKENS = 128
SAMPLING = Sampling(temperature=1.0, max_new_tokens=128, max_length=512, ignore_eos=True)


class NoTokenizer:
    """Random weights speak no language."""

    eos_token_id = None

    def encode(self, text: str) -> list[int]:
        """Nothing to encode."""
        raise NotImplementedError

    def decode(self, token_ids: list[int]) -> str:
        """Nothing to decode."""
        raise NotImplementedError


def random_model(shape: Shape, device: torch.device) -> TransformersModel:
    """A model of the given shape, initialised on the device in bfloat16."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with device:
            return TransformersModel(build_llama(**asdict(shape)))
    finally:
        torch.set_default_dtype(before)


def weight_bytes(model: TransformersModel) -> int:
    """Bytes of what a step reads: every parameter but the embedding table, of which it gathers few rows."""
    parameters = model.module.named_parameters()
    return sum(
        value.numel() * value.element_size() for name, value in parameters if "embed_tokens" not in name
    )


def copy_rate(device: torch.device) -> float:
    """Bytes per second, read and written, of a copy within the device's memory."""
    source = torch.empty(2**31 if device.type == "cuda" else 2**27, dtype=torch.uint8, device=device)
    target, seconds = torch.empty_like(source), []
    for _ in range(8):
        started = now(device)
        target.copy_(source)
        seconds.append(now(device) - started)
    return 2 * source.numel() / statistics.median(seconds)


def time_steps(pair: Pair, drafter: Drafter, verifier: str) -> dict[str, float]:
    """Median milliseconds of a step, and the split of another run that synchronises inside of steps."""
    device = pair.target.device
    decoder = Decoder(drafter, get_verifier(verifier))
    prompt = torch.randint(32000, (PROMPT_TOKENS,), generator=torch.Generator().manual_seed(0)).tolist()
    marks: list[float] = []

    def mark(_step: Step) -> None:
        marks.append(now(device))

    for _ in range(2):  # the first run warms up
        marks.clear()
        decoder.generate(pair, prompt, SAMPLING, torch.Generator(device).manual_seed(1), on_step=mark)
    watch = OuterStopwatch(device)
    result = decoder.generate(pair, prompt, SAMPLING, torch.Generator(device).manual_seed(1), stopwatch=watch)
    steps = [1e3 * (after - before) for before, after in zip(marks, marks[1:], strict=False)]
    split = {f"{name}_ms": 1e3 * seconds / len(result.num_emitted) for name, seconds in watch.seconds.items()}
    return {"step_ms": statistics.median(steps), "num_steps": len(steps), **split}


def table_of(rows: Mapping[str, Mapping[str, float]], read_ms: float) -> Table:
    """A row for every decoder. read_ms: milliseconds in which the target's weights are read once."""
    frame = pd.DataFrame(
        {
            "decoder": list(rows),
            "step, ms": [row["step_ms"] for row in rows.values()],
            "steps' ratio to one read of the weights": [row["step_ms"] / read_ms for row in rows.values()],
            **{title: [row[name] for row in rows.values()] for title, name in PARTS.items()},
        }
    )
    return plain("step_time", frame, "Timing only: a step at Llama-2-7B + Llama-68M sizes.")


def page(rows: Mapping[str, Mapping[str, float]], weights_gb: float, rate_tb: float, source: str) -> str:
    """The figures for people. source: on what and with what they were measured."""
    read_ms = weights_gb / rate_tb
    reads = (
        f"To read the target's {weights_gb:.2f} GB of weights once takes **{read_ms:.2f} ms** at the "
        f"measured copy rate of {rate_tb:.2f} TB/s (bytes read plus bytes written)."
    )
    meaning = (
        "The text is noise, so accepted lengths mean nothing here. The step is timed whole; the split comes "
        "from a second run that synchronises the device after every part."
    )
    return "\n".join([markdown(table_of(rows, read_ms)), reads, "", source, "", meaning, ""])


def main() -> None:
    """Measure, print, and write results/timing/step_time_DEVICE.{json,md}."""
    parser = Options(__doc__, "cuda")
    parser.add_argument(
        "--layers", type=count, default=32, help="layers of the target; fewer for a quick look"
    )
    options = parser.parse_args()
    device = torch.device(options.device)
    target = random_model(replace(LLAMA_2_7B, num_hidden_layers=options.layers), device)
    pair = Pair(target, random_model(LLAMA_68M, device), NoTokenizer())
    weights_gb, rate_tb = weight_bytes(target) / 1e9, copy_rate(device) / 1e12
    rows = {"autoregressive": time_steps(pair, NoDraft(), "standard")}
    for name in VERIFIERS:
        rows[f"specinfer d5b3, {name}"] = time_steps(pair, DraftModel(complete(5, 3)), name)
    source = (
        f"`python -m experiments.bench.step_time` on {device_name(device)}: random bfloat16 weights "
        f"({options.layers} target layers), batch size 1, {PROMPT_TOKENS} prompt tokens, torch "
        f"{torch.__version__}."
    )
    text = page(rows, weights_gb, rate_tb, source)
    stem = options.results / "timing" / f"step_time_{device_stem(device)}"  # costs are in DEVICE.json
    stem.parent.mkdir(parents=True, exist_ok=True)
    facts = {"device": device_name(device), "weights_read_ms": weights_gb / rate_tb, "decoders": rows}
    write_json(stem.with_suffix(".json"), facts)
    write_page(stem, text)


if __name__ == "__main__":
    main()
