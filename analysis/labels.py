"""What tables and figures print: names, order and number formats, in one place."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

ABSENT = "–"


@dataclass(frozen=True)
class Column:
    """How a column is printed. spec, paper_spec: format specifications of our numbers and of the published ones."""

    label: str
    spec: str = ".2f"
    paper_spec: str = ".2f"


COLUMNS = {
    "pair": Column("Pair"),
    "temperature": Column("T", "g"),
    "dataset": Column("Data set"),
    "decoder": Column("Decoder"),
    "tree": Column("Tree"),
    "verifier": Column("Verifier"),
    "method": Column("Method"),
    "accepted_length": Column("Accepted length"),
    "tokens_per_s": Column("Tokens/s", ".1f"),
    "accepted_length_gain": Column("Gain"),
    "speedup": Column("Speedup"),
    "speedup_vs_autoregressive": Column("Speedup vs autoregressive"),
    "ceiling": Column("Ceiling"),
}

# The order of a dictionary is the order in which its names are printed; a name that is not here comes last, as it is.
NAMES = {
    "pair": {
        "llama2_7b__jf68m": "Llama-2-7B + 68M",
        "sheared_2.7b__sheared_1.3b": "Sheared-2.7B + Sheared-1.3B",
        "sheared_2.7b__tinyllama_1.1b": "Sheared-2.7B + TinyLlama-1.1B",
        "sheared_2.7b__tiny_vicuna_1b": "Sheared-2.7B + Tiny-Vicuna-1B",
        "vicuna_7b__jf68m": "Vicuna-7B + 68M",
        "llama2_7b_chat__eagle": "Llama-2-7B-chat + EAGLE",
        "embedded": "embedded pair",
        "embedded_eagle": "embedded target + EAGLE",
    },
    "dataset": {
        "cnn_dm": "CNN/DM",
        "openwebtext": "OpenWebText",
        "c4": "C4",
        "embedded_reference": "Python reference",
        "embedded_docstrings": "Package docstrings",
        "embedded_code": "Python code",
    },
    "decoder": {
        "autoregressive": "Autoregressive",
        "specinfer": "SpecInfer",
        "sequoia": "Sequoia",
        "eagle": "EAGLE",
        "greedy": "Greedy draws",
        "top_k": "Top-k",
        "eagle_softmax": "EAGLE, softmax as q",
        "eagle_sampled": "EAGLE, sampled siblings",
    },
    "tree": {
        "d5b3": "d5b3",
        "best_16": "best of 16",
        "best_64": "best of 64",
        "best_121": "best of 121",
        "growmap_64": "grow map of 64",
        "growmap_121": "grow map of 121",
        "eagle2": "EAGLE-2, top_k 10",
        "eagle2_k15": "EAGLE-2, top_k 15",
        "eagle1": "EAGLE-1's 26 nodes",
        "chain": "chain of 4",
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
    },
}


def name(kind: str, value: str) -> str:
    """The printed name of a label's value: `name("dataset", "cnn_dm")` is "CNN/DM"."""
    return NAMES.get(kind, {}).get(value, value)


def method(decoder: str, verifier: str) -> str:
    """A decoder with a verifier as printed: "Autoregressive", "SpecInfer (standard)", "SpecInfer + ResiSpec"."""
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
    return known.index(value) if value in known else len(known)


def text(kind: str, value: Any) -> str:
    """A label's value as printed; "–" for an empty one."""
    if kind in COLUMNS and isinstance(value, int | float):
        return format(value, COLUMNS[kind].spec)
    return name(kind, value) or ABSENT


def interval(quantity: str, value: float, lower: float, upper: float) -> str:
    """A measured number with its interval: "2.51 [2.43, 2.60]"; "–" where there is none."""
    if math.isnan(value):
        return ABSENT
    spec = COLUMNS[quantity].spec
    bounds = "" if math.isnan(lower) else f" [{lower:{spec}}, {upper:{spec}}]"
    return f"{value:{spec}}{bounds}"


def published(quantity: str, low: float, high: float) -> str:
    """A published number, or the range of several: "2.51" or "2.51–2.64"; "–" where there is none."""
    if math.isnan(low):
        return ABSENT
    spec = COLUMNS[quantity].paper_spec
    return f"{low:{spec}}" if low == high else f"{low:{spec}}–{high:{spec}}"
