"""The order of rows of queries and keys, which GGUF files and transformers have differently."""

from typing import Any

import numpy as np


def reordered(name: str, values: np.ndarray, config: Any, *parts: int) -> np.ndarray:
    """Weights (rows, columns) or (rows,) with rows of queries and keys in the other format's order.

    parts: the present shape of a head's rows: (-1, 2) for GGUF's pairs, (2, -1) for transformers'
    halves.
    """
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    count = heads.get(name.split(".")[-2])
    if count is None:
        return values
    return values.reshape(count, *parts, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
