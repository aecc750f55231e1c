"""Decoding on a processor beside its peers: `python -m experiments.bench.peers`.

SmolLM2-135M-Instruct explains functions at T = 1, one answer at a time, by this library, by
`generate` of transformers, by llama.cpp and by OpenVINO GenAI, at three widths of weights, each one
token at a time and with its own speculation. Each library has a process of its own. All take turns,
question after question, and so does a sum over a gigabyte, which measures the bandwidth of the
memory in the same minutes. OpenVINO GenAI's tokens with a draft model do not follow the target's
law, see docs/studies/openvino.md. Needs the extra `engines`; engines that are not installed are
left out.
"""

import multiprocessing
import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pandas as pd
import torch

from analysis.stats import ratio
from analysis.table import plain
from experiments.bench.frame import Measured, run_bench
from experiments.cell import build
from experiments.grid import cells_of
from experiments.provenance import device_name
from referee.engines import Engine
from referee.engines.base import ENGINES
from referee.engines.decoder import DecoderEngine
from resispec.decode import Decoder
from resispec.drafters import DraftModel, NoDraft
from resispec.errors import InvalidInput
from resispec.models import Pair
from resispec.packages import SMOLLM2, fetched
from resispec.progress import progress_bar
from resispec.sampling import Sampling
from resispec.trees import chain, complete
from resispec.verifiers import get_verifier

PAIR = "pair=smollm2_6144"
NUM_DRAFTED = 4
NEW_TOKENS = 64
SUMMED = 2**28
"""The float32 numbers of the sum that measures the bandwidth."""
FEW = "4 bits"
WIDTHS = {"float32": "float32", "16 bits": "bfloat16", FEW: "int4"}
"""The width of weights -> the precision of this library.

llama.cpp has float32, float16 and the package's Q4_1 file, OpenVINO GenAI float16.
"""
ORDER = tuple(WIDTHS)
BYTES = {"float32": 4, "16 bits": 2, FEW: 0.7}
"""Bytes of a weight by width."""
PLAIN = "one token at a time"
MODES = {"plain": PLAIN, "assisted": "draft model", "prompt_lookup": "prompt lookup"}
"""The modes of engines, in words."""
Maker = Callable[[], Engine]
Ways = Callable[[Pair, str, Path], Iterator[tuple[str, Maker]]]
"""A function from a pair, a width and a folder to names and makers of engines."""


def ours(pair: Pair, _width: str, _folder: Path) -> Iterator[tuple[str, Maker]]:
    """Decoders of this library; all emit the target's law."""
    standard, level = get_verifier("standard"), get_verifier("level_optimal")
    decoders = {
        PLAIN: Decoder(NoDraft(), standard),
        f"chain of {NUM_DRAFTED}": Decoder(DraftModel(chain(NUM_DRAFTED)), standard),
        "7 positions, level_optimal": Decoder(DraftModel(complete(2, 2)), level),
    }
    for name, decoder in decoders.items():
        yield name, partial(DecoderEngine, f"resispec, {name}", pair, decoder)


def theirs(engine: str) -> Ways:
    """The ways of decoding of an engine of ENGINES, with the pair's weights rounded to a width."""

    def ways(pair: Pair, width: str, folder: Path) -> Iterator[tuple[str, Maker]]:
        for mode, name in MODES.items():
            options: dict[str, Any] = {"mode": mode, "num_drafted": NUM_DRAFTED}
            places = () if engine == "transformers" else (folder,)
            if places:
                options["precise"] = width == "float32"
            if width == FEW:
                options["file"] = fetched(SMOLLM2)
            yield name, partial(_made, engine, pair, *places, **options)

    return ways


def _made(engine: str, *arguments: Any, **options: Any) -> Engine:
    made: Engine = resolve_name(ENGINES[engine])(*arguments, **options)
    return made


LIBRARIES: dict[str, tuple[Ways, Sequence[str]]] = {
    "resispec": (ours, tuple(WIDTHS)),
    "transformers": (theirs("transformers"), ("float32", "16 bits")),
    "llama.cpp": (theirs("llama_cpp"), tuple(WIDTHS)),
    "OpenVINO GenAI": (theirs("openvino_genai"), ("16 bits",)),
}
"""Libraries, their ways of decoding, and the widths that each has."""


def dataset() -> Any:
    """The data set whose questions are asked."""
    [cell] = cells_of([PAIR, "dataset=smollm2_explain"])
    return build(cell.config["dataset"])


def load_pair(dtype: str) -> Pair:
    """The pair on the CPU."""
    [cell] = cells_of([PAIR, "device=cpu", f"dtype={dtype}"])
    pair: Pair = build(cell.config["pair"])
    return pair


