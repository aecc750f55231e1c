"""Costs of steps on a device: some configurations are timed once,
and a model predicts those of all others.

The time of a part of a step is a sum of terms. A term is a number, which follows from the
configuration and the cached length, times seconds that are fitted to the timed steps.
`RESULTS/timing/DEVICE.json` has an entry for every pair that was timed on the device, at first use
or by the bench. Every timed step is one of `Decoder.generate`, so that the model stays true when a
step's internals change. Nothing imports torch before a device is named.
"""

from __future__ import annotations

import os
import random
import statistics
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.cell import Cell, Reporter, build
from experiments.configurations import DRAWN_AS, METHODS, ON_CHAINS, ONE_TOKEN, Configuration
from resispec.errors import InvalidInput, first_line
from resispec.files import locked, read_sealed, sealed, write_json
from resispec.trees import chain, complete, from_widths
from resispec.trees.search import Times

if TYPE_CHECKING:
    from resispec.decode import Decoder
    from resispec.models import Pair
    from resispec.timing import Stopwatch

SIZES = (1, 2, 3, 4, 8, 16, 32, 64, 128)
"""Numbers of positions of a forward of the target; seconds between them are interpolated."""
WIDTHS = SIZES[:7]
"""Widths for the draft, which forwards one level at a time;
beyond the last one seconds are extrapolated.
"""
LEVEL_WIDTH = 16
"""Nodes of the draft forward that represents a level where a single number is needed."""
FORMAT = "resispec costs 1"
WHAT = "times of steps"
ROUNDS = {"cpu": 5, "cuda": 2}
"""Rounds of timing by the type of the device; a processor needs more,
since its other work adds noise.
"""
NEW_TOKENS = 48
SHORT, LONG = 32, 448  # tokens of a prompt; the long one is cut to the models' context
STRIDE = 61  # tokens between the beginnings of the prompts of two rounds
PARTS = ("draft", "target", "verify")
"""Parts of a step that have a clock; the remaining time of the step is its rest."""

TermsByName = Mapping[str, float]
TimedStep = Mapping[str, Any]
"""A timed step, as JSON holds it: `Configuration.facts`; `length`, the mean number of positions
that were cached before it; `step_s`, and the seconds of its PARTS, like `draft_s`.
"""


# --- the model


def forward_terms(model: str, size: int, length: float) -> TermsByName:
    """Terms of a forward of the "target" or the "draft" over `size` positions
    after `length` cached ones.
    """
    knots = SIZES if model == "target" else WIDTHS
    place = min(bisect_right(knots, size), len(knots) - 1)
    low, high = knots[place - 1], knots[place]
    share = (size - low) / (high - low)
    cache_terms = {f"{model} cached": length, f"{model} cached by positions": length * size}
    return {f"{model} {low}": 1 - share, f"{model} {high}": share} | cache_terms


def step_terms(configuration: Configuration, length: float) -> dict[str, TermsByName]:
    """The terms of every part of a step. length: positions that are cached before it.

    draft: forwards over the nodes that have children, level by level, and their draws. target: its
    forward, head and laws included. verify: a walk, with terms for levels, for siblings on the
    widest path and for nodes; the root's siblings are always looked at, deeper ones less and less
    often. rest: commit, which also learns recycled laws, and the loop itself.
    """
    topology = configuration.topology
    target, num_drafted = (
        forward_terms("target", topology.num_nodes, length),
        float(topology.num_nodes - 1),
    )
    if not num_drafted:
        return {
            "draft": {},
            "target": target,
            "verify": {"walk of a root": 1.0},
            "rest": {"rest": 1.0},
        }
    draft, draw = Counter[str](), f"draw {configuration.draws}"
    families = [[len(topology.children[node]) for node in level] for level in topology.levels]
    for family in families[:-1]:
        laws = float(np.count_nonzero(family))
        draft.update(forward_terms("draft", int(laws), length))
        draft.update({draw: 1.0, f"{draw} laws": laws, f"{draw} siblings": laws * max(family)})
    draft["draft begins"] = 1.0  # the first forward also has the token that was accepted as a leaf
    walk = f"walk {DRAWN_AS.get(configuration.draws, configuration.draws)} {configuration.verifier}"
    verify = {
        walk: 1.0,
        f"{walk} levels": topology.num_levels - 1.0,
        f"{walk} siblings of the root": float(len(topology.children[0])),
        f"{walk} deeper siblings": float(sum(map(max, families[1:]))),
        f"{walk} nodes": num_drafted,
    }
    rest = {"rest": 1.0, "rest of speculation": 1.0, "rest by nodes": num_drafted}
    if configuration.draws == "recycled":
        rest |= {"rest of learning": 1.0, "rest of learning by nodes": num_drafted}
    return {"draft": draft, "target": target, "verify": verify, "rest": rest}


