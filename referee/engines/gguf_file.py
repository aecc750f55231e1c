"""A Llama as a GGUF file, the format that llama.cpp and OpenVINO GenAI read.

Names of keys and tensors are those of the `gguf` package. Rotary embeddings pair neighbouring rows
in GGUF, but the two halves of a head in transformers, so the rows of queries and keys are
reordered, as by `LlamaModel.permute` of ggml-org/llama.cpp's convert_hf_to_gguf.py.
"""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from resispec.errors import InvalidInput
from resispec.files import replacing
from resispec.models import TransformersModel, TransformersTokenizer
from resispec.models.checkpoint import digest_of
from resispec.models.gguf_rows import reordered

TYPES = {"F32": np.float32, "F16": np.float16}
"""The dtypes of matrices; vectors stay in float32."""


def kept_gguf(
    model: TransformersModel, tokenizer: TransformersTokenizer, folder: Path, dtype: str
) -> Path:
    """The file of a model in a folder, by a digest of its weights, written unless it is there.

    dtype: as of `write_gguf`, which raises.
    """
    path = folder / f"{digest_of(model.module.state_dict())}.{dtype}.gguf"
    if not path.is_file():
        write_gguf(model, tokenizer, path, dtype)
    return path


def write_gguf(
    model: TransformersModel, tokenizer: TransformersTokenizer, path: Path, dtype: str = "F32"
) -> None:
    """Write a model with its tokenizer; the file appears only when it is complete.

    dtype: a key of `TYPES`. Raises InvalidInput unless this is a plain Llama with a byte-level BPE
    tokenizer.
    """
    config: Any = model.module.config
    kinds = (
        config.model_type,
        config.rope_parameters["rope_type"],
        getattr(config, "hidden_act", None),
    )
    if kinds != ("llama", "default", "silu") or config.attention_bias or config.mlp_bias:
        raise InvalidInput(
            f"{path.name}: a {kinds[0]} with {kinds[1]} rotary embeddings and {kinds[2]} cannot be "
            "written; allowed: a llama with default ones, silu, and no biases"
        )
    head = model.module.get_output_embeddings()
    is_tied = head.weight is model.module.get_input_embeddings().weight
    with replacing(path) as unfinished:
        writer = gguf.GGUFWriter(unfinished, gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH.LLAMA])
        writer.add_file_type(
            gguf.LlamaFileType.ALL_F32 if dtype == "F32" else gguf.LlamaFileType.MOSTLY_F16
        )
        _add_sizes(writer, config)
        _add_tokenizer(writer, tokenizer, config.vocab_size)
        names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
        for name, weight in model.module.state_dict().items():
            if name != "lm_head.weight" or not is_tied:
                values = reordered(name, weight.float().numpy(force=True), config, 2, -1)
                array = values.astype(TYPES[dtype] if values.ndim == 2 else np.float32)
                writer.add_tensor(names.get_name(name, (".weight",)), np.ascontiguousarray(array))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def _add_sizes(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    for add in (writer.add_key_length, writer.add_value_length, writer.add_rope_dimension_count):
        add(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: TransformersTokenizer, size: int) -> None:
    content = json.loads(tokenizer.inner.backend_tokenizer.to_str())
    model = content["model"]
    if model["type"] != "BPE":
        raise InvalidInput(f"a tokenizer of type {model['type']} cannot be written; allowed: BPE")
    tokens = {index: token for token, index in model["vocab"].items()}
    kinds = [gguf.TokenType.NORMAL] * size
    steps = (content["pre_tokenizer"] or {}).get("pretokenizers", [])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(
        "smollm" if any(step["type"] == "Digits" for step in steps) else "gpt-2"
    )
    writer.add_token_list([tokens.get(index, f"<unused{index}>") for index in range(size)])
    for entry in content["added_tokens"]:
        if entry["special"]:
            kinds[entry["id"]] = gguf.TokenType.CONTROL
    for role in ("bos", "eos", "unk", "pad"):
        if (index := getattr(tokenizer.inner, f"{role}_token_id")) is not None:
            getattr(writer, f"add_{role}_token_id")(index)
    if tokenizer.inner.chat_template:
        writer.add_chat_template(tokenizer.inner.chat_template)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)