def answering(connection: Any, library: str, width: str, folder: Path) -> None:
    """The work of a process: one library at one width, which answers when it is asked.

    Threads of one library slow down another one in the same process, so each has its own. Sends the
    bytes of the weights by name of a way, 0 where drafts are read, too; then, for each (name,
    prompt, seed), the number of tokens and the seconds. None ends it.
    """
    pair = load_pair(WIDTHS[width])
    target: Any = pair.target
    num_weights = sum(weight.numel() for weight in target.module.parameters())
    settings = Sampling(temperature=1.0, max_new_tokens=NEW_TOKENS)
    engines = {}
    with suppress(ModuleNotFoundError):
        for name, make in LIBRARIES[library][0](pair, width, folder):
            engines[name] = make()
    num_bytes = int(BYTES[width] * num_weights)
    connection.send({name: num_bytes * (name == PLAIN) for name in engines})
    while (asked := connection.recv()) is not None:
        name, prompt, seed = asked
        started = time.perf_counter()
        answer = engines[name].answer(prompt, settings, seed)
        connection.send((len(answer.tokens), time.perf_counter() - started))


def measure(options: Namespace) -> Measured:
    """A row for each width and way of decoding."""
    texts = [prompt.text for prompt in dataset().prompts(options.prompts)]
    tokenizer: Any = load_pair("float32").tokenizer
    prompts = [tokenizer.encode_chat(text) for text in texts]
    with processes() as found:
        answers, bandwidths = _in_turn(found, prompts)
    bandwidth = statistics.median(bandwidths)
    rows = []
    for way in found:
        tokens, seconds = zip(*answers[way], strict=True)
        speed = ratio(tokens, seconds)
        rate = way.num_bytes * speed.value / 1e9
        rows.append({
            "weights": way.width, "decoder": f"{way.library}, {way.name}",
            "tokens/s": speed.value, "lower": speed.lower, "upper": speed.upper,
            "GB/s": rate or float("nan"),
            "share of bandwidth": rate / bandwidth or float("nan"),
        })  # fmt: skip
    frame = pd.DataFrame(rows).sort_values(
        "weights", kind="stable", key=lambda column: column.map(ORDER.index)
    )
    for library in ("llama.cpp", "resispec"):
        base = frame[frame.decoder == f"{library}, {PLAIN}"].set_index("weights")["tokens/s"]
        frame[f"over {library}, {PLAIN}"] = frame["tokens/s"] / frame.weights.map(base)
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
        f"bfloat16, the output layer in 8 bits; {BYTES[FEW]} bytes a weight are counted."
    )
    return [table], [source], frame


@dataclass(frozen=True)
class Way:
    """A way of decoding, and the end of the pipe to its process."""

    library: str
    width: str
    name: str
    num_bytes: int
    connection: Any


def received(connection: Any, library: str, width: str) -> Any:
    """The next message of a process. Raises InvalidInput if the process has ended."""
    try:
        return connection.recv()
    except EOFError as error:
        raise InvalidInput(
            f"the process of {library}, {width}, ended; its reason is above"
        ) from error


def _end(connection: Any) -> None:
    with suppress(OSError):  # it has ended already
        connection.send(None)


@contextmanager
def processes() -> Iterator[list[Way]]:
    """All ways that can be had here; their processes end with the block."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="resispec-") as folder, ExitStack() as stack:
        ways = []
        cases = [(name, width) for name, (_, widths) in LIBRARIES.items() for width in widths]
        for library, width in progress_bar(cases, desc="loading", unit="library"):
            place = Path(folder) / f"{library} {width}"
            place.mkdir()
            connection, other = context.Pipe()
            process = context.Process(target=answering, args=(other, library, width, place))
            process.start()
            other.close()
            stack.callback(process.join)
            stack.callback(_end, connection)
            ways += [
                Way(library, width, name, num_bytes, connection)
                for name, num_bytes in received(connection, library, width).items()
            ]
        yield ways


def _in_turn(
    ways: Sequence[Way], prompts: Sequence[list[int]]
) -> tuple[dict[Way, list[tuple[int, float]]], list[float]]:
    """Tokens and seconds of every answer, by way, and the GB/s of the memory, by prompt."""
    answers: dict[Way, list[tuple[int, float]]] = {way: [] for way in ways}
    bandwidths = []
    numbers = torch.ones(SUMMED)
    order = torch.Generator().manual_seed(0)
    bar = progress_bar([prompts[0], *prompts], desc="peers", unit="prompt")
    for number, prompt in enumerate(bar):
        for place in torch.randperm(len(ways), generator=order).tolist():
            way = ways[place]
            way.connection.send((way.name, prompt, number))
            answer = received(way.connection, way.library, way.width)
            if number:  # the first prompt warms up
                answers[way].append(answer)
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
