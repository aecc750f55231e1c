"""Kinds of causal language models: their logits are their own, or they are refused in one line."""

import warnings
from threading import Event, Thread

import pytest
import torch
import transformers

import resispec
from resispec.errors import InvalidInput
from resispec.models import TransformersModel, features_of, own_lm_head
from resispec.models.eagle import CACHE
from tests.models.toy_architectures import LLAMA, PROMPT, SOME, build, check_trees, made, own_logits
from tests.toys import tiny_llama

pytestmark = pytest.mark.numerics


@pytest.mark.parametrize("name", SOME)
def test_logits_are_the_model_s_own_in_chains_and_trees(name):
    check_trees(made(name))


@pytest.mark.parametrize("name", ["Llama", "Gemma 3"])
def test_eager_attention_has_the_same_trees_and_other_kinds_are_refused(name):
    module = made(name)
    module.set_attn_implementation("eager")
    check_trees(module)
    module.config._attn_implementation = "flash_attention_2"
    with pytest.raises(
        InvalidInput, match="attn_implementation is 'flash_attention_2'; allowed: sdpa, "
    ):
        TransformersModel(module)


@pytest.mark.parametrize("name", ["Llama", "GPT2", "OPT"])
def test_where_the_last_layer_is_all_it_is_called_directly(name):
    """The wrapping of a causal forward would take longer than a small head itself."""
    module = made(name)
    model, calls = TransformersModel(module), []
    features = features_of(model, [1, 2])
    module.register_forward_hook(lambda *_: calls.append(1))
    model.head(features)
    assert not calls


def test_the_module_stays_as_it_is():
    module, tokens = made("Cohere"), [1, 2, 3]
    parts, expected = dict(module.named_modules()), own_logits(module, tokens)
    model = TransformersModel(module)
    assert dict(module.named_modules()) == parts and model.module is module
    assert torch.equal(own_logits(module, tokens), expected)
    module.double()  # and the head follows it
    assert model.head(features_of(model, tokens)).dtype == torch.float64


@pytest.mark.parametrize("is_draft", [False, True])
def test_a_forward_that_lies_on_the_module_does_not_run_the_layers_twice(is_draft, recwarn):
    """As accelerate and torch.compile put one there, which calls the whole module."""
    module, tokens = made("Cohere"), [1, 2, 3]
    expected, whole = own_logits(module, tokens), module.forward
    module.forward = lambda *inputs, **named: whole(*inputs, **named)
    model = TransformersModel(module, is_draft=is_draft)
    assert torch.allclose(model.head(features_of(model, tokens)), expected, atol=1e-5)
    assert not recwarn.list


# What is refused


def test_a_full_cache_says_so():
    session = tiny_llama().session(4, drafted=2)
    with pytest.raises(IndexError, match="index 6 is out of bounds"):
        session.extend(torch.arange(5))
    drafted = torch.arange(3)
    with pytest.raises(IndexError, match="index 2 is out of bounds"):
        session.forward(drafted, drafted, torch.ones(3, 3, dtype=torch.bool).tril())


def test_dynamic_rotary_frequencies_are_refused_on_cuda_alone(monkeypatch):
    """They wait for the device, which ends the capture of a step."""
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    module = build("Llama", {**LLAMA, "rope_parameters": rope})
    TransformersModel(module)
    monkeypatch.setattr(type(module), "device", torch.device("cuda"))
    with pytest.raises(InvalidInput, match="rope_type is 'dynamic'; allowed on CUDA: all others"):
        TransformersModel(module)


class Louder(transformers.LlamaForCausalLM):
    """Multiplies its logits, but not where it is handed embeddings, and adds to all of them."""

    factor, offset = 1.0, 0.0

    def forward(self, input_ids=None, **options):
        output = super().forward(input_ids=input_ids, **options)
        if input_ids is not None:
            output.logits = output.logits * self.factor
        output.logits = output.logits + self.offset
        return output


@pytest.mark.parametrize(
    ("dtype", "fine", "too_loud", "allowed"),
    [
        (torch.float32, 1.0005, 1.002, "float32: 0.001"),
        (torch.bfloat16, 1.08, 1.2, "bfloat16: 0.12"),
    ],
)
def test_logits_other_than_the_model_s_own_are_refused(dtype, fine, too_loud, allowed):
    module = build("Llama", LLAMA, base=Louder).to(dtype)
    module.factor = fine
    TransformersModel(module)
    for factor in (too_loud, float("nan")):
        module.factor = factor
        line = f"^Louder: logits in a tree differ from the model's own by .*; allowed in {allowed}$"
        with pytest.raises(InvalidInput, match=line):
            TransformersModel(module)


