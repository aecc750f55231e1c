"""Models that a program changes between two prompts: what is kept of them is made anew."""

import copy
import pickle
import random
import threading
from collections import Counter, defaultdict, deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef, shared_cache
from torch.nn.modules.module import register_module_forward_hook
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaMLP

import resispec
from resispec.decode import Decoder, Sampling
from resispec.drafters import DraftModel
from resispec.errors import InvalidInput
from resispec.models import Pair, Warp, causal
from resispec.models.lean import is_plain
from resispec.models.linear import FORCED, PACKED, quicken
from resispec.models.module_state import ModuleState, evaluating, settings_in
from resispec.trees import chain
from resispec.verifiers import get_rule, get_verifier
from resispec.verifiers.traversal import Traversal
from tests.models.toy_architectures import LLAMA, build
from tests.toys import tiny_llama

pytestmark = pytest.mark.numerics

IDS = torch.tensor([[1, 2, 3]])
ENOUGH = 24


class Shifted(nn.Linear):
    """A layer that is more than its matrix."""

    def forward(self, inputs):
        return super().forward(inputs).roll(1, -1)


class Adapter(nn.Module):
    """A part of a program's own, with the switches of PEFT's."""

    def __init__(self):
        super().__init__()
        self._disable_adapters, self._active_adapter = False, ["default"]

    def forward(self, inputs):
        return inputs if self._disable_adapters else -inputs


class Wrapper(torch.Tensor):
    """A tensor without data of its own, of which nothing can be read."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.detach.default:
            return cls(args[0].inner)
        raise NotImplementedError(function)


def turn(_, __, output):
    """A hook that changes what a layer gives."""
    return -output if isinstance(output, torch.Tensor) else (-output[0], *output[1:])


def wrap(module):
    layer = module.model.layers[0]
    projection = layer.mlp.down_proj
    layer.mlp.down_proj = nn.Sequential(projection, nn.LayerNorm(32))


def replace_head(module):
    module.lm_head = Shifted(32, 64, bias=False)


def train(module):
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    module.train()
    module(input_ids=IDS, labels=IDS).loss.backward()
    optimizer.step()


def copy_data(module):
    """As other weights are brought into a model that is being served."""
    for parameter in module.parameters():
        parameter.data.copy_(parameter.data.flip(-1))


def assign(module):
    state = {name: value.flip(-1) for name, value in module.state_dict().items()}
    module.load_state_dict(state, assign=True)


CHANGES = {
    "hook": lambda module: module.model.layers[1].register_forward_hook(turn),
    "hook at the head": lambda module: module.lm_head.register_forward_hook(turn),
    "own method": lambda module: setattr(module.lm_head, "forward", lambda inputs: -inputs @ HEAD),
    "wrapped layer": wrap,
    "other head": replace_head,
    "step of training": train,
    "gains in place": lambda module: module.model.norm.weight.data.mul_(torch.linspace(-1, 1, 32)),
    "weights through data": copy_data,
    "other parameters": assign,
}
HEAD = torch.randn(32, 64, generator=torch.Generator().manual_seed(0))


def greedy(module, **options):
    return module.generate(IDS, do_sample=False, max_new_tokens=ENOUGH, **options)[0, 3:].tolist()


def turn_globally(_):
    handle = register_module_forward_hook(
        lambda part, *rest: turn(part, *rest) if isinstance(part, LlamaMLP) else None
    )
    return handle.remove


def patch_class(module):
    kind = type(module.model.norm)
    own = kind.forward
    kind.forward = torch.no_grad()(lambda self, inputs: -own(self, inputs))
    return lambda: setattr(kind, "forward", own)


def patch_attention(_):
    own = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def attention(*given, **options):
        output, weights = own(*given, **options)
        return -output, weights

    ALL_ATTENTION_FUNCTIONS.register("sdpa", attention)
    return lambda: ALL_ATTENTION_FUNCTIONS.register("sdpa", own)


@pytest.mark.parametrize("is_kept", [True, False])
@pytest.mark.parametrize("change", [turn_globally, patch_class, patch_attention])
def test_what_replaces_a_class_or_a_function_of_transformers_counts(change, is_kept, monkeypatch):
    """Also before the first prompt, where a look at a few tokens could miss it."""
    monkeypatch.setattr(causal, "follows_modules", lambda *_: True)
    module = build("Llama", LLAMA)
    kept = resispec.transformers.speculative(tiny_llama(seed=1, layers=1).module, tree="d4b2")
    before = greedy(module)
    if is_kept:
        assert greedy(module, custom_generate=kept) == before
    undo = change(module)
    try:
        after = greedy(module)
        assert after != before and greedy(module, custom_generate=kept) == after
    finally:
        undo()
    assert greedy(module, custom_generate=kept) == before


def test_a_target_with_more_tokens_than_before_is_refused():
    """Defect: the new tokens never came, and the others had their mass."""
    target = tiny_llama()
    kept = resispec.Speculator(target, tiny_llama(seed=1), tree="chain_4")
    kept.generate(IDS[0], max_new_tokens=ENOUGH)
    target.module.resize_token_embeddings(80)
    for _ in range(2):
        with pytest.raises(InvalidInput, match="has 80 tokens now, and had 64 when it was read"):
            kept.generate(IDS[0], max_new_tokens=ENOUGH)


def test_weights_that_processes_share_stay_where_they_are():
    """Defect: queries, keys and values were moved out of what another process writes to."""
    module = build("Llama", LLAMA).share_memory()
    state = module.state_dict()
    kept = resispec.transformers.speculative(tiny_llama(seed=1, layers=1).module, tree="d4b2")
    greedy(module, custom_generate=kept)
    assert all(parameter.is_shared() for parameter in module.parameters())
    state["model.layers.0.self_attn.v_proj.weight"].neg_()
    assert greedy(module, custom_generate=kept) == greedy(module)


def twin(module):
    state = module.state_dict()
    build("Llama", LLAMA).load_state_dict(state, assign=True)
    return state


def send(module):
    """As where another process has got handles of the weights."""
    for name, value in module.named_parameters():
        shared_cache[name] = StorageWeakRef(value.untyped_storage())


def places_of(module):
    return [value.data_ptr() for value in module.parameters()]


@pytest.mark.parametrize("hold", [nn.Module.state_dict, twin, send])
def test_weights_that_others_hold_stay_where_they_are(hold):
    """Defect: what was written into a kept state dict reached one half of the matrices only."""
    module = build("Llama", LLAMA)
    held, before = hold(module), places_of(module)
    kept = resispec.transformers.speculative(tiny_llama(seed=1, layers=1).module, tree="d4b2")
    greedy(module, custom_generate=kept)
    assert places_of(module) == before
    if held is not None:
        held["model.layers.0.self_attn.v_proj.weight"].neg_()
        assert greedy(module, custom_generate=kept) == greedy(module)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "Llama") for name in CHANGES),
        *((name, "Qwen2") for name in ("weights through data", "other parameters")),
    ],
)
def test_a_change_of_the_target_counts_from_the_next_prompt_on(name, kind, monkeypatch):
    """With packed copies of the weights, by a lean body or within the module's own layers."""
    monkeypatch.setenv(FORCED, PACKED)
    module = build(kind, LLAMA)
    if kind != "Llama":  # as a module is loaded from a folder
        quicken(module)
    kept = resispec.transformers.speculative(tiny_llama(seed=1, layers=1).module, tree="d4b2")
    before = greedy(module)
    assert greedy(module, custom_generate=kept) == before
    with torch.no_grad() if name != "step of training" else torch.enable_grad():
        CHANGES[name](module)
    after = greedy(copy.deepcopy(module.eval()))  # a copy has plain layers
    assert after != before
    assert greedy(module, custom_generate=kept) == after
    assert greedy(module, custom_generate=kept) == after


