"""Small Llamas whose laws say something, and what they are inflated to."""

from __future__ import annotations

from dataclasses import asdict

import torch
from torch import Tensor
from toys import ToyTokenizer

from resispec.embedded.shapes import PairShape, Shape
from resispec.models import Pair, TransformersModel, build_llama
from resispec.models.inflate import inflate, inflate_pair

CPU = torch.device("cpu")
VOCAB = 60
HEADS = {
    "32 in 64": ((2, 2, 32), Shape(192, 100, 3, 3, 3, 200)),
    "32 in 128": ((2, 2, 32), Shape(384, 100, 2, 3, 3, 200)),
    "16 in 32, grouped in both": ((4, 2, 16), Shape(128, 64, 4, 4, 2, 200)),
    "grouped in the small one alone": ((4, 1, 16), Shape(160, 64, 2, 5, 5, 61)),
    "in larger groups": ((4, 2, 8), Shape(96, 64, 3, 12, 3, 200)),
    "in smaller groups": ((6, 1, 8), Shape(128, 64, 3, 8, 4, 60)),
}
"""By name, (query heads, key-value heads, dimensions of each) and what they are inflated to."""
LARGE = Shape(384, 100, 3, 3, 3, 200)
TOY = PairShape(Shape(384, 100, 3, 6, 6, 200), Shape(128, 64, 2, 4, 4, 200))


def llama(heads: int, shared: int, width: int, tied: bool = False, seed: int = 0):
    """An untrained Llama whose laws are far from uniform and whose norms have gains of their own."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = build_llama(
            vocab_size=VOCAB, hidden_size=heads * width, intermediate_size=48, num_hidden_layers=2,
            num_attention_heads=heads, num_key_value_heads=shared, max_position_embeddings=256,
            tie_word_embeddings=tied, eos_token_id=None,
        ).eval()  # fmt: skip
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                gain = 0.5 + torch.rand_like(parameter)
                parameter.mul_(gain if "norm" in name else 6 if "layers" in name else 20)
    return module


def large_of(small, shape: Shape = LARGE, dtype: torch.dtype = torch.float32, seed: int = 0):
    return inflate(small, asdict(shape), CPU, dtype, seed)


def tokens(count: int = 100, seed: int = 1) -> Tensor:
    return torch.randint(VOCAB, (count,), generator=torch.Generator().manual_seed(seed))


def pairs(seed: int = 3) -> tuple[Pair, Pair]:
    """A small pair in float32, and the same inflated."""
    target, draft = llama(2, 1, 32, seed=seed), llama(1, 1, 32, seed=seed + 1)
    small = Pair(TransformersModel(target), TransformersModel(draft), ToyTokenizer())
    return small, inflate_pair(small, asdict(TOY.target), asdict(TOY.draft), "cpu", "float32")
