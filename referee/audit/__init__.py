"""Audit of transcripts: is an engine exact, by its token ids, which the target rescores?

The modules in the order of the work: `terms` (with `alternatives` and `bets`), `arm` (rescored
transcripts), `statistics`, `comparisons`, `report` (with `conditions`, `table`, `notes` and
`own_check`), `evidence`. `resispec judge` is the command.
"""

from referee.audit.arm import Arm, joined, measure
from referee.audit.report import audit_arms, audit_transcripts, report_lines
from referee.transcripts import Transcript, read_transcripts
from resispec.audit.verdict import Finding, Statistic

__all__ = [
    "Arm",
    "Finding",
    "Statistic",
    "Transcript",
    "audit_arms",
    "audit_transcripts",
    "joined",
    "measure",
    "read_transcripts",
    "report_lines",
]
