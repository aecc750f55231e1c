"""Causal language models of transformers as targets and drafts, and their sessions."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaConfig, LlamaForCausalLM

from resispec.errors import InvalidInput
from resispec.models.base import Session
from resispec.models.checkpoint import end_token_ids
from resispec.models.kv_cache import FULL, KeyValues, Mask, Windows, cache_argument
from resispec.models.own_lm_head import check_logits, own_head, reads_one_path, shortened, spread
from resispec.models.packed import pack_if_faster, unpack
from resispec.models.pair import Pair

Body = Callable[..., Any]
"""A transformers model without its head, compiled or not."""


class _Session:
    """A `Session` of a `TransformersModel`."""

    def __init__(self, model: TransformersModel, capacity: int, drafted: int) -> None:
        self._model, config = model, model.config
        windows = windows_of(model.name, config)
        added = model.module.dtype if config._attn_implementation == "eager" else None
        self._rows = KeyValues(
            config.num_hidden_layers, capacity, drafted, model.device, windows, added
        )
        self._cache = {cache_argument(model.module.base_model.forward): self._rows.cache}
        self.keep, self.clear = self._rows.keep, self._rows.clear

    @torch.inference_mode()
    def extend(self, tokens: Tensor) -> Tensor:
        # a draft's step commits an accepted leaf and the next root at most
        is_prompt = len(tokens) > 2
        body = self._model.module.base_model if is_prompt else self._model.stepping
        return self._forward(body, tokens, *self._rows.extend(len(tokens)))

    @torch.inference_mode()
    def forward(self, tokens: Tensor, depths: Tensor, visible: Tensor) -> Tensor:
        if self._model.by_row and len(tokens) > 1:
            before = visible.shape[1] - len(tokens)
            rows = zip(tokens.split(1), depths.split(1), visible.split(1), strict=True)
            return torch.cat([
                self.forward(token, depth, row[:, :width])
                for width, (token, depth, row) in enumerate(rows, start=before + 1)
            ])  # fmt: skip
        return self._forward(self._model.stepping, tokens, *self._rows.draft(depths, visible))

    def _forward(self, body: Body, tokens: Tensor, positions: Tensor, mask: Mask) -> Tensor:
        size, taps = self._model.config.vocab_size, self._model.taps
        if size < self._model.vocab_size:
            tokens = tokens.clamp_max(size - 1)
        output = body(
            input_ids=tokens[None],
            position_ids=positions,
            attention_mask=mask,
            use_cache=True,
            **self._cache,
            **({"output_hidden_states": True} if taps else {}),
        )
        features: Tensor = output.last_hidden_state[0]
        if taps:
            features = torch.cat(
                (features, *(output.hidden_states[layer][0] for layer in taps)), -1
            )
        return features


def left_padded(prompts: Sequence[Sequence[int]], value: int) -> tuple[Tensor, Tensor]:
    """Token ids (B, L) int64 of left-padded prompts, and their mask (B, L) int64,
    which is 0 at padding.

    value: the padding token.
    """
    rows = [torch.tensor(list(prompt)) for prompt in prompts]
    tokens = pad_sequence(rows, batch_first=True, padding_value=value, padding_side="left")
    return tokens, pad_sequence(
        [torch.ones_like(row) for row in rows], batch_first=True, padding_side="left"
    )


class TransformersModel:
    """A `Model` around a transformers causal language model with layers of full
    or sliding-window attention.

    stepping: the body that sessions call for the forwards of a step. taps: see `tapping`. commit:
    the commit on the hub, None for a model from elsewhere. end_token_ids: see the function of this
    name. rope_switches: see `switches_in`. by_row: whether the tokens of a step are forwarded one
    at a time.

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
        self.stepping: Body = module.base_model
        self.taps: tuple[int, ...] = ()
        self.vocab_size: int = config.vocab_size
        self.context: int = config.max_position_embeddings
        self.rope_switches = switches_in(config)
        self.device: torch.device = module.device
        self.commit: str | None = getattr(module.config, "_commit_hash", None)
        self.end_token_ids = end_token_ids(module)
        self._head = own_head(self.module)
        self.by_row = False
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

    def tapping(self, taps: tuple[int, ...]) -> TransformersModel:
        """A copy of this model whose features also hold the inputs of these layers: (K,
        (1 + len(taps)) H).

        taps: layer numbers from 0. The head reads the first H columns, which are the features
        without taps.
        """
        model = copy.copy(self)
        model.taps = taps
        return model

    def in_vocabulary(self, size: int) -> TransformersModel:
        """A copy of this model with a vocabulary of `size` tokens:
        a draft for a target with as many tokens.

        Ids keep their meaning. Tokens that the model has no row for get probability 0, and are read
        as its last token where they were committed. Tokens from `size` on are cut off, and the law
        is renormalised.
        """
        model = copy.copy(self)
        model.vocab_size = size
        return model

    def drafting(self, token_ids: Tensor) -> TransformersModel:
        """A copy of this model that drafts only the tokens (D,)
        int64 and computes only their logits.

        All other tokens get probability 0 (FR-Spec, arXiv 2502.14856). Raises InvalidInput if the
        head is more than a linear layer.
        """
        if not isinstance(self._head, nn.Linear):
            raise InvalidInput(
                f"{self.name}: only a head that is one linear layer can leave out tokens"
            )
        rows, size = self._head.weight[token_ids], self.config.vocab_size
        head = nn.Linear(rows.shape[1], len(rows), self._head.bias is not None, device="meta")
        head.weight = nn.Parameter(rows, requires_grad=False)
        if self._head.bias is not None:
            head.bias = nn.Parameter(self._head.bias[token_ids], requires_grad=False)
        pack_if_faster(head)
        model = copy.copy(self)
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


