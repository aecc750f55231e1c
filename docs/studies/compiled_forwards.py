"""Gain of compiled forwards on a processor: `python docs/studies/compiled_forwards.py [--prompts N]`.

Found (docs/speed.md, results/published/embedded/bench_compiled.md): on two cores of an AMD EPYC
`compiled=true` makes one token at a time 1.5 times as fast, a chain of 4 1.4 times and d5b3 1.2 times, for 25
to 50 s of compiling in the first process and 4 to 7 s in later ones, which is more than a cell of the
embedded profile spends in its forwards.

Our decoders as they are and with `compiled=true`, and transformers beside them, decode the same prompts in
turn; and the seconds are taken that a process needs to compile. It needs a C++ compiler.
"""

import timeit
from argparse import Namespace
from collections.abc import Callable, Sequence

import pandas as pd

from analysis.table import plain
from experiments.bench import decoders
from experiments.bench.frame import Measured, run_bench
from experiments.provenance import device_name
from resispec.decode import Decoder
from resispec.drafters import DraftModel, NoDraft
from resispec.embedded import load_pair
from resispec.models import Pair
from resispec.models.causal import compiled_pair
from resispec.trees import chain, complete
from resispec.verifiers import get_verifier

STANDARD, CHAIN = get_verifier("standard"), f"chain of {decoders.NUM_DRAFTED}"
DECODERS = {
    "one token at a time": Decoder(NoDraft(), STANDARD),
    CHAIN: Decoder(DraftModel(chain(decoders.NUM_DRAFTED)), STANDARD),
    "d5b3": Decoder(DraftModel(complete(5, 3)), STANDARD),
}


def seconds_of_compiling(decode: Callable[[list[int], int], object], prompt: list[int]) -> float:
    """Seconds of a decoder's first call beyond those of its second one."""
    first, second = timeit.repeat(lambda: decode(prompt, 1), number=1, repeat=2)
    return first - second


def compared(pair: Pair, prompts: Sequence[list[int]]) -> pd.DataFrame:
    """A row for each decoder: seconds of compiling, tokens a second in each way, and ratios."""
    fast_pair = compiled_pair(pair)
    ways = {(name, "as it is"): decoders.ours(pair, decoder) for name, decoder in DECODERS.items()}
    ways |= {(name, "compiled"): decoders.ours(fast_pair, decoder) for name, decoder in DECODERS.items()}
    ways["one token at a time", "transformers"] = decoders.theirs(pair)
    ways[CHAIN, "transformers"] = decoders.theirs(pair, "assisted")
    compiling = {name: seconds_of_compiling(ways[name, "compiled"], prompts[0]) for name in DECODERS}
    rates = decoders.tokens_per_s(ways, prompts, pair)
    rows = []
    for name in DECODERS:
        slow, fast = rates[name, "as it is"], rates[name, "compiled"]
        peer = rates.get((name, "transformers"), float("nan"))
        rows.append(
            {"decoder": name, "compiling, s": compiling[name], "as it is, tokens/s": slow}
            | {"compiled, tokens/s": fast, "ratio": fast / slow}
            | {"transformers, tokens/s": peer, "compiled to transformers": fast / peer}
        )
    return pd.DataFrame(rows)


def measure(options: Namespace) -> Measured:
    """A table with a row for each decoder."""
    pair = load_pair()
    frame = compared(pair, decoders.embedded_prompts(pair, options.prompts))
    specs = {"compiling, s": ".1f"} | {name: ".0f" for name in frame if "tokens/s" in str(name)}
    caption = "Decoding on a processor, as it is and with compiled forwards."
    source = (
        f"`python docs/studies/compiled_forwards.py` on {device_name(pair.target.device)}, 1 thread, "
        f"embedded pair, T=1, {decoders.NEW_TOKENS} new tokens a prompt, {options.prompts} prompts, all in "
        "turn; medians."
    )
    return [plain("bench_compiled", frame, caption, specs=specs)], [source], frame


if __name__ == "__main__":
    run_bench("bench_compiled", __doc__, measure, device=None, prompts=(20, "number of prompts"))
