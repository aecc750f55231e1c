"""An engine against its control, without the target: speculation on and off, by token ids alone.

The modules in the order of the work: `matching` (rows of both arms, by prompt), `families` (counts
of their tokens) and `served` (log-probabilities that the engine gave), `permutation` (the test),
`planting` (its power), `report`. `resispec judge --control` without `--target` is the command.
None of them imports torch.
"""

from referee.control.report import ControlReport, judge_control, report_lines

__all__ = ["ControlReport", "judge_control", "report_lines"]
