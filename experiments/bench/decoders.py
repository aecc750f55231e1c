"""Speed, as ratios within one run: `python -m experiments.bench.decoders [--prompts N]`.

Our autoregressive loop and our chain decoder against `generate` and `generate(assistant_model=...)`
of transformers, on the same pair, prompts, temperature and number of tokens; every prompt is
decoded by all of them in turn. Then, on a processor, the split of a d5b3 step with a clock around
every part: all time outside the forwards of the two models is our own cost. On a GPU forwards are
parts of captured units, where no clock can be; there `step_time` gives the split of a step.
"""

from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import pandas as pd
import torch
from torch import Generator, Tensor

from analysis.table import Table, plain
from experiments.bench.frame import Measured, embedded_prompts, run_bench, take_turns
from experiments.provenance import device_name
from referee.engines.generate import TransformersEngine
from resispec.decode import Decoder, Sampling, Step
from resispec.drafters import DraftModel, NoDraft
from resispec.embedded import load_pair
from resispec.models import Model, Pair, Session
from resispec.progress import progress_bar
from resispec.timing import Stopwatch, clock_seconds, measuring, now
from resispec.trees import chain, complete
from resispec.verifiers import get_verifier

NUM_DRAFTED = 4
NEW_TOKENS = 64
NUM_CLOCKS = 10_000
"""Empty parts that are timed to learn the time of a clock."""
FORWARD = "forward"
SAMPLING = Sampling(temperature=1.0, max_new_tokens=NEW_TOKENS, max_length=256, ignore_eos=True)
DecodeCall = Callable[[list[int], int], object]
"""A function that decodes a prompt with a seed."""


def ours(pair: Pair, decoder: Decoder) -> DecodeCall:
    """Decoding by our loop."""
    device = pair.target.device
    return lambda prompt, seed: decoder.generate(
        pair, prompt, SAMPLING, Generator(device).manual_seed(seed)
    )


def theirs(pair: Pair, mode: str) -> DecodeCall:
    """`generate` of transformers with the same law and length.

    mode: "plain", or "assisted", which drafts NUM_DRAFTED a step.
    """
    engine = TransformersEngine(pair, mode, NUM_DRAFTED)
    engine.special.eos_token_id = None

    def decode(prompt: list[int], seed: int) -> None:
        assert len(engine.answer(prompt, SAMPLING, seed).tokens) == NEW_TOKENS

    return decode


def speeds(ways: Mapping[str, DecodeCall], prompts: Sequence[list[int]], pair: Pair) -> Table:
    """Tokens a second of each way of decoding, on the same prompts in turn: a round is a prompt.

    ways: ours and theirs by turns; the ratio is to theirs.
    """
    calls = {
        name: [lambda turn, decode=decode: decode(prompts[turn], turn + 1)]
        for name, decode in ways.items()
    }
    times = take_turns("bench", calls, len(prompts), pair.target.device)
    frame = pd.DataFrame({"decoder": list(times), "tokens/s": 1e3 * NEW_TOKENS})
    frame["tokens/s"] /= list(times.values())
    theirs_only = frame["tokens/s"].where(frame.index % 2 == 1)
    frame["ratio"] = frame["tokens/s"] / theirs_only.bfill()
    return plain("bench", frame, "Speed, as ratios within one run.", specs={"tokens/s": ".0f"})


