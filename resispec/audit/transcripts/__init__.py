"""Is an engine exact? The audit of transcripts: the token ids that it wrote, rescored by the target itself.

rows: a transcript, and the JSON Lines files that hold them; importing it takes no torch.
"""

from resispec.audit.transcripts.rows import Transcript, line_of, read_transcripts, row_of

__all__ = ["Transcript", "line_of", "read_transcripts", "row_of"]
