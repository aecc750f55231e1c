"""Audit of transcripts: is an engine exact, judged by its token ids, which the target itself rescores?

    target, draft = load_scorers(["./model", "./draft"])
    for line in report_lines(audit_transcripts(read_transcripts("spec.jsonl"), target, draft)):
        print(line)

The modules in the order of the work: `terms`, `arm` (rescored transcripts), `statistics`, `comparisons`,
`report` (with `own_check`), `evidence`. `python -m referee.audit` is the command.
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