class StepWatch(Stopwatch):
    """A stopwatch of a step's parts, and of the models' forwards inside of them.

    num_forwards: part -> how many forwards were timed in it.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device, looks_inside=False)
        self.num_forwards = Counter[str]()

    def part(self, name: str) -> AbstractContextManager[None]:
        """Time a block as a part; inside of another one only if it is a forward."""
        if not self.open_parts:
            return self._timed(name)
        if name != FORWARD:
            return nullcontext()
        self.num_forwards[self.open_parts[0]] += 1
        return self._timed(name)

    @contextmanager
    def sees(self, model: Model) -> Iterator[None]:
        """Time the forwards of a model and of its head within the block."""
        begin = model.session

        def timed(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
            def call(*arguments: Tensor) -> Tensor:
                with self.part(FORWARD):
                    return function(*arguments)

            return call

        def session(capacity: int, drafted: int = 0) -> Session:
            result: Any = begin(capacity, drafted)
            result.extend, result.forward = timed(result.extend), timed(result.forward)
            return result

        with (
            patch.object(model, "session", session),
            patch.object(model, "head", timed(model.head)),
        ):
            yield


def step_split(pair: Pair, prompts: list[list[int]]) -> dict[str, float]:
    """Milliseconds of a d5b3 step, of its parts, and of the forwards within these.

    The time of the clocks themselves is subtracted.
    """
    decoder = Decoder(DraftModel(complete(5, 3)), get_verifier("standard"))
    device, totals, first = pair.target.device, Counter[str](), list[Counter[str]]()
    watch = StepWatch(device)
    clock_s = clock_seconds(device, NUM_CLOCKS) / NUM_CLOCKS

    def so_far() -> Counter[str]:
        seconds = Counter({"step": now(device) - clock_s * watch.num_timed, **watch.seconds})
        for name, number in watch.num_forwards.items():
            seconds[name] -= clock_s * number
        return seconds

    def mark(_: Step) -> None:
        if not first:  # a first step, with its prompt's forwards, is left out
            first.append(so_far())

    with watch.sees(pair.target), watch.sees(pair.draft_model()):
        bar = progress_bar([prompts[0], *prompts], desc="step split", unit="prompt")
        for index, prompt in enumerate(bar):
            first.clear()
            generator = Generator(device).manual_seed(index)
            with measuring(watch):
                generation = decoder.generate(pair, prompt, SAMPLING, generator, mark)
            if index:  # the first prompt warms up
                totals.update(so_far())
                totals.subtract(first[0])
                totals["steps"] += len(generation.num_emitted) - 1
    num_steps = totals.pop("steps")
    return {name: 1e3 * seconds / num_steps for name, seconds in totals.items()}


def parts(split: Mapping[str, float]) -> Table:
    """The times of the parts of a d5b3 step; see `step_split`."""
    target, draft = split[f"target/{FORWARD}"], split[f"draft/{FORWARD}"]
    outer = sum(split[name] for name in ("draft", "target", "verify", "commit"))
    values = {
        "forward of the target": target,
        "forwards of the draft": draft,
        "drawing siblings": split["draft"] - draft,
        "the target's laws": split["target"] - target,
        "verification": split["verify"],
        "commit": split["commit"],
        "the loop": split["step"] - outer,
        "all but the forwards": split["step"] - target - draft,
    }
    frame = pd.DataFrame({"part": list(values), "ms": list(values.values())})
    shown = frame.assign(share=frame.ms / split["step"])
    return plain("bench_step", shown, "Parts of a d5b3 step, `standard`.", specs={"share": ".1%"})


def measure(options: Namespace) -> Measured:
    """Speeds on any device, and on a processor the parts of a step."""
    device, standard = options.device, get_verifier("standard")
    pair = load_pair(device=device.type)
    prompts = embedded_prompts(pair, options.prompts)
    drafted = f"{NUM_DRAFTED} drafted"
    chain_decoder = Decoder(DraftModel(chain(NUM_DRAFTED)), standard)
    ways = {
        "ours, autoregressive": ours(pair, Decoder(NoDraft(), standard)),
        "transformers `generate`": theirs(pair, "plain"),
        f"ours, chain of {drafted}": ours(pair, chain_decoder),
        f"transformers `generate(assistant_model=...)`, {drafted}": theirs(pair, "assisted"),
    }
    tables = [speeds(ways, prompts, pair)]
    if device.type == "cpu":
        tables.append(parts(step_split(pair, prompts)))
    source = (
        f"`make bench` on {device_name(device)}, {torch.get_num_threads()} thread, embedded pair, "
        f"T=1, {NEW_TOKENS} new tokens a prompt, {len(prompts)} prompts decoded by all four in "
        "turn; medians over prompts, the prompt's forward included."
    )
    return tables, [source], None


if __name__ == "__main__":
    run_bench("bench", __doc__, measure, prompts=(20, "number of prompts"))
