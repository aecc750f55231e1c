"""Engines that the galleries show: exact ones, shipped faults, and some of the package index."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from referee.engines import Answer, Engine
from referee.engines.base import ENGINES
from referee.engines.decoder import DecoderEngine
from referee.engines.generate import TransformersEngine
from referee.gallery import bugs
from referee.servers.formats import LlamaCpp
from resispec.decode import Decoder
from resispec.drafters import DraftModel, NoDraft
from resispec.draws import Draws, DrawsKind
from resispec.models import Pair
from resispec.packages import SMOLLM2, fetched
from resispec.sampling import Sampling
from resispec.trees import chain, complete
from resispec.verifiers import SiblingRule, Standard, Verifier, get_verifier

SLOTS = 4
"""llama.cpp's requests at a time in the gallery of engines' defaults: its server's default."""
SHAPES = {"chain": chain(4), "tree": complete(4, 2)}
HUB = "https://github.com"
HUGGING_FACE = f"{HUB}/huggingface/transformers"
ASSISTED = "transformers, assisted"
VLLM = f"{HUB}/vllm-project/vllm"
Maker = Callable[[Pair, Path], Engine]
"""A function from a pair, and a folder for models in other formats, to an engine."""


@dataclass(frozen=True)
class Exhibit:
    """One engine of a gallery.

    name: used in the table, the figure and its files. make: makes the engine; raises
    ModuleNotFoundError if a package is not installed. beside: the exact engine with which its
    accepted length is compared. thread: the address of the report of its fault, "" for exact
    engines. times: the factor by which it continues more prompts than the others, if its bias shows
    only then. settings: those of its law that replace the gallery's; with any, `beside` is its
    control arm and has the same ones. first_seed: the first seed of its answers, another one in
    each arm that is compared. concurrency: its requests at a time, see `write_transcripts`.
    """

    name: str
    make: Maker
    beside: str
    thread: str = ""
    where: str = ""
    times: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    first_seed: int = 0
    concurrency: tuple[int, ...] = ()

    @property
    def stem(self) -> str:
        """The name of its files."""
        return re.sub("[^a-z0-9]+", "_", self.name.lower()).strip("_")


def counting(engine: TransformersEngine) -> TransformersEngine:
    """The given engine, whose answers now say how often the target was forwarded.

    Each forward emits one token and the drafted tokens that it accepted.
    """
    ask = engine.answers

    def answers(
        prompts: Sequence[Sequence[int]], settings: Sampling, seeds: Sequence[int]
    ) -> list[Answer]:
        forwards: list[int] = []
        with engine.target.register_forward_hook(lambda *_: forwards.append(1)):
            [reply] = ask(prompts, settings, seeds)
        steps = len(forwards)
        record = {"num_spec_steps": steps, "num_accepted_draft_tokens": len(reply.tokens) - steps}
        return [replace(reply, extra={"spec_decode": record})]

    engine.answers = answers  # type: ignore[method-assign]
    return engine


def ours(
    name: str,
    rule: SiblingRule | Verifier,
    thread: str = "",
    shape: str = "chain",
    draws: DrawsKind = Draws.IID,
    kind: type[DecoderEngine] = DecoderEngine,
    **fields: Any,
) -> Exhibit:
    """An exhibit of this library's own decoding loop.

    shape: a key of SHAPES. fields: further ones of `Exhibit`; a fault lies in the verifier if they
    do not say where else.
    """
    decoder = Decoder(DraftModel(SHAPES[shape], draws), rule)
    fields = {"beside": f"standard, {shape}", "where": "verifier" if thread else ""} | fields
    return Exhibit(name, lambda pair, _: kind(name, pair, decoder), thread=thread, **fields)


def transformers(kind: type[TransformersEngine], *mode: str) -> Maker:
    """A maker of `generate` of transformers, with counted forwards."""
    return lambda pair, _: counting(kind(pair, *mode))


