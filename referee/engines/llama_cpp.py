"""llama.cpp's server, from the wheel `xllamacpp`: plain, with a draft model or prompt lookup.

It runs in this process, and is asked at its own HTTP endpoint, by the same client as any other
server of llama.cpp.
"""

from pathlib import Path
from typing import Any

import torch
import xllamacpp

from referee.engines.base import require_mode
from referee.engines.gguf_file import kept_gguf
from referee.servers.client import Server
from referee.servers.formats import LlamaCpp
from resispec.errors import InvalidInput, first_line
from resispec.models import Pair


class LlamaCppEngine(LlamaCpp):
    """llama.cpp on a pair's target, with torch's threads, for as long as this object lives.

    folder: where the models are written as GGUF, unless they are there. precise: whether it
    computes in float32 everywhere, as an audit wants it; otherwise weights are in float16, and its
    own defaults choose the rest. mode, num_drafted: see MODES. by_ratio: whether a drafted token is
    accepted by the ratio of its probabilities, as in speculative sampling; by default llama.cpp
    accepts it if the target draws it, too. file: a GGUF of the target to run in place of the one
    written here, say with quantised weights, whose products llama.cpp rounds in its own way. slots:
    the most requests at a time. port: that of 127.0.0.1 at which it answers; 0 chooses a free one.
    alias: the model's name for those who ask the server; None for the path of its file.

    Raises InvalidInput if the server does not start, as where the port is taken.
    """

    def __init__(  # noqa: PLR0913 - each is a choice of llama.cpp's own
        self,
        pair: Pair,
        folder: Path,
        mode: str = "plain",
        num_drafted: int = 5,
        by_ratio: bool = False,
        file: Path | None = None,
        slots: int = 1,
        precise: bool = True,
        port: int = 0,
        alias: str | None = None,
    ) -> None:
        require_mode(mode)
        target: Any = pair.target
        kind = "F32" if precise else "F16"
        params = xllamacpp.CommonParams()
        params.model.path = str(file or kept_gguf(target, pair.tokenizer, folder, kind))
        params.n_ctx, params.n_parallel, params.n_gpu_layers = target.context * slots, slots, 0
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = torch.get_num_threads()
        if precise:
            params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
            params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.warmup, params.verbosity = False, 1  # print only errors
        kinds, speculative = xllamacpp.common_speculative_type, params.speculative
        speculative.draft.probabilistic = by_ratio
        if mode == "assisted":
            speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
            draft = kept_gguf(pair.draft_model(), pair.tokenizer, folder, kind)
            speculative.draft.mparams.path = str(draft)
            speculative.draft.n_max = num_drafted
            speculative.draft.n_min = 0
            speculative.draft.p_min = 0.0
        elif mode == "prompt_lookup":
            speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
            lookup = speculative.ngram_simple
            lookup.size_n, lookup.size_m, lookup.min_hits = 2, num_drafted, 1
        params.port = port
        if alias:
            params.model_alias = {alias}
        try:
            self._running = xllamacpp.Server(params)  # it stops when nothing refers to it
        except RuntimeError as error:
            place = f"at port {port}; is the port taken?" if port else "at any port"
            raise InvalidInput(
                f"llama.cpp's server does not start ({first_line(error)}) {place}"
            ) from error
        super().__init__(Server(self._running.listening_address))
        suffix = f" of {file.name}" if file else ""
        self.name, self.version = f"llama.cpp, {mode}{suffix}", xllamacpp.__version__
        self.model = None  # not the path of a file written here