def test_a_change_of_the_draft_counts_and_without_one_all_is_kept():
    target, draft = tiny_llama(), tiny_llama(seed=1)
    kept = resispec.Speculator(target, draft, tree="chain_4")
    poor = kept.generate(IDS[0], max_new_tokens=ENOUGH, temperature=0)
    [stepper] = [decoder._kept for decoder in kept._decoders.values() if decoder._kept]
    again = kept.generate(IDS[0], max_new_tokens=ENOUGH, temperature=0)
    assert again.num_emitted == poor.num_emitted
    assert any(decoder._kept is stepper for decoder in kept._decoders.values())
    draft.module.load_state_dict(target.module.state_dict())
    good = kept.generate(IDS[0], max_new_tokens=ENOUGH, temperature=0)
    assert good.tokens == poor.tokens
    assert good.accepted_length == 5 > poor.accepted_length


def test_dropout_is_off_in_a_text_and_a_training_goes_on_with_it():
    module = build("Llama", LLAMA | {"attention_dropout": 0.9, "attention_bias": True})
    expected = greedy(module.eval())
    module.train()
    module.model.layers[1].eval()  # a part that is not trained
    modes = [part.training for part in module.modules()]
    kept = resispec.transformers.speculative(tiny_llama(seed=1, layers=1).module, tree="d4b2")
    for _ in range(2):
        assert greedy(module, custom_generate=kept) == expected
        assert [part.training for part in module.modules()] == modes


