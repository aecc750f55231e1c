"""Causal language models of transformers as targets and drafts, and their sessions."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaConfig, LlamaForCausalLM

from resispec.errors import InvalidInput
from resispec.models.base import Session
from resispec.models.checkpoint import end_token_ids
from resispec.models.grid import Grid, grid_of
from resispec.models.kv_cache import KeyValues, Mask, cache_argument, windows_of
from resispec.models.lean import LeanBody, LeanRows, functions, is_plain
from resispec.models.linear import QuickLinear, described, products_in, quicken, quicken_again
from resispec.models.module_state import ModuleState, is_untouched
from resispec.models.own_lm_head import (
    check_logits,
    follows_modules,
    own_head,
    reads_one_path,
    shortened,
    spread,
)


class _Session:
    """A `Session` of a `TransformersModel`."""

    def __init__(self, model: TransformersModel, capacity: int, drafted: int) -> None:
        lean = model.lean_body()  # first, since it may read the model anew
        self._model, config = model, model.config
        windows = windows_of(model.name, config)
        adds = lean is not None or config._attn_implementation == "eager"
        self._rows = KeyValues(
            config.num_hidden_layers,
            capacity,
            drafted,
            model.device,
            windows,
            model.module.dtype if adds else None,
        )
        self.keep, self.clear = self._rows.keep, self._rows.clear
        self._body = self._of_modules if lean is None else self._leanly(lean, capacity + drafted)

    @torch.inference_mode()
    def extend(self, tokens: Tensor) -> Tensor:
        return self._forward(tokens, *self._rows.extend(len(tokens)))

    @torch.inference_mode()
    def forward(self, tokens: Tensor, depths: Tensor, visible: Tensor) -> Tensor:
        if self._model.by_row and len(tokens) > 1:
            before = visible.shape[1] - len(tokens)
            rows = zip(tokens.split(1), depths.split(1), visible.split(1), strict=True)
            return torch.cat([
                self.forward(token, depth, row[:, :width])
                for width, (token, depth, row) in enumerate(rows, start=before + 1)
            ])  # fmt: skip
        return self._forward(tokens, *self._rows.draft(depths, visible))

    def _forward(self, tokens: Tensor, positions: Tensor, mask: Mask) -> Tensor:
        size = self._model.config.vocab_size
        if size < self._model.vocab_size:
            tokens = tokens.clamp_max(size - 1)
        return self._body(tokens, positions, mask)

    def _of_modules(self, tokens: Tensor, positions: Tensor, mask: Mask) -> Tensor:
        """Features by the modules of transformers."""
        taps, body = self._model.taps, self._model.module.base_model
        output = body(
            input_ids=tokens[None],
            position_ids=positions,
            attention_mask=mask,
            use_cache=True,
            **{cache_argument(body.forward): self._rows.cache},
            **({"output_hidden_states": True} if taps else {}),
        )
        features: Tensor = output.last_hidden_state[0]
        if taps:
            features = torch.cat(
                (features, *(output.hidden_states[layer][0] for layer in taps)), -1
            )
        return features

    def _leanly(self, lean: LeanBody, length: int) -> Callable[[Tensor, Tensor, Mask], Tensor]:
        """Features by a lean body, for positions below `length`."""
        rows, taps = LeanRows(lean, self._rows, length), self._model.taps
        return lambda tokens, positions, mask: lean.forward(tokens, positions[0], mask, rows, taps)


def left_padded(prompts: Sequence[Sequence[int]], value: int) -> tuple[Tensor, Tensor]:
    """Token ids (B, L) int64 of left-padded prompts, and their mask (B, L) int64, 0 at padding.

    value: the padding token.
    """
    rows = [torch.tensor(list(prompt)) for prompt in prompts]
    tokens = pad_sequence(rows, batch_first=True, padding_value=value, padding_side="left")
    return tokens, pad_sequence(
        [torch.ones_like(row) for row in rows], batch_first=True, padding_side="left"
    )


class TransformersModel:
    """A `Model` around a transformers causal language model of full or sliding-window attention.

    taps: see `tapping`. commit: the commit on the hub, None for a model from elsewhere.
    rope_switches: see `switches_in`. by_row: whether the tokens of a step are forwarded one at a
    time.

    A plain Llama is forwarded by a `LeanBody`, if that gives the features of the modules of
    transformers but for rounding; anything else by these modules.

    is_draft: whether the model only drafts. A draft's law may be any law, but at a node it must not
    depend on tokens of other paths, as verifiers that start at the leaves presuppose. So a draft
    whose logits in a tree are not its own, for example one whose activations are quantised by the
    numbers of a whole forward, is forwarded token by token, and a warning says so.

    Raises InvalidInput for other kinds of layers, whose caches cannot hold a tree, for attention
    that cannot take a tree's mask, for frequencies that a CUDA graph cannot compute, for a model
    that does not say how many positions it can attend to, and if the logits of a small tree differ
    from the model's own, see `check_logits`, unless a draft's depend on the path alone.
    """

    def __init__(self, module: Any, is_draft: bool = False) -> None:
        self.config = config = module.config.get_text_config()
        self.name: str = module.config._name_or_path or type(module).__name__
        windows_of(self.name, config)
        if not getattr(config, "max_position_embeddings", None):
            raise InvalidInput(f"{self.name}: config.json gives no max_position_embeddings")
        # they take any mask
        if (attention := config._attn_implementation) not in ("sdpa", "eager"):
            raise InvalidInput(
                f"{self.name}: attn_implementation is {attention!r}; allowed: sdpa, eager"
            )
        kinds = {rope.get("rope_type") for rope in ropes_of(config)}
        if module.device.type == "cuda" and "dynamic" in kinds:  # it compares positions on the host
            raise InvalidInput(f"{self.name}: rope_type is 'dynamic'; allowed on CUDA: all others")
        self.module = module.eval()
        self._is_draft = is_draft
        self._draftable: Tensor | None = None
        self._state: ModuleState | None = None
        self.taps: tuple[int, ...] = ()
        self.vocab_size: int = config.vocab_size
        self._num_rows: int = config.vocab_size
        self.context: int = config.max_position_embeddings
        self.rope_switches = switches_in(config)
        self.device: torch.device = module.device
        self.commit: str | None = getattr(module.config, "_commit_hash", None)
        self._head = own_head(self.module)
        self.by_row = False
        self._lean = LeanBody(module) if is_plain(module) else None
        if self._lean is not None and not follows_modules(self, self.of_modules()):
            self._lean = None
        try:
            features = check_logits(self, module)
        except InvalidInput as error:
            self.by_row = is_draft
            if not is_draft or not reads_one_path(self):
                raise
            warnings.warn(
                f"draft {error}; its tokens are forwarded one at a time, so that its law depends "
                "on the path alone: the emitted tokens keep the target's law, drafting takes "
                "longer",
                stacklevel=2,
            )
        else:
            self._head = shortened(self._head, module, features)
        if self._lean is not None and _is_one_matrix(self._head):
            self._head = _sharing(self._head.weight, self._head.bias, grid_of(self._head))
        self._state = ModuleState(module, functions())

    @property
    def end_token_ids(self) -> tuple[int, ...]:
        """See the function of this name."""
        return end_token_ids(self.module)

    def state(self) -> ModuleState | None:
        """The module's state; a module that has changed since it was read is read anew.

        It is read as at first, and sessions from before then belong to another model. Raises
        InvalidInput as at first, and for a module whose vocabulary has another size now.
        """
        if self._state is None:  # it is being read
            return None
        if ModuleState(self.module, functions()) != self._state:
            if (size := self.module.config.get_text_config().vocab_size) != self._num_rows:
                raise InvalidInput(
                    f"{self.name} has {size} tokens now, and had {self._num_rows} when it was "
                    "read; make a new Speculator"
                )
            own = {"taps": self.taps, "vocab_size": self.vocab_size}
            self._lean = None  # before the next one's copies are made
            with torch.inference_mode(False), torch.no_grad():
                quicken_again(self.module)
                model = TransformersModel(self.module, self._is_draft)
                if self._draftable is not None:
                    model = model.drafting(self._draftable)
            vars(self).update(vars(model) | own)
        return self._state

    def of_modules(self) -> TransformersModel:
        """A copy of this model, as it is now, that is forwarded by the modules of transformers."""
        self.state()
        model = copy.copy(self)
        model._lean = model._state = None
        return model

    def lean_body(self) -> LeanBody | None:
        """The lean body with present weights; None if the modules of transformers are called."""
        self.state()
        return self._lean

    def ways(self) -> dict[str, Any]:
        """The kind of its body, and the ways of its linear layers by shape.

        `forward` is "lean" or "modules of transformers".
        """
        body = self.lean_body()
        products = products_in(self.module) if body is None else body.products
        if body is not None and isinstance(self._head, QuickLinear):
            products = [*products, *products_in(self._head)]
        return {
            "forward": "modules of transformers" if body is None else "lean",
            "linear": described(products),
        }

    def tapping(self, taps: tuple[int, ...]) -> TransformersModel:
        """A copy whose features, (K, (1 + len(taps)) H), also hold the inputs of these layers.

        taps: layer numbers from 0. The head reads the first H columns, which are the features
        without taps.
        """
        model = copy.copy(self)
        model.taps = taps
        return model

    def in_vocabulary(self, size: int) -> TransformersModel:
        """A copy of this model with a vocabulary of `size` tokens, as many as its target has.

        Ids keep their meaning. Tokens that the model has no row for get probability 0, and are read
        as its last token where they were committed. Tokens from `size` on are cut off, and the law
        is renormalised.
        """
        model = copy.copy(self)
        model.vocab_size = size
        return model

    def drafting(self, token_ids: Tensor) -> TransformersModel:
        """A copy of this model that drafts only tokens (D,) int64 and computes only their logits.

        All other tokens get probability 0 (FR-Spec, arXiv 2502.14856). Raises InvalidInput if the
        head is more than a linear layer.
        """
        self.state()
        if not _is_one_matrix(self._head):
            raise InvalidInput(
                f"{self.name}: only a head that is one linear layer can leave out tokens"
            )
        rows, size, bias = self._head.weight[token_ids], self.config.vocab_size, self._head.bias
        grid = grid_of(self._head)
        head = _sharing(
            nn.Parameter(rows, requires_grad=False),
            bias if bias is None else nn.Parameter(bias[token_ids], requires_grad=False),
            grid and grid.rows(token_ids),
        )
        model = copy.copy(self)
        model._draftable = token_ids
        model._head = lambda features: spread(head(features), token_ids, size)
        return model

    def session(self, capacity: int, drafted: int = 0) -> Session:
        """See `Model.session`."""
        return _Session(self, capacity, drafted)

    @torch.inference_mode()
    def head(self, features: Tensor) -> Tensor:
        """Logits (K, V) of features (K, H), by the model's own forward."""
        if self.by_row and len(features) > 1:
            return torch.cat([self.head(row) for row in features.split(1)])
        features = features.chunk(1 + len(self.taps), dim=-1)[0]
        logits = self._head(features)
        padding = self.vocab_size - logits.shape[-1]  # missing rows; if negative, rows to cut off
        return functional.pad(logits, (0, padding), value=-torch.inf) if padding else logits


