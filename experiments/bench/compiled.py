"""Would compiled forwards pay on a processor? `python -m experiments.bench.compiled`.

The target's body, as it is and compiled by `torch.compile` with fixed shapes, over several numbers of
positions behind a prompt, in turn; and how long compiling takes. It needs a C++ compiler.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from typing import Any

import pandas as pd
import torch
from tqdm import tqdm

from analysis.report import markdown, plain
from experiments.bench.contest import Timed, contest
from experiments.bench.options import Options, stem_of, write_page
from experiments.commands import fail
from experiments.provenance import device_name
from resispec.embedded import load_pair
from resispec.models import TransformersSession
from resispec.models.kv_cache import KeyValues

SIZES = (1, 2, 4, 16, 121)
PROMPT_TOKENS = 96
CAPACITY = 144
ROUNDS = 40


def forward(body: Any, run: Any, size: int) -> Callable[[int], object]:
    """A forward of so many positions by `run`, behind a prompt that `body` itself has read."""
    rows = KeyValues(body.config.num_hidden_layers, CAPACITY, size, torch.device("cpu"))
    TransformersSession(body, rows).extend(torch.zeros(PROMPT_TOKENS, dtype=torch.int64))
    session = TransformersSession(run, rows)
    tokens, visible = torch.zeros(size, dtype=torch.int64), torch.ones(size, size, dtype=torch.bool).tril()
    depths = torch.arange(size)
    return lambda _: session.forward(tokens, depths, visible)


@torch.inference_mode()
def measure(body: Any) -> pd.DataFrame:
    """A row for each number of positions: milliseconds of both, their ratio, seconds of compiling."""
    # Every number of positions is compiled, none runs as it is because there have been many.
    torch._dynamo.config.recompile_limit = 100 * len(SIZES)
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    compiled = torch.compile(body, dynamic=False)
    contestants, rows = [], []
    for size in tqdm(SIZES, desc="compiling", unit="shape"):
        calls = forward(body, body, size), forward(body, compiled, size)
        started = time.perf_counter()
        calls[1](0)
        rows.append({"positions": size, "compiling, s": time.perf_counter() - started})
        contestants += [Timed((str(size),), [call]) for call in calls]
    contest("forwards", contestants, ROUNDS, torch.device("cpu"))
    for place, row in enumerate(rows):
        plainly, faster = (timed.milliseconds for timed in contestants[2 * place : 2 * place + 2])
        row |= {"as it is, ms": plainly, "compiled, ms": faster, "ratio": plainly / faster}
    return pd.DataFrame(rows)


def main() -> int:
    """Measure, print, and write results/embedded/bench_compiled.{md,csv}."""
    options = Options(__doc__, None).parse_args()
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        return fail("torch.compile needs a C++ compiler on a processor; none was found")
    torch.set_num_threads(1)  # as decoding on a CPU: see conf/profile/embedded.yaml
    target: Any = load_pair().target
    frame = measure(target.module.base_model)
    caption = "Forwards of the embedded target, as they are and compiled."
    source = (
        f"`python -m experiments.bench.compiled` on {device_name(target.device)}, 1 thread, {ROUNDS} rounds."
    )
    text = f"{markdown(plain('bench_compiled', frame, caption))}\n{source}\n"
    stem = stem_of("bench_compiled", options.results, target.device)
    write_page(stem, text, frame)
    return 0


if __name__ == "__main__":
    sys.exit(main())
