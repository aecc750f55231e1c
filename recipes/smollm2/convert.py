"""Conversion of a Llama in a GGUF file, quantised or not, into a folder that transformers reads.

The weights are those of the file, dequantised to float32: the model's law is that of the quantised
weights, computed in float32. Names of keys and tensors are those of the `gguf` package. Rotary
embeddings pair neighbouring rows of a head in GGUF, and rows of the head's two halves in
transformers. So the rows of queries and keys are reordered, which undoes `LlamaModel.permute` of
ggml-org/llama.cpp's convert_hf_to_gguf.py.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from resispec.errors import InvalidInput
from resispec.models import build_llama, save_model
from resispec.models.gguf_rows import reordered
from resispec.progress import progress_bar

_SIZES = {
    "vocab_size": "llama.vocab_size",
    "hidden_size": "llama.embedding_length",
    "intermediate_size": "llama.feed_forward_length",
    "num_hidden_layers": "llama.block_count",
    "num_attention_heads": "llama.attention.head_count",
    "num_key_value_heads": "llama.attention.head_count_kv",
    "head_dim": "llama.rope.dimension_count",
    "max_position_embeddings": "llama.context_length",
    "rms_norm_eps": "llama.attention.layer_norm_rms_epsilon",
}
_SPECIAL = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
"""Roles of special tokens in transformers, and their names in a GGUF."""


def convert(source: Path, folder: Path) -> dict[str, Any]:
    """Write weights, configurations, tokenizer and chat template to a folder; return facts on them.

    source: a GGUF file of a Llama with plain rotary embeddings and SmolLM2's kind of tokenizer.
    Raises InvalidInput when gguf is not installed.
    """
    try:
        import gguf
    except ImportError as error:
        reason = f"{source.name} is read with the gguf package, which is not installed"
        raise InvalidInput(f"{reason}: pip install 'resispec[harness]'") from error
    reader = gguf.GGUFReader(source)
    values = {name: field.contents() for name, field in reader.fields.items()}
    ids = {role: values.get(f"tokenizer.ggml.{name}_token_id") for role, name in _SPECIAL.items()}
    with torch.device("meta"):  # its weights come from the file
        model = build_llama(
            **{field: values[key] for field, key in _SIZES.items()},
            rope_parameters={"rope_type": "default", "rope_theta": values["llama.rope.freq_base"]},
            tie_word_embeddings="output.weight" not in {tensor.name for tensor in reader.tensors},
            **{f"{role}_token_id": ids[role] for role in ("bos", "eos", "pad")},
        )
    # The file has every weight but a tied head, which `tie_weights` sets.
    model.load_state_dict(_weights(reader, model, source.name), strict=False, assign=True)
    model.tie_weights()
    tokens = values["tokenizer.ggml.tokens"]
    save_model(
        model,
        _tokenizer(values),
        folder,
        **{f"{role}_token": tokens[index] for role, index in ids.items() if index is not None},
        chat_template=values["tokenizer.chat_template"],
        model_max_length=model.config.max_position_embeddings,
    )
    return {"parameters": model.num_parameters()}


def _weights(reader: Any, model: Any, source: str) -> dict[str, Tensor]:
    """The weights of a file in float32 by their names in transformers."""
    import gguf

    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, model.config.num_hidden_layers)
    own_names = {names.get_name(name, (".weight",)): name for name in model.state_dict()}
    weights = {}
    for tensor in progress_bar(reader.tensors, unit="tensor", desc=f"converting {source}"):
        name = own_names[tensor.name]
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        # A copy, since the file is mapped into memory.
        weights[name] = torch.from_numpy(np.array(reordered(name, values, model.config, -1, 2)))
    return weights


def _tokenizer(values: Mapping[str, Any]) -> Tokenizer:
    """The byte-level BPE tokenizer of a file's keys: a digit is a word, the rest is as in GPT-2."""
    import gguf

    tokens, kinds = values["tokenizer.ggml.tokens"], values["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in values["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ])  # fmt: skip
    tokenizer.decoder = decoders.ByteLevel()
    controls = [
        token for token, kind in zip(tokens, kinds, strict=True) if kind == gguf.TokenType.CONTROL
    ]
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in controls]
    )
    return tokenizer
