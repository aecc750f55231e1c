"""Kinds of causal language models: their logits are their own, or they are refused in one line."""

import pytest
import torch
import transformers
from toys import ToyTokenizer, save_tiny_pair

from resispec.decode import Decoder, Sampling
from resispec.drafters import DraftModel
from resispec.errors import InvalidInput
from resispec.models import Pair, TransformersModel, features_of, load_pair
from resispec.trees import complete
from resispec.verifiers import get_verifier

LLAMA = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "eos_token_id": None,
}  # fmt: skip
EXPERTS = LLAMA | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}
GPT = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "eos_token_id": None}
OPT = {
    "vocab_size": 64, "hidden_size": 32, "word_embed_proj_dim": 16, "ffn_dim": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 64, "eos_token_id": None,
}  # fmt: skip
# The last layer alone gives the wrong logits.
SCALED = {
    "Cohere": LLAMA | {"logit_scale": 0.25},
    "Granite": LLAMA | {"logits_scaling": 8.0},
    "GraniteMoe": EXPERTS | {"logits_scaling": 8.0},
    "HyperCLOVAX": LLAMA | {"logits_scaling": 0.25},
    "NanoChat": LLAMA | {"final_logit_softcapping": 0.3},
}
PLAIN = {
    "Llama": LLAMA,
    "Mistral": LLAMA | {"sliding_window": None},
    "Mixtral": EXPERTS,
    "Qwen3": LLAMA | {"head_dim": 8},
    "Phi": LLAMA,  # its last layer has a bias
    "GPTNeoX": LLAMA,
    "GPT2": GPT,
    "OPT": OPT,
    "Falcon": LLAMA,
}
SUFFIX = {"GPT2": "LMHeadModel"}


def build(name, options, seed=0, base=None):
    """An untrained model; its weights are scaled up, so that its laws are far from uniform."""
    made = base or getattr(transformers, name + SUFFIX.get(name, "ForCausalLM"))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = made(getattr(transformers, f"{name}Config")(**options))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(6 if parameter.ndim == 2 else 1)
    return module.eval()


def own_logits(module, tokens):
    """transformers' own causal forward of one sequence: (K, V)."""
    with torch.inference_mode():
        return module(input_ids=torch.tensor([tokens])).logits[0]


def distance(found, expected):
    return float((found.float() - expected.float()).norm() / expected.float().norm())


@pytest.mark.parametrize("name", SCALED | PLAIN)
@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float32, 1e-5), (torch.bfloat16, 0.03)])
def test_the_logits_are_the_model_s_own(name, dtype, rounding):
    module = build(name, (SCALED | PLAIN)[name]).to(dtype)
    model, tokens = TransformersModel(module), [3, 1, 4, 1, 5, 9, 2, 6]
    features = features_of(model, tokens)
    expected = own_logits(module, tokens)
    assert model.head(features).dtype == expected.dtype
    assert distance(model.head(features), expected) < rounding
    with torch.inference_mode():
        alone = distance(module.get_output_embeddings()(features), expected)
    assert alone > 0.5 if name in SCALED else alone < rounding


@pytest.mark.parametrize("name", SCALED)
def test_the_laws_of_a_step_are_the_model_s_own(name):
    """Of target and draft, in a tree and at a temperature."""
    modules = [build(name, SCALED[name], seed) for seed in (0, 1)]
    pair = Pair(*(TransformersModel(module) for module in modules), ToyTokenizer())
    steps = []
    Decoder(DraftModel(complete(3, 2)), get_verifier("standard")).generate(
        pair, [1, 2, 3], Sampling(0.7, 1, 32), torch.Generator().manual_seed(0), on_step=steps.append
    )
    tree = steps[0].draft.tree
    for node in (0, 1, 2, 4):
        path = [1, 2, *tree.tokens[tree.topology.ancestors[node]].tolist()]
        laws = [torch.softmax(own_logits(module, path)[-1] / 0.7, -1) for module in modules]
        assert torch.allclose(steps[0].target_probs[node], laws[0], atol=1e-5)
        assert node == 4 or torch.allclose(steps[0].draft.probs[node], laws[1], atol=1e-5)


@pytest.mark.parametrize("name", ["Llama", "GPT2", "OPT"])
def test_where_the_last_layer_is_all_it_is_called_directly(name):
    """The wrapping of a causal forward would take longer than a small head itself."""
    module = build(name, PLAIN[name])
    model, calls = TransformersModel(module), []
    module.register_forward_hook(lambda *_: calls.append(1))
    model.head(features_of(model, [1, 2]))
    assert not calls