def test_dropout_is_off_while_any_thread_writes():
    """Defect: the first of two texts to end turned it on in the other one."""
    module = tiny_llama().module.train()
    module.model.norm.eval()
    modes = [part.training for part in module.modules()]
    first, second = evaluating([module]), evaluating([module, module])
    with first:
        second.__enter__()
    assert not any(part.training for part in module.modules())
    second.__exit__(None, None, None)
    assert [part.training for part in module.modules()] == modes


def test_a_switched_adapter_is_another_state():
    """Its parts and parameters stay, as where peft turns an adapter off."""
    module = tiny_llama().module
    module.model.layers[0].mlp.act_fn = adapter = Adapter()
    states = [ModuleState(module)]
    for is_off, active in ((True, "default"), (False, "default"), (False, "other")):
        adapter._disable_adapters, adapter._active_adapter = is_off, [active]
        states.append(ModuleState(module))
    assert states[0] == states[2]
    assert states[0] != states[1] and states[0] != states[3]


def test_a_setting_of_the_configuration_counts_from_the_next_prompt_on():
    """Defect: a kept Speculator had the window of its first prompt."""
    module = build("Mistral", LLAMA | {"sliding_window": 4})
    kept = resispec.transformers.speculative(tiny_llama(seed=1, layers=1).module, tree="d4b2")
    for window in (4, None, 4):
        module.config.sliding_window = window
        assert greedy(module, custom_generate=kept) == greedy(module)


def test_a_tensor_that_wraps_others_is_not_looked_into():
    """As quantised weights are made, which know few operations."""
    module = nn.Linear(2, 2)
    module.weight = nn.Parameter(Wrapper(torch.zeros(2, 2)), requires_grad=False)
    assert ModuleState(module) == ModuleState(module)


def test_a_copy_of_a_decoder_decodes_alike():
    decoder = Decoder(DraftModel(chain(4)), get_verifier("standard"))
    pair, settings = Pair(tiny_llama(), tiny_llama(seed=1), None), Sampling(max_new_tokens=ENOUGH)
    found = [
        one.generate(pair, [1, 2], settings, torch.Generator().manual_seed(0)).tokens
        for one in (decoder, copy.deepcopy(decoder), pickle.loads(pickle.dumps(decoder)))
    ]
    assert found[0] == found[1] == found[2]


def test_rows_of_a_draft_follow_its_head():
    """A draft of some tokens alone has rows of its own."""
    model, tokens = tiny_llama(), torch.tensor([3, 17, 40])
    some, features = model.drafting(tokens), torch.randn(2, 32)
    with torch.no_grad():
        model.module.lm_head.weight.mul_(-1)
    some.session(4)
    found, expected = some.head(features)[:, tokens], model.head(features)[:, tokens]
    assert torch.allclose(found, expected, atol=1e-5)  # products of another shape round otherwise


def test_the_end_of_a_text_is_what_the_configuration_says_now():
    target = tiny_llama()
    kept = resispec.Speculator(target, tiny_llama(seed=1), tree="chain_4")
    tokens = kept.generate(IDS[0], max_new_tokens=ENOUGH, temperature=0).tokens
    for ends in (tokens[5], [tokens[5]], (tokens[5],), torch.tensor([tokens[5]])):
        target.module.generation_config.eos_token_id = ends
        ended = kept.generate(IDS[0], max_new_tokens=ENOUGH, temperature=0)
        assert ended.stop_reason == "eos"
        assert ended.tokens == tokens[: tokens.index(tokens[5]) + 1]


def test_other_settings_of_a_custom_generate_count():
    target, draft = tiny_llama().module, tiny_llama(seed=1).module
    kept = resispec.transformers.speculative(draft, tree="d4b2")
    options = {"do_sample": True, "max_new_tokens": ENOUGH, "return_dict_in_generate": True}
    counts = []
    for tree in ("chain_4", "chain_1"):
        kept.tree = tree
        found = target.generate(IDS, custom_generate=kept, **options)
        counts.append(max(found.num_emitted))
    assert counts[0] > counts[1] == 2


def test_a_text_that_an_exception_ends_has_used_its_random_numbers():
    kept = resispec.Speculator(tiny_llama(), tiny_llama(seed=1), tree="chain_4")
    heard = []

    def stop(tokens):
        heard[-1] += tokens
        if len(heard[-1]) > 12:
            raise KeyboardInterrupt

    torch.manual_seed(0)
    for _ in range(2):
        heard.append(())
        with pytest.raises(KeyboardInterrupt):
            kept.generate(IDS[0], max_new_tokens=ENOUGH, temperature=2.0, on_step=stop)
    assert heard[0] != heard[1]


