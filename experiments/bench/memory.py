"""The most memory that decoding takes: `python -m experiments.bench.memory [--device cpu|cuda]`.

Decoders and verifiers at several numbers of nodes N and vocabularies V, over one prompt and over
many.
The models have random weights and next to no body, so that the figures show what a step holds
besides weights and cache: laws and the working memory of their verification, in proportion to N V.
The bytes that torch's allocator gives out are counted, so the figures are the same on a busy
machine. A processor also decodes as a GPU does, with verdicts that are drawn from the verifier's
whole law.
"""

from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import NamedTuple
from unittest.mock import patch

import pandas as pd
import torch
from torch import Generator

from analysis.table import plain
from experiments.bench.frame import Measured, peak_bytes, run_bench
from experiments.provenance import device_name
from resispec.decode import Decoder, Sampling
from resispec.drafters import Drafter, DraftModel, NoDraft
from resispec.draws import Draws
from resispec.models import Pair, TransformersModel, build_llama
from resispec.progress import progress_bar
from resispec.step import reading_is_free
from resispec.trees import chain, complete
from resispec.trees.search import search
from resispec.verifiers import get_verifier

VOCABULARIES = (2048, 32_000, 128_256)
MAIN_VOCAB = 32_000
"""The vocabulary at which the number of nodes varies."""
MANY_PROMPTS = 12
PROMPT_TOKENS = 8
BODY = {
    **{"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1},
    **{"max_position_embeddings": 256, "eos_token_id": None},
}
LEVELS = {13: 3, 40: 4, 121: 5}
"""Number of nodes -> levels of the complete tree with three children a node."""
ACCEPTANCE = (0.6, 0.15, 0.07, 0.04, 0.03, 0.02, 0.01, 0.01)
"""Chance of the b-th child in draw order, for which Sequoia's tree is the best in ten levels."""
TEMPERATURE = 0.6
"""At this temperature a step also holds scaled logits, one law more than at T = 1."""
ALLOWED_BYTES = 4 * 2**30
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
METHODS = {
    ("autoregressive", "standard"): (1,),
    ("chain", "standard"): (5,),
    **{
        ("specinfer", name): tuple(LEVELS)
        for name in ("standard", "resispec", "optimal", "traversal_optimal", "level_optimal")
    },
    ("sequoia", "traversal"): tuple(LEVELS),
}
"""Decoder and verifier that are measured -> all numbers of nodes N."""


class Decoding(NamedTuple):
    """A case: a method, its number of nodes N, tokens V,
    and the number of prompts that are decoded.
    """

    decoder: str
    verifier: str
    num_nodes: int
    vocab: int
    num_prompts: int = 1


def cases() -> list[Decoding]:
    """Every method with all vocabularies at its largest N, with its other N,
    and with many prompts.
    """
    decodings = []
    for method, (*few, most) in METHODS.items():
        decodings += [Decoding(*method, nodes, MAIN_VOCAB) for nodes in few]
        decodings += [Decoding(*method, most, vocab) for vocab in VOCABULARIES]
        decodings.append(Decoding(*method, most, VOCABULARIES[0], MANY_PROMPTS))
    return decodings


def random_pair(vocab: int, device: torch.device) -> Pair:
    """Two models of the same shape with different weights."""
    with torch.random.fork_rng(), device:
        torch.manual_seed(0)
        target, draft = (TransformersModel(build_llama(vocab_size=vocab, **BODY)) for _ in range(2))
    return Pair(target, draft, None)


def peak_of(case: Decoding, device: torch.device, walks: bool) -> int:
    """The most bytes that decoding the prompts holds at once,
    of which the cache is next to nothing.

    A prompt takes two steps or more, so that what a step leaves to the next one counts. walks:
    verify node by node, instead of drawing from the whole law.
    """
    pair, drafter = random_pair(case.vocab, device), DRAFTERS[case.decoder](case.num_nodes)
    decoder, limit = Decoder(drafter, get_verifier(case.verifier)), drafter.topology.num_levels + 1
    sampling = Sampling(TEMPERATURE, max_new_tokens=limit, max_length=64, ignore_eos=True)

    def decode() -> None:
        for seed in range(case.num_prompts):
            prompt = torch.randint(
                case.vocab, (PROMPT_TOKENS,), generator=Generator().manual_seed(seed)
            )
            decoder.generate(pair, prompt.tolist(), sampling, Generator(device).manual_seed(seed))

    with patch("resispec.step.reading_is_free", lambda _: walks):
        return peak_bytes(decode, device)


def peaks(wanted: Sequence[Decoding], device: torch.device) -> pd.DataFrame:
    """One tidy row per case."""

    def peak_bytes_of(title: str, walks: bool) -> list[int]:
        return [
            peak_of(case, device, walks) for case in progress_bar(wanted, desc=title, unit="case")
        ]

    frame, walks = pd.DataFrame(wanted), reading_is_free(device)
    frame["peak_bytes"] = peak_bytes_of("memory", walks)
    frame["whole_law_bytes"] = (
        peak_bytes_of("whole laws", walks=False) if walks else frame.peak_bytes
    )
    return frame.assign(bytes_per_node_token=frame.peak_bytes / (frame.num_nodes * frame.vocab))


def measure(options: Namespace) -> Measured:
    """A line for every case, and a sentence about the largest."""
    device, frame = options.device, peaks(cases(), options.device)
    names = {"num_nodes": "N", "vocab": "V", "num_prompts": "prompts", "peak_bytes": "MiB"}
    names |= {"bytes_per_node_token": "bytes / (N V)", "whole_law_bytes": "whole law, MiB"}
    scaled = frame.assign(
        peak_bytes=frame.peak_bytes / MIB, whole_law_bytes=frame.whole_law_bytes / MIB
    )
    shown = scaled[["decoder", "verifier", *names]].rename(columns=names)
    specs = {"V": ",", "MiB": ",.2f", "bytes / (N V)": ".1f", "whole law, MiB": ",.2f"}
    caption = "The most memory that decoding takes, beyond the weights."
    table = plain("bench_memory", shown, caption, specs=specs)
    largest_bytes = frame[["peak_bytes", "whole_law_bytes"]].max(axis=1)
    row = frame.loc[largest_bytes.idxmax()]
    fits = "fits" if largest_bytes.max() <= ALLOWED_BYTES else "does not fit"
    largest = (
        f"The most: {largest_bytes.max() / MIB:,.0f} MiB, of {row.decoder} with `{row.verifier}` "
        f"at N = {row.num_nodes} and V = {row.vocab:,}, which {fits} into "
        f"{ALLOWED_BYTES / MIB:,.0f} MiB."
    )
    source = (
        f"`python -m experiments.bench.memory --device {device.type}` on {device_name(device)}, "
        f"torch {torch.__version__}, T = {TEMPERATURE}. N: verified positions, the root counted; "
        "V: tokens of the vocabulary. Whole law: verdicts are drawn from the verifier's whole "
        "law, as on a GPU. Counted is what torch's allocator gave out; a law in float32 takes 4 "
        "bytes a node and token. The cache of the tiny models is included, which is below 0.1 MiB."
    )
    return [table], [largest, source], frame


if __name__ == "__main__":
    run_bench("bench_memory", __doc__, measure)