def test_a_soft_cap_that_these_logits_hardly_feel_is_not_left_out():
    module = build("NanoChat", LLAMA | {"final_logit_softcapping": 15.0})
    model = TransformersModel(module)
    features = features_of(model, [1, 2, 3])
    with torch.inference_mode():
        alone = module.lm_head(features)
    assert alone.abs().max() < 3 and distance(alone, model.head(features)) < 0.02
    assert 14.9 < model.head(1000 * features).abs().max() <= 15


def test_the_module_stays_as_it_is():
    module, tokens = build("Cohere", SCALED["Cohere"]), [1, 2, 3]
    parts, expected = dict(module.named_modules()), own_logits(module, tokens)
    model = TransformersModel(module)
    assert dict(module.named_modules()) == parts and model.module is module
    assert torch.equal(own_logits(module, tokens), expected)
    module.double()  # and the head follows it
    assert model.head(features_of(model, tokens)).dtype == torch.float64


# What is refused


class Louder(transformers.LlamaForCausalLM):
    """Multiplies its logits, but not where it is handed embeddings."""

    factor = 1.0

    def forward(self, input_ids=None, **options):
        output = super().forward(input_ids=input_ids, **options)
        if input_ids is not None:
            output.logits = output.logits * self.factor
        return output


@pytest.mark.parametrize(
    ("dtype", "fine", "too_loud", "allowed"),
    [
        (torch.float32, 1.0005, 1.002, "float32: 0.001"),
        (torch.float16, 1.01, 1.03, "float16: 0.016"),
        (torch.bfloat16, 1.08, 1.2, "bfloat16: 0.12"),
    ],
)
def test_logits_other_than_the_model_s_own_are_refused(dtype, fine, too_loud, allowed):
    module = build("Llama", LLAMA, base=Louder).to(dtype)
    module.factor = fine
    TransformersModel(module)
    for factor in (too_loud, float("nan")):
        module.factor = factor
        with pytest.raises(InvalidInput) as caught:
            TransformersModel(module)
        message = str(caught.value)
        assert message.startswith("Louder: logits in a tree differ from the model's own by ")
        assert message.endswith(f" of their size; allowed in {allowed}") and "\n" not in message


class Deaf(transformers.LlamaForCausalLM):
    """A body that disregards one of the things that a tree needs."""

    ignored = ()

    def __init__(self, config):
        super().__init__(config)
        self.model.register_forward_pre_hook(self.ignore, with_kwargs=True)

    def ignore(self, _, args, options):
        return args, options | dict.fromkeys(self.ignored)


@pytest.mark.parametrize("ignored", ["attention_mask", "position_ids", "past_key_values"])
def test_a_body_that_cannot_read_a_tree_is_refused(ignored):
    module = build("Llama", LLAMA, base=Deaf)
    TransformersModel(module)
    module.ignored = (ignored,)
    with pytest.raises(InvalidInput, match=r"^Deaf: (logits in a tree differ|a tree of four tokens cannot)"):
        TransformersModel(module)


def test_kinds_that_cannot_be_verified_in_a_tree_are_refused_in_one_line():
    few = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 64, "num_attention_heads": 4}
    cases = {
        "biased by distance": build("Falcon", LLAMA | {"alibi": True}),
        "not causal": build("Bert", few | {"intermediate_size": 48}, base=transformers.BertLMHeadModel),
        "recurrent": build("Rwkv", {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2}),
    }
    for module in cases.values():
        with pytest.raises(InvalidInput, match=f"^{type(module).__name__}: ") as caught:
            TransformersModel(module)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_a_pair_from_folders_is_checked(tmp_path):
    save_tiny_pair(tmp_path)
    build("Cohere", SCALED["Cohere"]).save_pretrained(tmp_path / "target")
    build("Falcon", LLAMA | {"alibi": True}).save_pretrained(tmp_path / "draft")
    target, draft = (str(tmp_path / name) for name in ("target", "draft"))
    model = load_pair(target, None).target
    assert distance(model.head(features_of(model, [1, 2])), own_logits(model.module, [1, 2])) < 1e-5
    with pytest.raises(InvalidInput, match=f"^{draft}: .*(differ from the model's own|cannot be forwarded)"):
        load_pair(target, draft)