@dataclass(frozen=True)
class CostModel:
    """Predicts the seconds of a step of a pair on a device.

    seconds: term -> seconds for one unit of it. source: where and when the steps were timed, for
    the `about` of files that are made with the model.
    """

    seconds: Mapping[str, float]
    source: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def fitted(
        cls, steps: Sequence[TimedStep], source: Mapping[str, str] | None = None
    ) -> CostModel:
        """The model with the least squared errors relative to the times of the timed steps.

        No term is below 0 s, except for those of the rest: the rest is negative if the clocks of
        the parts kept a device from working ahead, see `_time`.
        """
        from scipy.optimize import nnls  # takes half a second, and most commands fit nothing

        scales = np.array([step["step_s"] for step in steps])
        parts = {part: np.array([step[f"{part}_s"] for step in steps]) for part in PARTS}
        parts["rest"] = scales - sum(parts.values())
        rows = [step_terms(Configuration.of(step), step["length"]) for step in steps]
        coefficients: dict[str, float] = {}
        for part, seconds in parts.items():
            names = [
                *dict.fromkeys(
                    name for terms in rows for name, value in terms[part].items() if value
                )
            ]
            matrix = np.array([[terms[part].get(name, 0.0) for name in names] for terms in rows])
            units = np.abs(matrix).max(0)  # lengths and counts are far larger than shares
            design, shares = matrix / units / scales[:, None], seconds / scales
            fit = (
                nnls(design, shares)
                if part != "rest"
                else np.linalg.lstsq(design, shares, rcond=None)
            )
            coefficients |= dict(zip(names, (fit[0] / units).tolist(), strict=True))
        return cls(coefficients, source or {})

    def parts_s(self, configuration: Configuration, length: float) -> dict[str, float]:
        """Seconds of the parts of a step. length: cached positions before it."""
        return {part: self._sum(terms) for part, terms in step_terms(configuration, length).items()}

    def step_s(self, configuration: Configuration, length: float) -> float:
        """Seconds of a whole step, see `parts_s`."""
        return sum(self.parts_s(configuration, length).values())

    def times(self, sizes: Iterable[int], length: float) -> Times:
        """Seconds of single forwards: of the target over each size and over 1,
        of the draft over a level.
        """
        forwards = {
            size: self._sum(forward_terms("target", size, length)) for size in sorted({1, *sizes})
        }
        return Times(forwards, self._sum(forward_terms("draft", LEVEL_WIDTH, length)))

    def _sum(self, terms: TermsByName) -> float:
        return sum(value * self.seconds[name] for name, value in terms.items() if value)


# --- the file


def file_of(config: Mapping[str, Any]) -> Path:
    """The file of costs for the device that a cell's configuration names."""
    import torch

    from experiments.provenance import device_stem
    from resispec.models import check_device

    check_device(config["device"])
    return (
        Path(config["results"]) / "timing" / f"{device_stem(torch.device(config['device']))}.json"
    )


def key_of(config: Mapping[str, Any]) -> str:
    """16 hexadecimal digits that name a pair and all else that its times depend on,
    except the device.

    They also depend on the timed verifiers and sizes, so that times are taken again when these
    change.
    """
    facts = {name: config[name] for name in ("pair", "num_threads", "compiled")}
    # which torch heeds
    facts["num_threads"] = facts["num_threads"] or os.environ.get("OMP_NUM_THREADS")
    return Cell({}, facts | {"verifiers": METHODS, "sizes": SIZES}).cell_id


