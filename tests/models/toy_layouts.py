"""Small random models in the exact files of published checkpoints, and the hub's cache around them.

Names of files, keys of configurations (old ones, `torch_dtype`, `rope_scaling`), pickled or
safetensors shards with their index, and generation configurations with other defaults are those of
the repositories; sizes are toys'.
"""

import json
from pathlib import Path

import torch
from huggingface_hub import save_torch_state_dict
from tokenizers import Tokenizer, models, normalizers, processors
from transformers import AutoConfig, AutoModelForCausalLM

SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "vocab_size": 64,
}  # fmt: skip
LLAMA = SIZES | {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu", "initializer_range": 0.5, "rms_norm_eps": 1e-05,
    "tie_word_embeddings": False,
    "torch_dtype": "float16", "transformers_version": "4.31.0.dev0", "use_cache": True,
}  # fmt: skip
OLD = {"rope_theta": 10000.0, "rope_scaling": None, "pretraining_tp": 1}
LLAMA3 = {
    "rope_theta": 500000.0, "attention_bias": False, "mlp_bias": False, "torch_dtype": "bfloat16",
    "rope_scaling": {
        "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "rope_type": "llama3",
        "original_max_position_embeddings": 32,
    },
}  # fmt: skip
GEMMA = {
    "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "head_dim": 8,
    "sliding_window": 8,
    "sliding_window_pattern": 2, "rope_theta": 1000000, "rope_local_base_freq": 10000,
    "rope_scaling": None,
    "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 8, "torch_dtype": "bfloat16",
    "tie_word_embeddings": True,
}  # fmt: skip
GEMMA2 = {
    "model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "head_dim": 8,
    "sliding_window": 8,
    "rope_theta": 10000.0, "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 8,
    "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "torch_dtype": "bfloat16",
    "tie_word_embeddings": True,
}  # fmt: skip
SAMPLED = {
    "do_sample": True,
    "temperature": 0.1,
    "top_p": 0.1,
    "top_k": 1,
    "repetition_penalty": 1.5,
}
SHARDS, ONE = 2, 1

# name: (configuration, kind of weights, shards, generation configuration, files of the tokenizer)
LAYOUTS = {
    "meta-llama/Llama-2-7b-chat-hf": (LLAMA | OLD, "safetensors", SHARDS, SAMPLED, "both"),
    "JackFram/llama-68m": (LLAMA | {"torch_dtype": "float32"}, "bin", ONE, {}, "both"),
    "lmsys/vicuna-7b-v1.3": (LLAMA, "bin", SHARDS, {"temperature": 0.9, "top_p": 0.6}, "both"),
    "meta-llama/Llama-3.2-1B-Instruct": (
        LLAMA | LLAMA3 | {"tie_word_embeddings": True}, "safetensors", ONE, SAMPLED, "json",
    ),
    "google/gemma-2-2b-it": (LLAMA | GEMMA2, "safetensors", ONE, {}, "both"),
    "google/gemma-3-1b-it": (LLAMA | GEMMA, "safetensors", ONE, {"top_k": 64, "do_sample": True},
    "both"),
}  # fmt: skip


def build(config: dict) -> torch.nn.Module:
    """A random model of a configuration's dictionary, in float32."""
    options = {name: value for name, value in config.items() if name != "torch_dtype"}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        kind = options.pop("model_type")
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **options)).eval()


def write_layout(name: str, folder: Path) -> dict[str, torch.Tensor]:
    """Write a checkpoint's files into `folder`; returns its weights by their published names."""
    config, kind, shards, generation, tokenizer = LAYOUTS[name]
    dtype = getattr(torch, config["torch_dtype"])
    state = {key: value.to(dtype).clone() for key, value in build(config).state_dict().items()}
    if config["tie_word_embeddings"]:
        state.pop("lm_head.weight")
    if kind == "bin":  # old checkpoints hold what follows from the configuration, too
        state["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    folder.mkdir(parents=True)
    _write_json(folder / "config.json", config)
    eos = {"bos_token_id": 1, "eos_token_id": 2, "transformers_version": "4.31.0.dev0"}
    _write_json(folder / "generation_config.json", eos | generation)
    # Shards of half the size, or of all of it; the largest weight of either is far smaller.
    size = sum(value.numel() * value.element_size() for value in state.values()) // shards + 1000
    is_safe = kind == "safetensors"
    save_torch_state_dict(state, folder, max_shard_size=size, safe_serialization=is_safe)
    assert sum(path.suffix in (".safetensors", ".bin") for path in folder.iterdir()) == shards
    _write_tokenizer(folder, tokenizer == "both")
    return state


def cached(home: Path, name: str, commit: str, write) -> Path:
    """Lay the files of `write(folder)` in a hub cache in `home`; returns the snapshot's folder."""
    repo = home / "hub" / f"models--{name.replace('/', '--')}"
    write(repo / "plain")
    snapshot = repo / "snapshots" / commit
    for folder in (snapshot, repo / "blobs", repo / "refs"):
        folder.mkdir(parents=True)
    (repo / "refs" / "main").write_text(commit)
    for number, file in enumerate(sorted((repo / "plain").iterdir())):
        blob = repo / "blobs" / f"{number:040x}"
        file.rename(blob)
        (snapshot / file.name).symlink_to(Path("..", "..", "blobs", blob.name))
    (repo / "plain").rmdir()
    return snapshot


def _write_tokenizer(folder: Path, has_sentencepiece: bool) -> None:
    """A Llama tokenizer of a few words: tokenizer.json, and maybe a sentencepiece model's name."""
    words, space = ["<unk>", "<s>", "</s>", "\u2581", *"abcdefgh", "ab", "abc"], "\u2581"
    vocabulary = {word: index for index, word in enumerate(words)}
    pairs = [("a", "b"), ("ab", "c")]
    tokenizer = Tokenizer(models.BPE(vocabulary, pairs, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend(space), normalizers.Replace(" ", space)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    tokenizer.add_special_tokens(words[:3])
    tokenizer.save(str(folder / "tokenizer.json"))
    if has_sentencepiece:
        (folder / "tokenizer.model").write_bytes(b"read only where there is no tokenizer.json")
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    _write_json(folder / "special_tokens_map.json", special)
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 10**30}
    _write_json(
        folder / "tokenizer_config.json", special | kind | {"clean_up_tokenization_spaces": False}
    )


def _write_json(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
