"""Waits, units and operations of a step, counted without a GPU:
`python -m experiments.bench.counts`.

On an accelerator a step that waits, or that starts many small operations, is slow whatever the
operations do. Here a step is decoded as on an accelerator: the verdict is drawn from the whole law,
and a unit stands for one operation.
"""

from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise, product
from typing import Any
from unittest.mock import patch

import pandas as pd
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from analysis.table import plain
from experiments.bench.frame import Measured, embedded_prompts, run_bench
from resispec import cuda_graphs
from resispec.cuda_graphs import Outputs, Unit
from resispec.decode import Decoder, Sampling
from resispec.drafters import DraftModel, DynamicTree, Eagle, NoDraft
from resispec.draws import Draws
from resispec.embedded import load_eagle_pair, load_pair
from resispec.models import Pair
from resispec.progress import progress_bar
from resispec.trees import chain, complete
from resispec.verifiers import available, get_verifier
from resispec.verifiers.rehearsal import is_defined_on

WAITING_CALLS = {"tolist", "numpy", "__array__", "cpu"}
"""Methods of a tensor that read its values and are not seen as operations."""
WAITING_OPERATIONS = {
    *("_local_scalar_dense", "item", "is_nonzero", "nonzero", "masked_select", "_unique2", "equal")
}
"""Operations that read a number, or whose result has a shape that depends on data."""
WAITS, UNITS, OUTSIDE, INSIDE = "waits", "units", "operations outside", "operations inside"
"""Names of counts; operations inside a unit are started together, by a graph."""


@contextmanager
def counting() -> Iterator[Counter[str]]:
    """Count the work of decoding in the block, as if on an accelerator.

    Its decoders must be new.
    """
    counts = Counter[str]()

    class Calls(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            counts[WAITS] += getattr(func, "__name__", "") in WAITING_CALLS
            # `tensor[index] = number` copies the number from the host at most kinds of index.
            counts[WAITS] += func is Tensor.__setitem__ and not isinstance(args[2], Tensor)
            return func(*args, **(kwargs or {}))

    class Operations(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            counts[WAITS] += func.overloadpacket.__name__ in WAITING_OPERATIONS
            counts[OUTSIDE] += 1
            return func(*args, **(kwargs or {}))

    def as_counted(function: Unit) -> Unit:
        def unit(generator: torch.Generator | None, *inputs: Tensor) -> Outputs:
            outside = counts[OUTSIDE]
            outputs = function(generator, *inputs)
            counts[UNITS] += 1
            counts[INSIDE] += counts[OUTSIDE] - outside
            counts[OUTSIDE] = outside
            return outputs

        return unit

    kinds, walks = patch.dict(cuda_graphs.KINDS, {"cpu": as_counted}), lambda _: False
    with kinds, patch("resispec.step.reading_is_free", walks), Calls(), Operations():
        yield counts


def counts_of(
    decoder: Decoder, pair: Pair, prompt: list[int], sampling: Sampling
) -> list[Counter[str]]:
    """Counts of every step of one prompt but the first, after which all shapes have been seen."""
    snapshots: list[Counter[str]] = []
    with counting() as counts:
        generator = torch.Generator().manual_seed(0)
        decoder.generate(
            pair, prompt, sampling, generator, on_step=lambda _: snapshots.append(counts.copy())
        )
    return [after - before for before, after in pairwise(snapshots)]


def cases() -> Iterator[tuple[str, str, Decoder]]:
    """Title, embedded pair and decoder of everything that is counted."""
    d5b3, standard = complete(5, 3), get_verifier("standard")
    yield "one token at a time", "embedded", Decoder(NoDraft(), standard)
    shapes = {"d5b3": d5b3, "chain of 4": chain(4)}
    for name in available():
        verifier = get_verifier(name)
        kinds = product((Draws.IID, Draws.GREEDY), shapes)
        draws, title = next(
            kind for kind in kinds if is_defined_on(verifier, kind[0], shapes[kind[1]])
        )
        decoder = Decoder(DraftModel(shapes[title], draws), verifier)
        yield f"{draws}, {title}, {name}", "embedded", decoder
    for name in ("standard", "traversal"):
        drafter = DraftModel(d5b3, Draws.WITHOUT_REPLACEMENT)
        yield f"without replacement, d5b3, {name}", "embedded", Decoder(drafter, get_verifier(name))
    eagle = DynamicTree(total_token=60, depth=5, top_k=10)
    for title, tree in (("fixed tree of 40", complete(4, 3)), ("dynamic tree of 60", eagle)):
        yield f"EAGLE, {title}, naive", "eagle", Decoder(Eagle(tree), get_verifier("naive"))


def measure(_: Namespace) -> Measured:
    """The highest counts of any step, for every case."""
    pairs = {"embedded": load_pair(), "eagle": load_eagle_pair()}
    [prompt] = embedded_prompts(pairs["embedded"], 1)
    sampling = Sampling(temperature=1.0, max_new_tokens=32, max_length=128, ignore_eos=True)
    rows = []
    for title, pair, decoder in progress_bar([*cases()], desc="counts", unit="decoder"):
        steps = counts_of(decoder, pairs[pair], prompt, sampling)
        names = (WAITS, UNITS, OUTSIDE, INSIDE)
        maxima = {name: max(step[name] for step in steps) for name in names}
        rows.append({"decoder": title, **maxima})
    frame = pd.DataFrame(rows)
    caption = "What a step asks of an accelerator at most, counted on a processor."
    source = "`python -m experiments.bench.counts`, embedded pairs, 32 new tokens."
    return [plain("bench_counts", frame, caption)], [source], frame


if __name__ == "__main__":
    run_bench("bench_counts", __doc__, measure, device=None)