def read(path: Path) -> dict[str, Any]:
    """The entries of a file of costs by their keys; empty if there is no file.

    Raises InvalidInput, in one line that names the file, if the file is damaged or holds no costs.
    """
    if not path.exists():
        return {}
    try:
        content = read_sealed(path)
        if (name := content.get("format")) != FORMAT:
            raise InvalidInput(
                f"{path} holds no costs: its format is {name!r}; allowed: {FORMAT!r}"
            )
        if not isinstance(content.get("pairs"), dict):
            raise InvalidInput(f"{path} holds no costs: its pairs are no JSON object")
    except InvalidInput as error:
        raise InvalidInput(f"{error}; delete it, and costs are measured again") from error
    return dict(content["pairs"])


def model_of(path: Path, key: str, entry: Any) -> CostModel:
    """The model of an entry of a file.

    Raises InvalidInput, which names both, where it is damaged.
    """
    try:
        source = {name: entry[name] for name in ("device", "git_commit", "started")}
        return CostModel.fitted(
            entry["steps"], {"file": str(Path(*path.parts[-2:])), "entry": key} | source
        )
    except (InvalidInput, LookupError, TypeError, ValueError, AttributeError) as error:
        reason = f"{path}: entry {key} is damaged ({type(error).__name__}: {first_line(error)})"
        raise InvalidInput(f"{reason}; delete the file, and costs are measured again") from error


