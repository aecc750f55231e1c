"""The most memory that decoding takes: `python -m experiments.bench.memory [--device cpu|cuda]`.

The models have random weights and next to no body, so that the figures show what a step holds
besides weights and cache: laws and the working memory of their verification, in proportion to nodes
N times vocabulary V. The bytes that torch's allocator gives out are counted, so the figures are the
same on a busy machine. A processor also decodes as a GPU does, with verdicts that are drawn from
the verifier's whole law.
"""

from argparse import Namespace
from collections.abc import Callable
from typing import NamedTuple
from unittest.mock import patch

import pandas as pd
import torch
from torch import Generator

from analysis.table import plain
from experiments.bench.frame import Measured, origin, peak_bytes, run_bench
from resispec.decode import Decoder, Sampling
from resispec.drafters import Drafter, DraftModel, NoDraft
from resispec.draws import Draws
from resispec.models import Pair, TransformersModel, build_llama
from resispec.progress import progress_bar
from resispec.step import reading_is_free
from resispec.trees import chain, complete
from resispec.trees.search import search
from resispec.verifiers import get_verifier

VOCAB = 128_256
PROMPT_TOKENS = 8
BODY = {
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "max_position_embeddings": 256,
    "eos_token_id": None,
}
LEVELS = {13: 3, 40: 4, 121: 5}
"""Number of nodes -> levels of the complete tree with three children a node."""
ACCEPTANCE = (0.6, 0.15, 0.07, 0.04, 0.03, 0.02, 0.01, 0.01)
"""Chance of the b-th child in draw order, for which Sequoia's tree is the best in ten levels."""
TEMPERATURE = 0.6
"""At this temperature a step also holds scaled logits, one law more than at T = 1."""
MIB = 2**20
DRAFTERS: dict[str, Callable[[int], Drafter]] = {
    "autoregressive": lambda _: NoDraft(),
    "chain": lambda nodes: DraftModel(chain(nodes - 1)),
    "specinfer": lambda nodes: DraftModel(complete(LEVELS[nodes], 3)),
    "sequoia": lambda nodes: DraftModel(
        search(ACCEPTANCE, nodes, 10).topology(nodes, 10), Draws.WITHOUT_REPLACEMENT
    ),
}
"""Decoder -> the drafter for a number of nodes N."""


class Decoding(NamedTuple):
    """A decoder, its verifier, its number of nodes N and of tokens V."""

    decoder: str
    verifier: str
    num_nodes: int
    vocab: int = VOCAB


CASES = (
    Decoding("autoregressive", "standard", 1),
    Decoding("chain", "standard", 5),
    Decoding("specinfer", "standard", 121),
    Decoding("specinfer", "resispec", 121),
    Decoding("specinfer", "optimal", 121),
    Decoding("specinfer", "traversal_optimal", 121),
    Decoding("specinfer", "level_optimal", 121),
    Decoding("sequoia", "traversal", 121),
)


def random_pair(vocab: int, device: torch.device) -> Pair:
    """Two models of the same shape with different weights."""
    with torch.random.fork_rng(), device:
        torch.manual_seed(0)
        target, draft = (TransformersModel(build_llama(vocab_size=vocab, **BODY)) for _ in range(2))
    return Pair(target, draft, None)


def peak_of(case: Decoding, device: torch.device, walks: bool, num_prompts: int = 1) -> int:
    """The most bytes that decoding the prompts holds at once; the cache is next to nothing.

    A prompt takes two steps or more, so that what a step leaves to the next one counts. walks:
    verify node by node, instead of drawing from the whole law.
    """
    pair, drafter = random_pair(case.vocab, device), DRAFTERS[case.decoder](case.num_nodes)
    decoder, limit = Decoder(drafter, get_verifier(case.verifier)), drafter.topology.num_levels + 1
    sampling = Sampling(TEMPERATURE, max_new_tokens=limit, max_length=64, ignore_eos=True)

    def decode() -> None:
        for seed in range(num_prompts):
            generator = Generator().manual_seed(seed)
            prompt = torch.randint(case.vocab, (PROMPT_TOKENS,), generator=generator).tolist()
            decoder.generate(pair, prompt, sampling, Generator(device).manual_seed(seed))

    with patch("resispec.step.reading_is_free", lambda _: walks):
        return peak_bytes(decode, device)


def measure(options: Namespace) -> Measured:
    """A line for every case."""
    device = options.device
    cases = progress_bar(CASES, desc="memory", unit="case")
    walks = reading_is_free(device)
    peaks = [(peak_of(case, device, walks), peak_of(case, device, walks=False)) for case in cases]
    frame = pd.DataFrame(CASES)
    frame[["peak_bytes", "whole_law_bytes"]] = peaks
    frame["bytes_per_node_token"] = frame.peak_bytes / (frame.num_nodes * frame.vocab)
    shown = pd.DataFrame({
        "decoder": frame.decoder,
        "verifier": frame.verifier,
        "N": frame.num_nodes,
        "MiB": frame.peak_bytes / MIB,
        "bytes / (N V)": frame.bytes_per_node_token,
        "whole law, MiB": frame.whole_law_bytes / MIB,
    })  # fmt: skip
    specs = {"MiB": ",.2f", "bytes / (N V)": ".1f", "whole law, MiB": ",.2f"}
    caption = "The most memory that decoding takes, beyond the weights."
    source = (
        f"{origin('memory', device)}, T = {TEMPERATURE}, V = {VOCAB:,}. N: verified positions, the "
        "root counted; V: tokens of the vocabulary. Whole law: verdicts are drawn from the "
        "verifier's whole law, as on a GPU. Counted is what torch's allocator gave out; a law in "
        "float32 takes 4 bytes a node and token. The cache of the tiny models is included, which "
        "is below 0.1 MiB."
    )
    return [plain("bench_memory", shown, caption, specs=specs)], [source], frame


if __name__ == "__main__":
    run_bench("bench_memory", __doc__, measure)
