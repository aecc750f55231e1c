"""Engines: whatever continues a prompt of token ids, asked so that an audit can judge what it wrote.

base: what an engine is asked, and what it answers. writing: from an engine to a file of transcripts, see
`resispec.transcripts`. acceptance: an engine's own account of its speculative decoding.
`resispec.models.generate` has the engine of transformers; the clients of servers are in
`experiments.transcripts`, since the library alone knows no HTTP. Importing this package takes no torch.
"""

from resispec.engines.acceptance import acceptance_record
from resispec.engines.base import Answer, Engine, Settings, Unanswered, require_fit, require_off
from resispec.engines.writing import write_transcripts

__all__ = [
    "Answer",
    "Engine",
    "Settings",
    "Unanswered",
    "acceptance_record",
    "require_fit",
    "require_off",
    "write_transcripts",
]