def costs_of(cell: Cell, report: Reporter, again: bool = False) -> CostModel:
    """The costs of a cell's pair on its device, measured first if the file lacks them.

    again: measure anyway.

    Only one process at a time measures. Raises InvalidInput for a damaged file.
    """
    path, key = file_of(cell.config), key_of(cell.config)
    if again or key not in read(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(
            path.with_name(f".{path.name}.measuring"), lambda: report(f"{WHAT}: waiting", 0, 1)
        ):
            if again or key not in read(path):  # else another process has just measured
                entry = _measured(cell, report)
                content = {
                    "format": FORMAT,
                    "device": entry["device"],
                    "pairs": read(path) | {key: entry},
                }
                write_json(path, sealed(content))
    return model_of(path, key, read(path)[key])


def _measured(cell: Cell, report: Reporter) -> dict[str, Any]:
    """A new entry of the file: every timed step, and where and when the steps were timed."""
    from experiments.provenance import provenance
    from experiments.worker import build_pair

    config = cell.config
    report(WHAT, 0, 1)
    pair = build_pair(config)
    documents = build(config["dataset"]).prompts(config["num_prompts"])
    text = [token for document in documents for token in pair.tokenizer.encode(document.text)]
    load, rounds = os.getloadavg()[0], ROUNDS[pair.target.device.type]
    steps = time_probes(pair, text, lambda done, count: report(WHAT, done, count), rounds)
    facts = provenance(pair.target.device)
    names = (
        "device",
        "git_commit",
        "git_is_dirty",
        "started",
        "num_threads",
        "num_cores",
        "versions",
    )
    return {
        "pair": str(cell.labels["pair"]),
        "dtype": config["dtype"],
        "num_rounds": rounds,
        "load_average": round(load, 2),
        **{name: facts[name] for name in names},
        "steps": steps,
    }


# --- the clock


def probes(context: int) -> list[tuple[Configuration, int]]:
    """The configurations that are timed, each with the number of prompt tokens that it starts from.

    They differ in one thing at a time: stars, which the draft fills in one forward; trees of three
    equal levels; and for every verifier trees from a short chain to 121 nodes. context: positions
    that both models can hold.
    """
    trees = [chain(1), chain(4), from_widths((2, 4, 4)), complete(4, 3)]
    trees += [complete(5, 3), from_widths((8,) * 6), from_widths((16,) * 7)]
    stars = [Configuration("iid", "standard", from_widths((size - 1,))) for size in SIZES[1:]]
    levels = [Configuration("iid", "standard", from_widths((width,) * 3)) for width in WIDTHS]
    short = [ONE_TOKEN, *stars, *levels]
    for draws, verifiers in METHODS.items():
        short += [
            Configuration(draws, verifiers[0], from_widths((width,) * 3)) for width in (1, 8, 32)
        ]
        names = verifiers[:1] if draws in DRAWN_AS else verifiers
        short += [
            Configuration(draws, verifier, topology) for verifier in names for topology in trees
        ]
    short += [Configuration("iid", ON_CHAINS[0], chain(count)) for count in (1, 2, 4, 8)]
    length = max(SHORT, min(LONG, context - max(SIZES) - NEW_TOKENS))
    long = [ONE_TOKEN, stars[2], stars[-1], levels[0], levels[3], levels[-1]]
    return list(dict.fromkeys([*product(short, [SHORT]), *product(long, [length])]))


def time_probes(
    pair: Pair, text: list[int], report: Callable[[int, int], None], rounds: int
) -> list[TimedStep]:
    """Time every probe in `rounds` rounds and return medians over them; one more round warms up.

    On a CPU, where other work shows in the times, all probes take turns, so that it falls on all
    alike; their order is drawn anew, since a call leaves its heap and caches to the next one. On
    other devices one probe is done after another. text: token ids that prompts are cut from, at
    another place in every round; a short text is repeated. report: called with the number of calls
    that are done and that of all calls.
    Raises InvalidInput when the models' context is too short.
    """
    cases = probes(min(pair.target.context, pair.some_draft().context))
    is_noisy = pair.target.device.type == "cpu"
    # turn -1 warms up
    places, turns, generator = range(len(cases)), range(-1, rounds), random.Random(0)
    calls = [(turn, place) for place in places for turn in turns]
    if is_noisy:
        calls = [(turn, place) for turn in turns for place in generator.sample(places, len(places))]
    # On a device only the current decoder is kept, since each one holds memory there.
    decoder_of = lru_cache(None if is_noisy else 1)(lambda place: cases[place][0].decoder)
    seconds: list[list[list[float]]] = [[] for _ in cases]
    for done, (turn, place) in enumerate(calls):
        report(done, len(calls))
        start = max(turn, 0) * STRIDE
        prompt = [text[token % len(text)] for token in range(start, start + cases[place][1])]
        row = _time(pair, decoder_of(place), prompt, max(turn, 0))
        if turn >= 0:
            seconds[place].append(row)
    names = ("step_s", *(f"{part}_s" for part in PARTS))
    steps = []
    for (configuration, num_tokens), rows in zip(cases, seconds, strict=True):
        medians = (rounded(statistics.median(values), 5) for values in zip(*rows, strict=True))
        length = round(num_tokens + NEW_TOKENS / 2, 1)
        steps.append(
            configuration.facts | {"length": length} | dict(zip(names, medians, strict=True))
        )
    return steps


def rounded(number: float, digits: int) -> float:
    """A number rounded to so many significant digits."""
    return float(f"{number:.{digits}g}")


def _time(pair: Pair, decoder: Decoder, prompt: list[int], seed: int) -> list[float]:
    """Seconds of a step and of its PARTS, the mean over the steps of one call.

    The first step is left out, since it prepares things for the later ones. The clocks of the parts
    keep a GPU from working ahead, so on a GPU whole steps are timed in another call, without these
    clocks.
    """
    import torch

    from resispec.decode import Sampling
    from resispec.timing import Stopwatch, measuring, now

    device, levels = pair.target.device, decoder.drafter.topology.num_levels
    sampling = Sampling(1.0, NEW_TOKENS, len(prompt) + NEW_TOKENS + levels, ignore_eos=True)
    watch = Stopwatch(device, looks_inside=False)

    def decode(stopwatch: Stopwatch | None) -> list[float]:
        marks: list[tuple[float, ...]] = []

        def mark(_step: object) -> None:
            marks.append((now(device), *(watch.seconds[part] for part in PARTS)))

        with measuring(stopwatch):
            decoder.generate(
                pair, prompt, sampling, torch.Generator(device).manual_seed(seed), mark
            )
        return [
            (last - first) / (len(marks) - 1)
            for first, last in zip(marks[0], marks[-1], strict=True)
        ]

    seconds = decode(watch)
    return [*decode(None)[:1], *seconds[1:]] if device.type == "cuda" else seconds