def test_what_is_added_to_all_logits_hides_no_other_law():
    """Defect: beside logits near -100 another temperature was too little to be noticed."""
    module = build("Llama", LLAMA, base=Louder)
    module.offset = -100.0
    TransformersModel(module)
    module.factor = 1.01
    with pytest.raises(InvalidInput, match="^Louder: logits in a tree differ"):
        TransformersModel(module)


def test_a_head_with_hooks_is_called_whatever_they_do_at_first():
    """Defect: a hook that began to act after the model was read did nothing."""
    module, scale = build("Llama", LLAMA), [1.0]

    def hook(_, __, output):
        output.logits = output.logits * scale[0]

    module.register_forward_hook(hook)
    model = TransformersModel(module)
    features = torch.ones(1, module.config.hidden_size)
    before = model.head(features)
    scale[0] = 2.0
    assert torch.equal(model.head(features), 2 * before)


class Deaf(transformers.LlamaForCausalLM):
    """A body that disregards one of the things that a tree needs."""

    ignored = ()

    def __init__(self, config):
        super().__init__(config)
        self.model.register_forward_pre_hook(self.ignore, with_kwargs=True)

    def ignore(self, _, args, options):
        return args, options | dict.fromkeys(self.ignored)


@pytest.mark.parametrize("ignored", ["attention_mask", "position_ids", CACHE])
def test_a_body_that_cannot_read_a_tree_is_refused(ignored):
    module = build("Llama", LLAMA, base=Deaf)
    TransformersModel(module)
    module.ignored = (ignored,)
    with pytest.raises(
        InvalidInput, match=r"^Deaf: (logits in a tree differ|a tree of four tokens cannot)"
    ):
        TransformersModel(module)


def test_a_draft_may_have_any_law_that_depends_on_the_path_alone():
    """In int8 a row's logits depend on the largest numbers of all rows of its forward."""
    target, draft = build("Llama", LLAMA), build("Llama", LLAMA, seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of this way to quantise
        draft = torch.ao.quantization.quantize_dynamic(draft, {torch.nn.Linear}, dtype=torch.qint8)
    with pytest.raises(InvalidInput, match="logits in a tree differ from the model's own"):
        TransformersModel(draft)
    with pytest.warns(
        UserWarning, match="^draft Llama.* differ .*; its tokens are forwarded one at a time"
    ):
        model = TransformersModel(draft, is_draft=True)
    laws = []
    for others in (3, 9):
        session = model.session(32, drafted=4)
        session.extend(torch.tensor(PROMPT))
        depths, visible = torch.tensor([0, 0, 1, 1]), torch.eye(4, dtype=torch.bool)
        visible[3, 1] = visible[2, 0] = True
        features = session.forward(torch.tensor([others, 7, others, 8]), depths, visible)
        laws.append(model.head(features)[[1, 3]])
    assert torch.equal(*laws) and laws[0].isfinite().all()
    prompt = torch.tensor([PROMPT])
    expected = target.generate(prompt, do_sample=False, max_new_tokens=20, pad_token_id=0)
    found = resispec.generate(target, draft, prompt, tree="d4b2", temperature=0, max_new_tokens=20)
    assert list(found.tokens) == expected[0, len(PROMPT) :].tolist()


def test_a_draft_whose_law_depends_on_other_paths_is_refused():
    module = build("Llama", LLAMA, base=Deaf)
    module.ignored = ("attention_mask",)
    with pytest.raises(InvalidInput, match=r"^Deaf: logits in a tree differ"):
        TransformersModel(module, is_draft=True)


def test_a_model_that_takes_its_window_from_elsewhere_is_refused():
    """Only the second look at a tree can tell: four tokens fit a window of three."""
    module = made("Mistral 0.1")
    own, window = module.model.forward, module.config.sliding_window
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
    assert module.config.sliding_window == window  # and it is as it was


def test_threads_that_read_one_model_leave_its_window(monkeypatch):
    """Defect: a second thread took the first one's window of one token for the model's own."""
    module, whole = made("Mistral 0.1"), own_lm_head._gap
    window, first_is_done = module.config.sliding_window, Event()
    threads: list[Thread] = []

    def gap(model, module):
        found = whole(model, module)
        if module.config.sliding_window == 1 and not threads:
            threads.append(Thread(target=TransformersModel, args=(module,)))
            threads[0].start()
            threads[0].join(0.3)
        elif module.config.sliding_window == 1:
            first_is_done.wait(10)
        return found

    monkeypatch.setattr(own_lm_head, "_gap", gap)
    TransformersModel(module)
    first_is_done.set()
    threads[0].join()
    assert module.config.sliding_window == window


REFUSED = {
    "biased by distance": lambda: build("Falcon", LLAMA | {"alibi": True}),
    "recurrent": lambda: build(
        "Rwkv", {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2}
    ),
    "linear": lambda: transformers.Qwen3NextForCausalLM(
        transformers.Qwen3NextConfig(**LLAMA | {"head_dim": 8})
    ),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name == "linear" else [])  # to import it
        for name in REFUSED
    ],
)
def test_kinds_that_cannot_be_verified_in_a_tree_are_refused_in_one_line(name):
    module = REFUSED[name]()
    layers = "full_attention, linear_attention"
    found = f"found layers of {layers}, .*; allowed: full_" if name == "linear" else ""
    with pytest.raises(InvalidInput, match=f"^{type(module).__name__}: {found}.{{,280}}$"):
        TransformersModel(module)