def test_a_prompt_within_a_prompt_is_refused_and_the_first_goes_on():
    kept = resispec.Speculator(tiny_llama(), tiny_llama(seed=1), tree="chain_4")
    options = {"max_new_tokens": ENOUGH, "temperature": 0}
    expected = kept.generate(IDS[0], **options)

    def nested(_):
        with pytest.raises(InvalidInput, match="decoding another prompt; allowed: one prompt"):
            kept.generate(IDS[0], **options)

    assert kept.generate(IDS[0], on_step=nested, **options).tokens == expected.tokens
    assert kept.generate(IDS[0], **options).tokens == expected.tokens


SETTINGS = {
    "buffer": lambda module: module.model.rotary_emb.inv_freq.mul_(0.25),
    "scale of a layer": lambda module: setattr(module.model.layers[1].self_attn, "scaling", 2.0),
    "a part's mapping": lambda module: module.part.scaling.update(default=0.5),
}


@pytest.mark.parametrize("change", SETTINGS.values(), ids=SETTINGS)
def test_changed_settings_and_buffers_count(change):
    """Defect: what was kept of the model went on with those before."""
    module = build("Llama", LLAMA)
    module.part = Adapter()
    module.part.scaling = {"default": 2.0}
    kept = resispec.transformers.speculative(tiny_llama(seed=1, layers=1).module, tree="d4b2")
    assert greedy(module, custom_generate=kept) == greedy(module)
    before = ModuleState(module)
    assert ModuleState(module) == before
    change(module)
    assert ModuleState(module) != before
    assert greedy(module, custom_generate=kept) == greedy(module)


@pytest.mark.parametrize(
    "change",
    [SETTINGS["scale of a layer"], lambda it: setattr(it.model.norm, "variance_epsilon", 0.1)],
)
def test_a_llama_whose_layers_differ_is_not_plain(change):
    """Defect: in bfloat16 every layer had the first one's scale, too little to be noticed."""
    module = build("Llama", LLAMA)
    assert is_plain(module)
    change(module)
    assert not is_plain(module)


def test_the_settings_of_a_verifier_are_told_with_those_of_its_rule():
    verifier = Traversal(get_rule("lenience"))
    before = settings_in(verifier)
    [name] = vars(verifier.rule)
    vars(verifier.rule)[name] /= 2
    assert settings_in(verifier) != before


class Part:
    """An object without a `__dict__`."""

    __slots__ = ("kept",)

    def __init__(self, kept):
        self.kept = kept


MEMORIES = {
    "a list in a list": ([[1]], lambda kept: kept[0].append(2)),
    "another split": ([[1, 2], [3]], lambda kept: kept[1].insert(0, kept[0].pop())),
    "a set": ({1}, lambda kept: kept.add(2)),
    "deque": (deque([1]), lambda kept: kept.append(2)),
    "Counter": (Counter(), lambda kept: kept.update("a")),
    "defaultdict": (defaultdict(list), lambda kept: kept["a"]),
    "array": (np.zeros(2), lambda kept: kept.fill(1)),
    "tensor": ([torch.zeros(2)], lambda kept: kept[0].fill_(1)),
    "module": ([nn.Linear(2, 2)], lambda kept: nn.init.zeros_(kept[0].weight)),
    "another rule": ([get_rule("standard")], lambda kept: kept.append(get_rule("kseq"))),
    "slots": (Part([]), lambda part: part.kept.append(1)),
    "random numbers": (random.Random(0), lambda kept: kept.random()),
    "what nobody sees": (threading.Lock(), lambda _: None),
}


@pytest.mark.parametrize("name", MEMORIES)
def test_what_an_object_keeps_is_among_its_settings(name):
    """Defect: in most of these nobody saw a change, so a captured step went on with what was."""
    kept, change = MEMORIES[name]
    subject = SimpleNamespace(kept=kept)
    before = settings_in(subject)
    assert (settings_in(subject) == before) is (name != "what nobody sees")
    change(kept)
    assert settings_in(subject) != before


@pytest.mark.parametrize("is_captured", [False, True])
def test_a_stepper_is_made_anew_for_a_changed_drafter(is_captured, monkeypatch):
    """Defect: another scale of draws, or another tree, had no effect until the next start."""
    monkeypatch.setattr("resispec.decode.reading_is_free", lambda _: not is_captured)
    decoder = Decoder(DraftModel(chain(2)), get_verifier("standard"))
    parts = Pair(tiny_llama(16), tiny_llama(16, seed=1), None), Warp(), 32
    first = decoder._stepper(*parts)
    assert decoder._stepper(*parts) is first
    vars(decoder.drafter)["sharpness"] = 2.0
    second = decoder._stepper(*parts)
    assert second is not first
    vars(decoder.drafter)["topology"] = chain(3)
    assert decoder._stepper(*parts) is not second
