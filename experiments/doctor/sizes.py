"""How large a model is, without its weights: from a folder, from what a hub says of it, or from its shape."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resispec.embedded.shapes import LLAMA_2_7B, LLAMA_68M, Shape
from resispec.hub import weight_files

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8, "int8": 1, "uint8": 1}
_TINYLLAMA = Shape(2048, 5632, 22, 32, 4)
KNOWN = {
    "meta-llama/Llama-2-7b-hf": LLAMA_2_7B,
    "meta-llama/Llama-2-7b-chat-hf": LLAMA_2_7B,
    "lmsys/vicuna-7b-v1.3": LLAMA_2_7B,
    "JackFram/llama-68m": LLAMA_68M,
    "princeton-nlp/Sheared-LLaMA-2.7B": Shape(2560, 6912, 32, 20, 20),
    "princeton-nlp/Sheared-LLaMA-1.3B": Shape(2048, 5504, 24, 16, 16),
    "TinyLlama/TinyLlama_v1.1": _TINYLLAMA,
    "Jiayi-Pan/Tiny-Vicuna-1B": _TINYLLAMA,
}
"""Shapes of the paper's models by their names on the hub, for where neither a hub nor a copy can say."""


@dataclass(frozen=True)
class Size:
    """Of a model. kv_width: numbers a cached position and layer has for keys, and again for values.

    num_bytes: of its files of weights; 0 where they are unknown. source: where this is from.
    """

    parameters: int
    layers: int
    kv_width: int
    vocab: int
    num_bytes: int
    source: str

    def device_bytes(self, dtype: str, places: int) -> int:
        """Memory for weights, and for a cache of so many positions."""
        cached = 2 * self.layers * self.kv_width * places
        return (self.parameters + cached) * ITEM_BYTES[dtype]

    def __str__(self) -> str:
        billions = self.parameters / 1e9
        return (
            f"{billions:.2g} billion parameters"
            if billions >= 0.1
            else f"{1e3 * billions:.3g} million parameters"
        )


def of_shape(shape: Shape, source: str) -> Size:
    """The size of a Llama whose shape is known."""
    wide, width = shape.hidden_size, shape.hidden_size // shape.num_attention_heads
    kv_width = width * shape.num_key_value_heads
    layer = 2 * wide * (wide + kv_width) + 3 * wide * shape.intermediate_size + 2 * wide
    parameters = 2 * shape.vocab_size * wide + shape.num_hidden_layers * layer + wide
    return Size(parameters, shape.num_hidden_layers, kv_width, shape.vocab_size, 0, source)


def of_config(config: Mapping[str, Any], parameters: int, num_bytes: int, source: str) -> Size:
    """From what config.json says, in which models with several parts keep the text's apart.

    parameters: 0 where nothing counted them; then they follow from the bytes of the weights.
    Raises LookupError, TypeError or ValueError for what describes no model with attention.
    """
    text = config.get("text_config") or config
    heads = int(text["num_attention_heads"])
    width = int(text.get("head_dim") or text["hidden_size"] // heads)
    kv_width = width * int(text.get("num_key_value_heads") or heads)
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch.")
    parameters = parameters or num_bytes // ITEM_BYTES.get(dtype, 4)
    layers = int(text.get("num_hidden_layers") or 1)  # an EAGLE drafter's file may not say that it has one
    return Size(parameters, layers, kv_width, int(text["vocab_size"]), num_bytes, source)


def of_folder(folder: Path, source: str) -> Size:
    """From config.json and the files beside it.

    Raises OSError, LookupError, TypeError or ValueError for what is no complete model.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    files = weight_files(path.name for path in sorted(folder.iterdir()))
    if not files:
        raise FileNotFoundError(f"there are no weights in {folder}")
    kind = Path(files[0]).suffix
    for index in folder.glob(f"*{kind}.index.json"):
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        if missing := sorted(shards - set(files)):
            raise FileNotFoundError(f"{missing[0]} is missing in {folder}")
    num_bytes = sum((folder / file).stat().st_size for file in files)
    parameters = sum(_counted(folder / file) for file in files) if kind == ".safetensors" else 0
    return of_config(config, parameters, num_bytes, source)


def _counted(path: Path) -> int:
    """How many numbers a safetensors file holds, by its header."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
