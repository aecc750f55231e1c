"""What a step asks of a device, counted without one: `python -m experiments.bench.counts`.

Counted are waits for the device, captured units, and operations outside of them.

On an accelerator a step that waits, or that starts many small operations, is slow whatever the operations do.
A step is decoded here as it is there: the verdict is drawn from the whole law, and units stand for one
operation each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pandas as pd
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from tqdm import tqdm

from analysis.report import Table, markdown, plain
from experiments.bench.options import Options, stem_of, write_page
from resispec import capture
from resispec.capture import Outputs, Unit
from resispec.decode import Decoder, Sampling
from resispec.drafters import DraftModel, DynamicTree, Eagle, NoDraft
from resispec.draws import Draws
from resispec.embedded import EmbeddedDataset, load_eagle_pair, load_pair
from resispec.models import Pair
from resispec.trees import chain, complete
from resispec.verifiers import available, get_verifier

WAITING_CALLS = {"tolist", "numpy", "__array__", "cpu"}
"""Methods of a tensor that read it without being seen as an operation."""
WAITING_OPERATIONS = {
    "_local_scalar_dense",
    "item",
    "is_nonzero",
    "nonzero",
    "masked_select",
    "_unique2",
    "equal",
}
"""Operations that read a number, or whose result has a shape that depends on data."""


@dataclass
class Counts:
    """What a step asked for.

    operations: outside of units. units: calls of captured units. waits: for the device, anywhere.
    inside: operations within units, which a graph starts together.
    """

    operations: int = 0
    units: int = 0
    waits: int = 0
    inside: int = 0


class _Calls(TorchFunctionMode):
    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self._counts = counts

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self._counts.waits += getattr(func, "__name__", "") in WAITING_CALLS
        return func(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):
    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self._counts, self.is_inside = counts, False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self._counts.waits += func.overloadpacket.__name__ in WAITING_OPERATIONS
        if self.is_inside:
            self._counts.inside += 1
        else:
            self._counts.operations += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def counting() -> Iterator[Counts]:
    """Count what is decoded inside by decoders that have not decoded before, as if on an accelerator."""
    counts = Counts()
    operations = _Operations(counts)

    def as_counted(function: Unit) -> Unit:
        def unit(generator: torch.Generator | None, *inputs: Tensor) -> Outputs:
            counts.units += 1
            operations.is_inside = True
            try:
                return function(generator, *inputs)
            finally:
                operations.is_inside = False

        return unit

    with (
        patch.dict(capture.KINDS, {"cpu": as_counted}),
        patch("resispec.step.reading_is_free", lambda _: False),
        _Calls(counts),
        operations,
    ):
        yield counts


def counts_of(decoder: Decoder, pair: Pair, prompt: list[int], sampling: Sampling) -> list[Counts]:
    """What every step of one prompt asked for but the first, after which all shapes have been seen."""
    seen: list[Counts] = []
    with counting() as counts:

        def mark(_: object) -> None:
            seen.append(Counts(**vars(counts)))

        decoder.generate(pair, prompt, sampling, torch.Generator().manual_seed(0), on_step=mark)
    names = vars(counts)
    return [
        Counts(**{name: getattr(after, name) - getattr(before, name) for name in names})
        for before, after in zip(seen, seen[1:], strict=False)
    ]


def table_of(counted: Sequence[tuple[str, Sequence[Counts]]]) -> Table:
    """The most that a step of each decoder asked for."""
    rows = [
        {
            "decoder": name,
            "waits": max(step.waits for step in steps),
            "units": max(step.units for step in steps),
            "operations outside": max(step.operations for step in steps),
            "operations inside": max(step.inside for step in steps),
        }
        for name, steps in counted
    ]
    caption = "What a step asks of an accelerator at most, counted on a processor."
    return plain("bench_counts", pd.DataFrame(rows), caption)


def cases() -> list[tuple[str, str, Decoder]]:
    """Title, embedded pair and decoder of everything that is counted."""
    d5b3, eagle = complete(5, 3), DynamicTree(total_token=60, depth=5, top_k=10)
    found = [("one token at a time", "embedded", Decoder(NoDraft(), get_verifier("standard")))]
    for name in available():
        rule, shape = get_verifier(name), chain(4) if name == "block" else d5b3
        draws = Draws.IID if name != "greedy" else Draws.GREEDY
        title = f"{draws}, {'chain of 4' if name == 'block' else 'd5b3'}, {name}"
        found.append((title, "embedded", Decoder(DraftModel(shape, draws), rule)))
    for name in ("standard", "traversal"):
        drafter = DraftModel(d5b3, Draws.WITHOUT_REPLACEMENT)
        found.append((f"without replacement, d5b3, {name}", "embedded", Decoder(drafter, get_verifier(name))))
    for title, tree in (("fixed tree of 40", complete(4, 3)), ("dynamic tree of 60", eagle)):
        found.append((f"EAGLE, {title}, naive", "eagle", Decoder(Eagle(tree), get_verifier("naive"))))
    return found


def main() -> None:
    """Count, print, and write results/embedded/bench_counts.{md,csv}."""
    options = Options(__doc__, None).parse_args()
    torch.set_num_threads(1)  # small matrices: see conf/profile/embedded.yaml
    pairs = {"embedded": load_pair(), "eagle": load_eagle_pair()}
    [document] = EmbeddedDataset("embedded_reference").prompts(1)
    prompt = pairs["embedded"].tokenizer.encode(document.text)[:64]
    sampling = Sampling(temperature=1.0, max_new_tokens=32, max_length=128, ignore_eos=True)
    counted = [
        (title, counts_of(decoder, pairs[pair], prompt, sampling))
        for title, pair, decoder in tqdm(cases(), desc="counts", unit="decoder")
    ]
    table = table_of(counted)
    text = f"{markdown(table)}\n`python -m experiments.bench.counts`, embedded pairs, 32 new tokens.\n"
    stem = stem_of("bench_counts", options.results, torch.device("cpu"))
    write_page(stem, text, table.frame)


if __name__ == "__main__":
    main()
