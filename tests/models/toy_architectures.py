"""Untrained models of many kinds, and the checks of each: its own logits, in trees and chains."""

import re

import torch
import transformers

from resispec.models import TransformersModel
from resispec.trees import from_child_counts

LLAMA = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "eos_token_id": None,
    "pad_token_id": 0, "bos_token_id": 1,
}  # fmt: skip
EXPERTS = LLAMA | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}
LATENT = LLAMA | {
    "num_key_value_heads": 4, "moe_intermediate_size": 16, "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16,
}  # fmt: skip
WINDOW = 3
MIXED = {
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": WINDOW,
    "head_dim": 8,
}
LATER = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2}
ROPE = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
}  # fmt: skip
VISION = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "image_size": 28, "patch_size": 14,
}  # fmt: skip
IMAGES = {
    "vision_config": VISION, "mm_tokens_per_image": 4, "image_token_index": 60,
    "boi_token_index": 61,
    "eoi_token_index": 62,
}  # fmt: skip
PIXELS = {
    "vision_config": VISION | {"model_type": "pixtral", "head_dim": 8},
    "image_token_index": 60,
    "spatial_merge_size": 1,
}
# Kinds whose last layer alone gives the wrong logits, and the others, by what differs in them.
SCALED = {
    "Cohere": LLAMA | {"logit_scale": 0.25},
    "Granite": LLAMA
    | {"logits_scaling": 8.0, "residual_multiplier": 0.22, "embedding_multiplier": 12.0},
    "GraniteMoe": EXPERTS | {"logits_scaling": 8.0},
    "HyperCLOVAX": LLAMA | {"logits_scaling": 0.25},
    "NanoChat": LLAMA | {"final_logit_softcapping": 0.3},
}
PLAIN = {
    # Phi's last layer has a bias.
    **dict.fromkeys(("Llama", "GPT2", "Qwen2", "Phi", "GPTNeoX", "Falcon"), LLAMA),
    "Llama 3.1": LLAMA | {"rope_parameters": ROPE, "tie_word_embeddings": True},
    "Mistral": LLAMA | {"sliding_window": None, "head_dim": 16},
    "Mistral 3": {"text_config": LLAMA | {"model_type": "mistral", "sliding_window": None}}
    | PIXELS,
    "Mixtral": EXPERTS,
    "Qwen3": LLAMA | {"head_dim": 16},
    **dict.fromkeys(("DeepseekV2", "DeepseekV3"), LATENT),
    "OPT": LLAMA | {"word_embed_proj_dim": 16, "ffn_dim": 48},
}
SLIDING = {
    "Mistral 0.1": LLAMA | {"sliding_window": WINDOW},
    "Ministral": LLAMA | {"sliding_window": WINDOW, "head_dim": 8},
    "Qwen2, late layers": LLAMA | LATER,
    "Gemma2": LLAMA | MIXED,  # whose attention is always eager
    "Gemma 3": LLAMA | MIXED,
    "Gemma 3 with images": {"text_config": LLAMA | MIXED} | IMAGES,
    "Cohere2": LLAMA | MIXED | {"logit_scale": 0.25},
    "Olmo3": LLAMA | MIXED,
}
KINDS = SCALED | PLAIN | SLIDING
SOME = ("Llama", "Cohere", "OPT", "Qwen3", "Mistral 0.1", "Gemma 3", "DeepseekV3")
"""Plain; a scale behind the head; a projection before it; a wide head; windows everywhere;
windows in turn; values of another shape than keys.
"""
CLASSES = {
    "GPT2": ("GPT2Config", "GPT2LMHeadModel"),
    "Gemma 3": ("Gemma3TextConfig", "Gemma3ForCausalLM"),
    "Gemma 3 with images": ("Gemma3Config", "Gemma3ForConditionalGeneration"),
    "Mistral 3": ("Mistral3Config", "Mistral3ForConditionalGeneration"),
}
TOPOLOGY = from_child_counts([[2], [1, 2], [1, 1, 1], [1, 0, 1]])
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5]


def build(kind, options, seed=0, base=None):
    """An untrained model; its weights are scaled up, so that its laws are far from uniform."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = base or getattr(transformers, f"{kind}ForCausalLM")
        module = model(getattr(transformers, f"{kind}Config")(**options))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(6 if parameter.ndim == 2 else 1)
    return module.eval()


def made(name):
    """One of `KINDS`."""
    options = KINDS[name]
    if name not in CLASSES:
        return build(re.match(r"\w+", name)[0], options)
    config, model = (getattr(transformers, item) for item in CLASSES[name])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return model(config(**options)).eval()


def own_logits(module, tokens):
    """transformers' own causal forward of one sequence: (K, V)."""
    with torch.inference_mode():
        return module(input_ids=torch.tensor([tokens])).logits[0]


def distance(found, expected):
    return float((found.float() - expected.float()).norm() / expected.float().norm())


def check_trees(module):
    """Two trees with a scattered path between them, then a chain, and a third tree by levels."""
    model = TransformersModel(module)
    session = model.session(32, drafted=TOPOLOGY.num_nodes)
    session.extend(torch.tensor(PROMPT))
    tokens = _tokens(0)
    _check_paths(
        model, module, PROMPT, tokens, session.forward(tokens, TOPOLOGY.depths, TOPOLOGY.ancestors)
    )
    path = TOPOLOGY.ancestors[-1].nonzero()[:, 0]
    assert path.tolist() != list(range(len(path)))
    session.keep(path)
    kept, tokens = PROMPT + tokens[path].tolist(), _tokens(1)
    _check_paths(
        model, module, kept, tokens, session.forward(tokens, TOPOLOGY.depths, TOPOLOGY.ancestors)
    )
    session.clear()
    logits, expected = model.head(session.extend(torch.tensor(PROMPT))), own_logits(module, PROMPT)
    assert logits.dtype == expected.dtype and distance(logits, expected) < 1e-5
    features, tokens = [], _tokens(2)
    for depth in range(TOPOLOGY.num_levels):  # as a draft model forwards it
        (nodes,) = (TOPOLOGY.depths == depth).nonzero(as_tuple=True)
        seen = TOPOLOGY.ancestors[nodes][:, : nodes[-1] + 1]
        features.append(session.forward(tokens[nodes], TOPOLOGY.depths[nodes], seen))
    _check_paths(model, module, PROMPT, tokens, torch.cat(features))


def _tokens(seed):
    return torch.randint(60, (TOPOLOGY.num_nodes,), generator=torch.Generator().manual_seed(seed))


def _check_paths(model, module, before, tokens, features):
    for logits, seen in zip(model.head(features), TOPOLOGY.ancestors, strict=True):
        assert distance(logits, own_logits(module, before + tokens[seen].tolist())[-1]) < 1e-4
