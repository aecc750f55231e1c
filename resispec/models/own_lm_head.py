"""From a model's features to its logits, as the model computes them itself; a check that they are its own.

What lies between the last hidden state and the logits differs from model to model: a scale (Cohere,
Granite), a soft cap (Gemma, NanoChat), another layer. None of that is written down again here, where it would
be forgotten for the next model: the forward of the causal language model does it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from resispec.errors import InvalidInput, first_line
from resispec.models.base import Model
from resispec.trees import complete

Head = Callable[[Tensor], Tensor]

ROUNDING_EPS = 16
"""Logits may differ by this many machine epsilons of their size, as the layers' roundings add up."""
LEAST_ALLOWED = 1e-3
"""And by this much in float32, as a device may multiply in less than its full precision (TF32)."""


class _Output(tuple[Tensor]):
    """A body's return value when there is nothing but the last hidden state: (features,)."""

    def __getattr__(self, name: str) -> Tensor | None:
        return self[0] if name == "last_hidden_state" else None


class _Handed:
    """In the place of a model's body: its last hidden state is what it is handed as embeddings."""

    def __call__(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> _Output:
        return _Output((inputs_embeds,))

    @property
    def decoder(self) -> _Handed:
        """The part of its body that OPT's forward calls."""
        return self


def own_head(module: Any) -> Head:
    """The function from features (K, H) to logits (K, V) within the forward of a causal language model.

    module: of transformers. It stays as it is: what is called is a shallow copy without the body, which
    shares all weights.
    """
    model = copy.copy(module)
    model._modules = module._modules | {module.base_model_prefix: _Handed()}
    return lambda features: model(inputs_embeds=features[None], use_cache=False, return_dict=True).logits[0]


def spread(logits: Tensor, token_ids: Tensor, size: int) -> Tensor:
    """Logits (K, size), -inf but for the tokens (D,) int64, which have those of (K, D)."""
    return logits.new_full((len(logits), size), -torch.inf).index_copy_(1, token_ids, logits)


@torch.inference_mode()
def shortened(own: Head, module: Any, features: Tensor) -> Head:
    """`own`, or the module's last layer where that is all of it, which saves most of a call's time.

    features: (K, H), of real tokens. That the layer is all of it shows in equal bits for features from a
    hundredth to a hundred times as large: a scale, a soft cap or another layer would change some.
    """
    layer = module.get_output_embeddings()
    sizes = 10.0 ** torch.arange(-2, 3, device=features.device)
    inputs = (sizes[:, None, None] * features).flatten(0, 1).to(features.dtype)
    is_linear = isinstance(layer, nn.Linear) and layer.in_features == inputs.shape[-1]
    return layer if is_linear and torch.equal(layer(inputs[None])[0], own(inputs)) else own


@torch.inference_mode()
def check_logits(model: Any, module: Any) -> Tensor:
    """Raise InvalidInput unless a `TransformersModel` gives a small tree the logits of its module.

    Three of the tree's four tokens share their parent, which is cached, so that a model also shows itself
    which does not heed the mask or the positions, as where attention is biased by distance (ALiBi).
    Where layers see a window, a second look at one of a single token shows that both mean the same by it.
    Takes three short forwards a look. Returns the features (4, H).
    """
    configs = [config for part in module.modules() if (config := getattr(part, "config", None))]
    windows = [(config, window) for config in configs if (window := getattr(config, "sliding_window", None))]
    try:
        looks = [_gap(model, module)]
        for config, _ in windows:
            config.sliding_window = 1
        if windows:
            looks.append(_gap(model, module))
    except Exception as error:  # a kind of model that nobody has tried can raise anything
        message = f"a tree of four tokens cannot be forwarded: {type(error).__name__}: {first_line(error)}"
        raise InvalidInput(f"{model.name}: {message}") from error
    finally:
        for config, window in windows:
            config.sliding_window = window
    allowed = max(LEAST_ALLOWED, ROUNDING_EPS * torch.finfo(module.dtype).eps)
    for gap, _ in looks:
        if not gap <= allowed:
            raise InvalidInput(
                f"{model.name}: logits in a tree differ from the model's own by {gap:.2g} of their size; "
                f"allowed in {str(module.dtype).removeprefix('torch.')}: {allowed:.2g}"
            )
    return looks[0][1]


def _gap(model: Model, module: Any) -> tuple[float, Tensor]:
    """The distance of a tree's four logits from the module's own, and their features (4, H)."""
    tree = complete(2, 3)
    tokens = torch.arange(1, 5, device=model.device) * model.vocab_size // 5
    paths = torch.stack((tokens[:1].expand(3), tokens[1:]), -1)
    depths, visible = tree.depths.to(model.device), tree.ancestors.to(model.device)
    logits = module(input_ids=paths, use_cache=False, return_dict=True).logits
    expected = torch.cat((logits[:1, 0], logits[:, 1])).double()
    session = model.session(1, drafted=3)
    root = session.extend(tokens[:1])
    features = torch.cat((root, session.forward(tokens[1:], depths[1:] - 1, visible[1:, 1:])))
    return ((model.head(features) - expected).norm(dim=-1) / expected.norm(dim=-1)).amax().item(), features