LONGROPE = {
    "rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 24,
    "short_factor": [1.0] * 4, "long_factor": [1.0, 2.0, 4.0, 8.0],
}  # fmt: skip


@pytest.mark.parametrize("tree", ["root", "d4b2"])
def test_a_text_lies_on_one_side_of_the_length_at_which_frequencies_change(tree):
    """A greedy Phi-3 would leave transformers' own text at the switch, or with a tree before it."""
    options = LLAMA | {"rope_parameters": LONGROPE, "original_max_position_embeddings": 24}
    target, draft = build("Phi3", options).double(), build("Llama", LLAMA, seed=1).double()
    levels = {"root": 1, "d4b2": 4}[tree]
    short = 24 - 8 + 2 - levels
    for length, count, fits in (
        (8, short, True),
        (8, short + 1, False),
        (25, 5, False),
        (26, 30, True),
    ):
        prompt = torch.randint(2, 64, (1, length), generator=torch.Generator().manual_seed(0))
        settings = {"max_new_tokens": count, "tree": tree, "temperature": 0}
        if not fits:
            with pytest.raises(
                InvalidInput, match=r"^.*\(longrope\) change beyond 24; allowed: at most"
            ):
                resispec.generate(target, draft, prompt, **settings)
            continue
        expected = target.generate(prompt, do_sample=False, max_new_tokens=count, pad_token_id=0)
        found = resispec.generate(target, draft, prompt, **settings)
        assert list(found.tokens) == expected[0, length:].tolist()


def test_features_are_of_one_side_of_the_length_at_which_frequencies_change():
    options = LLAMA | {"rope_parameters": LONGROPE, "original_max_position_embeddings": 24}
    module = build("Phi3", options).double()
    model, tokens = TransformersModel(module), list(range(2, 34))
    for length, prompt_length in ((24, 1), (30, 26)):
        own = module(torch.tensor([tokens[:prompt_length]])).logits[0, -1]
        read = model.head(features_of(model, tokens[:length], prompt_length))[prompt_length - 1]
        assert torch.allclose(read, own)
    for length, prompt_length in ((25, 1), (30, 25)):
        with pytest.raises(
            InvalidInput, match="the model's frequencies .longrope. change beyond 24"
        ):
            features_of(model, tokens[:length], prompt_length)


def test_frequencies_that_grow_with_the_length_change_beyond_the_context_only():
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
    target = build("Llama", LLAMA | {"rope_parameters": rope}).double()
    draft = build("Llama", LLAMA, seed=1).double()
    prompt = torch.tensor([PROMPT])
    count = 64 - len(PROMPT) + 2 - 4
    settings = {"tree": "d4b2", "temperature": 0}
    expected = target.generate(prompt, do_sample=False, max_new_tokens=count, pad_token_id=0)
    found = resispec.generate(target, draft, prompt, max_new_tokens=count, **settings)
    assert list(found.tokens) == expected[0, len(PROMPT) :].tolist()
    with pytest.raises(InvalidInput, match="exceeds the models' context of 64 positions"):
        resispec.generate(target, draft, prompt, max_new_tokens=count + 1, **settings)