def _is_one_matrix(head: Any) -> TypeGuard[nn.Linear]:
    """Whether a head is a linear layer that does nothing else."""
    return type(head) in (nn.Linear, QuickLinear) and is_untouched(head)


def _sharing(weight: Any, bias: Any, grid: Grid | None) -> nn.Linear:
    """A linear layer of its own that shares its weight with a module."""
    layer = QuickLinear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    layer.weight, layer.bias = weight, bias
    vars(layer)["grid"] = grid
    with torch.inference_mode(False), torch.no_grad():
        quicken(layer)
    return layer


def ropes_of(config: Any) -> list[Mapping[str, Any]]:
    """The rotary parameters in a transformers configuration: one, or one for each kind of layer."""
    rope = getattr(config, "rope_parameters", None) or {}
    return [part for part in (rope, *rope.values()) if isinstance(part, dict)]


def switches_in(config: Any) -> tuple[int, ...]:
    """The lengths beyond which forwards turn positions by other frequencies (rope_type longrope).

    config: the transformers configuration of a model of text. The keys that are cached keep the
    frequencies of their own forward, and the deepest node of a tree decides for all others, so a
    text is decoded on one side of each length. The frequencies of rope_type dynamic change beyond
    the context only.
    """
    return tuple(
        rope["original_max_position_embeddings"]
        for rope in ropes_of(config)
        if rope.get("rope_type") == "longrope"
        and any(
            rope.get(f"short_{name}") != rope.get(f"long_{name}") for name in ("factor", "mscale")
        )
    )


def build_llama(**sizes: Any) -> LlamaForCausalLM:
    """A freshly initialised Llama in float32, from fields of `LlamaConfig` (`hidden_size`, ...)."""
    return LlamaForCausalLM(LlamaConfig(**sizes))
