"""Sizes of Llamas whose forwards take time: pairs are inflated to them, steps are timed at them."""

from dataclasses import dataclass

from resispec.kept import entry


@dataclass(frozen=True)
class Shape:
    """Sizes that decide a Llama's time and memory.

    Fields are named as in `LlamaConfig` of transformers.

    Embeddings are not tied: there is a matrix for the tokens that are read and another for the
    head. A head has hidden_size / num_attention_heads dimensions.
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int = 32000

    @property
    def num_parameters(self) -> int:
        """The parameters of embeddings, head, layers and norms."""
        width = self.hidden_size
        kv_width = width // self.num_attention_heads * self.num_key_value_heads
        attention, mlp = 2 * width * (width + kv_width), 3 * width * self.intermediate_size
        layers = self.num_hidden_layers * (attention + mlp + 2 * width)
        return 2 * self.vocab_size * width + layers + width


@dataclass(frozen=True)
class PairShape:
    """The shapes of a target and its draft, which share a vocabulary."""

    target: Shape
    draft: Shape

    @property
    def num_parameters(self) -> int:
        """The parameters of both."""
        return self.target.num_parameters + self.draft.num_parameters


INFLATING_VERSION = 1
"""The version of the code that inflates pairs to shapes, raised like that of an `EagleRecipe`."""
LLAMA_2_7B = Shape(4096, 11008, 32, 32, 32)
"""meta-llama/Llama-2-7b-hf: 6.7 billion parameters, heads of 128 dimensions."""
LLAMA_68M = Shape(768, 3072, 2, 12, 12)
"""JackFram/llama-68m: heads of 64 dimensions."""

PAIR_SHAPES = {
    "llama2_7b__jf68m": PairShape(LLAMA_2_7B, LLAMA_68M),
    # 74 and 6.4 million parameters, heads of 64 and 32 dimensions.
    "cpu_74m__6m": PairShape(Shape(512, 1536, 12, 8, 8), Shape(96, 256, 2, 3, 3)),
}
"""Shapes by name: of the paper's Table 1, and one whose forwards cost milliseconds on a CPU."""


def find_shape(name: str) -> PairShape:
    """One of `PAIR_SHAPES`. Raises InvalidInput for another name."""
    return entry("shape", name, PAIR_SHAPES)
