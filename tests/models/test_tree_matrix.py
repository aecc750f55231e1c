"""Kinds of models, trees and steps: what a session says is what the model says to plain sequences."""

import pytest
import torch
import transformers
from test_architectures import LLAMA, build, distance, own_logits

from resispec.errors import InvalidInput
from resispec.models import TransformersModel, features_of
from resispec.trees import from_child_counts

FOUR = LLAMA | {"num_hidden_layers": 4, "pad_token_id": 0, "bos_token_id": 1}
WINDOW = 3
MIXED = {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": WINDOW, "head_dim": 8}
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
    "vision_config": VISION, "mm_tokens_per_image": 4, "image_token_index": 60, "boi_token_index": 61,
    "eoi_token_index": 62,
}  # fmt: skip
FULL = {
    "Llama": ("Llama", FOUR),
    "Llama 3.1": ("Llama", FOUR | {"rope_parameters": ROPE, "tie_word_embeddings": True}),
    "Qwen2": ("Qwen2", FOUR),
    "Qwen3": ("Qwen3", FOUR | {"head_dim": 16}),
    "Mistral": ("Mistral", FOUR | {"sliding_window": None, "head_dim": 16}),
    "Granite": (
        "Granite",
        FOUR | {"logits_scaling": 8.0, "residual_multiplier": 0.22, "embedding_multiplier": 12.0},
    ),
    "Cohere": ("Cohere", FOUR | {"logit_scale": 0.25}),
    "Mistral with images": (
        "Mistral3",
        {
            "text_config": FOUR | {"model_type": "mistral", "head_dim": 8, "sliding_window": None},
            "vision_config": VISION | {"model_type": "pixtral"},
            "image_token_index": 60,
            "spatial_merge_size": 1,
        },
    ),
}
SLIDING = {
    "Mistral 0.1": ("Mistral", FOUR | {"sliding_window": WINDOW}),
    "Ministral": ("Ministral", FOUR | {"sliding_window": WINDOW, "head_dim": 8}),
    "Qwen2, late layers": ("Qwen2", FOUR | LATER),
    "Gemma 3": ("Gemma3", FOUR | MIXED),
    "Gemma 3 with images": ("Gemma3", {"text_config": FOUR | MIXED} | IMAGES),
    "Cohere2": ("Cohere2", FOUR | MIXED | {"logit_scale": 0.25}),
    "Olmo3": ("Olmo3", FOUR | MIXED),
}
OWN = {
    "Mistral with images": ("Mistral3Config", "Mistral3ForConditionalGeneration"),
    "Gemma 3": ("Gemma3TextConfig", "Gemma3ForCausalLM"),
    "Gemma 3 with images": ("Gemma3Config", "Gemma3ForConditionalGeneration"),
}
TOPOLOGY = from_child_counts([[2], [1, 2], [1, 1, 1], [1, 0, 1]])
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5]


def made(name):
    kind, options = (FULL | SLIDING)[name]
    if name not in OWN:
        return build(kind, options)
    config, model = (getattr(transformers, one) for one in OWN[name])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return model(config(**options)).eval()


@pytest.fixture(scope="module", params=FULL | SLIDING)
def module(request):
    return made(request.param)


def tokens_of(seed):
    return torch.randint(60, (TOPOLOGY.num_nodes,), generator=torch.Generator().manual_seed(seed))


def check_tree(model, module, session, before, tokens):
    logits = model.head(session.forward(tokens, TOPOLOGY.depths, TOPOLOGY.ancestors))
    for node in range(TOPOLOGY.num_nodes):
        path = tokens[TOPOLOGY.ancestors[node]].tolist()
        assert distance(logits[node], own_logits(module, before + path)[-1]) < 1e-4


def test_a_tree_is_many_sequences_and_a_cached_step_a_fresh_one(module):
    """Two trees one after the other, with a path between them that lies scattered in the first."""
    model = TransformersModel(module)
    assert distance(model.head(features_of(model, PROMPT)), own_logits(module, PROMPT)) < 1e-5
    session, tokens = model.session(32, drafted=TOPOLOGY.num_nodes), tokens_of(0)
    session.extend(torch.tensor(PROMPT))
    check_tree(model, module, session, PROMPT, tokens)
    path = TOPOLOGY.ancestors[-1].nonzero()[:, 0]
    assert path.tolist() != list(range(len(path)))
    session.keep(path)
    kept = PROMPT + tokens[path].tolist()
    check_tree(model, module, session, kept, tokens_of(1))
    session.clear()
    assert distance(model.head(session.extend(torch.tensor(PROMPT))), own_logits(module, PROMPT)) < 1e-5


def test_a_tree_that_is_drafted_level_by_level_is_the_same(module):
    """As a draft model forwards it: rows of a level see those of the levels above by their places."""
    model, tokens = TransformersModel(module), tokens_of(2)
    session = model.session(16, drafted=TOPOLOGY.num_nodes)
    session.extend(torch.tensor(PROMPT))
    for depth in range(TOPOLOGY.num_levels):
        (nodes,) = (TOPOLOGY.depths == depth).nonzero(as_tuple=True)
        seen = TOPOLOGY.ancestors[nodes][:, : nodes[-1] + 1]
        logits = model.head(session.forward(tokens[nodes], TOPOLOGY.depths[nodes], seen))
    for row, node in zip(logits, nodes, strict=True):
        path = tokens[TOPOLOGY.ancestors[node]].tolist()
        assert distance(row, own_logits(module, PROMPT + path)[-1]) < 1e-4


@pytest.mark.parametrize("name", SLIDING)
def test_these_prompts_and_trees_feel_the_window(name):
    """Without it the model's own logits are others, so what is compared above depends on it."""
    module = made(name)
    narrow = own_logits(module, PROMPT)
    for part in module.modules():
        if getattr(getattr(part, "config", None), "sliding_window", None):
            part.config.sliding_window = 64
    assert distance(own_logits(module, PROMPT)[-1], narrow[-1]) > 0.05


def test_a_model_that_takes_its_window_from_elsewhere_is_refused():
    """Only the second look at a tree can tell: four tokens fit a window of three."""
    module = made("Mistral 0.1")
    own = module.model.forward
    config = type(module.config)(**module.config.to_dict() | {"sliding_window": 2})
    config._attn_implementation = "sdpa"

    def forward(**options):
        if options["attention_mask"] is None:  # plain sequences
            module.model.config = config
        try:
            return own(**options)
        finally:
            module.model.config = module.config

    module.model.forward = forward
    with pytest.raises(InvalidInput, match="logits in a tree differ from the model's own"):
        TransformersModel(module)
    assert module.config.sliding_window == WINDOW  # and it is as it was


@pytest.mark.parametrize(
    ("kind", "options", "found"),
    [
        ("Llama4", {"head_dim": 8, "num_local_experts": 2}, "chunked_attention, full_attention"),
        ("Qwen3Next", {"head_dim": 8}, "full_attention, linear_attention"),
    ],
)
def test_layers_whose_caches_hold_no_tree_are_named(kind, options, found):
    text = getattr(transformers, f"{kind}TextConfig", None) or getattr(transformers, f"{kind}Config")
    module = getattr(transformers, f"{kind}ForCausalLM")(text(**FOUR | options))
    with pytest.raises(InvalidInput, match=f"{kind}ForCausalLM: found layers of {found}, .*; allowed: full_"):
        TransformersModel(module)
