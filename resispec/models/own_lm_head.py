"""A model's own step from features to logits, and a check that the logits are the model's own.

The operations between the last hidden state and the logits differ from model to model: a scale
(Cohere, Granite), a soft cap (Gemma, NanoChat), another layer. They are not repeated here, where
the next model's would be forgotten: the forward of the causal language model computes them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn

from resispec.errors import InvalidInput, first_line
from resispec.models.base import Model
from resispec.models.module_state import has_hooks
from resispec.trees import complete

Head = Callable[[Tensor], Tensor]


class _Output(tuple[Tensor]):
    """The return value of a body that has nothing but the last hidden state: (features,)."""

    def __getattr__(self, name: str) -> Tensor | None:
        return self[0] if name == "last_hidden_state" else None


class _Handed:
    """A stand-in for a model's body; it returns the given embeddings as its last hidden state."""

    def __call__(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> _Output:
        return _Output((inputs_embeds,))

    @property
    def decoder(self) -> _Handed:
        """The stand-in itself: OPT's forward calls the decoder of its body."""
        return self


def own_head(module: Any) -> Head:
    """The function from features (K, H) to logits (K, V) in a causal language model's forward.

    module: a transformers model, which stays as it is: the function calls a shallow copy without
    the body, which shares all weights.
    """
    model = copy.copy(module)
    # What lies on the instance (accelerate's wrapper, a compiled forward) would run the module's
    # own body, not the stand-in.
    vars(model).pop("forward", None)
    vars(model).pop("_compiled_call_impl", None)
    model._modules = module._modules | {module.base_model_prefix: _Handed()}
    return lambda features: model(
        inputs_embeds=features[None], use_cache=False, return_dict=True
    ).logits[0]


def spread(logits: Tensor, token_ids: Tensor, size: int) -> Tensor:
    """Logits (K, D) of tokens (D,) int64 as logits (K, size), -inf for every other token."""
    return logits.new_full((len(logits), size), -torch.inf).index_copy_(1, token_ids, logits)


@torch.inference_mode()
def shortened(own: Head, module: Any, features: Tensor) -> Head:
    """`own`, or the output layer if `own` does nothing else, which saves most of a call's time.

    features: (K, H), of real tokens. `own` does nothing else if both give equal bits for features
    from a hundredth to a hundred times as large: a scale, a soft cap or another layer would change
    some bits. A module with hooks keeps its own: they may do something else later.
    """
    if has_hooks(module):
        return own
    layer = module.get_output_embeddings()
    sizes = 10.0 ** torch.arange(-2, 3, device=features.device)
    inputs = (sizes[:, None, None] * features).flatten(0, 1).to(features.dtype)
    is_linear = isinstance(layer, nn.Linear) and layer.in_features == inputs.shape[-1]
    return layer if is_linear and torch.equal(layer(inputs[None])[0], own(inputs)) else own


@torch.inference_mode()
def check_logits(model: Any, module: Any) -> Tensor:
    """Raise InvalidInput unless a `TransformersModel` gives a small tree the logits of its module.

    Three of the tree's four tokens share their parent, which is cached, so the check also finds a
    model that ignores the mask or the positions, for example one whose attention is biased by
    distance (ALiBi).
    If layers see a window, a second look, with a window of one token, checks that both models mean
    the same by a window. Each look takes three short forwards. Returns the features (4, H) of the
    four tokens.
    """
    try:
        with _ONE_AT_A_TIME:
            looks = _looks(model, module)
    except Exception as error:  # a kind of model that nobody has tried can raise anything
        message = (
            f"a tree of four tokens cannot be forwarded: {type(error).__name__}: "
            f"{first_line(error)}"
        )
        raise InvalidInput(f"{model.name}: {message}") from error
    # The layers' roundings add up, and a device may multiply float32 in less precision (TF32).
    allowed = max(1e-3, 16 * torch.finfo(module.dtype).eps)
    for gap, _ in looks:
        if not gap <= allowed:
            raise InvalidInput(
                f"{model.name}: logits in a tree differ from the model's own by {gap:.2g} of their "
                f"size; allowed in {str(module.dtype).removeprefix('torch.')}: {allowed:.2g}"
            )
    return looks[0][1]


_ONE_AT_A_TIME = Lock()
"""Held while a configuration has another window: a second thread would take that for its own."""


def _looks(model: Model, module: Any) -> list[tuple[float, Tensor]]:
    """Values of `_gap` with the module's windows, and with windows of one token if it has any."""
    configs = [config for part in module.modules() if (config := getattr(part, "config", None))]
    windows = [
        (config, window)
        for config in configs
        if (window := getattr(config, "sliding_window", None))
    ]
    looks = [_gap(model, module)]
    try:
        for config, _ in windows:
            config.sliding_window = 1
        if windows:
            looks.append(_gap(model, module))
    finally:
        for config, window in windows:
            config.sliding_window = window
    return looks


@torch.inference_mode()
def follows_modules(model: Any, other: Any) -> bool:
    """Whether a model has the features of another one, but for rounding.

    Both read a prompt, a tree of unequal paths after it, and a token after a path that was kept.
    False for a model that cannot forward these.
    """
    tokens = torch.arange(13, device=model.device) * 7919 % model.config.vocab_size
    depths = torch.tensor([0, 1, 1, 2], device=model.device)
    visible = torch.tensor(
        [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]], device=model.device
    ).bool()
    looks = []
    with suppress(Exception):  # the modules then do what they do without it
        for each in (model, other):
            session = each.session(12, drafted=4)
            features = [session.extend(tokens[:8]), session.forward(tokens[8:12], depths, visible)]
            session.keep(torch.tensor([0, 2, 3], device=model.device))
            features.append(session.forward(tokens[12:], depths[:1], visible[:1, :1]))
            looks.append(torch.cat(features).double())
    if len(looks) < 2:
        return False
    sizes = looks[1].norm(dim=-1).clamp_min(1e-9)  # a padding token's embedding is 0
    gap = (looks[0] - looks[1]).norm(dim=-1) / sizes
    return bool(gap.amax() <= max(1e-4, 16 * torch.finfo(model.module.dtype).eps))


