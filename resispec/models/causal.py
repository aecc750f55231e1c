"""Causal language models of transformers as targets and drafts: sessions, pairs, saving."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from resispec.errors import InvalidInput
from resispec.models.chat import chat_tokens
from resispec.models.checkpoint import end_token_ids, read_checkpoint
from resispec.models.head import check_logits, own_head, shortened
from resispec.models.kv_cache import FULL, KeyValues, Mask
from resispec.models.pair import Pair
from resispec.models.vocabulary import fitted, sharing

if TYPE_CHECKING:
    from tokenizers import Tokenizer as FastTokenizer

transformers_logging.disable_progress_bar()  # a run shows one bar, its own

Body = Callable[..., Any]
"""A model of transformers without its head, or what stands for one."""
CATCH_UP = 2
"""Tokens that a step commits through a forward, at most: an accepted leaf and the next root, in the draft."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class TransformersSession:
    """A `Session` of a transformers model.

    body: called for a prompt. stepping: called for the forwards of a step. known: a token id from here on is
    read as the last one before. taps: as for `TransformersModel.tapping`.
    """

    def __init__(
        self,
        body: Body,
        rows: KeyValues,
        stepping: Body | None = None,
        known: int | None = None,
        taps: tuple[int, ...] = (),
    ) -> None:
        self._body, self._rows, self._stepping = body, rows, stepping or body
        self._known, self._taps = known, taps

    @torch.inference_mode()
    def extend(self, tokens: Tensor) -> Tensor:
        """See `Session.extend`."""
        body = self._body if len(tokens) > CATCH_UP else self._stepping
        return self._forward(body, tokens, *self._rows.extend(len(tokens)))

    @torch.inference_mode()
    def forward(self, tokens: Tensor, depths: Tensor, visible: Tensor) -> Tensor:
        """See `Session.forward`."""
        return self._forward(self._stepping, tokens, *self._rows.draft(depths, visible))

    def _forward(self, body: Body, tokens: Tensor, positions: Tensor, mask: Mask) -> Tensor:
        if self._known is not None:
            tokens = tokens.clamp_max(self._known - 1)
        output = body(
            input_ids=tokens[None],
            position_ids=positions,
            attention_mask=mask,
            past_key_values=self._rows.cache,
            use_cache=True,
            **({"output_hidden_states": True} if self._taps else {}),
        )
        features: Tensor = output.last_hidden_state[0]
        if self._taps:
            entering = [output.hidden_states[layer][0] for layer in self._taps]
            features = torch.cat((features, *entering), -1)
        return features

    @torch.inference_mode()
    def keep(self, rows: Tensor) -> None:
        """See `Session.keep`."""
        self._rows.keep(rows)

    @torch.inference_mode()
    def clear(self) -> None:
        """See `Session.clear`."""
        self._rows.clear()


class TransformersModel:
    """A `Model` around a transformers causal language model whose layers attend to all before or to a window.

    commit: that of the hub, None for a model from elsewhere. end_token_ids: see the function of this name.
    Raises InvalidInput for other kinds of layers, whose caches cannot hold a tree, for a model that does not
    say how many positions it can attend to, and where the logits of a small tree are not the model's own,
    see `check_logits`.
    """

    def __init__(self, module: Any) -> None:
        config = self._config = module.config.get_text_config()
        name = self._name = module.config._name_or_path or type(module).__name__
        windows_of(name, config)
        if not getattr(config, "max_position_embeddings", None):
            raise InvalidInput(f"{name}: config.json gives no max_position_embeddings")
        self.module = module.eval()
        self._head = own_head(self.module)
        self._stepping: Body | None = None
        self.vocab_size: int = config.vocab_size
        self.context: int = config.max_position_embeddings
        self.device: torch.device = module.device
        self.commit: str | None = getattr(module.config, "_commit_hash", None)
        self.end_token_ids = end_token_ids(module)
        self._taps: tuple[int, ...] = ()
        self._head = shortened(self._head, module, check_logits(name, self, module))

    def tapping(self, taps: tuple[int, ...]) -> TransformersModel:
        """The same model, whose features also hold what enters these layers: (K, (1 + taps) H).

        taps: numbers of layers from 0. Its head reads the first H columns, as they are without taps.
        """
        tapped = copy.copy(self)
        tapped._taps = taps
        return tapped

    def session(self, capacity: int, drafted: int = 0) -> TransformersSession:
        """See `Model.session`."""
        windows, own = windows_of(self._name, self._config), self._config.vocab_size
        rows = KeyValues(self._config.num_hidden_layers, capacity, drafted, self.device, windows)
        known = own if own < self.vocab_size else None
        return TransformersSession(self.module.base_model, rows, self._stepping, known, self._taps)

    def stepping(self, body: Body) -> TransformersModel:
        """The same model, whose sessions call `body` instead of its own for the forwards of a step."""
        other = copy.copy(self)
        other._stepping = body
        return other

    def in_vocabulary(self, size: int) -> TransformersModel:
        """The same model as one of `size` tokens, whose ids mean the same: a draft for a target of so many.

        Tokens that it has no row for have no probability, and are read as its last one where they were
        committed; those from `size` on are cut off, and the others' law is renormalised.
        """
        other = copy.copy(self)
        other.vocab_size = size
        return other

    @torch.inference_mode()
    def head(self, features: Tensor) -> Tensor:
        """Logits (K, V) of features (K, H), by the model's own forward."""
        return fitted(self._head(features.chunk(1 + len(self._taps), dim=-1)[0]), self.vocab_size)


