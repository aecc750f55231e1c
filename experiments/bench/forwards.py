"""A forward split into its matrices and the rest: `python -m experiments.bench.forwards`.

The bodies of the embedded pair, and of a Llama in the shape of SmolLM2-135M with random weights,
forward one and eight positions behind a text: by the modules of transformers with torch's own
linear layers, by these modules with the linear layers that were fastest here, and by the lean body;
beside them the lean body's matrices alone. Calls take turns, and the least time of each counts, so
that other work of the machine hardly does.
"""

import copy
import time
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from analysis.table import plain
from experiments.bench.frame import Measured, run_bench
from experiments.provenance import device_name
from resispec.embedded import load_pair
from resispec.models import TransformersModel, build_llama
from resispec.models.linear import quicken
from resispec.progress import progress_bar

SMOLLM2 = {
    "hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9,
    "num_key_value_heads": 3, "vocab_size": 49_152, "max_position_embeddings": 2048,
}  # fmt: skip
TEXT, CAPACITY, DRAFTED = 100, 176, 16
POSITIONS = (1, 8)
WAYS = ("modules, plain", "modules, quick", "lean", "matrices alone")
PRECISIONS = (torch.float32, torch.bfloat16)


def calls_of(module: Any, positions: int) -> dict[str, Callable[[], object]]:
    """The calls of a forward of some positions, by the names of WAYS."""
    quick = copy.deepcopy(module)
    quicken(quick.base_model)
    lean = TransformersModel(module)
    body = lean.lean_body()
    assert body is not None
    models = (lean.of_modules(), TransformersModel(quick).of_modules(), lean)
    tokens = torch.arange(positions)
    visible = torch.ones(positions, positions, dtype=torch.bool).tril()
    calls: dict[str, Callable[[], object]] = {}
    for name, model in zip(WAYS, models, strict=False):
        session = model.session(CAPACITY, drafted=DRAFTED)
        session.extend(torch.arange(TEXT) % module.config.vocab_size)
        calls[name] = lambda session=session: session.forward(tokens, tokens, visible)
    inputs = {
        width: torch.randn(positions, width).to(module.dtype)
        for width in {product.width for product in body.products}
    }

    @torch.inference_mode()
    def matrices() -> list[Tensor]:
        return [product.of(positions)(inputs[product.width]) for product in body.products]

    return calls | {WAYS[-1]: matrices}


def least_ms(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The least milliseconds of each call; all take turns, round after round."""
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            started = time.perf_counter()
            call()
            least[name] = min(least[name], 1e3 * (time.perf_counter() - started))
    return least


def measure(options: Namespace) -> Measured:
    """A row for each model, precision and number of positions."""
    pair = load_pair()
    rows = []
    models = {
        "embedded target": lambda: copy.deepcopy(pair.target.module),
        "embedded draft": lambda: copy.deepcopy(pair.draft_model().module),
        f"SmolLM2's shape, {options.layers} layers": lambda: build_llama(
            **SMOLLM2, num_hidden_layers=options.layers
        ),
    }
    for name, build in progress_bar(models.items(), desc="forwards", unit="model"):
        for dtype in PRECISIONS:
            by_positions = [
                least_ms(calls_of(build().to(dtype), count), options.rounds) for count in POSITIONS
            ]
            rows += [
                {
                    "model": name,
                    "precision": str(dtype).removeprefix("torch."),
                    "positions": count,
                    **ms,
                    "lean over matrices": ms["lean"] / ms["matrices alone"],
                    "lean over one position": ms["lean"] / by_positions[0]["lean"],
                }
                for count, ms in zip(POSITIONS, by_positions, strict=True)
            ]
    frame = pd.DataFrame(rows)
    table = plain(
        "bench_forwards", frame, "Forwards of a body, in ms.", specs=dict.fromkeys(WAYS, ".3f")
    )
    source = (
        f"`python -m experiments.bench.forwards` on {device_name(options.device)}, "
        f"{torch.get_num_threads()} thread, torch {torch.__version__}: the least of "
        f"{options.rounds} rounds in which the four take turns; {TEXT} committed positions, a "
        f"cache of {CAPACITY + DRAFTED}, heads not included."
    )
    return [table], [source], frame


if __name__ == "__main__":
    run_bench(
        "bench_forwards",
        __doc__,
        measure,
        device=None,
        rounds=(200, "number of rounds"),
        layers=(6, "layers of SmolLM2's shape, which has 30"),
    )