@torch.inference_mode()
def reads_one_path(model: Model) -> bool:
    """Whether the logits at two nodes of a small tree keep all their bits with other siblings.

    False for a model that cannot forward the tree.
    """
    tokens = _tokens(model)
    others = tokens.clone()
    others[1:3] = tokens[1:3].flip(0) + 1
    with suppress(Exception):  # as in `check_logits`, which has said what is wrong
        first, second = (model.head(_features(model, drawn))[[0, 3]] for drawn in (tokens, others))
        return torch.equal(first, second)
    return False


def _tokens(model: Model) -> Tensor:
    """Tokens (4,) int64 of a tree of two levels, different in a vocabulary of five or more."""
    return torch.arange(1, 5, device=model.device) * model.vocab_size // 5


def _features(model: Model, tokens: Tensor) -> Tensor:
    """Features (4, H) of a tree whose root is cached; its other three tokens share this parent."""
    tree = complete(2, 3)
    depths, visible = tree.depths.to(model.device), tree.ancestors.to(model.device)
    session = model.session(1, drafted=3)
    root = session.extend(tokens[:1])
    return torch.cat((root, session.forward(tokens[1:], depths[1:] - 1, visible[1:, 1:])))


def _gap(model: Model, module: Any) -> tuple[float, Tensor]:
    """The largest relative error of a tree's logits at four nodes, and their features (4, H).

    A number that is added to all logits of a node changes no law, so it counts for neither side.
    """
    tokens = _tokens(model)
    paths = torch.stack((tokens[:1].expand(3), tokens[1:]), -1)
    logits = module(input_ids=paths, use_cache=False, return_dict=True).logits
    expected = torch.cat((logits[:1, 0], logits[:, 1])).double()
    features = _features(model, tokens)
    gaps = model.head(features).double() - expected
    gaps = (gaps - gaps.mean(-1, keepdim=True)).norm(dim=-1)
    sizes = (expected - expected.mean(-1, keepdim=True)).norm(dim=-1)
    # what a number added to all logits costs in rounding
    rounding = torch.finfo(module.dtype).eps * expected.abs().amax(-1) * expected.shape[-1] ** 0.5
    return ((gaps - rounding).clamp_min(0) / sizes.clamp_min(1e-9)).amax().item(), features
