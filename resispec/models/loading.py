"""Pairs of models: loaded from folders or the hub, made of a program's modules, and saved.

Models round the rows of their embeddings up to different numbers: Qwen2.5 7B has 152,064, 0.5B has
151,936, and their tokenizer knows 151,665. The target's law is used whole. The draft's law may be
any law over the target's ids: it is 0 where the draft has no row, and is cut and renormalised where
the draft has more rows.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from resispec.errors import InvalidInput
from resispec.models.causal import TransformersModel
from resispec.models.checkpoint import check_device, dtypes_of, found_device, read_checkpoint
from resispec.models.eagle import EagleModel
from resispec.models.grid import precision_of
from resispec.models.pair import Pair
from resispec.models.tokenizer import TransformersTokenizer

transformers_logging.disable_progress_bar()  # a run shows one bar, its own

MOST_PADDING = 1024
"""The most rows that are only padding: numbers of rows are rounded up to multiples of 64 to 512."""


def load_pair(
    target: str,
    draft: str | None,
    device: str = "cpu",
    dtype: str = "float32",
    target_revision: str | None = None,
    draft_revision: str | None = None,
) -> Pair:
    """Load a target and its draft from hub names or folders.

    device: a torch device. dtype: one of float32, bfloat16, float16, and int8 and int4, see
    `resispec.models.grid`; or two of them, the target's and the draft's, like float32/int8.
    Raises InvalidInput when a model cannot be found, the device or dtype is unknown, or the
    tokenizers differ.
    """
    check_device(device)
    target_dtype, draft_dtype = dtypes_of(dtype)
    module, tokenizer = read_checkpoint(target, target_revision, target_dtype, device)
    model, shared_tokenizer = TransformersModel(module), TransformersTokenizer(tokenizer)
    if draft is None:
        return Pair(model, None, shared_tokenizer)
    module, draft_tokenizer = read_checkpoint(draft, draft_revision, draft_dtype, device)
    draft_model = TransformersModel(module, is_draft=True)
    names = (f"target {target}", f"draft {draft}")
    size = min(model.vocab_size, draft_model.vocab_size)
    check_tokenizers(names, (tokenizer, draft_tokenizer), size)
    return Pair(model, draft_model.in_vocabulary(model.vocab_size), shared_tokenizer)


def as_pair(target: Any, draft: Any, tokenizer: Any = None) -> Pair:
    """A pair of target and draft: each a transformers causal language model, a `Model` or a name.

    Names are folders or hub names, as for `load_pair`. Two names bring their tokenizer and are
    loaded in bfloat16 on CUDA if there is a device, otherwise in float32 on the CPU; a name beside
    a model is loaded on that model's device in its precision. Modules are set to evaluation mode.
    tokenizer: a transformers tokenizer or processor, or an object with the methods of a
    `TransformersTokenizer`. One of transformers must agree with that of a name. It is not checked
    that the ids of two modules mean the same tokens.

    Raises InvalidInput for anything else, for models on different devices, of which one alone is in
    float64, or with vocabulary sizes that differ by more than padding, and as `load_pair` and
    `Pair`.
    """
    if isinstance(getattr(tokenizer, "tokenizer", None), PreTrainedTokenizerBase):
        tokenizer = tokenizer.tokenizer  # of a processor of texts and images
    given = tokenizer
    if isinstance(tokenizer, PreTrainedTokenizerBase):
        tokenizer = TransformersTokenizer(tokenizer)
    is_one = hasattr(tokenizer, "encode") and hasattr(tokenizer, "decode")
    if tokenizer is not None and not is_one:
        raise InvalidInput(
            f"tokenizer is {type(tokenizer).__name__}; allowed: a tokenizer of transformers, or an "
            "object with encode and decode"
        )
    if isinstance(target, str | Path) and isinstance(draft, str | Path):
        device = found_device("auto")
        pair = load_pair(
            str(target), str(draft), device, "bfloat16" if device == "cuda" else "float32"
        )
        if tokenizer is None:
            return pair
        if isinstance(given, PreTrainedTokenizerBase):
            sides = "the given tokenizer", str(target)
            own: Any = pair.tokenizer
            check_tokenizers(sides, (given, own.inner), pair.target.vocab_size)
        return replace(pair, tokenizer=tokenizer)
    target_model, target_tokenizer = _as_model("target", target, draft)
    draft_model, draft_tokenizer = _as_model("draft", draft, target)
    for name, read in ((target, target_tokenizer), (draft, draft_tokenizer)):
        if read is not None and isinstance(given, PreTrainedTokenizerBase):
            size = min(target_model.vocab_size, draft_model.vocab_size)
            check_tokenizers(("the given tokenizer", f"{name}"), (given, read), size)
    if target_model.device != draft_model.device:
        raise InvalidInput(
            f"target on {target_model.device} and draft on {draft_model.device}; allowed: one "
            "device for both"
        )
    if isinstance(target_model, TransformersModel) and isinstance(draft_model, EagleModel):
        target_model = target_model.tapping(draft_model.taps)
    if isinstance(target_model, TransformersModel) and isinstance(draft_model, TransformersModel):
        dtypes = [str(model.module.dtype) for model in (target_model, draft_model)]
        if dtypes.count("torch.float64") == 1:
            names = " and draft in ".join(dtypes)
            raise InvalidInput(f"target in {names}; allowed: torch.float64 for both or none")
        sizes = target_model.vocab_size, draft_model.vocab_size
        if abs(sizes[0] - sizes[1]) > MOST_PADDING:
            raise InvalidInput(
                f"target has {sizes[0]} tokens and draft {sizes[1]}; allowed: models that share a "
                f"tokenizer, whose numbers of tokens differ by padding alone, up to {MOST_PADDING}"
            )
        draft_model = draft_model.in_vocabulary(target_model.vocab_size)
    return Pair(target_model, draft_model, tokenizer)


def _as_model(role: str, model: Any, other: Any) -> tuple[Any, Any]:
    """One model of a pair, and the tokenizer that it was read with.

    A name is loaded on the other model's device in its precision; any other model has no tokenizer.
    """
    tokenizer = None
    if isinstance(model, str | Path):
        module = getattr(other, "module", other)
        if not hasattr(module, "dtype") or not hasattr(module, "device"):
            raise InvalidInput(
                f"{role} {model}: the other model is {type(other).__name__}, no module or name"
            )
        precision, device = precision_of(module), str(module.device)
        model, tokenizer = read_checkpoint(str(model), None, precision, device)
    if (
        isinstance(model, PreTrainedModel)
        and model.can_generate()
        and not model.config.is_encoder_decoder
    ):
        return TransformersModel(model, is_draft=role == "draft"), tokenizer
    if not hasattr(model, "session") or not hasattr(model, "vocab_size"):
        raise InvalidInput(
            f"{role} is {type(model).__name__}; allowed: a causal language model of transformers "
            "that is no encoder-decoder, a model of resispec.models, or the name of a folder or "
            "on the hub"
        )
    return model, tokenizer


def check_tokenizers(names: Sequence[str], tokenizers: Sequence[Any], size: int) -> None:
    """Raise InvalidInput, with the first id that differs, unless all agree on ids below `size`.

    names: the models' names, for the message. tokenizers: transformers tokenizers.
    """
    tokens = [
        {index: token for token, index in tokenizer.get_vocab().items()} for tokenizer in tokenizers
    ]
    for name, others in zip(names[1:], tokens[1:], strict=True):
        for index in range(size):
            token, other = (
                repr(table[index]) if index in table else "absent" for table in (tokens[0], others)
            )
            if token != other:
                raise InvalidInput(
                    f"{names[0]} and {name} have different tokenizers: token {index} is {token} in "
                    f"the one and {other} in the other; allowed: models that share one"
                )


def save_model(model: Any, tokenizer: Tokenizer, folder: Path, **described: Any) -> None:
    """Write a model folder that `load_pair` and every other user of transformers can open.

    described: further settings of a transformers tokenizer, like `eos_token` and `chat_template`.
    """
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **described).save_pretrained(folder)
