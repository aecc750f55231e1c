"""Decoding on a processor beside its peers: `python -m experiments.bench.peers`.

SmolLM2-135M-Instruct explains functions at T = 1, one answer at a time, by this library, by
`generate` of transformers, by llama.cpp and by OpenVINO GenAI, at three widths of weights, each one
token at a time and with its own speculation. All take turns, question after question, and so does a
sum over a gigabyte, which measures the bandwidth of the memory in the same minutes. OpenVINO
GenAI's tokens with a draft model do not follow the target's law, see docs/studies/openvino.md.
Needs the extra `engines`; engines that are not installed are left out, and so are draft models
until the distilled one is made (`python -m recipes smollm2 distilled`).
"""

import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pandas as pd
import torch

from analysis.stats import ratio
from analysis.table import plain
from experiments.bench.frame import Measured, run_bench
from experiments.provenance import device_name
from recipes.smollm2 import SmolLM2Dataset
from recipes.smollm2.pairs import load_pair
from recipes.smollm2.recipe import DISTILLED, DRAFTERS
from referee.engines import Engine
from referee.engines.base import ENGINES
from referee.engines.decoder import DecoderEngine
from resispec import kept
from resispec.decode import Decoder
from resispec.drafters import DraftModel, NoDraft
from resispec.models import Pair
from resispec.packages import SMOLLM2, fetched
from resispec.progress import progress_bar
from resispec.sampling import Sampling
from resispec.trees import chain, complete
from resispec.verifiers import get_verifier

NUM_DRAFTED = 4
NEW_TOKENS = 64
SUMMED = 2**28
"""The float32 numbers of the sum that measures the bandwidth."""
FEW = "4 bits"
WIDTHS = {"float32": "float32", "16 bits": "bfloat16", FEW: "int4"}
"""The width of weights -> the precision of this library. llama.cpp has float32, float16 and the
package's Q4_1 file, OpenVINO GenAI float16."""
PLAIN = "one token at a time"
LLAMA = f"llama.cpp, {PLAIN}"
Maker = Callable[[], Engine]


def ours(pair: Pair) -> Iterator[tuple[str, Maker]]:
    """Decoders of this library; all emit the target's law."""
    standard, level = get_verifier("standard"), get_verifier("level_optimal")
    decoders = {PLAIN: Decoder(NoDraft(), standard)}
    if pair.draft is not None:
        decoders |= {
            f"chain of {NUM_DRAFTED}": Decoder(DraftModel(chain(NUM_DRAFTED)), standard),
            "7 positions, level_optimal": Decoder(DraftModel(complete(2, 2)), level),
        }
    for name, decoder in decoders.items():
        yield (
            f"resispec, {name}",
            lambda name=name, decoder=decoder: DecoderEngine(name, pair, decoder),
        )


def peers(pair: Pair, width: str, folder: Path) -> Iterator[tuple[str, Maker]]:
    """Engines of others with the same weights, but for their rounding to a width."""
    names = {"plain": PLAIN, "assisted": "draft model", "prompt_lookup": "prompt lookup"}
    modes = [mode for mode in names if mode != "assisted" or pair.draft is not None]

    def made(engine: str, *options: Any, **fields: Any) -> Maker:
        return lambda: resolve_name(ENGINES[engine])(pair, *options, **fields)

    for mode in modes:
        asked = {"mode": mode, "num_drafted": NUM_DRAFTED}
        file = fetched(SMOLLM2) if width == FEW else None
        options = {"precise": width == "float32", "file": file}
        yield f"llama.cpp, {names[mode]}", made("llama_cpp", folder, **asked, **options)
        if width != FEW:
            yield f"transformers, {names[mode]}", made("transformers", **asked)
        if width == "16 bits":
            place = folder / "openvino"
            yield (
                f"OpenVINO GenAI, {names[mode]}",
                made("openvino_genai", place, **asked, precise=False),
            )


