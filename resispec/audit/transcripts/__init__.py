"""Is an engine exact? The audit of transcripts: the token ids that it wrote, rescored by the target itself.

    target, draft = load_scorers(["./model", "./draft"])
    for line in report_lines(audit_transcripts(read_transcripts("spec.jsonl"), target, draft)):
        print(line)

terms: what one emitted token says. statistics: sums of them. greedy: the same at temperature 0.
arms: the transcripts of one engine, rescored. comparing: an arm with the target, or with a control arm.
judging: from numbers to a verdict. auditing: all of it in one call. notes, text: for a reader.
"""

from resispec.audit.transcripts.arms import Arm, measure
from resispec.audit.transcripts.auditing import Report, audit_arms, audit_transcripts
from resispec.audit.transcripts.judging import Finding, Judgement
from resispec.audit.transcripts.statistics import Statistic
from resispec.audit.transcripts.text import report_json, report_lines
from resispec.transcripts import Transcript, line_of, read_transcripts, row_of

__all__ = [
    "Arm",
    "Finding",
    "Judgement",
    "Report",
    "Statistic",
    "Transcript",
    "audit_arms",
    "audit_transcripts",
    "line_of",
    "measure",
    "read_transcripts",
    "report_json",
    "report_lines",
    "row_of",
]
