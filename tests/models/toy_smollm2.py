"""A small chat model of SmolLM2's kind for tests, and its GGUF file, quantised as the real one."""

from pathlib import Path

import gguf
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from referee.engines import gguf_file
from resispec.models import Pair, build_llama, load_pair, save_model

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<file_sep>")
TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' "
    "}}{% endif %}"
)
TEXT = (
    "def add(a, b): return a + b  # the sum of 12,    3 and 456\nIt adds them, says the docstring. "
)


def toy_tokenizer() -> Tokenizer:
    """A byte-level BPE tokenizer of 320 tokens, the first four special, that keeps digits apart."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    ])  # fmt: skip
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(token, normalized=False, special=True) for token in SPECIAL]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([TEXT * 9], trainer)
    return tokenizer


def toy_pair(folder: Path, is_tied: bool = True) -> Pair:
    """A target in a folder of transformers, with weights that quantising does not change.

    Queries and keys have another number of heads each, and no two sizes are the same.
    """
    torch.manual_seed(0)
    model = build_llama(
        vocab_size=320, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, rms_norm_eps=1e-5,
        initializer_range=0.3,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        tie_word_embeddings=is_tied,
        bos_token_id=1, eos_token_id=2, pad_token_id=2,
    )  # fmt: skip
    for name, weight in model.named_parameters():
        if weight.ndim == 2:
            kind, values = kind_of(name), weight.detach().numpy()
            rounded = gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind)
            weight.data = torch.from_numpy(rounded.copy())
        else:
            weight.data.uniform_(0.5, 1.5)
    unk, bos, eos, _ = SPECIAL
    roles = {"bos_token": bos, "eos_token": eos, "unk_token": unk, "pad_token": eos}
    save_model(model, toy_tokenizer(), folder, **roles, chat_template=TEMPLATE)
    return load_pair(str(folder), None)


def kind_of(name: str) -> gguf.GGMLQuantizationType:
    """How a matrix is quantised: the one of the tokens in 8 bits, all others in 4."""
    is_of_tokens = "embed" in name or "embd" in name
    return gguf.GGMLQuantizationType.Q8_0 if is_of_tokens else gguf.GGMLQuantizationType.Q4_1


class QuantisingWriter(gguf.GGUFWriter):
    """A writer that quantises matrices, as the real file's were."""

    def add_tensor(self, name, tensor, *given, **options):
        if tensor.ndim == 2:
            options["raw_dtype"] = kind_of(name)
            tensor = gguf.quants.quantize(tensor, kind_of(name))
        super().add_tensor(name, tensor, *given, **options)


def write_quantised(pair: Pair, path: Path, monkeypatch) -> Path:
    """Write a pair's target and its tokenizer as a quantised GGUF file."""
    with monkeypatch.context() as patch:
        patch.setattr(gguf_file.gguf, "GGUFWriter", QuantisingWriter)
        gguf_file.write_gguf(pair.target, pair.tokenizer, path)
    return path
