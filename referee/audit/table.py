"""The table of an audit with several arms: a line for each, with its evidence and its verdict."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from referee.audit.bets import in_figures
from resispec.audit.verdict import Finding

HEADER = ("arm", "tokens", "e-value", "largest |z|", "would show from", "verdict", "beside another")
FIRST_WORDS = HEADER.index("verdict")
"""The place of the first column of words after those of numbers."""


@dataclass(frozen=True)
class ArmLine:
    """The line of an arm.

    arm: its condition by name, without what is not known. name: the condition in words, without
    what all arms share. tokens: those of its rows. largest_log: the log of its largest e-value;
    None without bets. largest_z: the largest |z| of its statistics; None without any.
    smallest_bias: the size from which a bias would have been found, as in
    `JudgedComparison.smallest_bias`; None if it is not known. finding: that of the arm alone,
    against the control if there is one, else against the target. differs_from: other arms, in
    words, from which it was found to differ. undecided_from: those of which too few tokens leave it
    open.
    """

    arm: Mapping[str, int]
    name: str
    tokens: int
    largest_log: float | None
    largest_z: float | None
    smallest_bias: float | None
    finding: Finding
    differs_from: tuple[str, ...]
    undecided_from: tuple[str, ...] = ()

    @property
    def cells(self) -> tuple[str, ...]:
        """The line's cells, in the order of HEADER."""
        return (
            self.name,
            f"{self.tokens:,}",
            "-" if self.largest_log is None else in_figures(self.largest_log),
            "-" if self.largest_z is None else f"{self.largest_z:.1f}",
            "-" if self.smallest_bias is None else f"{self.smallest_bias:.2g}",
            str(self.finding),
            self.beside_another,
        )

    @property
    def beside_another(self) -> str:
        """The words for the comparisons with other arms."""
        if self.differs_from:
            return f"differs from {', '.join(self.differs_from)}"
        if self.undecided_from:
            return f"undecided beside {', '.join(self.undecided_from)}"
        return "-"


def table_lines(lines: Sequence[ArmLine]) -> Iterator[str]:
    """A table for a terminal, nothing without lines."""
    rows = [HEADER, *(line.cells for line in lines)] if lines else []
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            text.rjust(width) if 0 < place < FIRST_WORDS else text.ljust(width)
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def markdown_table(lines: Sequence[ArmLine]) -> Iterator[str]:
    """A table in Markdown, nothing without lines."""
    rows = [HEADER, tuple("---" for _ in HEADER), *(line.cells for line in lines)] if lines else []
    yield from (f"| {' | '.join(row)} |" for row in rows)
