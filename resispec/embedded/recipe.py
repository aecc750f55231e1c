"""What decides the embedded pair, apart from the source text and the versions of the libraries."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """The sizes of a Llama. Embeddings are tied: at this size a second matrix would be half of the model."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    max_position_embeddings: int = 1024
    tie_word_embeddings: bool = True


@dataclass(frozen=True)
class Recipe:
    """How the pair is trained; the defaults are the pair that everyone gets.

    mixture: share of windows from each data set, in the order of `NAMES`. window: tokens of one.
    batch_size: windows of a step.
    distillation: weight of the target's law, against the text's own next token, in the draft's loss.
    max_chars: training text of one data set at most. max_files: source files at most, for quick trials.
    shards: parts of a batch that run in parallel, one thread each.
    """

    seed: int = 0
    vocab_size: int = 2048
    target: Sizes = Sizes(192, 512, 4, 4, 2)
    draft: Sizes = Sizes(64, 160, 1, 2, 2)
    steps: int = 450
    batch_size: int = 8
    shards: int = 2
    window: int = 256
    warmup_steps: int = 25
    target_learning_rate: float = 6e-3
    draft_learning_rate: float = 1e-2
    weight_decay: float = 0.05
    distillation: float = 1.0
    mixture: tuple[float, float, float] = (0.2, 0.4, 0.4)
    max_chars: int = 2_500_000
    max_files: int | None = None
    num_prompts: int = 256
    min_prompts: int = 200
    min_prompt_tokens: int = 96
