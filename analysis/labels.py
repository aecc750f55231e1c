"""What tables and figures print: names and their order, number formats, and what stands for a gap."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from analysis.stats import Interval

ABSENT = "–"

# The headers of what names a row; any other key is printed as itself, underscores as spaces.
HEADERS = {
    "pair": "Pair",
    "temperature": "T",
    "dataset": "Data set",
    "decoder": "Decoder",
    "tree": "Tree",
    "verifier": "Verifier",
    "method": "Method",
}

# The order of a dictionary is the order of print. A value that is not here comes after these, printed as
# itself with underscores as spaces, so that a new option needs no entry.
NAMES: Mapping[str, Mapping[str, str]] = {
    "pair": {
        "sheared_2.7b__sheared_1.3b": "Sheared-2.7B + Sheared-1.3B",
        "sheared_2.7b__tinyllama_1.1b": "Sheared-2.7B + TinyLlama-1.1B",
        "sheared_2.7b__tiny_vicuna_1b": "Sheared-2.7B + Tiny-Vicuna-1B",
        "llama2_7b__jf68m": "Llama-2-7B + 68M",
        "vicuna_7b__jf68m": "Vicuna-7B + 68M",
        "llama2_7b_chat__eagle": "Llama-2-7B-chat + EAGLE",
        "qwen3_8b__0.6b": "Qwen3-8B + 0.6B",
        "qwen2.5_7b__0.5b": "Qwen2.5-7B + 0.5B",
        "llama3.1_8b__3.2_1b": "Llama-3.1-8B + 3.2-1B",
        "gemma3_12b__1b": "Gemma-3-12B + 1B",
        "mistral_small_24b__0.5b": "Mistral-Small-24B + 0.5B",
        "granite3.3_8b__2b": "Granite-3.3-8B + 2B",
        "aya_expanse_32b__8b": "Aya-Expanse-32B + 8B",
        "llama3.1_8b__eagle3": "Llama-3.1-8B + EAGLE-3",
        "embedded_800k__420k": "embedded 800k + 420k",
        "embedded_800k__180k": "embedded 800k + 180k",
        "embedded_800k__80k": "embedded 800k + 80k",
        "embedded": "embedded 2M + 80k",
        "inflated_llama2_7b__jf68m": "inflated 7B (2M) + 68M (80k)",
        "inflated_cpu": "inflated 74M (2M) + 6M (80k)",
        "embedded_eagle": "embedded 2M + EAGLE",
        "embedded_eagle3": "embedded 2M + EAGLE-3",
    },
    "dataset": {
        "cnn_dm": "CNN/DM",
        "openwebtext": "OpenWebText",
        "c4": "C4",
        "embedded_reference": "Python reference",
        "embedded_docstrings": "Package docstrings",
        "embedded_code": "Python code",
        "spec_bench": "Spec-Bench",
        "mt_bench": "MT-Bench",
        "gsm8k": "GSM8K",
        "humaneval": "HumanEval",
    },
    "decoder": {
        "autoregressive": "Autoregressive",
        "specinfer": "SpecInfer",
        "sequoia": "Sequoia",
        "eagle": "EAGLE",
        "greedy": "Greedy draws",
        "top_k": "Top-k",
        "fastest": "fastest",
        "eagle_softmax": "EAGLE, softmax as q",
        "eagle_sampled": "EAGLE, sampled siblings",
    },
    "tree": {
        "d7b2": "d7b2",
        "d5b3": "d5b3",
        "d4b5": "d4b5",
        "d3b11": "d3b11",
        "d4b4": "d4b4",
        "best_16": "best of 16",
        "best_64": "best of 64",
        "best_121": "best of 121",
        "growmap_64": "grow map of 64",
        "growmap_121": "grow map of 121",
        "eagle2": "EAGLE-2, top_k 10",
        "eagle2_k15": "EAGLE-2, top_k 15",
        "eagle1": "EAGLE-1's 26 nodes",
        "chain": "chain of 4",
        "chains": "4 chains of 3",
        "fastest": "fastest",
    },
    "verifier": {
        "": "",
        "standard": "standard",
        "resispec": "ResiSpec",
        "naive": "naive",
        "kseq": "K-SEQ",
        "greedy": "greedy",
        "optimal": "optimal",
        "block": "block",
        "traversal": "traversal",
        "traversal_optimal": "traversal, optimal weights",
        "level_optimal": "whole levels, optimal",
    },
}


def header(key: str) -> str:
    """The header of a column that names rows."""
    return HEADERS.get(key, key.replace("_", " "))


def name(kind: str, value: str) -> str:
    """The printed name of a label's value: `name("dataset", "cnn_dm")` is "CNN/DM".

    With parameters, "chain(num_drafted=7)" is "chain, num_drafted=7": a tree's printed name says what its
    file's parameters are, so that the name of its option takes its place.
    """
    option, _, parameters = value.partition("(")
    known = NAMES.get(kind, {})
    if not parameters:
        return known.get(value, value.replace("_", " "))
    plain = option.replace("_", " ")
    return f"{plain if kind == 'tree' else known.get(option, plain)}, {parameters.removesuffix(')')}"


def method(decoder: str, verifier: str) -> str:
    """A decoder with a verifier as printed: "SpecInfer (standard)", "SpecInfer + ResiSpec"."""
    if not verifier:
        return name("decoder", decoder)
    if verifier == "standard":
        return f"{name('decoder', decoder)} (standard)"
    return f"{name('decoder', decoder)} + {name('verifier', verifier)}"


def rank(kind: str, value: Any) -> float:
    """Where a value is printed among others: the order of NAMES, temperatures from high to low."""
    if kind == "temperature":
        return -float(value)
    known = list(NAMES.get(kind, {}))
    option = str(value).partition("(")[0]
    return known.index(option) if option in known else len(known)


def text(kind: str, value: Any) -> str:
    """A label's value as printed; "–" for an empty one. Values of other keys are printed as they are."""
    if isinstance(value, int | float):
        return format(value, "g")
    return (name(kind, value) if kind in NAMES else str(value)) or ABSENT


def number(value: float, spec: str) -> str:
    """A printed number; "–" for none, and no minus sign before a zero."""
    if math.isnan(value):
        return ABSENT
    printed = format(value, spec)
    return printed if printed.strip("-0.") else printed.removeprefix("-")


def interval(found: Interval, spec: str) -> str:
    """A number with its interval: "2.51 [2.43, 2.60]"; "–" where there is none."""
    if math.isnan(found.lower):
        return number(found.value, spec)
    return f"{number(found.value, spec)} [{number(found.lower, spec)}, {number(found.upper, spec)}]"


def between(low: float, high: float, spec: str) -> str:
    """A published number, or the range of several: "2.51" or "2.51–2.64"; "–" where there is none."""
    return number(low, spec) if low == high or math.isnan(low) else f"{low:{spec}}–{high:{spec}}"


def gap(cell: Mapping[str, Any]) -> str:
    """What is shown in place of the numbers of a cell that is not done; the CSV has the whole reason."""
    said = f"{cell['status']}: {cell['reason']}" if cell["reason"] else str(cell["status"])
    return said if len(said) <= 60 else said[:59] + "…"