def packaged(engine: str, mode: str = "assisted", **options: Any) -> Maker:
    """A maker of an engine of ENGINES, whose package need not be installed."""
    return lambda pair, folder: resolve_name(ENGINES[engine])(pair, folder, mode, **options)


def with_defaults(temperature: float) -> Iterator[Exhibit]:
    """Engines with their own default filters at a temperature, and the target alone with these."""
    llama = partial(packaged, "llama_cpp", slots=SLOTS)
    generate = partial(transformers, TransformersEngine)

    def quantised(pair: Pair, folder: Path) -> Engine:
        return llama("plain", file=fetched(SMOLLM2))(pair, folder)

    target, plain = "target alone, llama.cpp's filters", "llama.cpp, plain"
    decoder = Decoder(NoDraft(), _STANDARD)
    top_k, defaults = {"top_k": bugs.KEPT}, LlamaCpp.DEFAULTS
    arms: Sequence[tuple[str, Maker, str, Mapping[str, Any]]] = (
        ("transformers, plain", generate("plain"), "transformers, plain", top_k),
        ("transformers, assisted", generate("assisted"), "transformers, plain", top_k),
        (target, lambda pair, _: DecoderEngine(target, pair, decoder), target, defaults),
        (plain, llama("plain"), target, defaults),
        ("llama.cpp, draft model", llama(), plain, defaults),
        ("llama.cpp, draft model by ratio", llama(by_ratio=True), plain, defaults),
        ("llama.cpp, packaged Q4_1 weights", quantised, plain, defaults),
    )
    for number, (name, make, beside, filters) in enumerate(arms):
        settings, end = {**filters, "temperature": temperature}, f", T = {temperature:g}"
        loads = (SLOTS,) if name.startswith("llama.cpp") else ()
        yield Exhibit(
            name + end,
            make,
            beside + end,
            settings=settings,
            first_seed=10_000 * number,
            concurrency=loads,
        )


beside_assisted = partial(Exhibit, beside=ASSISTED)
_STANDARD, _DRAFTS = get_verifier("standard"), bugs.RacedDrafts()
FILTERED = {"temperature": 0.7, "top_p": 0.9}
"""The settings of exhibits that apply settings wrongly, and of the exact engine beside them."""
filtered = partial(ours, beside="standard, chain, filtered", settings=FILTERED)
"""An exhibit with these settings."""

EXACT = (
    ours("standard, chain", _STANDARD),
    ours("standard, tree", _STANDARD, shape="tree"),
    filtered("standard, chain, filtered", _STANDARD),
    ours("traversal_optimal, tree", get_verifier("traversal_optimal"), shape="tree"),
    ours("accept if equal", get_verifier("naive")),
    ours("exact but slow", bugs.RefusesAll(Standard())),
    beside_assisted(ASSISTED, transformers(TransformersEngine, "assisted")),
    beside_assisted("llama.cpp, draft model", packaged("llama_cpp")),
)
"""Exact engines, which are to be acquitted."""