def engines(folder: Path) -> Iterator[tuple[str, str, int, Engine]]:
    """Width, name and engine of each way of decoding that can be had here, and the bytes of its
    weights; 0 where drafts are read, too.
    """
    is_made = DRAFTERS[DISTILLED].key() in [path.name for path in kept.folders()]
    for width, precision in WIDTHS.items():
        pair = load_pair(DISTILLED if is_made else None, dtype=precision)
        target: Any = pair.target
        num_weights = sum(weight.numel() for weight in target.module.parameters())
        num_bytes = int(num_weights * {"float32": 4, "16 bits": 2, FEW: 0.7}[width])
        (folder / width).mkdir()
        for name, make in (*ours(pair), *peers(pair, width, folder / width)):
            try:
                engine = make()
            except ModuleNotFoundError:
                continue
            yield width, name, num_bytes if name.endswith(PLAIN) else 0, engine


def measure(options: Namespace) -> Measured:
    """A row for each width and engine."""
    settings = Sampling(temperature=1.0, max_new_tokens=NEW_TOKENS)
    texts = [prompt.text for prompt in SmolLM2Dataset("smollm2_explain").prompts(options.prompts)]
    with tempfile.TemporaryDirectory(prefix="resispec-") as folder:
        decoders = [*engines(Path(folder))]
        tokenizer: Any = load_pair(None).tokenizer
        prompts = [tokenizer.encode_chat(text) for text in texts]
        answers, bandwidths = _in_turn(decoders, prompts, settings)
    bandwidth = statistics.median(bandwidths)
    rows = []
    for place, (width, name, num_bytes, _) in enumerate(decoders):
        tokens, seconds = zip(*answers[place], strict=True)
        speed = ratio(tokens, seconds)
        rate = num_bytes * speed.value / 1e9
        rows.append({
            "weights": width, "decoder": name,
            "tokens/s": speed.value, "lower": speed.lower, "upper": speed.upper,
            "GB/s": rate or float("nan"),
            "share of bandwidth": rate / bandwidth or float("nan"),
        })  # fmt: skip
    frame = pd.DataFrame(rows)
    for name in (LLAMA, f"resispec, {PLAIN}"):
        base = frame[frame.decoder == name].set_index("weights")["tokens/s"]
        frame[f"over {name}"] = frame["tokens/s"] / frame.weights.map(base)
    specs = dict.fromkeys(("tokens/s", "lower", "upper", "GB/s"), ".1f")
    caption = "Decoding of SmolLM2-135M-Instruct beside its peers."
    table = plain("bench_peers", frame, caption, specs=specs | {"share of bandwidth": ".0%"})
    source = (
        f"`python -m experiments.bench.peers` on {device_name(options.device)}, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}: {len(prompts)} questions, "
        f"up to {NEW_TOKENS} tokens each, T = 1, all decoders in turn; tokens over seconds with "
        f"95 % bootstrap intervals over questions, prompts included. Bandwidth: "
        f"{bandwidth:.0f} GB/s, {min(bandwidths):.0f} to {max(bandwidths):.0f}, by a sum over "
        f"{4 * SUMMED / 1e9:.1f} GB. Speculation drafts {NUM_DRAFTED} tokens a step unless the "
        f"row says otherwise. {FEW}: here groups of the packaged Q4_1 file with scales in "
        "bfloat16, the output layer in 8 bits; .7 bytes a weight are counted."
    )
    return [table], [source], frame


def _in_turn(
    decoders: Sequence[tuple[str, str, int, Engine]],
    prompts: Sequence[list[int]],
    settings: Sampling,
) -> tuple[list[list[tuple[int, float]]], list[float]]:
    """Tokens and seconds of every answer, by decoder, and the GB/s of the memory, by prompt."""
    answers: list[list[tuple[int, float]]] = [[] for _ in decoders]
    bandwidths = []
    numbers = torch.ones(SUMMED)
    order = torch.Generator().manual_seed(0)
    bar = progress_bar([prompts[0], *prompts], desc="peers", unit="prompt")
    for number, prompt in enumerate(bar):
        for place in torch.randperm(len(decoders), generator=order).tolist():
            started = time.perf_counter()
            answer = decoders[place][-1].answer(prompt, settings, number)
            if number:  # the first prompt warms up
                answers[place].append((len(answer.tokens), time.perf_counter() - started))
        started = time.perf_counter()
        numbers.sum()
        bandwidths.append(4e-9 * SUMMED / (time.perf_counter() - started))
    return answers, bandwidths


if __name__ == "__main__":
    run_bench(
        "bench_peers",
        __doc__,
        measure,
        device=None,
        folder="smollm2",
        prompts=(9, "number of questions"),
    )
