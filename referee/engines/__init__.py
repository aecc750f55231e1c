"""Engines continue prompts of token ids, and are asked so that an audit can judge the answers.

`base` defines the request and the answer, `write_transcripts` writes answers to a file. Each engine
has a module: transformers (`generate`), any drafter and verifier of this library (`decoder`) and,
with the extra `engines`, `llama_cpp` and `openvino_genai`. Servers are asked by `referee.servers`.
Importing this package does not import torch.
"""

from referee.engines.base import Answer, Engine, Unanswered
from referee.engines.writing import write_transcripts

__all__ = ["Answer", "Engine", "Unanswered", "write_transcripts"]