def windows_of(name: str, config: Any) -> Windows:
    """The attention window of each kind of layer of a text model.

    config: the transformers configuration. Raises InvalidInput, which names the kinds, if a layer
    has neither full attention nor a window.
    """
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:  # all layers are of one kind, as in Mistral
        return {"sliding_attention": window} if window else FULL
    windows = {**FULL, "sliding_attention": window}
    if not set(kinds) <= windows.keys() or ("sliding_attention" in kinds and not window):
        raise InvalidInput(
            f"{name}: found layers of {', '.join(sorted(set(kinds)))}, sliding_window {window}; "
            f"allowed: {' and '.join(windows)} with a sliding_window"
        )
    return {kind: windows[kind] for kind in sorted(set(kinds))}


def ropes_of(config: Any) -> list[Mapping[str, Any]]:
    """The rotary parameters in a configuration of transformers: one,
    or one for each kind of layer.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    return [part for part in (rope, *rope.values()) if isinstance(part, dict)]


def switches_in(config: Any) -> tuple[int, ...]:
    """The lengths beyond which a forward turns all its positions by other frequencies (rope_type
    longrope).

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


def compiled_pair(pair: Pair) -> Pair:
    """A copy of a pair whose step forwards are compiled by torch, each shape when it first occurs.

    EAGLE drafters are not compiled. Packed weights are unpacked, in the given pair, too. Where
    compiling fails, for example without a C++ compiler, torch warns and the forward runs
    uncompiled. A compiled forward rounds differently, so tokens may differ where rounding decides.
    """
    # Every shape gets compiled code of its own; torch's limits are meant for shapes that change all
    # the time.
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 4096
    torch._dynamo.config.suppress_errors = True

    def compiled(model: Any) -> Any:
        if isinstance(model, TransformersModel):
            model = copy.copy(model)
            unpack(model.module.base_model)
            model.stepping = torch.compile(model.module.base_model, dynamic=False)
        return model

    return replace(pair, target=compiled(pair.target), draft=compiled(pair.draft))


def build_llama(**sizes: Any) -> LlamaForCausalLM:
    """A freshly initialised Llama in float32, from the fields of `LlamaConfig` (`hidden_size`,
    ...).
    """
    return LlamaForCausalLM(LlamaConfig(**sizes))
