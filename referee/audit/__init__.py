"""Is an engine exact? The audit of transcripts: the token ids that it wrote, rescored by the target itself.

    target, draft = load_scorers(["./model", "./draft"])
    for line in report_lines(audit_transcripts(read_transcripts("spec.jsonl"), target, draft)):
        print(line)

The way: `arm` (rescored transcripts) of `terms` -> `statistics` -> `comparisons` -> `report` -> `evidence`.
`python -m referee.audit` is the command.
"""

from referee.audit.arm import Arm, measure
from referee.audit.report import audit_arms, audit_transcripts, report_json, report_lines
from referee.transcripts import Transcript, read_transcripts
from resispec.audit.verdict import Finding, Statistic

__all__ = [
    "Arm",
    "Finding",
    "Statistic",
    "Transcript",
    "audit_arms",
    "audit_transcripts",
    "measure",
    "read_transcripts",
    "report_json",
    "report_lines",
]
