"""What compiled forwards bring on a processor: `python -m experiments.bench.compiled [--prompts N]`.

Our decoders as they are and with `compiled=true`, and transformers beside them, on the same prompts in turn;
and the seconds that a process takes to compile. It needs a C++ compiler.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

import pandas as pd
import torch
from tqdm import tqdm

from analysis.report import markdown, plain
from experiments.bench.contest import Timed, contest
from experiments.bench.decoders import NEW_TOKENS, NUM_DRAFTED, assisted, embedded_prompts, ours, theirs
from experiments.bench.options import Options, count, stem_of, write_page
from experiments.commands import fail
from experiments.provenance import device_name
from resispec.decode import Decoder
from resispec.drafters import DraftModel, NoDraft
from resispec.embedded import load_pair
from resispec.machine import cpp_compiler
from resispec.models import Pair
from resispec.models.compiled import compiled_pair
from resispec.trees import chain, complete
from resispec.verifiers import get_verifier

STANDARD = get_verifier("standard")
CHAIN = f"chain of {NUM_DRAFTED}"
DECODERS = {
    "one token at a time": Decoder(NoDraft(), STANDARD),
    CHAIN: Decoder(DraftModel(chain(NUM_DRAFTED)), STANDARD),
    "d5b3": Decoder(DraftModel(complete(5, 3)), STANDARD),
}
Decode = Callable[[list[int], int], object]


def entrants(pair: Pair) -> dict[tuple[str, str], Decode]:
    """Every decoder in every way of forwarding, by the names of both."""
    ways = {"as it is": pair, "compiled": compiled_pair(pair)}
    own = {
        (name, way): ours(used, decoder) for name, decoder in DECODERS.items() for way, used in ways.items()
    }
    return own | {
        ("one token at a time", "transformers"): theirs(pair),
        (CHAIN, "transformers"): assisted(pair),
    }


def compiling(entered: dict[tuple[str, str], Decode], prompt: list[int]) -> dict[str, float]:
    """Seconds of the first call of what is compiled, by the decoder's name, beyond those of a second one."""
    found = {}
    for (name, way), decode in tqdm(entered.items(), desc="compiling", unit="decoder"):
        if way == "compiled":
            seconds = []
            for _ in range(2):
                started = time.perf_counter()
                decode(prompt, 1)
                seconds.append(time.perf_counter() - started)
            found[name] = seconds[0] - seconds[1]
    return found


def measure(pair: Pair, prompts: Sequence[list[int]]) -> pd.DataFrame:
    """A row for each decoder: seconds of compiling, tokens a second in each way, and ratios."""
    entered = entrants(pair)
    spent = compiling(entered, prompts[0])
    timed = {
        key: Timed(key, [lambda turn, decode=decode: decode(prompts[turn], turn + 1)])  # type: ignore[misc]
        for key, decode in entered.items()
    }
    contest("bench", list(timed.values()), len(prompts), pair.target.device)
    rates = {key: 1e3 * NEW_TOKENS / one.milliseconds for key, one in timed.items()}
    rows = []
    for name in DECODERS:
        plainly, fast = rates[name, "as it is"], rates[name, "compiled"]
        peer = rates.get((name, "transformers"), float("nan"))
        rows.append(
            {"decoder": name, "compiling, s": spent[name]}
            | {"as it is, tokens/s": plainly, "compiled, tokens/s": fast, "ratio": fast / plainly}
            | {"transformers, tokens/s": peer, "compiled to transformers": fast / peer}
        )
    return pd.DataFrame(rows)


def main() -> int:
    """Measure, print, and write results/embedded/bench_compiled.{md,csv}."""
    parser = Options(__doc__, None)
    parser.add_argument("--prompts", type=count, default=20, help="number of prompts")
    options = parser.parse_args()
    if cpp_compiler() is None:
        return fail("torch.compile needs a C++ compiler on a processor; none was found (CXX, g++, clang++)")
    torch.set_num_threads(1)  # as decoding on a CPU: see conf/profile/embedded.yaml
    pair = load_pair()
    frame = measure(pair, embedded_prompts(pair, options.prompts))
    specs = {"compiling, s": ".1f"} | {name: ".0f" for name in frame if "tokens/s" in str(name)}
    caption = "Decoding on a processor, as it is and with compiled forwards."
    source = (
        f"`python -m experiments.bench.compiled` on {device_name(pair.target.device)}, 1 thread, embedded "
        f"pair, T=1, {NEW_TOKENS} new tokens a prompt, {options.prompts} prompts, all in turn; medians."
    )
    text = f"{markdown(plain('bench_compiled', frame, caption, specs=specs))}\n{source}\n"
    write_page(stem_of("bench_compiled", options.results, pair.target.device), text, frame)
    return 0


if __name__ == "__main__":
    sys.exit(main())