FAULTY = (
    ours("wrong residual", bugs.PointMassResidual(), f"{HUB}/jd-opensource/xllm/issues/2175"),
    ours(
        "draft's noise reused",
        bugs.SharedNoise(_DRAFTS),
        f"{VLLM}/pull/47386",
        where="random numbers",
        draws=_DRAFTS,
        times=4,
    ),
    ours(
        "drafts cut, q whole",
        _STANDARD,
        f"{HUGGING_FACE}/issues/47932",
        where="drafts",
        draws=bugs.CutDrafts(),
    ),
    beside_assisted(
        "argmax drafts",
        transformers(bugs.ArgmaxEngine),
        thread=f"{HUGGING_FACE}/pull/47961",
        where="drafts",
    ),
    ours(
        "drafts cut after the draw",
        bugs.CensoredDrafts(Standard()),
        f"{HUB}/ggml-org/llama.cpp/pull/27694",
        where="drafts",
    ),
    ours(
        "ids not mapped",
        _STANDARD,
        f"{HUB}/vllm-project/vllm-ascend/pull/16166",
        where="drafts",
        draws=bugs.UnmappedDrafts(),
    ),
    ours(
        "drafts in bfloat16",
        _STANDARD,
        f"{HUB}/deepseek-ai/DeepSpec/issues/31",
        where="drafts",
        draws=bugs.RoundedDrafts(),
    ),
    ours(
        "wrong logits rows",
        bugs.WrongRows(Standard()),
        f"{HUB}/NVIDIA/TensorRT-LLM/pull/15098",
        where="logits",
        shape="tree",
    ),
    ours(
        "cache rows of another token",
        _STANDARD,
        f"{HUB}/ztxz16/fastllm/issues/728",
        where="cache",
        kind=bugs.KeptSiblings,
        shape="tree",
    ),
    ours(
        "leak between answers",
        _STANDARD,
        f"{HUB}/ggml-org/llama.cpp/issues/27296",
        where="cache",
        kind=bugs.LeakBetweenAnswers,
        times=4,
    ),
    ours(
        "corrupt above two sequences",
        _STANDARD,
        f"{HUB}/1CatAI/1Cat-vLLM/issues/656",
        where="batch",
        kind=bugs.CorruptInBatches,
        times=4,
        concurrency=(1, SLOTS),
    ),
    ours(
        "stray tokens",
        bugs.Strays(Standard()),
        f"{HUB}/vllm-project/vllm-metal/issues/622",
        where="random numbers",
        times=4,
    ),
    ours(
        "seed without effect",
        _STANDARD,
        f"{VLLM}/issues/13196",
        where="random numbers",
        kind=bugs.DeafToSeeds,
    ),
    ours(
        "greedy verification",
        bugs.GreedyVerification(Standard()),
        f"{HUB}/sgl-project/sglang/pull/39253",
    ),
    filtered(
        "temperature without effect",
        _STANDARD,
        f"{VLLM}/issues/9834",
        where="settings",
        kind=bugs.DeafToTemperature,
    ),
    filtered(
        "filters in another order",
        _STANDARD,
        f"{HUB}/vllm-project/tpu-inference/pull/1385",
        where="settings",
        kind=bugs.OtherOrder,
    ),
    beside_assisted(
        "top_k = 50, not declared",
        transformers(bugs.HiddenTopK, "assisted"),
        thread="https://huggingface.co/docs/transformers/main_classes/text_generation",
        where="settings",
    ),
    ours("ResiSpec", get_verifier("resispec"), "https://arxiv.org/abs/2608.24411", shape="tree"),
    ours(
        "lossy on purpose",
        get_verifier("lenience", factor=0.5),
        "https://arxiv.org/abs/2211.17192",
    ),
    beside_assisted(
        "OpenVINO GenAI, draft model",
        packaged("openvino_genai"),
        thread="openvino.md",
        where="verifier",
    ),
)
"""Engines with a fault, which are to be found."""
EXHIBITS = (*EXACT, *FAULTY)


@dataclass(frozen=True)
class Gallery:
    """Exhibits on a pair of conf/pair.

    dataset: a name of conf/dataset; `prompts` of its prompts, cut to `prompt_tokens` tokens each,
    are continued by at most `tokens` new ones. greedy: the number of prompts that are also
    continued at temperature 0. seeds: the number of prompts that are sampled twice more, with the
    same seed and with another.
    """

    exhibits: Sequence[Exhibit]
    dataset: str
    prompt_tokens: int
    prompts: int
    tokens: int
    greedy: int
    seeds: int


GALLERIES = {
    "embedded": Gallery(EXHIBITS, "embedded_reference", 48, 80, 64, 16, 6),
    "smollm2": Gallery(
        (*with_defaults(0.7), *with_defaults(1.0)), "smollm2_explain", 128, 120, 96, 8, 4
    ),
}
"""The galleries by the names of their pairs."""
