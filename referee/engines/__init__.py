"""Engines: whatever continues a prompt of token ids, asked so that an audit can judge what it wrote.

`base` says what an engine is asked and answers, `write_transcripts` leads from one to a file. A module each:
the engine of transformers (`generate`), any drafter and verifier of this library (`decoder`), and, with the
extra `engines`, `llama_cpp` and `openvino_genai`; servers are asked by `referee.servers`. Importing this
package takes no torch.
"""

from referee.engines.base import Answer, Engine, Unanswered
from referee.engines.writing import write_transcripts

__all__ = ["Answer", "Engine", "Unanswered", "write_transcripts"]
