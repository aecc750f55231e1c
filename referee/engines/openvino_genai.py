"""OpenVINO GenAI in this process, by token ids: plain, with a draft model, by prompt lookup.

With a draft model its tokens do not follow the target's law, see docs/studies/openvino.md.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai
import torch

from referee.engines.base import Answer, Engine, require_fit, require_mode
from referee.engines.gguf_file import write_gguf
from resispec.models import Pair
from resispec.models.checkpoint import digest_of
from resispec.sampling import Sampling

PRECISE = {
    "INFERENCE_NUM_THREADS": 1,
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
}
"""Properties with which the CPU plug-in rounds only the weights, which are float16 in the file."""


class OpenVinoEngine(Engine):
    """OpenVINO GenAI on a pair's target, on the CPU.

    precise: whether it computes in float32 with one thread, as an audit wants it; otherwise it has
    torch's threads, and its own defaults choose the rest. folder: where the models are written, as
    GGUF with float16 weights and as OpenVINO's own files, unless they are there. mode, num_drafted:
    see MODES; all modes use the same kernels (continuous batching).
    """

    orders = ("openvino",)
    takes_batches = True

    def __init__(
        self,
        pair: Pair,
        folder: Path,
        mode: str = "plain",
        num_drafted: int = 5,
        precise: bool = True,
    ) -> None:
        require_mode(mode)
        properties = PRECISE if precise else {"INFERENCE_NUM_THREADS": torch.get_num_threads()}
        self.name, self.version = f"OpenVINO GenAI, {mode}", openvino_genai.__version__
        self._vocab_size, self._context = pair.target.vocab_size, pair.target.context
        self._eos = pair.tokenizer.eos_token_id
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = 1  # GiB, the least allowed
        scheduler.dynamic_split_fuse = False
        scheduler.max_num_batched_tokens = 4096  # so that a prompt is never split
        options: dict[str, Any] = {}
        self._asked: dict[str, Any] = {}
        if mode == "assisted":
            draft_path = openvino_model(pair.draft_model(), pair.tokenizer, folder / "draft")
            options["draft_model"] = openvino_genai.draft_model(draft_path, "CPU", **properties)
            self._asked = {"num_assistant_tokens": num_drafted}
        elif mode == "prompt_lookup":
            options["prompt_lookup"] = True
            self._asked = {"num_assistant_tokens": num_drafted, "max_ngram_size": 2}
        path = openvino_model(pair.target, pair.tokenizer, folder / "target")
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            path, scheduler, "CPU", options | properties
        )

    def answers(
        self, prompts: Sequence[Sequence[int]], settings: Sampling, seeds: Sequence[int]
    ) -> list[Answer]:
        """See `Engine.answers`; each prompt is a request with its own seed.

        For one thread at a time.
        """
        require_fit(prompts, settings, self._vocab_size, self._context)
        inputs = [openvino.Tensor(np.array([prompt], dtype=np.int64)) for prompt in prompts]
        results = self._pipeline.generate(inputs, [self._request(settings, seed) for seed in seeds])
        outputs = [tuple(map(int, result.m_generation_ids[0])) for result in results]
        return [
            Answer(tokens, "stop" if tokens[-1] == self._eos else "length", seed)
            for tokens, seed in zip(outputs, seeds, strict=True)
        ]

    def _request(self, settings: Sampling, seed: int) -> openvino_genai.GenerationConfig:
        config = openvino_genai.GenerationConfig()  # everything that decides the law is set
        config.apply_chat_template = False
        config.max_new_tokens = settings.max_new_tokens
        config.repetition_penalty = settings.repetition_penalty
        config.do_sample = settings.temperature > 0
        if config.do_sample:
            config.rng_seed = seed
            config.temperature, config.top_p = settings.temperature, settings.top_p
            config.min_p = settings.min_p
            if settings.top_k:
                config.top_k = settings.top_k
        if self._eos is not None:
            config.eos_token_id, config.stop_token_ids = self._eos, {self._eos}
        for name, value in self._asked.items():
            setattr(config, name, value)
        return config


def openvino_model(model: Any, tokenizer: Any, folder: Path) -> Path:
    """The folder below `folder` of a model in OpenVINO's own format, made unless it is there.

    It has a digest of the weights for its name.
    """
    folder /= digest_of(model.module.state_dict())
    if not (folder / "openvino_model.xml").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        write_gguf(model, tokenizer, folder / "model.gguf", "F16")
        openvino_genai.LLMPipeline(
            folder / "model.gguf", "CPU", enable_save_ov_model=True, **PRECISE
        )
    return folder