def windows_of(name: str, config: Any) -> dict[str, int | None]:
    """How far back each kind of layer of a text model sees, as `KeyValues` takes it.

    config: of transformers. Raises InvalidInput, naming them, for layers that do not attend so.
    """
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:  # all layers are of one kind, as in Mistral
        return {"sliding_attention": window} if window else dict(FULL)
    known = {**FULL, "sliding_attention": window}
    if not set(kinds) <= known.keys() or ("sliding_attention" in kinds and not window):
        raise InvalidInput(
            f"{name}: found layers of {', '.join(sorted(set(kinds)))}, sliding_window {window}; "
            f"allowed: {' and '.join(known)} with a sliding_window"
        )
    return {kind: known[kind] for kind in sorted(set(kinds))}


class TransformersTokenizer:
    """A `Tokenizer` around a transformers tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self.inner = tokenizer
        self.eos_token_id: int | None = tokenizer.eos_token_id

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, with the special tokens that the model expects."""
        return list(self.inner.encode(text, verbose=False))

    def encode_chat(self, text: str) -> list[int]:
        """See `Tokenizer.encode_chat`."""
        return chat_tokens(self.inner, text)

    def decode(self, token_ids: list[int]) -> str:
        """Text of token ids."""
        return str(self.inner.decode(token_ids))

    def beginning(self, text: str, count: int) -> str:
        """The text of the first `count` tokens of a text, without special tokens.

        A character that the cut splits is left out.
        """
        token_ids = self.inner.encode(text, add_special_tokens=False, verbose=False)[:count]
        return str(self.inner.decode(token_ids, clean_up_tokenization_spaces=False)).rstrip("\ufffd")


def load_pair(
    target: str,
    draft: str | None,
    device: str = "cpu",
    dtype: str = "float32",
    target_revision: str | None = None,
    draft_revision: str | None = None,
) -> Pair:
    """Load a target and its draft from hub names or folders.

    device: a torch device. dtype: one of float32, bfloat16, float16.
    Raises InvalidInput when a model cannot be found, the device or dtype is unknown, or the tokenizers
    differ.
    """
    check_device(device)
    number = find_dtype(dtype)
    module, tokenizer = read_checkpoint(target, target_revision, number, device)
    target_model, shared_tokenizer = TransformersModel(module), TransformersTokenizer(tokenizer)
    if draft is None:
        return Pair(target_model, None, shared_tokenizer)
    module, draft_tokenizer = read_checkpoint(draft, draft_revision, number, device)
    names, tokenizers = (f"target {target}", f"draft {draft}"), (tokenizer, draft_tokenizer)
    draft_model = sharing(target_model, TransformersModel(module), names, tokenizers)
    return Pair(target_model, draft_model, shared_tokenizer)


def check_device(device: str) -> None:
    """Raise InvalidInput when `device` names no device of this machine."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        allowed = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
        raise InvalidInput(
            f"device {device!r} cannot be used; this machine has {', '.join(allowed)}"
        ) from error


def find_dtype(name: str) -> torch.dtype:
    """One of `DTYPES` by its name. Raises InvalidInput for an unknown one."""
    if name not in DTYPES:
        raise InvalidInput(f"unknown dtype {name!r}; allowed: {', '.join(DTYPES)}")
    return DTYPES[name]


def build_llama(**sizes: Any) -> LlamaForCausalLM:
    """A freshly initialised Llama in float32, from the fields of `LlamaConfig` (`hidden_size`, ...)."""
    return LlamaForCausalLM(LlamaConfig(**sizes))


def save_model(model: Any, tokenizer: FastTokenizer, eos_token: str, folder: Path) -> None:
    """Write a model folder that `load_pair` and every other user of transformers can open."""
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=eos_token).save_pretrained(folder)
