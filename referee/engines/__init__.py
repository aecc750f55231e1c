"""Engines: whatever continues a prompt of token ids, asked so that an audit can judge what it wrote.

`write_transcripts` leads from an engine to a file. A module each: the engine of transformers (`generate`),
any drafter and verifier of this library (`decoder`), and, with the extra `engines`, `llama_cpp` and
`openvino_genai`; servers are asked by `referee.servers`. Importing this package takes no torch.
"""

from referee.engines.base import (
    MODES,
    PER_STEP,
    Answer,
    Engine,
    Unanswered,
    acceptance_record,
    require_fit,
    require_mode,
    require_off,
)
from referee.engines.writing import write_transcripts

__all__ = [
    "MODES",
    "PER_STEP",
    "Answer",
    "Engine",
    "Unanswered",
    "acceptance_record",
    "require_fit",
    "require_mode",
    "require_off",
    "write_transcripts",
]
