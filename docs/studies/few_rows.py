"""Forwards of few positions on a processor: `python docs/studies/few_rows.py [--rounds N]`.

Found on an Intel Xeon with matrix units (docs/speed.md): in float32 8 positions cost 1.8 times as much as
one, and 121 five times; with packed weights few positions cost less, and one costs more, so they are not
packed. In bfloat16 8 and 16 positions cost 1.1 and 1.2 times as much as one, and packed weights are a fifth
faster. Found on an AMD EPYC without AVX-512: in float32 packed weights are faster at any number of positions,
so large ones are packed; it has no bfloat16 of its own.

Forwards of SmolLM2 behind 64 tokens, with the head at every position, in all ways in turn.
"""

from argparse import Namespace
from collections.abc import Callable
from itertools import product

import pandas as pd
import torch

from analysis.table import plain
from experiments.bench.frame import Measured, run_bench, take_turns
from experiments.provenance import device_name
from resispec.models import TransformersModel
from resispec.models.packed import can_pack, pack, pack_if_faster, unpack
from resispec.smollm2 import load_pair
from resispec.trees import Topology, chain, root_only

PAST, POSITIONS = 64, (1, 2, 4, 8, 16, 32, 64, 121)
WAYS = {"unpacked": unpack, "packed": pack, "as loaded": pack_if_faster}


def forward(model: TransformersModel, positions: int) -> Callable[[int], object]:
    """A call that forwards so many drafted positions, each behind the one before, to their logits."""
    topology: Topology = chain(positions - 1) if positions > 1 else root_only()
    session, tokens = model.session(PAST, drafted=positions), torch.arange(positions)
    session.extend(torch.arange(PAST))

    @torch.inference_mode()
    def call(_: int) -> object:
        return model.head(session.forward(tokens, topology.depths, topology.ancestors))

    return call


def measure(options: Namespace) -> Measured:
    """A row for every precision and way, in milliseconds and as ratios to one position of the same row."""
    calls = {}
    for dtype, (way, prepare) in product(("float32", "bfloat16"), WAYS.items()):
        if prepare == pack and not can_pack(getattr(torch, dtype)):
            continue
        model = load_pair(dtype=dtype).target
        prepare(model.module)
        calls |= {(dtype, way, count): [forward(model, count)] for count in POSITIONS}
    taken = take_turns("few rows", calls, options.rounds, torch.device("cpu"))
    frame = pd.Series(taken).unstack().reset_index(names=["precision", "way"])
    ratios = frame[["precision", "way"]].join(frame[list(POSITIONS)].div(frame[1], axis=0))
    source = (
        f"`python docs/studies/few_rows.py` on {device_name(torch.device('cpu'))}, {torch.get_num_threads()} "
        f"threads, SmolLM2-135M behind {PAST} tokens, {options.rounds} rounds of all in turn; medians."
    )
    tables = [
        plain(name, values, caption, specs=dict.fromkeys(POSITIONS, spec))
        for name, values, caption, spec in (
            ("bench_few_rows", frame, "A forward of so many positions, ms.", ".1f"),
            ("bench_few_rows_ratios", ratios, "The same over that of one.", ".2f"),
        )
    ]
    return tables, [source], frame


if __name__ == "__main__":
    run_bench("bench_few_rows", __doc__, measure, None, "timing", rounds=(15, "rounds"))
