"""Time steps of real decoding, once and in turn: what `experiments.costs.model` is fitted to.

Every probe is a call of `Decoder.generate`, so that the model stays true when a step's internals change. The
probes are trees that differ in one thing at a time: stars, which the draft fills in one forward; trees of
three equal levels; and for every verifier trees from a short chain to 121 nodes.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch

from experiments.costs.configuration import METHODS, ON_CHAINS, ONE_TOKEN, Configuration
from experiments.costs.model import SIZES, WIDTHS, Timed
from resispec.decode import Decoder, Sampling, Step
from resispec.errors import InvalidInput
from resispec.models import Pair
from resispec.timing import Stopwatch, measuring, now
from resispec.trees import Topology, chain, complete, from_widths

ROUNDS = {"cpu": 5, "cuda": 2}
"""By the type of the device; what else a processor does shows in its times."""
NEW_TOKENS = 48
SHORT, LONG = 32, 448  # tokens of a prompt; the long one is cut to the models' context
WALKED: tuple[Topology, ...] = (
    *(chain(1), chain(4), from_widths((2, 4, 4)), complete(4, 3)),
    *(complete(5, 3), from_widths((8,) * 6), from_widths((16,) * 7)),
)
STRIDE = 61  # tokens between the beginnings of the prompts of two rounds
PARTS = ("draft", "target", "verify")


class Probe(NamedTuple):
    """A configuration, and how many tokens of a prompt it starts from."""

    configuration: Configuration
    num_tokens: int


def probes(context: int) -> list[Probe]:
    """Probes that are timed, each once. context: positions that both models can hold."""
    long = max(SHORT, min(LONG, context - max(SIZES) - NEW_TOKENS))
    stars = [Configuration("iid", "standard", from_widths((size - 1,))) for size in SIZES[1:]]
    levels = [Configuration("iid", "standard", from_widths((width,) * 3)) for width in WIDTHS]
    even = [from_widths((width,) * 3) for width in (1, 8, 32)]
    drawn = [Configuration(draws, names[0], tree) for draws, names in METHODS.items() for tree in even]
    methods = [(draws, verifier) for draws, names in METHODS.items() for verifier in names]
    walked = [Configuration(*method, topology) for method in methods for topology in WALKED]
    chains = [Configuration("iid", ON_CHAINS[0], chain(count)) for count in (1, 2, 4, 8)]
    short = [ONE_TOKEN, *stars, *levels, *drawn, *walked, *chains]
    behind = [ONE_TOKEN, stars[2], stars[-1], levels[0], levels[3], levels[-1]]
    found = [Probe(one, SHORT) for one in short] + [Probe(one, long) for one in behind]
    return list(dict.fromkeys(found))


def time_probes(
    pair: Pair, text: Sequence[int], report: Callable[[int, int], None], rounds: int
) -> list[Timed]:
    """Every probe in so many rounds, and medians over them; one more round warms up.

    text: token ids that prompts are cut from, at another place in every round; a short one is repeated.
    report: told how many of how many calls are done.
    Raises InvalidInput when there is no text, or the models' context is too short.
    """
    if not text:
        raise InvalidInput("costs are timed on a text; found an empty one")
    wanted = probes(min(pair.target.context, pair.draft_model().context))
    decoders: dict[int, Decoder] = {}
    found: list[list[list[float]]] = [[] for _ in wanted]
    is_noisy = pair.target.device.type == "cpu"
    for done, (turn, place) in enumerate(_order(len(wanted), rounds, is_noisy)):
        report(done, (rounds + 1) * len(wanted))
        if place not in decoders:
            if not is_noisy:
                decoders.clear()  # it is done, and what it holds on the device can go
            decoders[place] = wanted[place].configuration.decoder
        start = max(turn, 0) * STRIDE
        prompt = [text[token % len(text)] for token in range(start, start + wanted[place].num_tokens)]
        seconds = _time(pair, decoders[place], prompt, max(turn, 0))
        if turn >= 0:
            found[place].append(seconds)
    medians = [map(statistics.median, zip(*own, strict=True)) for own in found]
    return [
        Timed(one.configuration, one.num_tokens + NEW_TOKENS / 2, *seconds)
        for one, seconds in zip(wanted, medians, strict=True)
    ]


def _order(count: int, rounds: int, is_noisy: bool) -> Iterator[tuple[int, int]]:
    """Turn and place of every call; turn -1 warms up.

    Where other work shows in times, all probes take turns, so that it falls on all alike; their order is
    drawn anew, since a call leaves its heap and caches to the next one. Elsewhere one is done after another.
    """
    turns = range(-1, rounds)
    if not is_noisy:
        yield from ((turn, place) for place in range(count) for turn in turns)
        return
    generator = torch.Generator().manual_seed(0)
    for turn in turns:
        yield from ((turn, place) for place in torch.randperm(count, generator=generator).tolist())


def _time(pair: Pair, decoder: Decoder, prompt: list[int], seed: int) -> list[float]:
    """Seconds of a step and of its PARTS, in the mean over the steps of one call.

    The first step is left out, which makes what the later ones use again. The clocks of the parts keep a GPU
    from working ahead, so there whole steps are timed in another call, without them.
    """
    device, levels = pair.target.device, decoder.drafter.topology.num_levels
    sampling = Sampling(1.0, NEW_TOKENS, len(prompt) + NEW_TOKENS + levels, ignore_eos=True)
    watch, marks = Stopwatch(device, looks_inside=False), list[tuple[float, ...]]()

    def mark(_step: Step) -> None:
        marks.append((now(device), *(watch.seconds[part] for part in PARTS)))

    def decode(stopwatch: Stopwatch | None) -> list[float]:
        marks.clear()
        generator = torch.Generator(device).manual_seed(seed)
        with measuring(stopwatch):
            decoder.generate(pair, prompt, sampling, generator, mark)
        return [(last - first) / (len(marks) - 1) for first, last in zip(marks[0], marks[-1], strict=True)]

    seconds = decode(watch)
    return [*decode(None)[:1], *seconds[1:]] if device.type == "cuda" else seconds
