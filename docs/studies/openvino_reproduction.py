"""The law of OpenVINO GenAI with a draft model, on a vocabulary of four tokens.

Needs no other file.

    pip install openvino-genai==2026.4.1.0 gguf==0.19.0
    python openvino_reproduction.py

Target and draft are one-layer Llamas whose attention and MLP are zero, so the next token's law
depends on the last token alone and is a row of a table. Three tokens are asked for, one of which is
drafted, under 2,000 seeds; speculative sampling should leave every token after token i the law
TARGET[i]. Found: with a draft model it does not.
"""

import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
import openvino
import openvino_genai

TARGET = ((0.5, 0.3, 0.1, 0.1), (0.1, 0.2, 0.3, 0.4), (0.2, 0.1, 0.2, 0.5), (0.7, 0.1, 0.1, 0.1))
DRAFT = ((0.1, 0.2, 0.3, 0.4), (0.4, 0.3, 0.2, 0.1), (0.1, 0.6, 0.2, 0.1), (0.1, 0.1, 0.1, 0.7))
PROMPT = 0
SIZE = 32
CPU = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "INFERENCE_NUM_THREADS": 1}


def write_model(folder, laws):
    """Write a model that gives token j after i the probability laws[i][j]; return its folder."""
    folder.mkdir(parents=True)
    writer = gguf.GGUFWriter(folder / "model.gguf", "llama")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_vocab_size(4)
    writer.add_context_length(64)
    for add in (
        writer.add_embedding_length,
        writer.add_feed_forward_length,
        writer.add_rope_dimension_count,
    ):
        add(SIZE)
    for add in (writer.add_block_count, writer.add_head_count, writer.add_head_count_kv):
        add(1)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(["<end>", "a", "b", "ab"])
    writer.add_token_types([gguf.TokenType.CONTROL, *[gguf.TokenType.NORMAL] * 3])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(0)
    logits = np.zeros((4, SIZE), np.float16)
    logits[:, :4] = np.log(laws).T
    writer.add_tensor("token_embd.weight", np.eye(4, SIZE, dtype=np.float16))
    writer.add_tensor("output_norm.weight", np.full(SIZE, SIZE**-0.5, np.float32))
    writer.add_tensor("output.weight", logits)
    for name in ("attn_norm", "ffn_norm"):
        writer.add_tensor(f"blk.0.{name}.weight", np.ones(SIZE, np.float32))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        writer.add_tensor(f"blk.0.{name}.weight", np.zeros((SIZE, SIZE), np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    openvino_genai.LLMPipeline(folder / "model.gguf", "CPU", enable_save_ov_model=True, **CPU)
    return folder


def open_pipeline(target, draft=None):
    """The folders of models -> a pipeline, with a draft model or without."""
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = 1
    drafting = (
        {} if draft is None else {"draft_model": openvino_genai.draft_model(draft, "CPU", **CPU)}
    )
    return openvino_genai.LLMPipeline(target, "CPU", scheduler_config=scheduler, **drafting, **CPU)


def three_tokens(pipeline, seeds, num_drafted):
    """What follows PROMPT under every seed, (len(seeds), 3).

    num_drafted: 1, or 0 without a draft model.
    """
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens, config.do_sample, config.ignore_eos = 3, True, True
    config.apply_chat_template = False
    if num_drafted:
        config.num_assistant_tokens = num_drafted
    prompt, found = openvino.Tensor(np.array([[PROMPT]])), []
    for seed in seeds:
        config.rng_seed = seed
        found.append(pipeline.generate(prompt, config).tokens[0])
    return np.array(found)


def shares(tokens, place):
    """What comes after each token at a place, as shares of its occurrences, (4, 4)."""
    counts = np.zeros((4, 4))
    np.add.at(counts, (tokens[:, place], tokens[:, place + 1]), 1)
    return counts / counts.sum(1, keepdims=True)


if __name__ == "__main__":  # print, for every token, what should follow it, and what does
    seeds = range(2000)
    with tempfile.TemporaryDirectory() as folder:
        target = write_model(Path(folder) / "target", TARGET)
        draft = write_model(Path(folder) / "draft", DRAFT)
        plain = three_tokens(open_pipeline(target), seeds, 0)
        drafted = three_tokens(open_pipeline(target, draft), seeds, 1)
    lines = [f"openvino-genai {openvino_genai.__version__}, {len(seeds)} seeds"]
    for place in (0, 1):
        for token in range(4):
            lines.append(f"law of token {place + 2} after token {place + 1} = {token}")
            lines.append(f"  expected          {np.array(TARGET[token]).round(3)}")
            lines.append(f"  plain             {shares(plain, place)[token].round(3)}")
            lines.append(f"  with draft model  {shares(drafted, place)[token].round(3)}")
    sys.stdout.write("\n".join(lines) + "\n")
